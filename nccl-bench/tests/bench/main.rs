//! Tests with ranks as threads that communicate over loopback.

#![allow(clippy::unwrap_used)] // A test that cannot continue fails.

mod cli;
mod net;
mod tcp;
mod wrong;

use std::thread;
use std::time::Duration;

use paceline_nccl_bench::transport::Deadline;

/// Returns a deadline that is far longer than any test takes on a busy machine.
pub fn long(phase: &str) -> Deadline {
    Deadline::new(phase, Duration::from_secs(30))
}

/// Runs a closure for each of `seats` in a separate thread. Returns the results in order.
pub fn each<S: Send, R: Send>(seats: Vec<S>, of_one: impl Fn(S) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let of_one = &of_one;
        let threads: Vec<_> = seats
            .into_iter()
            .map(|seat| scope.spawn(move || of_one(seat)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
