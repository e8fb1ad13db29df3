//! MIG: a GPU that is partitioned into instances. Each has its own UUID, and a rank may train on it.
//!
//! A rank identifies its GPU by the bytes of a UUID (CUDA's cuDeviceGetUuid_v2). On an instance, these are the bytes of
//! the instance's own UUID, but their text form begins with `GPU-`. An instance is therefore reported under that name,
//! and not as `MIG-…`.
//!
//! An instance has its own memory. Heat, clocks, throttling and faults are those of the whole GPU; faults are reported
//! only for the GPU.

use std::ptr::null_mut;

use paceline_health::event::{GpuSignal, Reading};
use paceline_health::id::GpuId;

use super::super::code::Code;
use super::super::library::{Gpu, ask};
use super::calls;
use super::reader::Readings;

/// Signals that an instance shares with its GPU.
const SHARED: [GpuSignal; 12] = [
    GpuSignal::TemperatureC,
    GpuSignal::MarginC,
    GpuSignal::SmClockMhz,
    GpuSignal::SmClockMaxMhz,
    GpuSignal::MemoryClockMhz,
    GpuSignal::PowerW,
    GpuSignal::PowerLimitW,
    GpuSignal::ThrottleThermalSwNs,
    GpuSignal::ThrottleThermalHwNs,
    GpuSignal::ThrottlePowerNs,
    GpuSignal::ThrottleBrakeNs,
    GpuSignal::ClockReasons,
];

/// One instance, and its own readings.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The instance's names.
    pub gpu: Gpu,
    /// Readings of the instance's own memory.
    pub own: Readings,
}

impl PartialEq for Instance {
    fn eq(&self, other: &Instance) -> bool {
        self.gpu.uuid == other.gpu.uuid && self.own == other.own
    }
}

/// Returns the name under which an instance is reported, which is the one that its rank uses. Keeps names from drivers
/// before R470 unchanged.
pub fn alias(uuid: &GpuId) -> GpuId {
    match uuid.as_str().strip_prefix("MIG-") {
        Some(bytes) if !bytes.contains('/') => GpuId::from(format!("GPU-{bytes}").as_str()),
        _ => uuid.clone(),
    }
}

/// Returns the part of a GPU's readings that also applies to its instances.
pub fn shared(readings: &Readings) -> Readings {
    let shared = SHARED.iter().filter_map(|signal| {
        let reading = readings.get(signal)?;
        Some((*signal, reading.clone()))
    });
    shared.collect()
}

/// Returns the instances of a GPU, or none if MIG is off or its state is unknown.
pub fn instances(gpu: &Gpu, readings: &Readings) -> Vec<Instance> {
    let count = match most(gpu) {
        Ok(count) => count,
        Err(_) => return Vec::new(),
    };
    (0..count)
        .filter_map(|index| {
            let mut handle = null_mut();
            ask!(gpu, nvmlDeviceGetMigDeviceHandleByIndex, index, &mut handle).ok()?;
            let instance = gpu.instance(handle).ok()?;
            let own = memory(&instance);
            let own = shared(readings).into_iter().chain(own).collect();
            Some(Instance { gpu: instance, own })
        })
        .collect()
}

fn most(gpu: &Gpu) -> Result<u32, Code> {
    let (mut now, mut pending, mut count) = (0, 0, 0);
    ask!(gpu, nvmlDeviceGetMigMode, &mut now, &mut pending)?;
    if now == 0 {
        return Ok(0);
    }
    ask!(gpu, nvmlDeviceGetMaxMigDeviceCount, &mut count)?;
    Ok(count)
}

fn memory(instance: &Gpu) -> [(GpuSignal, Reading); 2] {
    let [used, total] = match calls::memory(instance) {
        Ok(values) => [0, 1].map(|at| Reading::Value(values[at])),
        Err(code) => [0, 1].map(|_| Reading::Missing(code.missing())),
    };
    [
        (GpuSignal::MemoryUsedBytes, used),
        (GpuSignal::MemoryTotalBytes, total),
    ]
}
