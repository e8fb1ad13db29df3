//! Measures one GPU. The results are verified, because a GPU that computes fast but wrong is faulty.

use std::cell::RefCell;
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use paceline_health::event::Missing;
use paceline_health::id::GpuId;

use super::work::{Teller, Told, Turn};
use super::{Device, Measured, Metric, Options, Outcome, Place};
use crate::cuda::{Blas, CudaError, Driver, Event, Gemm, Gpu, Memory, Pinned, Stream};

/// Limit of runs per pass.
const MOST_RUNS: f64 = 2000.0;
/// Number of a product's elements that are verified on the host.
const SAMPLES: usize = 16;

/// Takes all measurements of a GPU and reports the results.
pub(super) fn run(
    driver: &Arc<Driver>,
    index: u32,
    options: &Options,
    until: Instant,
    turn: &Turn,
    teller: &Teller,
) {
    let bench = Gpu::open(driver, index).and_then(|gpu| {
        teller.tell(Told::Device(Device {
            place: Place::Gpus,
            index,
            uuid: Some(GpuId::from(gpu.uuid.as_str())),
            pci: gpu.pci.clone(),
            model: gpu.model.clone(),
        }));
        Bench::new(gpu, options, until)
    });
    let refused = bench.as_ref().err().map(missing);
    for metric in Metric::OF_GPU {
        teller.measure(metric, || match (&bench, &refused) {
            (Ok(bench), _) => bench
                .measure(metric, turn)
                .unwrap_or_else(|failure| failure.outcome()),
            (_, Some(outcome)) => outcome.clone(),
            (Err(_), None) => Outcome::Missing(Missing::Unsupported),
        });
    }
    teller.tell(Told::Done);
}

fn missing(error: &CudaError) -> Outcome {
    Outcome::Missing(Missing::Error(error.to_string().into()))
}

/// Why a metric has no result.
enum Failure {
    /// An error of the GPU or a library.
    Cuda(CudaError),
    /// A wrong result of a computation or copy.
    Wrong(String),
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Failure {
        Failure::Cuda(error)
    }
}

impl Failure {
    fn outcome(self) -> Outcome {
        match self {
            Failure::Cuda(error) => missing(&error),
            Failure::Wrong(text) => Outcome::Missing(Missing::Error(text.into())),
        }
    }
}

/// The state for measuring a GPU.
struct Bench<'a> {
    gpu: Arc<Gpu>,
    stream: Stream,
    marks: (Event, Event),
    /// Input data, which is the same in every run and on every GPU.
    source: Pinned,
    /// Output data.
    target: RefCell<Pinned>,
    options: &'a Options,
    until: Instant,
}

