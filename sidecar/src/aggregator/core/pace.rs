//! Decides when to write `report.json`. A verdict is written at once, but a burst of verdicts does not cause one report
//! each: the report of a large job takes megabytes, and frames wait while it is written.

/// Interval between two reports if the only news can wait.
const EVERY_NS: u64 = 5_000_000_000;
/// Minimum of that interval. Users watch a job that they just started, so at first the interval is the job's age.
const SOON_NS: u64 = 500_000_000;
/// Pause after each report, per byte written. It limits reports to about a twentieth of the thread's time, because
/// writing a byte takes about 10 ns.
const REST_NS_A_BYTE: u64 = 200;

/// The schedule of reports.
#[derive(Debug)]
pub struct Pace {
    due: bool,
    at_ns: u64,
    began_ns: u64,
    /// When the pause after the last report ends.
    rested_ns: u64,
}

impl Pace {
    /// Creates the schedule. The first report is due at once.
    pub fn new(now_ns: u64) -> Pace {
        Pace {
            due: true,
            at_ns: now_ns,
            began_ns: now_ns,
            rested_ns: now_ns,
        }
    }

    /// Schedules a report for something new that can wait.
    pub fn came(&mut self) {
        self.due = true;
    }

    /// Schedules a report for a new finding.
    pub fn found(&mut self) {
        self.due = true;
        self.at_ns = self.at_ns.min(self.rested_ns);
    }

    /// Returns when the next report is due, or `u64::MAX` if there is nothing new.
    pub fn at_ns(&self) -> u64 {
        if self.due { self.at_ns } else { u64::MAX }
    }

    /// Records that a report of this size was written.
    pub fn wrote(&mut self, bytes: usize, now_ns: u64) {
        self.due = false;
        self.at_ns = now_ns + (now_ns - self.began_ns).clamp(SOON_NS, EVERY_NS);
        self.rested_ns = now_ns + (bytes as u64 * REST_NS_A_BYTE).min(EVERY_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A thousand verdicts arrive in a second. Checks the number of reports, with a report of 5 MB and with one of 10
    /// KB.
    #[test]
    fn a_storm_is_not_a_report_each() {
        for (bytes, most) in [(5_000_000, 2), (10_000, 501)] {
            let (mut pace, mut written) = (Pace::new(0), 0);
            for now in (0..1_000).map(|ms| ms * MS) {
                pace.found();
                if pace.at_ns() <= now {
                    pace.wrote(bytes, now);
                    written += 1;
                }
            }
            assert!(written <= most, "{written} of {bytes} bytes");
            pace.found();
            assert!(
                pace.at_ns() <= 2_000 * MS,
                "and the last one is in the next report"
            );
        }
    }

    #[test]
    fn what_came_waits_and_what_was_found_does_not() {
        let mut pace = Pace::new(7);
        assert_eq!(pace.at_ns(), 7);
        pace.wrote(1_000, 7);
        assert_eq!(pace.at_ns(), u64::MAX);
        pace.came();
        assert_eq!(pace.at_ns(), 7 + SOON_NS);
        pace.found();
        assert_eq!(pace.at_ns(), 7 + 200_000);
    }

    #[test]
    fn the_first_ones_come_sooner() {
        let mut pace = Pace::new(0);
        let mut written = Vec::new();
        for now in (0..20_000).map(|ms| ms * MS) {
            pace.came();
            if pace.at_ns() <= now {
                pace.wrote(10_000, now);
                written.push(now / MS);
            }
        }
        assert_eq!(written, [0, 500, 1000, 2000, 4000, 8000, 13_000, 18_000]);
    }
}
