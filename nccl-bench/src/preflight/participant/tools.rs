//! A node's local tasks. They read its properties, measure its GPUs or its CPU, and measure the all-reduce inside the
//! node.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use paceline_health::event::{Access, Missing};
use paceline_health::id::{GpuId, NodeId};
use paceline_health::preflight::{Metric, Place, Sample};
use paceline_health::stats::robust_sigma;

use crate::gpu::{self, Outcome, Work};
use crate::preflight::Launch;
use crate::preflight::measurement::group;
use crate::preflight::message::{Failed, Found};
use crate::preflight::mode::Limits;
use crate::preflight::transport_choice::{Nccl, TransportChoice};
use crate::snapshot;
use crate::transport::{Deadline, nccl};

/// The node's local part of a preflight.
pub trait Tools: Send + Sync {
    /// Reads the node's properties.
    fn snapshot(&self, node: &NodeId, deadline: &Deadline) -> Result<Found, Failed>;

    /// Measures the node's GPUs, or its CPU.
    fn work(&self, node: &NodeId, round: u32, limits: &Limits, deadline: &Deadline) -> Result<Found, Failed>;

    /// Measures an all-reduce inside the node.
    fn local(
        &self,
        node: &NodeId,
        round: u32,
        over: &TransportChoice,
        limits: &Limits,
        deadline: &Deadline,
    ) -> Result<Found, Failed>;

    /// Returns how to start NCCL ranks.
    fn launch(&self) -> Launch {
        Launch::default()
    }
}

/// The local tasks on this machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Path of NVIDIA's management library. With `None`, the system's library is used.
    pub nvml_lib: Option<PathBuf>,
    /// Path of NCCL's library.
    pub nccl_lib: Option<PathBuf>,
    /// Path of the CUDA driver's library.
    pub cuda_lib: Option<PathBuf>,
    /// Path of cuBLAS.
    pub cublas_lib: Option<PathBuf>,
    /// The program for one NCCL rank, and its first arguments. If empty, NCCL is not used.
    pub rank: Vec<OsString>,
}

impl Tools for Machine {
    fn snapshot(&self, node: &NodeId, deadline: &Deadline) -> Result<Found, Failed> {
        let taken = snapshot::take(&snapshot::Options {
            nvml_lib: self.nvml_lib.clone(),
            nccl_lib: self.nccl_lib.clone(),
            cuda_lib: self.cuda_lib.clone(),
            limit: half_of(deadline),
            ..snapshot::Options::default()
        });
        let model = taken.gpus.list.first().map_or("", |gpu| gpu.model.as_str());
        let mut notes = Vec::new();
        // A host with neither the library nor a device file has no GPUs, so it needs no note.
        if taken.gpus.access != Access::Readable && has_device() {
            notes.push(format!("GPUs cannot be read: {}", taken.gpus.text));
        }
        Ok(Found {
            model: model.into(),
            gpus: u32::try_from(taken.gpus.list.len()).unwrap_or(u32::MAX),
            facts: snapshot::facts(&taken, node),
            notes,
            ..Found::default()
        })
    }

    fn work(&self, node: &NodeId, round: u32, limits: &Limits, deadline: &Deadline) -> Result<Found, Failed> {
        let passes = limits.passes as usize;
        let limit = deadline.remaining().unwrap_or_default().mul_f64(0.9);
        let options = if has_device() || self.cuda_lib.is_some() {
            gpu::Options {
                cuda_lib: self.cuda_lib.clone(),
                cublas_lib: self.cublas_lib.clone(),
                passes,
                ..gpu::Options::default()
            }
        } else {
            // These sizes are small enough for a pass to end in time on a busy machine, which several nodes may share.
            gpu::Options {
                passes,
                // A pass takes four periods of a control group, because it is random which part of a pass is throttled.
                pass: Duration::from_millis(400),
                size: 160,
                memory: 16 << 20,
                ..gpu::Options::of_cpu()
            }
        };
        let works = gpu::work(&options, limit).map_err(|error| Failed {
            what: error.to_string(),
            ..Failed::default()
        })?;
        let mut found = Found::default();
        for work in &works {
            of_device(node, round, work, &mut found);
        }
        let is_gpu = |work: &&Work| work.device.place == gpu::Place::Gpus;
        let able = self.able(works.iter().filter(is_gpu).count());
        if let (Nccl::Not { why }, 0, true) = (&able, round, works.iter().any(|work| is_gpu(&work))) {
            found
                .notes
                .push(format!("its GPUs cannot be measured over NCCL: {why}"));
        }
        found.nccl = Some(able);
        Ok(found)
    }

