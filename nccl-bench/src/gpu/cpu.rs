//! Measures the CPU instead of GPUs, with a matrix product and a memory copy by all threads together. The code uses no
//! library, because it only has to show whether this node is as fast as the others.

use std::sync::Barrier;
use std::time::Instant;

use paceline_health::event::Missing;

use super::work::{Teller, Told};
use super::{Device, Measured, Metric, Options, Outcome, Place};

/// Rows and columns of a block. Three blocks fit into the first-level cache.
const BLOCK: usize = 48;

/// Measures the CPU and reports the results.
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

/// Runs the closures from `make` repeatedly, one closure in each thread. Each run counts as `amount`.
fn passes<R: FnMut()>(
    options: &Options,
    threads: usize,
    until: Instant,
    amount: f64,
    make: impl Fn() -> R + Sync,
) -> Outcome {
    // A pass is limited by time instead of by a count. If a control group starts to throttle after the first run, a
    // pass with a fixed count would take many times longer than intended.
    let pass = || {
        let start = Barrier::new(threads);
        let runs: Vec<(u64, f64)> = std::thread::scope(|scope| {
            let work = || {
                let mut run = make();
                run();
                start.wait();
                let (begin, mut runs) = (Instant::now(), 0);
                while runs == 0 || begin.elapsed() < options.pass {
                    run();
                    runs += 1;
                }
                (runs, begin.elapsed().as_secs_f64())
            };
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .filter_map(|worker| worker.join().ok())
                .collect()
        });
        runs.iter()
            .map(|(runs, seconds)| amount * *runs as f64 / seconds.max(1e-9))
            .sum::<f64>()
    };
    let mut rates = Vec::new();
    for _ in 0..options.passes.max(1) {
        if Instant::now() >= until {
            break;
        }
        rates.push(pass());
    }
    let late = || Outcome::Missing(Missing::Error("no time was left for it".into()));
    Measured::of(rates).map_or_else(late, Outcome::Measured)
}

/// Computes C += A B, by rows and blocks.
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
