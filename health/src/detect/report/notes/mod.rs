//! Limits of the verdicts as text, for the notes on the report's coverage.

mod hook;

pub use self::hook::HookNotes;

use crate::detect::Detector;
use crate::report::Undecided;
use crate::time::Time;

/// Maximum number of lines in the report's coverage.
const MOST: usize = 64;
/// Maximum number of ranks listed in one line.
const MAX_NAMED: usize = 8;

impl Detector {
    /// Returns true if steps come from a log of the job.
    fn reads_log(&self) -> bool {
        self.roster.sources.iter().any(|source| &**source == "step-log")
    }

    /// Returns notes on what currently keeps ranks or their steps from being seen, if it deserves an immediate line.
    /// Each has a key that stays the same as long as the condition lasts.
    pub fn live_notes(&self, now: Time) -> Vec<(String, String)> {
        let waits = self.arrivals.waits(now, &self.policy.detector.arrivals);
        let mut notes: Vec<(String, String)> = waits
            .map(|(since, says)| {
                (
                    format!("arrivals since {}", since.0),
                    format!("before the first step: {says}"),
                )
            })
            .into_iter()
            .collect();
        let unseen = self
            .roster
            .mute
            .iter()
            .filter(|((_, source), _)| &**source == "hook" && !self.reads_log());
        notes.extend(unseen.map(|((node, source), why)| {
            let note = format!("{source} of {node}: {why}");
            (note.clone(), note)
        }));
        notes
    }

    /// Returns the limits of the verdicts as text.
    pub(crate) fn notes(&self, undecided: Option<&Undecided>) -> Vec<String> {
        let mut notes: Vec<String> = undecided.map(ToString::to_string).into_iter().collect();
        let attached = self.roster.members().count();
        if let Some((rank, world_size)) = self.roster.misfit {
            notes.push(format!(
                "rank {rank} reports a world size of {world_size}: check RANK and WORLD_SIZE of its process"
            ));
        }
        if attached == 0 && self.arrivals.ranks().next().is_some() {
            notes.push("no rank has finished a step, by an optimizer or paceline.step()".to_owned());
        } else if attached == 0 && !self.roster.mute.keys().any(|(_, source)| &**source == "hook") {
            notes.push(
                "no rank attached: the hook was not loaded, or no step was finished by an optimizer or \
                 paceline.step()"
                    .to_owned(),
            );
        } else if 0 < attached && attached < self.roster.world_size as usize {
            let missing = self.roster.world_size as usize - attached;
            notes.push(format!(
                "{missing} of {} ranks never attached",
                self.roster.world_size
            ));
        }
        notes.extend(self.stepless());
        notes.extend(
            self.arrivals
                .note(self.last_frame, &self.policy.detector.arrivals),
        );
        notes.extend(self.low_coverage(attached));
        if attached > 0 && self.last_row > 0 && !self.straggler.has_phases() {
            notes.push(if attached == 1 && self.reads_log() {
                "steps were read from the job's log (S0), as times of the whole job: a slow or stalled job is \
                 detected, but not which rank is slow, nor why"
                    .to_owned()
            } else {
                "only wall step times were reported (S0): slow steps are detected, but not the slow rank".to_owned()
            });
            if self.roster.world_size == 0 {
                notes.push(
                    "the number of ranks is unknown (WORLD_SIZE is not set): lost time is not counted"
                        .to_owned(),
                );
            }
        }
        notes.extend(self.blurred());
        notes.extend(self.hook_notes.lines(attached));
        if self.roster.gaps.left_out() > 0 {
            let more = self.roster.gaps.left_out();
            notes.push(format!("{more} more gaps of nodes are not listed"));
        }
        if self.rows.late() > 0 {
            let late = self.rows.late();
            notes.push(format!(
                "{late} step records came too late to be compared with their peers"
            ));
        }
        for source in self
            .roster
            .sources
            .iter()
            .filter(|source| source.starts_with("alone"))
        {
            notes.push(format!("{source}"));
        }
        // If there is a log, it shows what the hook does not see, so this note is left out.
        let is_told = |source: &str| source == "hook" && attached > 0 && self.reads_log();
        let mute = self.roster.mute.iter();
        let mute = mute.filter(|((_, source), _)| !is_told(source)).take(8);
        notes.extend(mute.map(|((node, source), why)| format!("{source} of {node}: {why}")));
        notes.extend(self.faults.notes());
        notes.extend(self.preflight.note());
        notes.extend(self.journal_gaps.notes(|at| self.seconds(at)));
        if let Some(spread) = self.job_rules.unexplained_spread(&self.policy.detector) {
            notes.push(format!(
                "self-time differs by {:.0} % between ranks, the slowest rank changes, and no work was declared: \
                 declare tokens (paceline.mark) to separate uneven sequences from slow ranks",
                spread * 100.0
            ));
        }
        notes.truncate(MOST);
        notes
    }

