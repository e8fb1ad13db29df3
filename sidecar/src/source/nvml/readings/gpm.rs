//! GPU performance monitoring (GPM), on Hopper and later: how busy SMs, tensor cores and memory were between two
//! samples. It needs no profiling lock and no daemon. Each slow round takes one sample and compares it with the
//! previous one.
//!
//! Source: <https://docs.nvidia.com/deploy/nvml-api/group__nvmlGpmFunctions.html>

use std::collections::BTreeMap;
use std::ptr::null_mut;

use nvml_wrapper_sys::bindings::{nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t};
use paceline_health::event::{GpuSignal, Missing, Reading};

use super::super::code::Code;
use super::super::library::{Gpu, ask};
use crate::host::monotonic_ns;

/// Signals, and NVML's number of their metrics. All metrics are percentages.
const METRICS: [(GpuSignal, u32); 5] = [
    (GpuSignal::GraphicsActiveRatio, 1),
    (GpuSignal::SmActiveRatio, 2),
    (GpuSignal::SmOccupancyRatio, 3),
    (GpuSignal::TensorActiveRatio, 5),
    (GpuSignal::DramActiveRatio, 10),
];
/// Minimum time between two samples.
const NEAREST_NS: u64 = 100_000_000;

/// The samples of one GPU.
#[derive(Debug)]
pub struct Gpm {
    gpu: Gpu,
    /// The older sample, which the next one overwrites, and the latest one.
    samples: [nvmlGpmSample_t; 2],
    taken_ns: Option<u64>,
}

// SAFETY: a sample is memory that NVML allocated and only this owner passes to it, from one thread at a time.
unsafe impl Send for Gpm {}

impl Gpm {
    /// Creates the samples, if the GPU supports GPM.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if the GPU does not support GPM, which is also the case while MIG is on.
    pub fn new(gpu: &Gpu) -> Result<Gpm, Code> {
        let mut support = nvmlGpmSupport_t {
            version: 1,
            isSupportedDevice: 0,
        };
        ask!(gpu, nvmlGpmQueryDeviceSupport, &mut support)?;
        if support.isSupportedDevice == 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let mut gpm = Gpm {
            gpu: gpu.clone(),
            samples: [null_mut(); 2],
            taken_ns: None,
        };
        for at in 0..2 {
            let raw = gpu.library.raw().ok_or(Code::UNINITIALIZED)?;
            let function = raw.nvmlGpmSampleAlloc.as_ref();
            let function = function.map_err(|_| Code::FUNCTION_NOT_FOUND)?;
            // SAFETY: the signature is the header's; the pointer is valid for the call.
            Code::check(unsafe { function(&mut gpm.samples[at]) })?;
        }
        Ok(gpm)
    }

    /// Takes a sample, and reads the metrics since the previous one if that is old enough.
    ///
    /// # Errors
    /// The library's return code.
    pub fn read(&mut self, out: &mut BTreeMap<GpuSignal, Reading>) -> Result<(), Code> {
        let now_ns = monotonic_ns();
        if self
            .taken_ns
            .is_some_and(|taken| now_ns.saturating_sub(taken) < NEAREST_NS)
        {
            return Ok(());
        }
        let [before, after] = self.samples;
        ask!(&self.gpu, nvmlGpmSampleGet, before)?;
        self.samples = [after, before];
        // The sample that was the latest is now the older one.
        if self.taken_ns.replace(now_ns).is_none() {
            return Ok(());
        }
        self.compare(out)
    }

    fn compare(&mut self, out: &mut BTreeMap<GpuSignal, Reading>) -> Result<(), Code> {
        let [older, newer] = self.samples;
        // SAFETY: the structure has only numbers and pointers, for which zero is a valid value.
        let mut of: Box<nvmlGpmMetricsGet_t> = Box::new(unsafe { std::mem::zeroed() });
        of.version = 1;
        of.numMetrics = METRICS.len() as u32;
        of.sample1 = older;
        of.sample2 = newer;
        for (metric, (_, id)) in of.metrics.iter_mut().zip(METRICS) {
            metric.metricId = id;
        }
        let raw = self.gpu.library.raw().ok_or(Code::UNINITIALIZED)?;
        let function = raw.nvmlGpmMetricsGet.as_ref();
        let function = function.map_err(|_| Code::FUNCTION_NOT_FOUND)?;
        self.gpu.desk.time("nvmlGpmMetricsGet", || {
            // SAFETY: as above; both samples were filled.
            Code::check(unsafe { function(&mut *of) })
        })?;
        for (metric, (signal, _)) in of.metrics.iter().zip(METRICS) {
            let reading = match Code::check(metric.nvmlReturn) {
                Ok(()) if metric.value.is_finite() => Reading::Value(metric.value / 100.0),
                Ok(()) => Reading::Missing(Missing::Error("not_a_number".into())),
                Err(code) => Reading::Missing(code.missing()),
            };
            out.insert(signal, reading);
        }
        Ok(())
    }

    /// Adds readings that report these signals as missing.
    pub fn missing(code: Code, out: &mut BTreeMap<GpuSignal, Reading>) {
        out.extend(METRICS.map(|(signal, _)| (signal, Reading::Missing(code.missing()))));
    }
}

impl Drop for Gpm {
    fn drop(&mut self) {
        let Some(raw) = self.gpu.library.raw() else { return };
        let Ok(function) = raw.nvmlGpmSampleFree.as_ref() else {
            return;
        };
        for sample in self.samples.into_iter().filter(|sample| !sample.is_null()) {
            // SAFETY: NVML allocated it, and it has no other user.
            unsafe { function(sample) };
        }
    }
}
