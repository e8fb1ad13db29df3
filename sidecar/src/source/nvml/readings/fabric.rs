//! NVSwitch fabric: whether the GPU has joined it, and which of its parts report a problem.

use nvml_wrapper_sys::bindings::{nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t};

use super::super::code::Code;
use super::super::library::{Gpu, ask};
use super::calls::version;

/// Reads the fabric state. Uses version 2 of the structure, which has the health mask. It is older than version 3 and
/// shares its members.
pub(in crate::source::nvml) fn fabric(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    // SAFETY: the structure has only numbers, for which zero is a valid value.
    let mut of: nvmlGpuFabricInfoV_t = unsafe { std::mem::zeroed() };
    of.version = version::<nvmlGpuFabricInfo_v2_t>(2);
    ask!(gpu, nvmlDeviceGetGpuFabricInfoV, &mut of)?;
    if of.state == 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok([u32::from(of.state), of.status, fabric_faults(of.healthMask)]
        .map(f64::from)
        .to_vec())
}

/// Returns one bit for each part of the health mask that reports a problem. A part is 1 for a problem and 2 for none,
/// except the last part, which is 1 for no problem and higher for a wrong configuration.
fn fabric_faults(mask: u32) -> u32 {
    let two_bits = (0..4).filter(|part| mask >> (2 * part) & 3 == 1);
    let bits: u32 = two_bits.map(|part| 1 << part).sum();
    bits | u32::from(mask >> 8 & 15 >= 2) << 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabric_health() {
        for (mask, wanted) in [
            (0, 0),
            // No problem: each part is 2, and the last one is 1.
            (0b0001_1010_1010, 0),
            // The bandwidth is degraded.
            (0b0001_1010_1001, 1),
            // A route is unhealthy, and the configuration has too few links.
            (0b0101_1001_1010, 0b1_0100),
        ] {
            assert_eq!(fabric_faults(mask), wanted, "{mask:#b}");
        }
    }
}
