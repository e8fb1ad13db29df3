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

/// Accepts an event and returns the sequence number of its frame.
pub type Send<'a> = dyn FnMut(Provenance, Event) -> u64 + 'a;

/// Data that a source could not deliver since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that trainers dropped because a ring was full.
    pub dropped: u64,
    /// Records that were torn, that had no declared rank, or that exceeded a limit.
    pub torn: u64,
}

/// Cost of our code inside trainers since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time that NCCL spent in the profiler plugin, nanoseconds.
    pub plugin_ns: u64,
    /// Number of calls by NCCL.
    pub plugin_calls: u64,
}

/// A source of events. Most sources implement only a few of these methods.
pub trait Source {
    /// Its name in [`paceline_health::event::Agent::sources`].
    fn name(&self) -> &'static str;

    /// Sends new events. `now_ns` is CLOCK_MONOTONIC.
    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>);

    /// Frames up to this one are safe: the data behind them may be released.
    fn settled(&mut self, _seq: u64) {}

    /// Appends the progress of each rank.
    fn pulses(&mut self, _now_ns: u64, _out: &mut Vec<Pulse>) {}

    /// Whether the ranks' progress must be sent before the next second: a process is gone.
    fn is_urgent(&mut self) -> bool {
        false
    }

    /// Receives the progress of all ranks of this node, from all sources together: once a second.
    fn notice(&mut self, _pulses: &[Pulse], _now_ns: u64) {}

    /// Receives the requests for single collectives of communicators; otherwise only sums are sent.
    fn wanted(&mut self, _wants: &[Want]) {}

    /// Sends all introductions again: the aggregator has a new journal.
    fn introduce(&mut self, _send: &mut Send<'_>) {}

    /// Losses so far.
    fn losses(&self) -> Losses {
        Losses::default()
    }

    /// Cost in trainers so far.
    fn cost(&self) -> Cost {
        Cost::default()
    }

    /// Time that its own threads have spent reading so far, nanoseconds.
    fn busy_ns(&self) -> u64 {
        0
    }

    /// Whether nothing more will come after one more poll, unless something new begins.
    fn is_idle(&mut self) -> bool {
        true
    }
}
