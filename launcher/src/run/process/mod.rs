//! The command's process: its start, its process group and terminal, its signals, its output, its end.

pub(crate) mod child;
pub(crate) mod printed;
pub(crate) mod signals;
pub(crate) mod tee;
pub(crate) mod terminal;
