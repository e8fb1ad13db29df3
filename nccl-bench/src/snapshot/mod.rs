//! What a node is, read once before a job starts: its GPUs, its network ports, where they stand on PCIe, versions and
//! limits. Everything is a value or says why there is none; nothing here judges, [`facts`] only names what is compared.

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

/// Where to read.
#[derive(Clone, Debug)]
pub struct Options {
    /// The root of the host's file system: `/`, unless the host's is mounted elsewhere in a container.
    pub host_root: PathBuf,
    /// NVIDIA's management library; `None`: where the system has it.
    pub nvml_lib: Option<PathBuf>,
    /// NCCL.
    pub nccl_lib: Option<PathBuf>,
    /// The CUDA driver.
    pub cuda_lib: Option<PathBuf>,
    /// Variables that NCCL will have.
    pub environment: BTreeMap<String, String>,
    /// How long the management library may take.
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

/// A text, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Text {
    /// What was read.
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
    /// How near each GPU is to each port's device.
    pub paths: Vec<GpuToNic>,
    /// The node itself.
    pub host: Host,
    /// What will make NCCL use sockets, though the node has a faster network, in sentences. Empty: nothing was found.
    pub socket_fallback: Vec<String>,
}

/// The GPUs of a node, or why there are none to read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpus {
    /// Whether the management library could be asked.
    pub access: Access,
    /// If not, what it said.
    pub text: String,
    /// Version of the driver.
    pub driver: Text,
    /// Each, in the management library's order.
    pub list: Vec<GpuState>,
}

/// One GPU. MIG instances are told with their GPU's name and a UUID of their own.
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
    /// If not, why.
    pub text: String,
    /// What counts before a job: ECC, remapped rows, clocks and their limits, PCIe, NVLink. An idle GPU lowers its clocks
    /// and its PCIe generation, never its lanes.
    pub signals: BTreeMap<GpuSignal, Reading>,
    /// Where it stands.
    pub place: PciPlace,
}

/// Where a device stands on PCIe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PciPlace {
    /// NUMA node; unsupported: the machine has only one, or does not say.
    pub numa_node: Reading,
    /// CPUs near it: `0-31,64-95`.
    pub cpus: Text,
    /// Transfers a second of its link now, `16.0 GT/s PCIe`.
    pub speed: Text,
    /// The most it can.
    pub speed_max: Text,
    /// Its lanes now.
    pub width: Reading,
    /// The most it has.
    pub width_max: Reading,
    /// Bridges above it whose access control sends traffic between devices through the CPU, which costs peer-to-peer its
    /// speed: their addresses with a blank between them, empty where there are none. Only root may read it.
    pub acs: Text,
}

/// A network port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// RDMA device and port (`mlx5_0/1`), or interface (`eth0`).
    pub name: String,
    /// The kind of network.
    pub link: PortLink,
    /// `ACTIVE`, `DOWN`; of an interface `up`, `down`.
    pub state: Text,
    /// Its rate now.
    pub rate_bps: Reading,
    /// Largest packet of its interface, bytes.
    pub mtu: Reading,
    /// The kernel's driver: `mlx5_core`.
    pub driver: Text,
    /// Version of its firmware.
    pub firmware: Text,
    /// Interfaces of an RDMA device.
    pub interfaces: Vec<String>,
    /// PCI bus id.
    pub pci: Text,
    /// Where it stands.
    pub place: PciPlace,
}

/// How near a GPU and a port's device are to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuToNic {
    /// The GPU's PCI bus id.
    pub gpu: String,
    /// The port.
    pub nic: String,
    /// How near.
    pub path: PciPath,
}

/// What traffic between two PCI devices crosses, in the words of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PciPath {
    /// At most one bridge.
    Pix,
    /// Several bridges, and not the CPU.
    Pxb,
    /// A host bridge: typically the CPU.
    Phb,
    /// The way between host bridges of one NUMA node.
    Node,
    /// The way between NUMA nodes.
    Sys,
}

/// The node itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The kernel's release.
    pub kernel: Text,
    /// CUDA as the driver has it: `13.0`.
    pub cuda: Text,
    /// NCCL.
    pub nccl: Text,
    /// Limit of locked memory, bytes, or `unlimited`.
    pub memlock: Text,
    /// Size of /dev/shm.
    pub shm_bytes: Reading,
    /// CPUs that this process may use: `0-127`.
    pub cpus_allowed: Text,
    /// CPUs' worth of time that the control groups grant; unsupported: as much as there is.
    pub cpu_limit: Reading,
    /// Whether the kernel lets network devices reach GPU memory (nvidia_peermem): 0 or 1. Newer ones do so without it.
    pub peermem: Reading,
}

/// Reads a node. Always answers: what cannot be read says so.
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
