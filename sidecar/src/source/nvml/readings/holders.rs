//! The processes that use a GPU.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;
use paceline_health::event::GpuProcess;

use super::super::code::Code;
use super::super::library::{Gpu, ask};

/// Maximum number of processes reported for one GPU.
const MOST: usize = 32;
/// NVML's value if the driver does not report a process's memory (NVML_VALUE_NOT_AVAILABLE).
const NOT_AVAILABLE: u64 = u64::MAX;
/// The initial PID namespace, identified by its inode (PROC_PID_INIT_INO of the kernel). NVML returns process IDs of
/// this namespace.
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// Returns the processes with a compute context on the GPU, sorted by memory in descending order.
///
/// # Errors
/// The library's return code.
pub fn of(gpu: &Gpu) -> Result<Vec<GpuProcess>, Code> {
    // SAFETY: the structure has only numbers, for which zero is a valid value.
    let mut infos: Vec<nvmlProcessInfo_t> = vec![unsafe { std::mem::zeroed() }; MOST];
    let mut count = MOST as u32;
    match ask!(
        gpu,
        nvmlDeviceGetComputeRunningProcesses_v3,
        &mut count,
        infos.as_mut_ptr()
    ) {
        // INSUFFICIENT_SIZE means that there are more processes than we report. NVML fills in the first ones anyway.
        Ok(()) | Err(Code::INSUFFICIENT_SIZE) => {}
        Err(code) => return Err(code),
    }
    infos.truncate(count as usize);
    let namespace = fs::read_link("/proc/self/ns/pid").ok();
    let names_hold = namespace.is_some_and(|link| link == Path::new(FIRST_NAMESPACE));
    let mut processes: Vec<GpuProcess> = infos
        .iter()
        .filter(|info| info.pid != 0)
        .map(|info| GpuProcess {
            pid: info.pid,
            name: if names_hold { name(info.pid) } else { "".into() },
            used_bytes: (info.usedGpuMemory != NOT_AVAILABLE).then_some(info.usedGpuMemory),
        })
        .collect();
    processes.sort_by_key(|process| (std::cmp::Reverse(process.used_bytes), process.pid));
    Ok(processes)
}

fn name(pid: u32) -> Arc<str> {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    comm.trim_end().into()
}
