//! What the NCCL plugin tells of one process, collective by collective, as sums of a step and communicator; where that was
//! asked for, each of them too. Nothing is joined across ranks here.
//!
//! A sum is only told when it holds the same collectives on every member: all that are fit to compare, each with its
//! times on the GPU. A step of which a record was lost, or that was sampled in part, is no sum and is counted.
//!
//! A communicator's sends and receives are in its sum as well, which is then marked as unfit: what members spend in them is
//! no transfer. They may never be timed, so they are not waited for as long, and only their own communicator goes without.

use std::collections::BTreeMap;

use paceline_health::event::{self, Want};
use paceline_health::id::Rank;
use paceline_ring::{Collective, Function, Timed};

use super::beside::{self, Interval};
use super::exact::{Singles, is_wanted};
use super::functions::{self, Met};

/// The host runs ahead of the GPU: so many later steps are waited for, and so many collectives.
const MAX_STEPS: usize = 64;
const MAX_WAITING: usize = 1 << 14;
/// Later steps that times of messages are waited for.
const MAX_MESSAGE_STEPS: usize = 4;

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
    /// Of these each is told, in this epoch.
    wants: Vec<Want>,
    restart: u32,
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
    singles: Singles,
    /// One more than may be laid side by side, at most: a step need not end.
    met: Vec<Met>,
    gpu_end_ns: Option<u64>,
    is_sampled: bool,
    is_broken: bool,
}

#[derive(Debug, Default)]
struct Sum {
    collectives: u32,
    /// Of these.
    messages: u32,
    timed: u32,
    bytes: u64,
    dur_ns: u64,
}

