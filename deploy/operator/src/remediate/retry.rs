//! Retries failed operations and logs failures, with growing pauses and separately for each operation.

use super::counts::Counts;
use crate::api::Failed;
use crate::say;

/// The first and the longest pause between two log lines about the same failure, in milliseconds.
const QUIET_MS: [u64; 2] = [60_000, 3_600_000];

/// The retries of one operation; see the module documentation.
#[derive(Debug, Default)]
pub struct Retry {
    /// Consecutive failures.
    failures: u32,
    /// The time of the next attempt. The pauses grow from 1 s and 2 s up to half a minute.
    again: u64,
    /// The last logged code.
    code: u16,
    /// The time until which the failure is not logged again.
    quiet: u64,
    pause: u64,
}

impl Retry {
    /// Returns true if an attempt is due.
    pub fn is_due(&self, now: u64) -> bool {
        now >= self.again
    }

    /// Records the result. A failure is counted and logged.
    pub fn came<T>(&mut self, came: Result<T, Failed>, what: &str, counts: &Counts, now: u64) -> Option<T> {
        let is_worth_a_line = self.tried(came.as_ref().err(), now);
        match came {
            Ok(done) => Some(done),
            Err(failed) => {
                counts.failures.inc();
                if is_worth_a_line {
                    say(format_args!("{what}: {failed}"));
                }
                None
            }
        }
    }

    fn tried(&mut self, failed: Option<&Failed>, now: u64) -> bool {
        let Some(failed) = failed else {
            (self.failures, self.again, self.pause) = (0, 0, 0);
            return false;
        };
        self.failures = (self.failures + 1).min(6);
        self.again = now + (500 << self.failures);
        if now < self.quiet && failed.code == self.code {
            return false;
        }
        let [first, longest] = QUIET_MS;
        self.pause = (self.pause * 2).clamp(first, longest);
        (self.code, self.quiet) = (failed.code, now + self.pause);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16) -> Failed {
        Failed {
            code,
            ..Failed::default()
        }
    }

    #[test]
    fn the_same_is_tried_and_told_more_and_more_rarely() {
        let (mut retry, mut tries, mut lines) = (Retry::default(), 0, 0);
        for now in (0..24 * 3_600_000).step_by(500) {
            if retry.is_due(now) {
                tries += 1;
                lines += u32::from(retry.tried(Some(&refused(403)), now));
            }
        }
        assert_eq!((tries, lines), (2705, 29));
        assert!(retry.tried(Some(&refused(500)), 24 * 3_600_000), "another one");
    }

    #[test]
    fn what_comes_and_goes_is_no_flood() {
        let mut retry = Retry::default();
        let lines = (0..600_000).step_by(500).filter(|now| {
            retry.tried(None, *now);
            retry.tried(Some(&refused(0)), *now)
        });
        assert_eq!(lines.count(), 10);
    }
}
