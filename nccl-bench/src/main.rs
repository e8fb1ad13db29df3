//! The bench as a program of its own; `paceline nccl-bench` is the same.

fn main() {}
