//! Readable status for a pod's log. It has a line for each start, change or end, and the progress every few minutes.
//! The JSON stream would be one line per second and would push the verdicts out of a rotated log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paceline_health::text::humanize;
use paceline_health::verdict::{Cause, Severity, State, Verdict};

use super::Status;

/// Interval of progress lines.
const PROGRESS_EVERY: Duration = Duration::from_secs(300);
/// Minimum interval between lines about the number of ranks. Ranks attach one after another, and each would otherwise
/// cause a line.
const RANKS_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of verdict lines per minute, so that a cluster's power failure does not fill a disk. All verdicts are
/// in the report.
const MOST_A_MINUTE: u32 = 60;
const MINUTE: Duration = Duration::from_secs(60);

/// The writer of readable lines (see the module documentation).
#[derive(Debug, Default)]
pub(super) struct People {
    /// True if only problems are written.
    is_quiet: bool,
    /// The severity and cause last reported for each active incident.
    said: BTreeMap<u64, (Severity, Cause)>,
    /// The time, ranks and step of the last progress line.
    progress: Option<(Instant, u32, u64)>,
    /// The start of the current minute, and its number of verdicts.
    minute: Option<(Instant, u32)>,
}

impl People {
    pub(super) fn of(is_quiet: bool) -> People {
        People {
            is_quiet,
            ..People::default()
        }
    }

    /// Returns the line for this status, or `None` if it needs none.
    pub(super) fn line(&mut self, status: &Status, now: Instant) -> Option<String> {
        let text = match status {
            Status::Verdict(verdict) => self.verdict(verdict, now)?,
            _ if self.is_quiet => return None,
            Status::Ready {
                aggregator,
                http,
                run_dir,
                alone,
                ..
            } => {
                let mut text = format!("watched; the job's aggregator is at {aggregator}");
                for (what, place) in [("its page at http://", http), ("journal and report in ", run_dir)] {
                    if let Some(place) = place {
                        text += &format!(", {what}{place}");
                    }
                }
                if let Some(why) = alone {
                    text += &format!("; alone, not with the rest of its job: {why}");
                }
                text
            }
            Status::Note(note) => note.clone(),
            Status::Progress {
                step,
                ranks,
                median_step_s,
            } => self.far(*step, *ranks, *median_step_s, now)?,
        };
        Some(format!("paceline: {text}\n"))
    }

    fn far(&mut self, step: u64, ranks: u32, median_step_s: Option<f64>, now: Instant) -> Option<String> {
        let is_due = match self.progress {
            None => ranks > 0,
            Some((at, before, _)) => {
                let since = now.saturating_duration_since(at);
                since >= PROGRESS_EVERY || (ranks != before && since >= RANKS_EVERY)
            }
        };
        if !is_due {
            return None;
        }
        let before = self.progress.replace((now, ranks, step)).map(|(_, _, step)| step);
        let ranks = humanize::count(u64::from(ranks), "rank");
        Some(match median_step_s {
            _ if before == Some(step) => format!("{ranks}, no step has finished since step {step}"),
            Some(seconds) => format!("{ranks}, step {step}, {} a step", humanize::span(seconds)),
            None => format!("{ranks}, step {step}"),
        })
    }

