//! The CPU in the place of GPUs: a product of matrices and a copy of memory, by all threads together. Plain code: what a
//! library makes of a CPU is not the question, only whether this node does as much as the others.

use std::sync::Barrier;
use std::time::Instant;

use paceline_health::event::Missing;

use super::work::{Teller, Told};
use super::{Device, Measured, Metric, Options, Outcome, Place};

/// Rows and columns of a block: three of them fit into a first-level cache.
const BLOCK: usize = 48;

/// Measures it, and tells.
pub(super) fn run(options: &Options, until: Instant, teller: &Teller) {
    let threads = options
        .threads
        .or_else(|| Some(std::thread::available_parallelism().ok()?.get()));
    let threads = threads.unwrap_or(1).max(1);
    let (pci, model) = (String::new(), format!("CPU, {threads} threads"));
    teller.tell(Told::Device(Device {
        place: Place::Cpu,
        index: 0,
        uuid: None,
        pci,
        model,
    }));
    let (n, bytes) = (options.size.next_multiple_of(BLOCK), options.memory);
    teller.measure(Metric::CpuMatmul, || {
        passes(options, threads, until, 2.0 * (n as f64).powi(3), || {
            let a: Vec<f32> = (0..n * n).map(|at| (at % 17) as f32).collect();
            let (b, mut c) = (a.clone(), vec![0.0; n * n]);
            move || multiply(n, &a, &b, &mut c)
        })
    });
    let bytes = bytes / threads;
    teller.measure(Metric::CpuMemoryCopy, || {
        passes(options, threads, until, 2.0 * bytes as f64, || {
            let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
            move || std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from))
        })
    });
    teller.tell(Told::Done);
}

/// Runs what `make` makes in each thread, over and over; each run is worth `amount`.
fn passes<R: FnMut()>(
    options: &Options,
    threads: usize,
    until: Instant,
    amount: f64,
    make: impl Fn() -> R + Sync,
) -> Outcome {
    let timed = |runs: u64| {
        // All begin together; the clock stops when the last is done.
        let start = Barrier::new(threads + 1);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut run = make();
                    run();
                    start.wait();
                    for _ in 0..runs {
                        run();
                    }
                });
            }
            start.wait();
            Instant::now()
        })
        .elapsed()
        .as_secs_f64()
    };
    let one = timed(1).max(1e-7);
    let runs = (options.pass.as_secs_f64() / one).ceil().max(1.0) as u64;
    let mut rates = Vec::new();
    for _ in 0..options.passes.max(1) {
        if Instant::now() >= until {
            break;
        }
        rates.push(amount * (runs * threads as u64) as f64 / timed(runs));
    }
    let late = || Outcome::Missing(Missing::Error("no time was left for it".into()));
    Measured::of(rates).map_or_else(late, Outcome::Measured)
}

/// C += A B, by rows and blocks.
fn multiply(n: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    for block in (0..n).step_by(BLOCK) {
        for part in (0..n).step_by(BLOCK) {
            for (row, out) in c.chunks_exact_mut(n).enumerate() {
                let out = &mut out[block..block + BLOCK];
                for k in part..part + BLOCK {
                    let (factor, from) = (a[row * n + k], &b[k * n + block..k * n + block + BLOCK]);
                    for (to, from) in out.iter_mut().zip(from) {
                        *to += factor * from;
                    }
                }
            }
        }
    }
    std::hint::black_box(c);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_one() {
        let n = 2 * BLOCK;
        let a: Vec<f32> = (0..n * n).map(|at| (at % 5) as f32).collect();
        let b: Vec<f32> = (0..n * n).map(|at| (at % 3) as f32).collect();
        let mut c = vec![0.0; n * n];
        multiply(n, &a, &b, &mut c);
        for (row, column) in [(0, 0), (7, 90), (95, 95), (50, 48)] {
            let right: f32 = (0..n).map(|k| a[row * n + k] * b[k * n + column]).sum();
            assert_eq!(c[row * n + column], right);
        }
    }
}
