//! Sums one process's collectives by step and communicator, from the NCCL plugin's records. On request, also reports
//! single collectives. Does not combine data of several ranks.
//!
//! A sum is reported only if it covers the same collectives on every rank: all comparable ones, each with its GPU
//! times. A step with a lost record, or one that was sampled only in part, has no sum and is counted.
//!
//! The sends and receives of a pipeline are summed as well, but marked as not comparable, because the time that ranks
//! spend in them is waiting and not transfer (`messages.rs`).

use std::collections::{BTreeMap, BTreeSet};

use paceline_health::event::{self, Want};
use paceline_health::id::Rank;
use paceline_ring::{Collective, Function, Timed};

use super::beside::{self, Interval};
use super::entered::Entered;
use super::exact::{Singles, is_wanted};
use super::functions::{self, Met};
use super::messages::{self, Messages};
use super::sum::Sum;

/// Maximum number of later steps, and of collectives, to wait for GPU times. The times come late because the host runs
/// ahead of the GPU.
const MAX_STEPS: usize = 64;
const MAX_WAITING: usize = 1 << 14;

/// The sums of one process; see the module.
#[derive(Debug, Default)]
pub(super) struct Collectives {
    steps: BTreeMap<u64, Step>,
    /// Collectives that were enqueued and not timed yet, by ticket: step, communicator and function.
    waiting: BTreeMap<u32, (u64, u64, Function)>,
    /// All steps up to this one were sent or lost. The first step seen is incomplete, so it is not sent.
    closed: Option<u64>,
    /// The last ticket before the first open step.
    before: u32,
    /// Communicators for which a pipeline's messages were timed in an earlier step.
    timed_messages: BTreeSet<u64>,
    /// The aggregator's requests for single collectives. `restart` is the current restart number.
    wants: Vec<Want>,
    restart: u32,
    /// The last collectives that were enqueued.
    pub(super) entered: Entered,
    /// Number of steps that were timed only in part.
    pub(super) in_part: u64,
}

/// A completed step.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) step: u64,
    /// The sums by communicator, if the step was timed completely.
    pub(super) sums: Vec<event::Comm>,
    /// Single collectives of requested communicators. They are sent even for a step that was timed only in part.
    pub(super) exact: Vec<event::Collectives>,
    /// When the step's last collective ended, by the GPU's clock.
    pub(super) gpu_end_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Step {
    /// First and last ticket, and the number of records seen. A gap in the tickets means that records were lost.
    first: u32,
    last: u32,
    seen: u32,
    /// Number of collectives, and of messages, that are not timed yet.
    waiting: u32,
    waiting_messages: u32,
    sums: BTreeMap<u64, Sum>,
    messages: BTreeMap<u64, Messages>,
    singles: Singles,
    /// GPU times of the step. At most one more than `beside::MOST` are stored, because a step may never end.
    met: Vec<Met>,
    gpu_end_ns: Option<u64>,
    is_sampled: bool,
    is_broken: bool,
}

impl Step {
    fn waits_for(&mut self, function: Function) -> &mut u32 {
        match function.is_message() {
            true => &mut self.waiting_messages,
            false => &mut self.waiting,
        }
    }

    /// Keeps only messages of pipelines that were all timed. Returns false if a pipeline's messages were not timed now
    /// but were in an earlier step, because the rank's waiting in them would then look like its own work.
    fn keep_pipelines(&mut self, timed_before: &mut BTreeSet<u64>) -> bool {
        let (sums, mut is_whole) = (&self.sums, true);
        self.messages.retain(|comm, messages| {
            let is_pipeline = messages.are_of_a_pipeline() && !sums.contains_key(comm);
            let is_timed = is_pipeline && messages.sum.is_timed();
            if is_timed {
                timed_before.insert(*comm);
            }
            is_whole &= is_timed || !is_pipeline || !timed_before.contains(comm);
            is_timed
        });
        let messages = &self.messages;
        self.met
            .retain(|met| !met.at.function.is_message() || messages.contains_key(&met.at.comm));
        is_whole
    }
}

impl Collectives {
    /// Sets the requests for single collectives.
    pub(super) fn want(&mut self, wants: &[Want], restart: u32) {
        self.restart = restart;
        if self.wants != wants {
            self.wants = wants.to_vec();
        }
    }

