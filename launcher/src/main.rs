//! The one binary that a user needs.
fn main() {}
