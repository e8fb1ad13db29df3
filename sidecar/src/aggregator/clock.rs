//! The journal's time. It is CLOCK_MONOTONIC since the first entry, and it continues when the journal is reopened.

use std::path::Path;

use paceline_health::Time;
use serde::{Deserialize, Serialize};

use crate::safe_file;
use crate::sink::write_whole;
use crate::warn;

const FILE: &str = "journal.origin";

/// What a restarted aggregator needs to continue the journal's time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    /// Number of this journal, sent to every sidecar.
    journal: u64,
    /// The boot in which the origin is valid, because CLOCK_MONOTONIC starts over with each boot.
    boot_id: Option<String>,
    /// CLOCK_MONOTONIC at the journal's time zero.
    origin_ns: i128,
}

impl Origin {
    fn keep(&self, dir: &Path) {
        let path = dir.join(FILE);
        let text = serde_json::to_vec(self).unwrap_or_default();
        if let Err(error) = write_whole(&path, &text) {
            warn::once("journal origin", format_args!("{}: {error}", path.display()));
        }
    }
}

/// Number of the journal in `dir`, if it has one.
pub fn number(dir: &Path) -> Option<u64> {
    let origin: Origin = serde_json::from_slice(&safe_file::read_own(&dir.join(FILE)).ok()?).ok()?;
    Some(origin.journal)
}

/// Converts CLOCK_MONOTONIC to the journal's time, which never goes back.
#[derive(Debug)]
pub struct Clock {
    origin: Origin,
    last: Time,
}

impl Clock {
    /// Returns the clock of the journal in `dir`, whose last entry was at `last` (`None` if the journal is new).
    pub fn open(dir: &Path, last: Option<Time>, boot_id: Option<String>, fresh: u64, now_ns: u64) -> Clock {
        let known = safe_file::read_own(&dir.join(FILE))
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Origin>(&bytes).ok());
        let origin = match (known, last) {
            (Some(known), Some(_)) if known.boot_id.is_some() && known.boot_id == boot_id => known,
            // Another boot or another machine: the clocks are not comparable, so the journal's time continues where it
            // stopped.
            (known, Some(last)) => {
                let journal = known.map_or(fresh, |known| known.journal);
                Origin {
                    journal,
                    boot_id,
                    origin_ns: i128::from(now_ns) - i128::from(last.0),
                }
            }
            (_, None) => Origin {
                journal: fresh,
                boot_id,
                origin_ns: i128::from(now_ns),
            },
        };
        origin.keep(dir);
        Clock {
            origin,
            last: last.unwrap_or(Time::ZERO),
        }
    }

    /// The journal's time now.
    pub fn at(&mut self, now_ns: u64) -> Time {
        let since = i128::from(now_ns) - self.origin.origin_ns;
        self.last = self.last.max(Time(u64::try_from(since).unwrap_or(0)));
        self.last
    }

    /// Gives the journal in `dir` a new number, so that all sidecars introduce themselves again. The number is saved: a
    /// sidecar that was disconnected during this change may reconnect to an aggregator that has since resumed from a
    /// snapshot and no longer sees the gap.
    pub fn renumber(&mut self, dir: &Path, journal: u64) {
        self.origin.journal = journal;
        self.origin.keep(dir);
    }

    /// Number of the journal.
    pub fn journal(&self) -> u64 {
        self.origin.journal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_and_never_back() {
        let dir = tempfile::tempdir().unwrap();
        let boot = |id: &str| Some(id.to_owned());
        let mut first = Clock::open(dir.path(), None, boot("a"), 7, 1_000);
        assert_eq!(
            (first.at(1_000), first.at(1_500), first.at(900)),
            (Time(0), Time(500), Time(500))
        );
        let mut same_boot = Clock::open(dir.path(), Some(Time(500)), boot("a"), 8, 9_000);
        assert_eq!((same_boot.at(9_000), same_boot.journal()), (Time(8_000), 7));
        let mut rebooted = Clock::open(dir.path(), Some(Time(8_000)), boot("b"), 9, 50);
        assert_eq!((rebooted.at(60), rebooted.journal()), (Time(8_010), 7));
        let mut again = Clock::open(dir.path(), Some(Time(8_010)), boot("b"), 9, 100);
        assert_eq!(again.at(100), Time(8_050), "the shift was kept");
        again.renumber(dir.path(), 11);
        let later = Clock::open(dir.path(), Some(Time(8_050)), boot("b"), 12, 200);
        assert_eq!(
            later.journal(),
            11,
            "whoever was away meanwhile has the old number"
        );
        let mut lost = Clock::open(&dir.path().join("gone"), Some(Time(8_050)), None, 10, 0);
        assert_eq!((lost.at(0), lost.journal()), (Time(8_050), 10));
    }
}
