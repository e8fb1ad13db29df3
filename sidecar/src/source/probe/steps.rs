//! Steps of a process without a hook. They are found in its sequence of collectives, and sent like a hook's steps but
//! without phases.

use std::collections::VecDeque;

use paceline_health::cadence::{Cadence, Did, End, Led, Memory};
use paceline_health::event::{self, Signal, StepKind};
use paceline_health::id::Rank;
use paceline_ring::{CADENCE_WORDS, Collective, Reader};

use super::collectives::Done;
use super::pace::Pace;

/// Time in seconds before steps are searched for, because a repetition in the first minute may be part of one long
/// step. `PACELINE_STEPS_AFTER` sets another time.
const PATIENCE_S: u64 = 60;
const PATIENCE: &str = "PACELINE_STEPS_AFTER";
/// Maximum number of ended steps whose collectives are still on the GPU.
const MOST_ENDED: usize = 1024;

/// The steps of one process; see the module.
#[derive(Debug)]
pub(super) struct Steps {
    cadence: Cadence,
    /// The instruction last sent to the plugin.
    led: Led,
    ended: VecDeque<Ended>,
    /// The last step, whether it was reported or left out.
    before: Option<Ended>,
    pace: Pace,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    step: u64,
    end: End,
    /// Time of the step's end, CLOCK_MONOTONIC.
    at_ns: u64,
}

impl Steps {
    /// Creates the steps of a ring that was just opened, from its beginning or from where another sidecar stopped.
    pub(super) fn of(reader: &Reader) -> Steps {
        let patience_s = std::env::var(PATIENCE)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(PATIENCE_S);
        let mut cadence = Cadence::new(patience_s.saturating_mul(1_000_000_000));
        match reader.cadence() {
            Some(words) => cadence.resume(memory(words)),
            None if reader.position() > 0 => cadence.comes_late(),
            None => {}
        }
        Steps {
            cadence,
            led: Led::default(),
            ended: VecDeque::new(),
            before: None,
            pace: Pace::default(),
        }
    }

    /// Returns the step of a collective, or 0 if it is not known yet. `ranks` is the size of its communicator.
    pub(super) fn of_collective(&mut self, did: &Collective, ranks: u32, reader: &Reader) -> u64 {
        let seen = Did {
            comm: did.comm,
            ranks,
            function: did.function as u8,
            bytes: did.bytes,
            sequence: did.sequence,
            ticket: did.ticket,
            is_heavy: did.is_fit(),
        };
        let place = self.cadence.see(&seen, did.enqueued_ns);
        let led = self.cadence.led();
        if led != self.led {
            self.led = led;
            reader.led(led.comm, led.of_step);
        }
        if let Some(end) = place.end {
            self.ended.push_back(Ended {
                step: place.step,
                end,
                at_ns: did.enqueued_ns,
            });
            if self.ended.len() > MOST_ENDED {
                self.ended.pop_front();
            }
            if let Some(memory) = self.cadence.memory() {
                reader.keep_cadence(words(memory));
            }
        }
        place.step
    }

    /// Returns the step of a send or receive, or 0 if it is not known yet.
    pub(super) fn of_message(&mut self, did: &Collective) -> u64 {
        self.cadence.pass(did.ticket)
    }

    /// Returns the completed step, if its duration is known. The step's kind shows whether it resembles other steps.
    pub(super) fn told(&mut self, rank: Rank, restart: u32, done: &Done) -> Option<event::Step> {
        while self.ended.front().is_some_and(|ended| ended.step < done.step) {
            self.ended.pop_front();
        }
        let ended = self.ended.pop_front_if(|ended| ended.step == done.step)?;
        let before = self.before.replace(ended);
        let before = before.filter(|last| last.step + 1 == ended.step);
        if before.is_none_or(|last| last.end == End::Unlike) {
            self.pace.gap();
        }
        let by_gpu_ns = self.pace.step(ended.at_ns, done.gpu_end_ns);
        let last = before?;
        let dur_ns = by_gpu_ns.unwrap_or_else(|| ended.at_ns.saturating_sub(last.at_ns));
        let kind = match ended.end {
            End::Usual => StepKind::Train,
            End::Unlike => StepKind::Evaluation,
            End::InPart => return None,
        };
        Some(event::Step {
            rank,
            restart,
            step: ended.step,
            kind,
            dur_ns,
            phases: None,
            micro_batches: 1,
            tokens: 0,
            signal: Signal::S0,
            sum_sq: 0,
            expert_tokens: 0,
        })
    }
}

fn words(memory: Memory) -> [u64; CADENCE_WORDS] {
    let last = u64::from(memory.items) << 32
        | u64::from(memory.each) << 16
        | u64::from(memory.depth) << 8
        | u64::from(memory.function);
    let Memory {
        comm, context, usual, ..
    } = memory;
    [comm, context, usual, memory.step, memory.sequence, last]
}

fn memory(words: [u64; CADENCE_WORDS]) -> Memory {
    let [comm, context, usual, step, sequence, last] = words;
    Memory {
        comm,
        context,
        usual,
        step,
        sequence,
        items: (last >> 32) as u32,
        each: (last >> 16) as u16,
        depth: (last >> 8) as u8,
        function: last as u8,
    }
}