impl Bench<'_> {
    fn new(gpu: Arc<Gpu>, options: &Options, until: Instant) -> Result<Bench<'_>, CudaError> {
        let bytes = options.transfer.max(4) & !3;
        let mut source = gpu.pinned(bytes)?;
        for (at, element) in source
            .as_mut_slice()
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .enumerate()
        {
            *element = pair(at).to_le_bytes();
        }
        Ok(Bench {
            stream: gpu.stream()?,
            marks: (gpu.event()?, gpu.event()?),
            target: RefCell::new(gpu.pinned(bytes)?),
            source,
            gpu,
            options,
            until,
        })
    }

    fn measure(&self, metric: Metric, turn: &Turn) -> Result<Outcome, Failure> {
        match metric {
            Metric::GemmBf16 => self.gemm(Gemm::Bf16),
            Metric::GemmF32 => self.gemm(Gemm::F32),
            Metric::MemoryCopy => self.memory(),
            Metric::HostToDevice => {
                let _turn = self.wait_for(turn)?;
                self.copy_in()
            }
            Metric::DeviceToHost => {
                let _turn = self.wait_for(turn)?;
                self.copy_out()
            }
            Metric::CpuMatmul | Metric::CpuMemoryCopy => Ok(Outcome::Missing(Missing::Unsupported)),
        }
    }

    fn wait_for<'t>(&self, turn: &'t Turn) -> Result<MutexGuard<'t, ()>, CudaError> {
        let began = Instant::now();
        loop {
            match turn.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(turn)) => return Ok(turn.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < self.until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(TryLockError::WouldBlock) => {
                    let what = "the other GPUs' copies to and from the host".to_owned();
                    return Err(CudaError::Deadline {
                        what,
                        seconds: began.elapsed().as_secs_f64(),
                    });
                }
            }
        }
    }

    fn gemm(&self, kind: Gemm) -> Result<Outcome, Failure> {
        let n = self.options.size;
        let (a, b) = (
            self.filled(n * n * kind.width())?,
            self.filled(n * n * kind.width())?,
        );
        let c = self.gpu.memory(n * n * 4)?;
        let blas = Blas::open(self.options.cublas_lib.as_deref(), &self.stream)?;
        let operations = 2.0 * (n as f64).powi(3);
        let outcome = self.passes("a product of matrices", operations, || {
            blas.multiply(kind, n, &a, &b, &c)
        })?;
        self.check(kind, n, &c)?;
        Ok(outcome)
    }

    /// Verifies some elements of the product on the host. The operands are from [`Bench::filled`].
    fn check(&self, kind: Gemm, n: usize, c: &Memory) -> Result<(), Failure> {
        let (source, mut target) = (self.source.as_slice(), self.target.borrow_mut());
        for sample in 0..SAMPLES {
            // The samples are spread over rows and columns. The order is column-major, as in cuBLAS.
            let (row, column) = (sample * 7919 % n, sample * 104_729 % n);
            let (mut sum, mut size) = (0.0, 0.0);
            for k in 0..n {
                let product = element(kind, source, row + k * n) * element(kind, source, k + column * n);
                sum += product;
                size += product.abs();
            }
            self.stream.copy_out(&mut target, c, (row + column * n) * 4, 4)?;
            self.stream.finish("the copy from the GPU", self.until)?;
            let seen = target
                .as_slice()
                .first_chunk::<4>()
                .map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes));
            // The tolerance allows for sums of 32-bit floats in any order. NaN never passes.
            let is_right = (f64::from(seen) - sum).abs() <= 1e-4 * size;
            if !is_right {
                let name = if kind == Gemm::Bf16 { "bf16" } else { "f32" };
                return Err(Failure::Wrong(format!(
                    "a {name} product is wrong: {seen} in the place of {sum}"
                )));
            }
        }
        Ok(())
    }

    fn memory(&self) -> Result<Outcome, Failure> {
        let bytes = self.options.memory;
        let (from, to) = (self.filled(bytes)?, self.gpu.memory(bytes)?);
        let outcome = self.passes("a copy within the GPU", 2.0 * bytes as f64, || {
            self.stream.copy_within(&to, &from, bytes)
        })?;
        self.look_at(&to, bytes, "a copy within the GPU")?;
        Ok(outcome)
    }

    fn copy_in(&self) -> Result<Outcome, Failure> {
        let bytes = self.source.as_slice().len();
        let to = self.gpu.memory(bytes)?;
        let outcome = self.passes("a copy to the GPU", bytes as f64, || {
            self.stream.copy_in(&to, 0, &self.source, bytes)
        })?;
        self.look_at(&to, bytes, "a copy to the GPU")?;
        Ok(outcome)
    }

    fn copy_out(&self) -> Result<Outcome, Failure> {
        let bytes = self.source.as_slice().len();
        let from = self.filled(bytes)?;
        let outcome = self.passes("a copy from the GPU", bytes as f64, || {
            self.stream
                .copy_out(&mut self.target.borrow_mut(), &from, 0, bytes)
        })?;
        self.compare(bytes, "a copy from the GPU")?;
        Ok(outcome)
    }

    /// Returns memory filled with repeated copies of the source.
    fn filled(&self, bytes: usize) -> Result<Memory, CudaError> {
        let (memory, part) = (self.gpu.memory(bytes)?, self.source.as_slice().len());
        for offset in (0..bytes).step_by(part) {
            self.stream
                .copy_in(&memory, offset, &self.source, part.min(bytes - offset))?;
        }
        self.stream.finish("the copy to the GPU", self.until)?;
        Ok(memory)
    }

    /// Verifies the last part of `memory` after a copy.
    fn look_at(&self, memory: &Memory, bytes: usize, what: &str) -> Result<(), Failure> {
        let part = self.source.as_slice().len();
        let offset = (bytes - 1) / part * part;
        self.stream
            .copy_out(&mut self.target.borrow_mut(), memory, offset, bytes - offset)?;
        self.stream.finish("the copy from the GPU", self.until)?;
        self.compare(bytes - offset, what)
    }

    fn compare(&self, bytes: usize, what: &str) -> Result<(), Failure> {
        let target = self.target.borrow();
        let pairs = self.source.as_slice()[..bytes].iter().zip(target.as_slice());
        match pairs.filter(|(source, target)| source != target).count() {
            0 => Ok(()),
            wrong => Err(Failure::Wrong(format!(
                "{what} is wrong: {wrong} of {bytes} bytes"
            ))),
        }
    }

    /// Runs a measurement in passes. Each run counts as `amount`.
    fn passes(
        &self,
        what: &str,
        amount: f64,
        mut queue: impl FnMut() -> Result<(), CudaError>,
    ) -> Result<Outcome, CudaError> {
        let mut timed = |runs: u64| -> Result<f64, CudaError> {
            self.marks.0.record(&self.stream)?;
            for _ in 0..runs {
                queue()?;
            }
            self.marks.1.record(&self.stream)?;
            self.marks.1.wait(what, self.until)?;
            Ok(self.marks.1.since(&self.marks.0)?.as_secs_f64())
        };
        // The first run loads kernels, so the duration of one run is taken from the second.
        timed(1)?;
        let one = timed(1)?.max(1e-7);
        let runs = (self.options.pass.as_secs_f64() / one)
            .ceil()
            .clamp(1.0, MOST_RUNS) as u64;
        let passes: Vec<f64> = (0..self.options.passes.max(1))
            .map(|_| Ok(amount * runs as f64 / timed(runs)?))
            .collect::<Result<_, CudaError>>()?;
        let text = || format!("{what} took no time");
        Ok(Measured::of(passes).map_or_else(
            || Outcome::Missing(Missing::Error(text().into())),
            Outcome::Measured,
        ))
    }
}

