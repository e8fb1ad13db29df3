//! MIG: a GPU that is cut into instances, each with a UUID of its own, on which a rank may train.
//!
//! A rank says on which GPU it trains by the bytes of a UUID, which for an instance are the instance's own (CUDA's
//! cuDeviceGetUuid_v2); written out they begin with `GPU-`. So an instance is told under that name, not as `MIG-…`.
//!
//! An instance has its own memory; heat, clocks and throttling are the GPU's, and so are its faults, which are told of
//! the GPU only.

use std::ptr::null_mut;

use paceline_health::event::{GpuSignal, Reading};
use paceline_health::id::GpuId;

use super::super::code::Code;
use super::super::library::{Gpu, ask};
use super::calls;
use super::reader::Readings;

/// What an instance shares with its GPU.
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

/// One instance, and what is its own.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its names.
    pub gpu: Gpu,
    /// Its memory.
    pub own: Readings,
}

impl PartialEq for Instance {
    fn eq(&self, other: &Instance) -> bool {
        self.gpu.uuid == other.gpu.uuid && self.own == other.own
    }
}

/// The name under which an instance is told: the one that its rank gives. Names of drivers before R470 stay.
pub fn alias(uuid: &GpuId) -> GpuId {
    match uuid.as_str().strip_prefix("MIG-") {
        Some(bytes) if !bytes.contains('/') => GpuId::from(format!("GPU-{bytes}").as_str()),
        _ => uuid.clone(),
    }
}

/// The part of a GPU's readings that holds for its instances.
pub fn shared(readings: &Readings) -> Readings {
    let shared = SHARED.iter().filter_map(|signal| {
        let reading = readings.get(signal)?;
        Some((*signal, reading.clone()))
    });
    shared.collect()
}

/// The instances of a GPU; none where MIG is off or unknown.
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
