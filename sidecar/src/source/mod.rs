//! Where events come from. A source is polled ten times a second and never blocks.

mod bursts;
pub mod ends;
mod follow;
mod halt;
pub mod host;
pub mod inspector;
pub mod kmsg;
pub mod launcher_events;
pub mod nvml;
pub mod probe;
pub mod ras;
pub mod replay;
pub mod sim_gpu;
pub mod stacks;
pub mod step_log;
pub mod trainers;
mod yields;

use paceline_health::Provenance;
use paceline_health::event::{Event, Pulse, Want};

/// Takes an event and gives the sequence number of its frame.
pub type Send<'a> = dyn FnMut(Provenance, Event) -> u64 + 'a;

/// What a source could not deliver, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that trainers dropped because a ring was full.
    pub dropped: u64,
    /// Records that were torn, that nobody had declared a rank for, or that were too many to be told apart.
    pub torn: u64,
}

/// What our code cost inside trainers, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time that NCCL spent in the profiler plugin, nanoseconds.
    pub plugin_ns: u64,
    /// How often NCCL called it.
    pub plugin_calls: u64,
}

/// One thing to read from. Most have nothing to say to most of these.
pub trait Source {
    /// Its name in [`paceline_health::event::Agent::sources`].
    fn name(&self) -> &'static str;

    /// Sends what is new. `now_ns` is CLOCK_MONOTONIC.
    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>);

    /// Frames up to this one are safe: what they were made from may be let go.
    fn settled(&mut self, _seq: u64) {}

    /// Appends where each rank is.
    fn pulses(&mut self, _now_ns: u64, _out: &mut Vec<Pulse>) {}

    /// Whether where the ranks are is news that does not wait for the next second: a process is gone.
    fn is_urgent(&mut self) -> bool {
        false
    }

    /// Takes note of where all ranks of this node are, as all sources together say it: once a second.
    fn notice(&mut self, _pulses: &[Pulse], _now_ns: u64) {}

    /// Takes note of which communicators each collective is to be told; of the others only sums.
    fn wanted(&mut self, _wants: &[Want]) {}

    /// Sends again who is here: the aggregator began anew and knows nobody.
    fn introduce(&mut self, _send: &mut Send<'_>) {}

    /// What was lost so far.
    fn losses(&self) -> Losses {
        Losses::default()
    }

    /// What was spent in trainers so far.
    fn cost(&self) -> Cost {
        Cost::default()
    }

    /// Time that threads of its own spent reading so far, nanoseconds.
    fn busy_ns(&self) -> u64 {
        0
    }

    /// Whether nothing more will come after one more poll, unless something new begins.
    fn is_idle(&mut self) -> bool {
        true
    }
}