/// Returns two pseudorandom bfloat16 numbers between -1 and 1. Read as one 32-bit float, the pair is close to the upper
/// number. The numbers are random because a product's power, and with it the clock, depends on the data.
fn pair(at: usize) -> u32 {
    // This is the finalizer of MurmurHash3, which is in the public domain.
    let mut x = at as u32 + 1;
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^= x >> 16;
    // Sign and fraction are random. The exponent is that of numbers from 0.5 to 1.
    let number = |bits: u32| (bits & 0x807F) | 0x3F00;
    number(x) | number(x >> 16) << 16
}

/// Returns element `at` of the memory that [`Bench::filled`] fills with `source`.
fn element(kind: Gemm, source: &[u8], at: usize) -> f64 {
    let width = kind.width();
    let from = at * width % source.len();
    let bytes = &source[from..from + width];
    match kind {
        Gemm::Bf16 => f64::from(f32::from_bits(
            u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16,
        )),
        Gemm::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_multiplied_is_of_one_size_in_both_types() {
        let source: Vec<u8> = (0..4096).flat_map(|at| pair(at).to_le_bytes()).collect();
        for kind in [Gemm::Bf16, Gemm::F32] {
            let elements = source.len() / kind.width();
            let all: Vec<f64> = (0..elements).map(|at| element(kind, &source, at)).collect();
            assert!(all.iter().all(|value| (0.5..1.0).contains(&value.abs())));
            let mean = all.iter().sum::<f64>() / elements as f64;
            assert!(mean.abs() < 0.05, "{mean}");
            assert_eq!(element(kind, &source, elements), all[0], "the source is repeated");
        }
    }
}
