//! The command's process: its start, its process group and terminal, signals that reach it, what it prints, its end.

pub(crate) mod child;
pub(crate) mod printed;
pub(crate) mod signals;
pub(crate) mod tee;
pub(crate) mod terminal;
