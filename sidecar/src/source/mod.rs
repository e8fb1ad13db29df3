//! Sources of events. A source is polled ten times a second and never blocks.

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
    /// Number of records that trainers dropped because a ring was full.
    pub dropped: u64,
    /// Number of records that were torn, that had no declared rank, or that exceeded a limit.
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
    /// Returns its name in [`paceline_health::event::Agent::sources`].
    fn name(&self) -> &'static str;

    /// Sends new events. `now_ns` is CLOCK_MONOTONIC.
    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>);

    /// Reports that all frames up to this number are acknowledged or dropped, so the source may release their data.
    fn settled(&mut self, _seq: u64) {}

    /// Appends the progress of each rank to `out`.
    fn pulses(&mut self, _now_ns: u64, _out: &mut Vec<Pulse>) {}

    /// Returns true if the ranks' progress must be sent at once instead of with the next heartbeat, because a process
    /// is gone.
    fn is_urgent(&mut self) -> bool {
        false
    }

    /// Receives once a second the progress of all ranks of this node, from all sources together.
    fn notice(&mut self, _pulses: &[Pulse], _now_ns: u64) {}

    /// Receives the requests for single collectives of communicators. Without a request, only sums are sent.
    fn wanted(&mut self, _wants: &[Want]) {}

    /// Sends all introductions again, because the aggregator has a new journal.
    fn introduce(&mut self, _send: &mut Send<'_>) {}

    /// Returns the losses so far.
    fn losses(&self) -> Losses {
        Losses::default()
    }

    /// Returns the cost in trainers so far.
    fn cost(&self) -> Cost {
        Cost::default()
    }

    /// Returns the time that its own threads have spent reading so far, in nanoseconds.
    fn busy_ns(&self) -> u64 {
        0
    }

    /// Returns true if one more poll will deliver everything, unless something new begins.
    fn is_idle(&mut self) -> bool {
        true
    }
}