    fn verdict(&mut self, verdict: &Verdict, now: Instant) -> Option<String> {
        if self.is_quiet && verdict.severity < Severity::Warning {
            return None;
        }
        let is_raised = verdict.state == State::Raised;
        let before = self.said.remove(&verdict.id);
        let is_now = (verdict.severity, verdict.cause);
        if is_raised {
            self.said.insert(verdict.id, is_now);
        }
        // A changed cost causes no line. It grows with each step, and it is in the report.
        if before.is_some_and(|before| is_raised && before == is_now) || (before.is_none() && !is_raised) {
            return None;
        }
        let (since, count) = self.minute.get_or_insert((now, 0));
        if now.saturating_duration_since(*since) >= MINUTE {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        match *count {
            ..MOST_A_MINUTE => {}
            MOST_A_MINUTE => return Some("more findings at the same time: see the report".to_owned()),
            _ => return None,
        }
        let (finding, subject) = (verdict.finding, &verdict.subject);
        if !is_raised {
            return Some(format!("resolved: {finding} of {subject}"));
        }
        let mut text = format!(
            "{}: {finding} of {subject}",
            humanize::severity(verdict.severity).to_uppercase()
        );
        if verdict.cause != Cause::Unknown {
            text += &format!(", {}", humanize::cause(verdict.cause));
        }
        if let Some(step) = verdict.since_step {
            text += &format!(", since step {step}");
        }
        if !verdict.action.is_empty() {
            text += &format!("; to do: {}", verdict.action);
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use paceline_health::Provenance;
    use paceline_health::id::{NodeId, Rank};
    use paceline_health::verdict::{Finding, Subject};

    use super::*;

    fn verdict(id: u64, severity: Severity, state: State, cause: Cause) -> Status {
        Status::Verdict(Box::new(Verdict {
            id,
            finding: Finding::Straggler,
            subject: Subject::Rank {
                rank: Rank(5),
                node: NodeId::from("n1"),
                gpu_uuid: None,
            },
            severity,
            state,
            since_s: 1.0,
            since_step: Some(100),
            raised_s: 2.0,
            raised_step: Some(110),
            cleared_s: None,
            signals: Vec::new(),
            provenance: Provenance::Live,
            slowdown_ratio: None,
            cause,
            evidence: Vec::new(),
            impact_ratio: None,
            lost_gpu_hours: 0.0,
            lost_cost: None,
            action: "Check cooling.".into(),
            observe_only: false,
            order: None,
            says: None,
            unresolved_at_exit: false,
        }))
    }

    fn progress(step: u64, ranks: u32) -> Status {
        Status::Progress {
            step,
            ranks,
            median_step_s: Some(0.05),
        }
    }

    /// A job with eight ranks runs for a day without incidents. Its log gets a line every five minutes.
    #[test]
    fn a_day_of_progress_is_a_few_hundred_lines() {
        let (mut people, begin) = (People::of(false), Instant::now());
        let mut lines = Vec::new();
        for second in 0..86_400_u64 {
            let ranks = u32::try_from(second.min(8)).unwrap();
            let now = begin + Duration::from_secs(second);
            lines.extend(people.line(&progress(second * 20, ranks), now));
        }
        assert!((286..=290).contains(&lines.len()), "{}", lines.len());
        assert_eq!(lines[0], "paceline: 1 rank, step 20, 50.0 ms a step\n");
        assert_eq!(lines[1], "paceline: 8 ranks, step 220, 50.0 ms a step\n");
        assert!(
            people
                .line(&progress(86_399 * 20, 8), begin + Duration::from_secs(90_000))
                .is_some()
        );
        let still = people.line(&progress(86_399 * 20, 8), begin + Duration::from_secs(90_300));
        assert_eq!(
            still.unwrap(),
            "paceline: 8 ranks, no step has finished since step 1727980\n"
        );
    }

    #[test]
    fn a_verdict_is_said_when_it_is_another() {
        let (mut people, now) = (People::of(false), Instant::now());
        let mut say = |severity, state, cause| people.line(&verdict(1, severity, state, cause), now);
        let raised = say(Severity::Warning, State::Raised, Cause::Unknown).unwrap();
        assert_eq!(
            raised,
            "paceline: WARNING: straggler of rank 5 on n1, since step 100; to do: Check cooling.\n"
        );
        assert_eq!(
            say(Severity::Warning, State::Raised, Cause::Unknown),
            None,
            "only its cost has grown"
        );
        let worse = say(Severity::Critical, State::Raised, Cause::Unknown).unwrap();
        assert!(
            worse.starts_with("paceline: CRITICAL: straggler of rank 5"),
            "{worse}"
        );
        assert!(
            say(Severity::Critical, State::Raised, Cause::Thermal)
                .unwrap()
                .contains("heat")
        );
        let over = say(Severity::Critical, State::Cleared, Cause::Thermal).unwrap();
        assert_eq!(over, "paceline: resolved: straggler of rank 5 on n1\n");
        assert_eq!(say(Severity::Critical, State::Cleared, Cause::Thermal), None);
    }

    #[test]
    fn quiet_says_what_is_wrong_and_a_storm_is_cut_short() {
        let (mut people, now) = (People::of(true), Instant::now());
        assert_eq!(people.line(&progress(1, 8), now), None);
        let mild = verdict(1, Severity::Info, State::Raised, Cause::Unknown);
        assert_eq!(people.line(&mild, now), None);
        let lines = (2..1000).filter_map(|id| {
            people.line(
                &verdict(id, Severity::Critical, State::Raised, Cause::Unknown),
                now,
            )
        });
        let lines: Vec<String> = lines.collect();
        assert_eq!(lines.len(), 60);
        assert!(lines[59].contains("see the report"), "{}", lines[59]);
        let later = verdict(2000, Severity::Critical, State::Raised, Cause::Unknown);
        assert!(people.line(&later, now + MINUTE).is_some());
    }
}