impl Step {
    fn waits_for(&mut self, function: Function) -> &mut u32 {
        match function.is_message() {
            true => &mut self.waiting_messages,
            false => &mut self.waiting,
        }
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
        let is_message = did.is_message();
        if did.is_fit() || is_message {
            let sum = step.sums.entry(did.comm).or_default();
            sum.collectives += 1;
            sum.messages += u32::from(is_message);
            sum.bytes = sum.bytes.saturating_add(did.bytes);
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
        if let Some(sum) = step.sums.get_mut(&comm) {
            sum.timed += 1;
            sum.dur_ns = sum.dur_ns.saturating_add(timed.duration_ns);
            let end_ns = timed.start_ns.saturating_add(timed.duration_ns);
            step.gpu_end_ns = step.gpu_end_ns.max(Some(end_ns));
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
    }

    /// The next step that is over, if there is one.
    pub(super) fn next(&mut self, rank: Rank, restart: u32) -> Option<Done> {
        let latest = *self.steps.keys().next_back()?;
        let (&number, step) = self.steps.iter().next()?;
        let most = match step.waiting {
            0 => MAX_MESSAGE_STEPS,
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
        step.sums
            .retain(|_, sum| sum.messages == 0 || sum.timed == sum.collectives);
        let is_whole =
            is_complete && !step.is_broken && step.sums.values().all(|sum| sum.timed == sum.collectives);
        if step.is_sampled && !is_whole {
            self.in_part += 1;
        }
        let mut done = Done {
            step: number,
            ..Done::default()
        };
        let singles = std::mem::take(&mut step.singles);
        let there_were = |comm| step.sums.get(&comm).map_or(0, |sum: &Sum| sum.collectives);
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
        let told = step.sums.iter().map(|(comm, sum)| {
            let (dur_ns, mut functions) = by_function.remove(comm).unwrap_or((sum.dur_ns, Vec::new()));
            if sum.messages > 0 {
                functions.clear();
            }
            event::Comm {
                rank,
                restart,
                step: number,
                comm: *comm,
                collectives: sum.collectives,
                bytes: sum.bytes,
                dur_ns,
                exposed_ns: exposed.get(comm).copied().flatten(),
                unfit: sum.messages,
                gpu: true,
                functions,
            }
        });
        done.sums = told.collect();
        Some(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_ring::Function;

    fn did(ticket: u32, step: u32, comm: u64, is_timed: bool) -> Collective {
        Collective {
            comm,
            bytes: 1 << 20,
            ticket,
            step,
            function: Function::AllReduce,
            channels: 8,
            is_timed,
            ..Collective::default()
        }
    }

    fn timed(ticket: u32, duration_ns: u64) -> Timed {
        Timed {
            start_ns: 1_000_000 * u64::from(ticket),
            duration_ns,
            ticket,
            channels: 8,
            ..Timed::default()
        }
    }

    /// Steps with two collectives each, in communicators 7 and 8; `take` may leave some out.
    fn play(take: impl Fn(u32) -> bool, times: impl Fn(u32) -> Option<u64>) -> (Vec<event::Comm>, u64) {
        let mut collectives = Collectives::default();
        let mut told = Vec::new();
        for ticket in 1..=20 {
            let of = did(
                ticket,
                10 + ticket / 2,
                7 + u64::from(ticket % 2),
                times(ticket).is_some(),
            );
            if take(ticket) {
                collectives.enqueued(&of, of.step.into());
            }
            // The GPU is one collective behind.
            if let Some(ns) = times(ticket - 1) {
                collectives.timed(&timed(ticket - 1, ns));
            }
            while let Some(done) = collectives.next(Rank(3), 0) {
                told.extend(done.sums);
            }
        }
        (told, collectives.in_part)
    }

    #[test]
    fn sums_of_whole_steps() {
        let (told, in_part) = play(|_| true, |ticket| Some(u64::from(ticket) * 100));
        let steps: Vec<u64> = told.iter().map(|comm| comm.step).collect();
        // The first step was seen in part, the last one may go on.
        assert_eq!(steps[..4], [11, 11, 12, 12]);
        assert_eq!(steps.last(), Some(&19));
        let sums = [(told[0].comm, told[0].dur_ns), (told[1].comm, told[1].dur_ns)];
        assert_eq!(sums, [(7, 200), (8, 300)]);
        assert!(
            told.iter()
                .all(|comm| comm.gpu && comm.collectives == 1 && comm.bytes == 1 << 20)
        );
        assert_eq!(in_part, 0);
    }

    #[test]
    fn a_step_in_part_is_no_sum() {
        let all = play(|_| true, |ticket| Some(u64::from(ticket))).0.len();
        let (told, in_part) = play(|ticket| ticket != 9, |ticket| Some(u64::from(ticket)));
        assert_eq!(
            (told.len(), in_part),
            (all - 4, 2),
            "a record was lost, of one step or the next"
        );
        let (told, in_part) = play(|_| true, |ticket| (ticket != 9).then_some(u64::from(ticket)));
        assert_eq!((told.len(), in_part), (all - 2, 1), "sampling began within it");
        let (told, in_part) = play(|_| true, |ticket| Some(if ticket == 9 { 0 } else { 5 }));
        assert_eq!((told.len(), in_part), (all - 2, 1), "the plugin gave one up");
        let (told, in_part) = play(|_| true, |_| None);
        assert_eq!(
            (told.len(), in_part),
            (0, 0),
            "steps that are not sampled are no loss"
        );
    }

    #[test]
    fn what_never_ends_is_not_waited_for_for_ever() {
        let mut collectives = Collectives::default();
        let mut told = 0;
        for ticket in 1..=200 {
            collectives.enqueued(&did(ticket, ticket, 7, true), ticket.into());
            if ticket != 5 {
                collectives.timed(&timed(ticket, 100));
            }
            while let Some(done) = collectives.next(Rank(0), 0) {
                told += done.sums.len();
            }
        }
        assert_eq!((told, collectives.in_part), (200 - 3, 1));
        assert!(collectives.waiting.is_empty());
    }

    /// What is kept of a step that goes on for ever has a bound; its end is known all the same, and how long the rank stood
    /// still is not.
    #[test]
    fn a_step_of_very_many() {
        let mut collectives = Collectives::default();
        let many = 3 * beside::MOST as u32;
        for ticket in 1..=many + 2 {
            let step = if (2..=many).contains(&ticket) { 2 } else { ticket };
            collectives.enqueued(&did(ticket, step, 7, true), step.into());
            let start_ns = 1_000_000 * u64::from(ticket);
            collectives.timed(&Timed {
                start_ns,
                ..timed(ticket, 100)
            });
        }
        assert!(collectives.steps[&2].met.len() <= beside::MOST + 1);
        let done = collectives.next(Rank(0), 0).unwrap();
        assert_eq!(done.gpu_end_ns, Some(1_000_000 * u64::from(many) + 100));
        assert_eq!(
            (done.sums[0].collectives, done.sums[0].exposed_ns),
            (many - 1, None)
        );
    }

    /// What a stage of a pipeline does in a step: it receives and sends, and all meet for the gradients.
    fn stage(times: impl Fn(u32) -> Option<u64>) -> (Vec<event::Comm>, u64) {
        let mut collectives = Collectives::default();
        let mut told = Vec::new();
        for ticket in 3..=60 {
            let (comm, function) = match ticket % 3 {
                0 => (8, Function::Receive),
                1 => (8, Function::Send),
                _ => (7, Function::AllReduce),
            };
            let of = Collective {
                function,
                bytes: 24,
                ..did(ticket, ticket / 3, comm, true)
            };
            let of = if comm == 7 {
                Collective { bytes: 1 << 20, ..of }
            } else {
                of
            };
            collectives.enqueued(&of, of.step.into());
            if let Some(ns) = times(ticket) {
                collectives.timed(&timed(ticket, ns));
            }
            while let Some(done) = collectives.next(Rank(3), 0) {
                told.extend(done.sums);
            }
        }
        (told, collectives.in_part)
    }

    #[test]
    fn messages_are_sums_of_their_own() {
        let (told, in_part) = stage(|ticket| Some(100_000 + u64::from(ticket)));
        assert_eq!(in_part, 0);
        let of: Vec<_> = told
            .iter()
            .map(|sum| (sum.step, sum.comm, sum.collectives, sum.unfit, sum.bytes))
            .collect();
        assert_eq!(of[..2], [(2, 7, 1, 0, 1 << 20), (2, 8, 2, 2, 48)]);
        // Step 2 has tickets 6, 7 and 8: it stood still for what it received and for the gradients.
        let exposed: Vec<_> = told[..2].iter().map(|sum| (sum.dur_ns, sum.exposed_ns)).collect();
        assert_eq!(exposed, [(100_008, Some(100_008)), (200_013, Some(100_006))]);
        assert!(told[1].functions.is_empty());
    }

    /// NCCL may give no times of a message: the gradients' sums come all the same.
    #[test]
    fn messages_that_are_never_timed() {
        for never in [None, Some(0)] {
            let (told, in_part) = stage(|ticket| if ticket % 3 == 1 { never } else { Some(100) });
            assert!(told.iter().all(|sum| sum.comm == 7) && in_part == 0, "{told:?}");
            assert!(told.len() >= 20 - 2 - MAX_MESSAGE_STEPS, "{}", told.len());
        }
    }

    #[test]
    fn short_and_rooted_ones_are_counted_for_nothing() {
        let mut collectives = Collectives::default();
        for step in 1..=4 {
            let (a, b, c) = (3 * step, 3 * step + 1, 3 * step + 2);
            let number = u64::from(step);
            let short = Collective {
                bytes: 8,
                ..did(b, step, 7, false)
            };
            collectives.enqueued(&did(a, step, 7, true), number);
            collectives.enqueued(&short, number);
            let rooted = Collective {
                function: Function::Broadcast,
                ..did(c, step, 9, false)
            };
            collectives.enqueued(&rooted, number);
            collectives.timed(&timed(a, 100));
        }
        let sums = collectives.next(Rank(0), 0).unwrap().sums;
        assert_eq!(sums.len(), 1);
        assert_eq!((sums[0].collectives, sums[0].dur_ns, sums[0].step), (1, 100, 2));
    }
}