    /// Adds a collective that was enqueued in `step`, which is 0 if the step is not known yet.
    pub(super) fn enqueued(&mut self, did: &Collective, step: u64) {
        self.entered.enqueued(did);
        let number = step;
        if number == 0 {
            return;
        }
        let closed = *self.closed.get_or_insert(number);
        if number <= closed {
            self.before = did.ticket;
            return;
        }
        if self.waiting.len() >= MAX_WAITING {
            return;
        }
        let step = self.steps.entry(number).or_insert_with(|| Step {
            first: did.ticket,
            last: did.ticket,
            ..Step::default()
        });
        step.seen += 1;
        step.first = step.first.min(did.ticket);
        step.last = step.last.max(did.ticket);
        if did.is_fit() {
            step.sums.entry(did.comm).or_default().enqueued(did.bytes);
        } else if did.is_message() {
            step.messages.entry(did.comm).or_default().enqueued(did);
        }
        if did.is_timed {
            *step.waits_for(did.function) += 1;
            step.is_sampled = true;
            self.waiting.insert(did.ticket, (number, did.comm, did.function));
            if did.is_fit() && is_wanted(&self.wants, self.restart, did.comm, number) {
                step.singles.enqueued(did);
            }
        }
    }

    /// Adds the times of a collective on the GPU.
    pub(super) fn timed(&mut self, timed: &Timed) {
        let Some((step, comm, function)) = self.waiting.remove(&timed.ticket) else {
            return;
        };
        let Some(step) = self.steps.get_mut(&step) else {
            return;
        };
        *step.waits_for(function) -= 1;
        if timed.duration_ns == 0 {
            step.is_broken |= !function.is_message();
            return;
        }
        step.singles.timed(timed);
        let end_ns = timed.start_ns.saturating_add(timed.duration_ns);
        if function.is_message() {
            if let Some(messages) = step.messages.get_mut(&comm) {
                messages.sum.timed(timed.duration_ns);
            }
        } else if let Some(sum) = step.sums.get_mut(&comm) {
            sum.timed(timed.duration_ns);
            // Ignore messages here, because a stage's send may continue into the next step.
            step.gpu_end_ns = step.gpu_end_ns.max(Some(end_ns));
        }
        if step.met.len() <= beside::MOST {
            let at = Interval {
                comm,
                start_ns: timed.start_ns,
                end_ns,
                function,
            };
            step.met.push(Met {
                ticket: timed.ticket,
                at,
            });
        }
    }

    /// Returns the next completed step, if there is one.
    pub(super) fn next(&mut self, rank: Rank, restart: u32) -> Option<Done> {
        let latest = *self.steps.keys().next_back()?;
        let (&number, step) = self.steps.iter().next()?;
        let most = match step.waiting {
            0 => messages::MAX_STEPS,
            _ => MAX_STEPS,
        };
        let is_waiting = step.waiting + step.waiting_messages > 0;
        if number == latest || (is_waiting && self.steps.len() <= most) {
            return None;
        }
        let mut step = self.steps.remove(&number)?;
        self.closed = Some(number);
        let behind = self.steps.values().next().map_or(0, |next| next.first);
        let is_complete = step.first == self.before.wrapping_add(1)
            && step.last.wrapping_sub(step.first) == step.seen - 1
            && behind == step.last.wrapping_add(1);
        self.before = step.last;
        if is_waiting {
            self.waiting.retain(|_, (of, ..)| *of != number);
        }
        let are_messages_whole = step.keep_pipelines(&mut self.timed_messages);
        let is_whole =
            is_complete && !step.is_broken && are_messages_whole && step.sums.values().all(Sum::is_timed);
        if step.is_sampled && !is_whole {
            self.in_part += 1;
        }
        let mut done = Done {
            step: number,
            ..Done::default()
        };
        let singles = std::mem::take(&mut step.singles);
        let there_were = |comm| step.sums.get(&comm).map_or(0, |sum: &Sum| sum.enqueued);
        done.exact = singles.told(rank, restart, number, there_were);
        if !step.is_sampled || !is_whole {
            return Some(done);
        }
        done.gpu_end_ns = step.gpu_end_ns;
        let is_bounded = step.met.len() <= beside::MOST;
        let (exposed, mut by_function) = match is_bounded {
            true => {
                let mut intervals: Vec<Interval> = step.met.iter().map(|met| met.at).collect();
                (
                    beside::exposed(&mut intervals),
                    functions::sums(&mut step.met, step.first),
                )
            }
            false => Default::default(),
        };
        let collectives = step.sums.iter().map(|(comm, sum)| (comm, sum, false));
        let messages = step
            .messages
            .iter()
            .map(|(comm, messages)| (comm, &messages.sum, true));
        let sums = collectives.chain(messages).map(|(comm, sum, are_messages)| {
            let (dur_ns, functions) = by_function.remove(comm).unwrap_or((sum.dur_ns, Vec::new()));
            event::Comm {
                rank,
                restart,
                step: number,
                comm: *comm,
                collectives: sum.enqueued,
                bytes: sum.bytes,
                dur_ns,
                exposed_ns: exposed.get(comm).copied().flatten(),
                unfit: if are_messages { sum.enqueued } else { 0 },
                gpu: true,
                functions: if are_messages { Vec::new() } else { functions },
            }
        });
        done.sums = sums.collect();
        Some(done)
    }
}

#[cfg(test)]
#[path = "collectives_tests.rs"]
mod tests;
