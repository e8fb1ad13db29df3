//! What is fuzzed: one function for each parser of what comes from outside. The targets and the plain tests that replay
//! the corpus include this file.

use paceline_health::event::FaultSource;
use paceline_health::fault::KernelLog;
use paceline_sidecar::source::{inspector, ras, step_log};

/// Takes anything, and gives how many things it understood.
pub type Entry = fn(&[u8]) -> usize;

/// All of them, by the name of their target and of their folder in corpus/.
pub const ENTRIES: [(&str, Entry); 4] = [
    ("kernel", kernel),
    ("ras", ras),
    ("inspector", inspector),
    ("step_log", step_log),
];

/// Lines of the kernel's log, one log to its end.
pub fn kernel(bytes: &[u8]) -> usize {
    let mut log = KernelLog::default();
    let mut seen = 0;
    for line in String::from_utf8_lossy(bytes).lines() {
        log.read(line, |line| {
            seen += 1;
            line.fault(None, 1, FaultSource::Kernel);
        });
    }
    seen
}

/// An answer of NCCL's RAS service, JSON or text.
pub fn ras(bytes: &[u8]) -> usize {
    match ras::read(bytes) {
        Ok(report) => {
            assert!(report.ranks.len() <= 32, "what is told has a bound");
            1 + report.ranks.len()
        }
        Err(error) => {
            // Whoever is told of it gets a text.
            assert!(!error.to_string().is_empty());
            0
        }
    }
}

/// Lines of NCCL Inspector, and what they come to.
pub fn inspector(bytes: &[u8]) -> usize {
    let mut tally = inspector::Tally::default();
    let mut seen = 0;
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(record) = inspector::read(line) {
            seen += 1;
            tally.take(&record, &mut |_| {});
        }
    }
    seen
}

/// Lines of a log. The first one is a pattern, should it be one with the groups that a pattern has.
pub fn step_log(bytes: &[u8]) -> usize {
    let mut lines = bytes.split(|byte| matches!(byte, b'\n' | b'\r'));
    let first = lines.next().unwrap_or_default();
    let pattern = std::str::from_utf8(first)
        .ok()
        .and_then(|first| step_log::StepPattern::parse(first).ok());
    let mut log = step_log::Lines::new(pattern);
    let mut meter = step_log::Meter::default();
    let mut seen = 0;
    for (at, line) in (0..).zip(lines) {
        if let Some(line) = log.read(line) {
            seen += 1;
            meter.take(line, at * 1_000_000_000);
        }
    }
    seen
}
