//! The stand-in for a GPU's work on a host that has none: a matrix multiplication on every CPU and a copy in memory.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use crate::transport::Deadline;

/// Matrices that stay in the second-level cache.
const N: usize = 128;

/// A pass lasts so long at least: two periods of the kernel's CPU bandwidth control (100 ms each), so that a limit shows
/// in every pass.
const PASS: Duration = Duration::from_millis(200);

/// Copies of so much are not served from caches.
const COPY: usize = 32 << 20;

/// More threads than this measure memory, not CPUs.
const MOST_THREADS: usize = 32;

/// GFLOP/s and GB/s of each pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuWork {
    /// Matrix multiplication.
    pub gflops: Vec<f64>,
    /// Copy in memory: bytes read and written.
    pub gbps: Vec<f64>,
    /// Threads that worked.
    pub threads: usize,
}

/// CPUs that this process may run on. A limit of the control group is not counted: it is what is to be found.
fn threads() -> usize {
    let set = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize);
    set.clamp(1, MOST_THREADS)
}

/// Works for `passes` passes, or until half of the deadline's time is used up.
pub fn work(passes: u32, deadline: &Deadline) -> CpuWork {
    let threads = threads();
    let until = Instant::now() + deadline.remaining().unwrap_or_default() / 2;
    let mut found = CpuWork {
        threads,
        ..CpuWork::default()
    };
    let mut source = vec![1_u8; COPY];
    let mut target = vec![0_u8; COPY];
    for pass in 0..passes {
        // Three at least: fewer have no spread.
        if pass >= 3 && Instant::now() > until {
            break;
        }
        found.gflops.push(multiply_on_all(threads));
        found.gbps.push(copy(&mut source, &mut target));
    }
    found
}

fn multiply_on_all(threads: usize) -> f64 {
    let begin = Instant::now();
    let rates: f64 = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| multiply_until(begin + PASS)))
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or(0.0))
            .sum()
    });
    rates / begin.elapsed().as_secs_f64() / 1e9
}

/// Floating-point operations done until then.
fn multiply_until(end: Instant) -> f64 {
    let a: Vec<f32> = (0..N * N).map(|i| (i % 7) as f32).collect();
    let b: Vec<f32> = (0..N * N).map(|i| (i % 5) as f32).collect();
    let mut c = vec![0_f32; N * N];
    let mut operations = 0.0;
    while Instant::now() < end {
        multiply(black_box(&a), black_box(&b), &mut c);
        black_box(&mut c);
        operations += 2.0 * (N * N * N) as f64;
    }
    operations
}

/// Row by row, so that the inner loop is one over neighbours, which the compiler turns into vector instructions.
fn multiply(a: &[f32], b: &[f32], c: &mut [f32]) {
    for (row_a, row_c) in a.chunks_exact(N).zip(c.chunks_exact_mut(N)) {
        row_c.fill(0.0);
        for (factor, row_b) in row_a.iter().zip(b.chunks_exact(N)) {
            for (sum, value) in row_c.iter_mut().zip(row_b) {
                *sum += factor * value;
            }
        }
    }
}

fn copy(source: &mut [u8], target: &mut [u8]) -> f64 {
    let begin = Instant::now();
    let mut copied = 0_usize;
    while begin.elapsed() < PASS / 4 {
        target.copy_from_slice(black_box(source));
        black_box(&mut *target);
        copied += COPY;
    }
    2.0 * copied as f64 / begin.elapsed().as_secs_f64() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_right() {
        let identity: Vec<f32> = (0..N * N).map(|i| f32::from(u8::from(i / N == i % N))).collect();
        let b: Vec<f32> = (0..N * N).map(|i| (i % 11) as f32).collect();
        let mut c = vec![9.0; N * N];
        multiply(&identity, &b, &mut c);
        assert_eq!(c, b);
    }

    #[test]
    fn work_has_passes_and_an_end() {
        let deadline = Deadline::new("test", Duration::from_secs(4));
        let found = work(3, &deadline);
        assert_eq!((found.gflops.len(), found.gbps.len()), (3, 3));
        assert!(found.gflops.iter().chain(&found.gbps).all(|rate| *rate > 0.0));
    }
}
