//! Measures the cost of a write for the trainer, which must be at most 100 ns. `cargo bench -p paceline-ring` prints
//! the table.

#![allow(clippy::print_stdout, reason = "its output is the table")]

use std::hint::black_box;
use std::time::Instant;

use paceline_ring::{CAPACITY, Next, PhaseWord, Reader, Record, Step, Writer, Wrote};

const ROUNDS: usize = 400;
const BATCH: u64 = 3_000;

fn main() {
    let dir = std::env::temp_dir().join(format!("paceline-ring-bench-{}", std::process::id()));
    if let Err(error) = std::fs::create_dir_all(&dir) {
        eprintln!("{}: {error}", dir.display());
        return;
    }
    let writer = Writer::create_named(&dir, "bench.ring", CAPACITY);
    let outcome = writer.map_err(|error| error.to_string()).and_then(|writer| {
        let reader = Reader::open(writer.path()).map_err(|error| error.to_string())?;
        table(&writer, reader);
        Ok(())
    });
    if let Err(error) = outcome {
        eprintln!("{error}");
    }
    let _ = std::fs::remove_dir_all(&dir);
}

fn table(writer: &Writer, mut reader: Reader) {
    let mut writes = Vec::new();
    let mut reads = Vec::new();
    for round in 0..ROUNDS as u64 {
        let start = Instant::now();
        for n in 0..BATCH {
            let step = round * BATCH + n;
            let record = Record::Step(Step {
                step,
                duration_ns: 50_000_000,
                compute_us: 40_000,
                ..Step::default()
            });
            assert_eq!(writer.write(black_box(&record)), Wrote::Published);
        }
        writes.push(per_call(start));
        let start = Instant::now();
        while let Next::Record(record) = reader.next(0, true) {
            black_box(record);
        }
        reads.push(per_call(start));
        reader.release(reader.position());
    }
    let progress: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..BATCH).for_each(|n| writer.progress(black_box(n), PhaseWord::Wait));
            per_call(start)
        })
        .collect();
    println!(
        "{:<12} {:>10} {:>10} {:>10}",
        "ns a call", "median", "p99", "worst"
    );
    for (name, mut samples) in [("write", writes), ("progress", progress), ("read", reads)] {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| samples[((samples.len() - 1) as f64 * share) as usize];
        println!(
            "{name:<12} {:>10.1} {:>10.1} {:>10.1}",
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}

fn per_call(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / BATCH as f64
}
