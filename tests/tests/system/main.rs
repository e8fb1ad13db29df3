//! The program as a user meets it: real processes, signals, terminals and files. Needs nothing but a shell.

mod bad_input;
mod demo;
mod exits;
mod launched;
mod report;
mod sidecar;
mod signals;
mod terminal;
