//! Reads versions and limits of the node itself.

use std::path::{Path, PathBuf};

use paceline_health::event::{Missing, Reading};
use paceline_sidecar::source::host::files::{Files, reading};
use rustix::process::{Resource, getrlimit};

use super::{Host, Options, Text};
use crate::cuda;
use crate::transport::nccl;

const CGROUPS: &str = "sys/fs/cgroup";

/// Reads the node.
pub(super) fn read(files: &mut Files, options: &Options) -> Host {
    let memlock = getrlimit(Resource::Memlock).current;
    let shm = rustix::fs::statvfs(files.at("dev/shm"));
    let loaded = files
        .text("proc/modules")
        .map(|modules| modules.lines().any(|line| line.starts_with("nvidia_peermem ")));
    Host {
        kernel: Text::of(files.text("proc/sys/kernel/osrelease")),
        cuda: cuda::version(options.cuda_lib.as_deref()).map_or_else(Text::failed, Text::Text),
        nccl: nccl::version(options.nccl_lib.as_deref()).map_or_else(Text::failed, Text::Text),
        memlock: Text::Text(memlock.map_or("unlimited".into(), |bytes| bytes.to_string())),
        shm_bytes: match shm {
            Ok(shm) => Reading::Value(shm.f_blocks as f64 * shm.f_frsize as f64),
            Err(error) => Reading::Missing(Missing::Error(error.kind().to_string().into())),
        },
        cpus_allowed: Text::of(cpus_allowed(files)),
        cpu_limit: reading(cpu_limit(files)),
        peermem: reading(loaded.map(|is_loaded| f64::from(u8::from(is_loaded)))),
    }
}

fn cpus_allowed(files: &mut Files) -> Result<String, Missing> {
    let status = files.text("proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(line.ok_or(Missing::Unsupported)?.trim().to_owned())
}

/// Returns the lowest CPU limit from this process's control group up to the root.
/// <https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files>
fn cpu_limit(files: &mut Files) -> Result<f64, Missing> {
    let own = files.text("proc/self/cgroup")?;
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .ok_or(Missing::Unsupported)?;
    let own = PathBuf::from(own);
    let limits = own.ancestors().filter_map(|group| {
        let text = files.text(Path::new(CGROUPS).join(group).join("cpu.max")).ok()?;
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    limits.reduce(f64::min).ok_or(Missing::Unsupported)
}
