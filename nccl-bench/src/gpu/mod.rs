//! Measures each GPU of this node alone: matrix products, memory, and transfers to and from the host. Each metric is
//! measured in several passes and reported separately, because a sum would hide a bad metric.
//!
//! On a host without GPUs, the CPU can be measured instead, but only on request. Its metrics have separate names.

mod cpu;
mod device;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use paceline_health::event::Missing;
use paceline_health::id::GpuId;
use serde::{Deserialize, Serialize};

pub use work::work;

use crate::cuda::CudaError;

/// Measurement options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The devices to measure.
    pub place: Place,
    /// Path of the CUDA driver's library. With `None`, the system's library is used.
    pub cuda_lib: Option<PathBuf>,
    /// Path of cuBLAS.
    pub cublas_lib: Option<PathBuf>,
    /// Number of passes per metric. The median of three passes tolerates one outlier, and that of five tolerates two.
    pub passes: usize,
    /// Minimum duration of a pass. Shorter passes take less time and are less accurate.
    pub pass: Duration,
    /// Rows and columns of the matrices. Small ones do not fill a GPU.
    pub size: usize,
    /// Number of bytes copied within a GPU's memory, which needs twice this size. It must exceed the GPU's caches.
    pub memory: usize,
    /// Number of bytes copied between host and GPU, in pinned memory, in both directions.
    pub transfer: usize,
    /// Number of CPU threads. With `None`, there are as many as this process may use.
    pub threads: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            place: Place::Gpus,
            cuda_lib: None,
            cublas_lib: None,
            passes: 5,
            pass: Duration::from_millis(20),
            size: 8192,
            memory: 1 << 30,
            transfer: 64 << 20,
            threads: None,
        }
    }
}

impl Options {
    /// Returns the options for the CPU. Passes are as long as a control group's accounting period (100 ms), so that a
    /// node which may use only half of the time is measured as slower.
    pub fn of_cpu() -> Options {
        Options {
            place: Place::Cpu,
            pass: Duration::from_millis(200),
            size: 384,
            memory: 64 << 20,
            ..Options::default()
        }
    }
}

/// The devices to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// All GPUs visible to this process.
    Gpus,
    /// The CPU instead of GPUs.
    Cpu,
}

/// A metric of one device. Higher values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Product of bfloat16 matrices, FLOP/s.
    GemmBf16,
    /// Product of 32-bit float matrices without TF32, FLOP/s.
    GemmF32,
    /// Copy within the GPU's memory, in B/s. Both bytes read and bytes written count.
    MemoryCopy,
    /// Copy from pinned host memory, in B/s. Only one GPU copies at a time.
    HostToDevice,
    /// Copy to pinned host memory, in B/s. Only one GPU copies at a time.
    DeviceToHost,
    /// The CPU's product of 32-bit float matrices, all threads together, FLOP/s.
    CpuMatmul,
    /// The CPU's copy of memory by all threads together, in B/s. Both bytes read and bytes written count.
    CpuMemoryCopy,
}

impl Metric {
    /// Metrics of a GPU, in the order of measurement.
    pub const OF_GPU: [Metric; 5] = [
        Metric::GemmBf16,
        Metric::GemmF32,
        Metric::MemoryCopy,
        Metric::HostToDevice,
        Metric::DeviceToHost,
    ];
    /// Metrics of the CPU.
    pub const OF_CPU: [Metric; 2] = [Metric::CpuMatmul, Metric::CpuMemoryCopy];

    /// Returns the metric's name in JSON, such as `gemm_bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Metric::GemmBf16 => "gemm_bf16",
            Metric::GemmF32 => "gemm_f32",
            Metric::MemoryCopy => "memory_copy",
            Metric::HostToDevice => "host_to_device",
            Metric::DeviceToHost => "device_to_host",
            Metric::CpuMatmul => "cpu_matmul",
            Metric::CpuMemoryCopy => "cpu_memory_copy",
        }
    }

    /// Returns the unit, which is `FLOP/s` or `B/s`.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::GemmBf16 | Metric::GemmF32 | Metric::CpuMatmul => "FLOP/s",
            _ => "B/s",
        }
    }
}

/// The results of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// The device.
    pub device: Device,
    /// The result of each metric of the device, or the reason why it is missing.
    pub metrics: BTreeMap<Metric, Outcome>,
}

/// A measured device, which is a GPU or the CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The device's kind.
    pub place: Place,
    /// The device's index in this process. The CPU has index 0.
    pub index: u32,
    /// UUID, or `None` if it is unknown or the device is the CPU.
    pub uuid: Option<GpuId>,
    /// PCI bus id, such as `0000:b3:00.0`. It is empty for the CPU.
    pub pci: String,
    /// Product name.
    pub model: String,
}

/// A metric's result, or the reason why it is missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The metric was measured.
    Measured(Measured),
    /// The metric was not measured.
    Missing(Missing),
}

impl Outcome {
    /// Returns the median, if the metric was measured.
    pub fn median(&self) -> Option<f64> {
        match self {
            Outcome::Measured(measured) => Some(measured.median),
            Outcome::Missing(_) => None,
        }
    }
}

/// The passes of one metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The passes in order.
    pub passes: Vec<f64>,
    /// The median of the passes.
    pub median: f64,
    /// Difference between the best and the worst pass, as a share of the median.
    pub spread: f64,
}

impl Measured {
    /// Summarizes passes. Returns `None` if there are none or if they are invalid.
    pub fn of(passes: Vec<f64>) -> Option<Measured> {
        let mut ordered = passes.clone();
        ordered.sort_by(f64::total_cmp);
        let (least, most) = (*ordered.first()?, *ordered.last()?);
        let (lower, upper) = (ordered[(ordered.len() - 1) / 2], ordered[ordered.len() / 2]);
        let median = f64::midpoint(lower, upper);
        let is_sound = least > 0.0 && most.is_finite();
        is_sound.then(|| Measured {
            passes,
            median,
            spread: (most - least) / median,
        })
    }
}

/// Why no measurement was possible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkError {
    /// There is no library, driver or GPU.
    #[error("work of the GPUs: {0}")]
    Cuda(#[from] CudaError),
    /// The driver did not respond when it was opened.
    #[error("work of the GPUs: cuInit has not returned in {seconds:.1} s")]
    Silent {
        /// The timeout.
        seconds: f64,
    },
    /// A thread could not be started.
    #[error("no thread: {0}")]
    Thread(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_summed_up_by_their_median() {
        let odd = Measured::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            (odd.median, odd.spread, odd.passes),
            (2.0, 1.0, vec![3.0, 1.0, 2.0])
        );
        assert_eq!(Measured::of(vec![1.0, 2.0, 3.0, 10.0]).unwrap().median, 2.5);
        assert_eq!(Measured::of(vec![]), None);
        assert_eq!(
            Measured::of(vec![1.0, f64::INFINITY]),
            None,
            "a pass that took no time is no measurement"
        );
    }

    #[test]
    fn metrics_are_named_as_in_json() {
        for metric in Metric::OF_GPU.into_iter().chain(Metric::OF_CPU) {
            assert_eq!(serde_json::to_value(metric).unwrap(), metric.name());
        }
        let missing = serde_json::to_value(Outcome::Missing(Missing::Unsupported)).unwrap();
        assert_eq!(missing, serde_json::json!({"missing": "unsupported"}));
    }
}