    fn local(
        &self,
        node: &NodeId,
        round: u32,
        over: &TransportChoice,
        limits: &Limits,
        deadline: &Deadline,
    ) -> Result<Found, Failed> {
        match over {
            TransportChoice::Tcp => group::inside(node, round, limits, deadline),
            TransportChoice::Nccl(team) => {
                group::inside_nccl(node, round, team, &self.launch(), limits, deadline)
            }
        }
    }

    fn launch(&self) -> Launch {
        Launch {
            command: self.rank.clone(),
            nccl_lib: self.nccl_lib.clone(),
            cuda_lib: self.cuda_lib.clone(),
        }
    }
}

impl Machine {
    /// Returns whether this many GPUs can be measured over NCCL.
    fn able(&self, gpus: usize) -> Nccl {
        let not = |why: String| Nccl::Not { why: why.into() };
        if gpus == 0 {
            return not("it has no GPU".into());
        }
        if self.rank.is_empty() {
            return not("there is no program to measure over it".into());
        }
        match nccl::version(self.nccl_lib.as_deref()) {
            Ok(version) => Nccl::Ready {
                version: version.into(),
                gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            },
            Err(error) => not(error.to_string()),
        }
    }
}

/// Returns true if the host has a GPU driver. A broken driver is a finding, never a reason to measure the CPU instead.
fn has_device() -> bool {
    std::path::Path::new("/dev/nvidiactl").exists()
}

fn half_of(deadline: &Deadline) -> Duration {
    deadline.remaining().unwrap_or_default() / 2
}

fn of_device(node: &NodeId, round: u32, work: &Work, found: &mut Found) {
    let device = &work.device;
    let place = match device.place {
        gpu::Place::Cpu => Place::Node { node: node.clone() },
        gpu::Place::Gpus => Place::Gpu {
            node: node.clone(),
            // A GPU without a UUID is identified by its PCI slot.
            gpu: device.uuid.clone().unwrap_or_else(|| GpuId::from(&*device.pci)),
        },
    };
    for (of, outcome) in &work.metrics {
        let metric = match of {
            gpu::Metric::GemmBf16 | gpu::Metric::GemmF32 => Metric::Gemm,
            gpu::Metric::MemoryCopy => Metric::GpuMemory,
            gpu::Metric::HostToDevice => Metric::HostToDevice,
            gpu::Metric::DeviceToHost => Metric::DeviceToHost,
            gpu::Metric::CpuMatmul => Metric::CpuGemm,
            gpu::Metric::CpuMemoryCopy => Metric::CpuMemory,
        };
        match outcome {
            Outcome::Measured(measured) => found.samples.push(Sample {
                place: place.clone(),
                metric,
                conditions: format!("{}, {}", device.model, of.name()).into(),
                rail: None,
                round,
                value: measured.median * scale(metric),
                spread: robust_sigma(&mut measured.passes.clone()).unwrap_or(0.0)
                    / measured.median.max(f64::MIN_POSITIVE),
                passes: u32::try_from(measured.passes.len()).unwrap_or(u32::MAX),
                bytes: 0,
            }),
            Outcome::Missing(missing) => {
                let why = match missing {
                    Missing::Unsupported => "it has none",
                    Missing::Error(why) => why,
                };
                found.notes.push(format!("{} of {place}: {why}", of.name()));
            }
        }
    }
    if found.model.is_empty() {
        found.model = Arc::from(device.model.as_str());
    }
}

/// Returns the factor from the bench's units to the table's.
fn scale(metric: Metric) -> f64 {
    match metric {
        Metric::Gemm => 1e-12,
        _ => 1e-9,
    }
}
