//! Detects whether a signal that reached the launcher was sent to all processes of the job.
//!
//! Slurm signals either all processes of a step or only those that it started itself. Which of the two depends on the
//! site's `ProctrackType` and on how the signal was requested. A trainer must not receive the same signal twice,
//! because many trainers take a second signal as "stop now, without saving". Like the trainer, the sidecar is in its
//! own process group below the launcher. So if the sidecar received a signal, the trainer received it too.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::host::monotonic_ns;

/// File in the ring directory with one line for each signal: its number and its time (CLOCK_MONOTONIC, ns).
const FILE: &str = "signals";
/// At this size the file is truncated, because only recent signals matter.
const MOST_BYTES: u64 = 64 << 10;

/// Records a signal.
pub fn note(ring_dir: &Path, signal: i32) {
    let file = File::options()
        .create(true)
        .append(true)
        .open(ring_dir.join(FILE));
    // Ignore errors. At worst the signal is forwarded a second time.
    if let Ok(mut file) = file {
        if file.metadata().is_ok_and(|meta| meta.len() >= MOST_BYTES) {
            let _ = file.set_len(0);
        }
        let _ = file.write_all(format!("{signal} {}\n", monotonic_ns()).as_bytes());
    }
}

/// Returns true if this signal was recorded at or after `since_ns`.
pub fn has(ring_dir: &Path, signal: i32, since_ns: u64) -> bool {
    let text = fs::read_to_string(ring_dir.join(FILE)).unwrap_or_default();
    text.lines().any(|line| {
        let (number, at) = line.split_once(' ').unwrap_or_default();
        number.parse() == Ok(signal) && at.parse().is_ok_and(|at: u64| at >= since_ns)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_since() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has(dir.path(), 15, 0));
        note(dir.path(), 10);
        let between = monotonic_ns();
        note(dir.path(), 15);
        assert!(has(dir.path(), 15, between) && has(dir.path(), 10, 0));
        assert!(!has(dir.path(), 10, between) && !has(dir.path(), 15, monotonic_ns()));
        let full = "10 1\n".repeat(MOST_BYTES as usize / 5 + 1);
        fs::write(dir.path().join(FILE), full).unwrap();
        note(dir.path(), 15);
        assert!(has(dir.path(), 15, between) && !has(dir.path(), 10, 0));
    }
}