    /// Returns a note on ranks that only the NCCL plugin sees and in whose collectives no step was found.
    fn stepless(&self) -> Option<String> {
        let members = self.roster.members();
        let ranks = members.filter(|(_, member)| member.is_by_collectives && member.first_step.is_none());
        let ranks = ranks.count();
        (ranks > 0).then(|| {
            format!(
                "no steps of {ranks} rank{} were found in NCCL's collectives: without the hook that takes a \
                 minute, and collectives of different kinds or sizes; paceline.step() marks the end of a step",
                if ranks == 1 { "" } else { "s" }
            )
        })
    }

    /// Returns notes on what cannot be seen from waits in collectives alone.
    fn blurred(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.straggler.has_waits_only() {
            notes.push(
                "no phases were reported: slow ranks are found by late arrival at collectives (S1), summed over \
                 a step and communicator; data loading and garbage collection look the same as slow work"
                    .to_owned(),
            );
        }
        if let Some((step, ranks)) = self.straggler.late_together() {
            let named = ranks.iter().take(MAX_NAMED);
            let mut names: Vec<String> = named.map(|rank| rank.0.to_string()).collect();
            if ranks.len() > MAX_NAMED {
                names.push(format!("{} more", ranks.len() - MAX_NAMED));
            }
            let names = names.join(", ");
            let late = match (ranks.len(), self.plan.stages > 1) {
                (1, _) => format!("rank {names} and the ranks of its pipeline"),
                (_, true) => format!("ranks {names} of one pipeline"),
                (_, false) => format!("ranks {names}"),
            };
            notes.push(format!(
                "{late} were late together by step {step}: at least one of them was slow. Which one is not known, \
                 because the operations between them were not timed (sends and receives between pipeline stages, \
                 which the hook and NCCL's GPU times show)"
            ));
        }
        notes
    }

    /// Returns a note on roles with too few ranks to compare. Before the first step, roles are not known.
    fn low_coverage(&self, attached: usize) -> Vec<String> {
        let wanted = self.policy.detector.straggler.min_peers as usize;
        let mut roles: Vec<(&str, usize)> = vec![("", attached)];
        if self.plan.ranks == attached {
            let planned = self.plan.roles.iter();
            roles = planned.map(|role| (&*role.name, role.members.len())).collect();
        }
        let told = |role: &str, others: usize| {
            let of = if role.is_empty() {
                String::new()
            } else {
                format!(" of {role}")
            };
            match others {
                0 => of,
                others => format!("{of} (and of {others} other roles)"),
            }
        };
        let with = |ranks: usize| roles.iter().filter(move |(_, own)| *own == ranks);
        let notes = (1..=wanted).filter_map(|ranks| {
            let (role, _) = with(ranks).next()?;
            let of = told(role, with(ranks).count() - 1);
            Some(match ranks {
                1 => format!("low coverage: 1 rank{of} has no peers for comparison"),
                _ => format!(
                    "low coverage: {ranks} ranks{of}, at least {} are needed to find a slow rank with confidence",
                    wanted + 1
                ),
            })
        });
        notes.collect()
    }
}
