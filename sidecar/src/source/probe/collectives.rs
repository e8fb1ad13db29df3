//! Collectives of one process, as the NCCL plugin records them, as sums of a step and communicator; on request also one
//! by one. Nothing is joined across ranks here.
//!
//! A sum is only reported when it holds the same collectives on every member: all that are fit to compare, each with its
//! times on the GPU. A step of which a record was lost, or that was sampled in part, is no sum and is counted.
//!
//! Sends and receives of a pipeline are summed as well, marked as unfit: the time that members spend in them is waiting,
//! not transfer (`messages.rs`).

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

/// The host runs ahead of the GPU: so many later steps are waited for, and so many collectives.
const MAX_STEPS: usize = 64;
const MAX_WAITING: usize = 1 << 14;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Collectives {
    steps: BTreeMap<u64, Step>,
    /// Enqueued, and not timed yet: by ticket the step, communicator and function.
    waiting: BTreeMap<u32, (u64, u64, Function)>,
    /// Steps up to this one were told or are lost. The first that is seen is seen in part.
    closed: Option<u64>,
    /// The last ticket before the first of those that are open.
    before: u32,
    /// Communicators whose messages have been timed before.
    timed_messages: BTreeSet<u64>,
    /// Of these each is told, in this epoch.
    wants: Vec<Want>,
    restart: u32,
    /// The last ones.
    pub(super) entered: Entered,
    /// Steps that were timed, and not wholly.
    pub(super) in_part: u64,
}

/// A step that is over.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) step: u64,
    /// What the rank did in each communicator, if that was timed as a whole.
    pub(super) sums: Vec<event::Comm>,
    /// And collective by collective, in those where that was asked for; of a step that was timed in part too.
    pub(super) exact: Vec<event::Collectives>,
    /// When the last of them ended, by the GPU's clock.
    pub(super) gpu_end_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Step {
    /// First and last ticket, and how many came: tickets have no gap, or some are lost.
    first: u32,
    last: u32,
    seen: u32,
    /// Not timed yet: collectives, and messages.
    waiting: u32,
    waiting_messages: u32,
    sums: BTreeMap<u64, Sum>,
    messages: BTreeMap<u64, Messages>,
    singles: Singles,
    /// One more than may be laid side by side, at most: a step need not end.
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

    /// Keeps the messages of pipelines that were all timed. False if some of a communicator were not, although its
    /// messages usually are: the rank's waiting in them would count as its own work.
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
    /// Of which communicators each collective is told from here on.
    pub(super) fn want(&mut self, wants: &[Want], restart: u32) {
        self.restart = restart;
        if self.wants != wants {
            self.wants = wants.to_vec();
        }
    }

    /// A collective was enqueued in a step; 0: nobody knows yet in which.
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

    /// The GPU's times of one have come.
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
            // Not of a message: what a stage sends may go on into the next step.
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

    /// The next step that is over, if there is one.
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
