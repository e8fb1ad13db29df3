//! A node's properties, read once before a job starts: its GPUs, its network ports, their locations on PCIe, versions
//! and limits. Everything is a value or the reason for a missing one; nothing here judges, [`facts`] only names what is
//! compared.

mod facts;
mod fallback;
mod gpus;
mod host;
mod nics;
mod pci;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use paceline_health::event::{Access, GpuSignal, Missing, PortLink, Reading};
use paceline_health::id::GpuId;
use paceline_sidecar::source::host::files::Files;
use serde::{Deserialize, Serialize};

pub use facts::facts;

/// What to read.
#[derive(Clone, Debug)]
pub struct Options {
    /// The root of the host's file system: `/`, unless the host's is mounted elsewhere in a container.
    pub host_root: PathBuf,
    /// NVIDIA's management library; `None`: the system's.
    pub nvml_lib: Option<PathBuf>,
    /// NCCL's library.
    pub nccl_lib: Option<PathBuf>,
    /// The CUDA driver's library.
    pub cuda_lib: Option<PathBuf>,
    /// NCCL's environment variables.
    pub environment: BTreeMap<String, String>,
    /// Time limit for the management library.
    pub limit: Duration,
}

impl Default for Options {
    fn default() -> Options {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Options {
            host_root: "/".into(),
            nvml_lib: None,
            nccl_lib: None,
            cuda_lib: None,
            environment: environment.collect(),
            limit: Duration::from_secs(10),
        }
    }
}

/// A text, or the reason for a missing one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Text {
    /// The text.
    Text(String),
    /// The reason.
    Missing(Missing),
}

impl Text {
    fn of(read: Result<impl Into<String>, Missing>) -> Text {
        read.map_or_else(Text::Missing, |text| Text::Text(text.into()))
    }

    fn failed(error: impl ToString) -> Text {
        Text::Missing(Missing::Error(error.to_string().into()))
    }

    /// The text, if there is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Text::Text(text) => Some(text),
            Text::Missing(_) => None,
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its GPUs.
    pub gpus: Gpus,
    /// Its network ports.
    pub nics: Vec<Nic>,
    /// Distance between each GPU and each port's device.
    pub paths: Vec<GpuToNic>,
    /// The node itself.
    pub host: Host,
    /// Reasons why NCCL will use sockets although the node has a faster network, in sentences. Empty: none was found.
    pub socket_fallback: Vec<String>,
}

/// The GPUs of a node, or why they cannot be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpus {
    /// Whether the management library works.
    pub access: Access,
    /// Its error, if not.
    pub text: String,
    /// Version of the driver.
    pub driver: Text,
    /// The GPUs in the management library's order.
    pub list: Vec<GpuState>,
}

/// One GPU. MIG instances have their GPU's name and their own UUID.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuState {
    /// UUID; `None`: it has no handle.
    pub uuid: Option<GpuId>,
    /// PCI bus id.
    pub pci: String,
    /// Product name.
    pub model: String,
    /// Whether it can be read.
    pub access: Access,
    /// The error, if not.
    pub text: String,
    /// Signals that matter before a job: ECC, remapped rows, clocks and their limits, PCIe, NVLink. An idle GPU lowers
    /// its clocks and its PCIe generation, never its lanes.
    pub signals: BTreeMap<GpuSignal, Reading>,
    /// Its location.
    pub place: PciPlace,
}

/// The location of a device on PCIe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PciPlace {
    /// NUMA node; unsupported: there is only one, or it is not known.
    pub numa_node: Reading,
    /// Local CPUs: `0-31,64-95`.
    pub cpus: Text,
    /// Current link speed, `16.0 GT/s PCIe`.
    pub speed: Text,
    /// Maximum link speed.
    pub speed_max: Text,
    /// Current lanes.
    pub width: Reading,
    /// Maximum lanes.
    pub width_max: Reading,
    /// Addresses of the bridges above it whose access control routes traffic between devices through the CPU, which
    /// slows down peer-to-peer: separated by blanks, empty if there are none. Only root may read it.
    pub acs: Text,
}

/// A network port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// RDMA device and port (`mlx5_0/1`), or interface (`eth0`).
    pub name: String,
    /// The kind of network.
    pub link: PortLink,
    /// `ACTIVE`, `DOWN`; for an interface `up`, `down`.
    pub state: Text,
    /// Current rate.
    pub rate_bps: Reading,
    /// MTU of its interface, bytes.
    pub mtu: Reading,
    /// The kernel's driver: `mlx5_core`.
    pub driver: Text,
    /// Version of its firmware.
    pub firmware: Text,
    /// Interfaces of an RDMA device.
    pub interfaces: Vec<String>,
    /// PCI bus id.
    pub pci: Text,
    /// Its location.
    pub place: PciPlace,
}

/// Distance between a GPU and a port's device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuToNic {
    /// The GPU's PCI bus id.
    pub gpu: String,
    /// The port.
    pub nic: String,
    /// The path between them.
    pub path: PciPath,
}

/// The path between two PCI devices, in the terms of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PciPath {
    /// At most one bridge.
    Pix,
    /// Several bridges, and not the CPU.
    Pxb,
    /// A host bridge: typically the CPU.
    Phb,
    /// The connection between host bridges of one NUMA node.
    Node,
    /// The connection between NUMA nodes.
    Sys,
}

/// The node itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Kernel release.
    pub kernel: Text,
    /// CUDA version of the driver: `13.0`.
    pub cuda: Text,
    /// NCCL version.
    pub nccl: Text,
    /// Limit of locked memory, bytes, or `unlimited`.
    pub memlock: Text,
    /// Size of /dev/shm.
    pub shm_bytes: Reading,
    /// CPUs that this process may use: `0-127`.
    pub cpus_allowed: Text,
    /// CPU time granted by the control groups, in CPUs; unsupported: no limit.
    pub cpu_limit: Reading,
    /// Whether network devices can access GPU memory (nvidia_peermem): 0 or 1. Newer kernels do not need it.
    pub peermem: Reading,
}

/// Reads a node. Always succeeds: unreadable values contain the reason.
pub fn take(options: &Options) -> Snapshot {
    let mut files = Files::new(&options.host_root);
    let gpus = gpus::read(&mut files, options);
    let nics = nics::read(&mut files);
    let paths = pci::paths(&files, &gpus.list, &nics);
    let host = host::read(&mut files, options);
    let socket_fallback = fallback::find(&files, &nics, &options.environment);
    Snapshot {
        gpus,
        nics,
        paths,
        host,
        socket_fallback,
    }
}
