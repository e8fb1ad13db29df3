//! A node's properties, read once before a job starts: its GPUs, its network ports, their locations on PCIe, versions
//! and limits. Each property is a value or the reason why it is missing. This module judges nothing. [`facts`] only
//! names what is compared between nodes.

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
    /// The root of the host's file system. It is `/`, unless a container has the host's file system mounted elsewhere.
    pub host_root: PathBuf,
    /// Path of NVIDIA's management library. With `None`, the system's library is used.
    pub nvml_lib: Option<PathBuf>,
    /// Path of NCCL's library.
    pub nccl_lib: Option<PathBuf>,
    /// Path of the CUDA driver's library.
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

/// A text, or the reason why it is missing.
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

    /// Returns the text, if there is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Text::Text(text) => Some(text),
            Text::Missing(_) => None,
        }
    }
}

/// The properties of a node; see the module documentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The node's GPUs.
    pub gpus: Gpus,
    /// The node's network ports.
    pub nics: Vec<Nic>,
    /// Distance between each GPU and each port's device.
    pub paths: Vec<GpuToNic>,
    /// Versions and limits of the node itself.
    pub host: Host,
    /// Reasons why NCCL will use sockets although the node has a faster network, as sentences. It is empty if none was
    /// found.
    pub socket_fallback: Vec<String>,
}

/// The GPUs of a node, or why they cannot be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpus {
    /// Whether the management library works.
    pub access: Access,
    /// The library's error, if it does not work.
    pub text: String,
    /// Version of the driver.
    pub driver: Text,
    /// The GPUs in the management library's order.
    pub list: Vec<GpuState>,
}

/// One GPU. MIG instances have their GPU's name and their own UUID.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuState {
    /// UUID, or `None` if the GPU has no handle.
    pub uuid: Option<GpuId>,
    /// PCI bus id.
    pub pci: String,
    /// Product name.
    pub model: String,
    /// Whether the GPU can be read.
    pub access: Access,
    /// The error, if the GPU cannot be read.
    pub text: String,
    /// Signals that matter before a job: ECC, remapped rows, clocks and their limits, PCIe, and NVLink. An idle GPU
    /// lowers its clocks and its PCIe generation, but never its number of lanes.
    pub signals: BTreeMap<GpuSignal, Reading>,
    /// The GPU's location on PCIe.
    pub place: PciPlace,
}

/// The location of a device on PCIe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PciPlace {
    /// NUMA node. It is unsupported if there is only one, or if it is not known.
    pub numa_node: Reading,
    /// Local CPUs, such as `0-31,64-95`.
    pub cpus: Text,
    /// Current link speed, such as `16.0 GT/s PCIe`.
    pub speed: Text,
    /// Maximum link speed.
    pub speed_max: Text,
    /// Current number of lanes.
    pub width: Reading,
    /// Maximum number of lanes.
    pub width_max: Reading,
    /// Addresses of the bridges above the device whose access control routes traffic between devices through the CPU,
    /// which slows down peer-to-peer transfers. The addresses are separated by blanks. The text is empty if there are
    /// none. Only root may read it.
    pub acs: Text,
}

/// A network port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// Name of the RDMA device and port (`mlx5_0/1`), or of the interface (`eth0`).
    pub name: String,
    /// The kind of network.
    pub link: PortLink,
    /// State, such as `ACTIVE` or `DOWN`. For an interface it is `up` or `down`.
    pub state: Text,
    /// Current rate, in bits per second.
    pub rate_bps: Reading,
    /// MTU of the port's interface, in bytes.
    pub mtu: Reading,
    /// Name of the kernel's driver, such as `mlx5_core`.
    pub driver: Text,
    /// Version of the device's firmware.
    pub firmware: Text,
    /// Interfaces of an RDMA device.
    pub interfaces: Vec<String>,
    /// PCI bus id.
    pub pci: Text,
    /// The port's location on PCIe.
    pub place: PciPlace,
}

/// Distance between a GPU and a port's device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuToNic {
    /// The GPU's PCI bus id.
    pub gpu: String,
    /// The port's name.
    pub nic: String,
    /// The path between the GPU and the port's device.
    pub path: PciPath,
}

/// The path between two PCI devices, in the terms of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PciPath {
    /// The path crosses at most one bridge.
    Pix,
    /// The path crosses several bridges, but not the CPU.
    Pxb,
    /// The path crosses a host bridge, which is typically in the CPU.
    Phb,
    /// The path crosses the connection between host bridges of one NUMA node.
    Node,
    /// The path crosses the connection between NUMA nodes.
    Sys,
}

/// Versions and limits of the node itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Kernel release.
    pub kernel: Text,
    /// CUDA version of the driver, such as `13.0`.
    pub cuda: Text,
    /// NCCL version.
    pub nccl: Text,
    /// Limit of locked memory, in bytes, or `unlimited`.
    pub memlock: Text,
    /// Size of /dev/shm.
    pub shm_bytes: Reading,
    /// CPUs that this process may use, such as `0-127`.
    pub cpus_allowed: Text,
    /// CPU time granted by the control groups, in CPUs. It is unsupported if there is no limit.
    pub cpu_limit: Reading,
    /// 1 if network devices can access GPU memory (nvidia_peermem), otherwise 0. Newer kernels do not need this module.
    pub peermem: Reading,
}

/// Reads a node. This always succeeds, because an unreadable value contains the reason.
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
