//! Manages the command's process: its start, process group, terminal, signals, output and end.

pub(crate) mod child;
pub(crate) mod printed;
pub(crate) mod signals;
pub(crate) mod tee;
pub(crate) mod terminal;
