//! The ring between a trainer process and the sidecar: 64-byte records in shared memory, many producers, one reader.
//! `layout.md` beside this crate is the contract.
//!
//! The writer never waits: a full ring drops the record and counts it. This crate knows no event, no rank and no
//! network; it has no dependency, so that anything loaded into a trainer can carry it.

mod encoding;
mod layout;
mod map;
mod reader;
mod record;
mod writer;

pub use layout::{CAPACITY, HEADER_BYTES, MAGIC, SLOT_BYTES, SPARE_SLOTS, VERSION};
pub use map::monotonic_ns;
pub use reader::{Next, OpenError, Progress, Reader};
pub use record::{
    Attach, Axis, Comm, Detach, Framework, Group, Layout, Mark, Note, PhaseWord, Record, Role, Step,
    StepWord, Work,
};
pub use writer::{CreateError, Writer, Wrote};
