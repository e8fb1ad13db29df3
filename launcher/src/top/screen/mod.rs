//! Formats the state of a job as lines, and draws lines on a terminal.

mod answer;
mod detail;
pub(super) mod paper;
mod say;
mod table;
pub(super) mod terminal;
pub(super) mod view;
