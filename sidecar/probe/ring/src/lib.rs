//! The ring between a trainer process and the sidecar: 64-byte records in shared memory, many producers, one reader.
//! `layout.md` beside this crate is the specification.
//!
//! The writer never waits. If the ring is full, the record is dropped and counted. This crate has no code for events,
//! ranks or networks, and no dependency, so any component that a trainer loads can include it.

#![cfg_attr(loom, allow(dead_code, reason = "only the protocol runs there"))]

#[cfg(not(loom))]
mod bare;
mod collective;
mod encoding;
mod layout;
#[cfg(not(loom))]
mod map;
mod protocol;
#[cfg(not(loom))]
mod reader;
mod record;
mod sync;
#[cfg(not(loom))]
mod writer;

#[cfg(not(loom))]
pub use bare::{BARE_CAPACITY, Bare, StepGlance};
pub use collective::{Collective, Function, KIND_COLLECTIVE, KIND_TIMED, Timed};

pub use layout::{
    CADENCE_WORDS, CAPACITY, HEADER_BYTES, MAGIC, SLOT_BYTES, SPARE_SLOTS, TOOK_ITSELF_OUT, VERSION,
};
#[cfg(not(loom))]
pub use map::monotonic_ns;
#[cfg(not(loom))]
pub use reader::{Duty, Next, OpenError, Progress, Reader};
pub use record::{
    Attach, Axis, Comm, Detach, Framework, Group, Layout, Mark, Note, PhaseWord, Record, Role, Step,
    StepWord, Work,
};
#[cfg(not(loom))]
pub use writer::{CreateError, Writer, Wrote};
