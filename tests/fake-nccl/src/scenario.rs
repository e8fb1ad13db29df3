//! The scenario file, which describes the GPUs, the versions and the faults. Its path is in `PACELINE_FAKE_NCCL`.
//! Otherwise it is beside the library, with the same name plus `.toml`. Without a file, there are two healthy GPUs.
//! Each process reads it once.
//!
//! ```toml
//! gpus = 2
//! network = "IB"              # the network that NCCL reports with NCCL_DEBUG=INFO
//! nccl = 23007                # the result of ncclGetVersion
//! cuda = 13000                # the result of cuDriverGetVersion
//!
//! [call]                      # functions that fail, with their codes
//! cuInit = 100
//!
//! [rank.1]                    # rank 1 of every communicator
//! delay_ms = 20               # its collectives take this much longer
//! wrong = true                # one byte of its output is wrong
//! hang = true                 # its collectives end only when it is aborted
//! call_hang = true            # the calls that queue its collectives return only when it is aborted: a peer does not
//! connect
//! init_hang = true            # its communicator is never ready
//! async_error = 6             # the result of ncclCommGetAsyncError after its first collective
//! die = true                  # its process exits in the middle of a collective
//! net_delay_ms = 20           # delay of its collectives with ranks that use another copy of this library, as on
//! another node
//!
//! [gpu.1]
//! slow = 1.5                  # its computations and copies take this many times as long
//! wrong = "cublasGemmEx"      # the result of this function is slightly wrong
//! open_hang = true            # creating its context hangs
//!
//! [gpu.1.comm]                # the same faults as for a rank, for any rank on this GPU
//! hang = true
//! ```

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde::Deserialize;

/// The content of the file; see the module documentation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// The number of GPUs.
    pub gpus: i32,
    /// The network that NCCL reports.
    pub network: String,
    /// NCCL's version.
    pub nccl: i32,
    /// The driver's CUDA version.
    pub cuda: i32,
    /// Functions that fail, with their codes.
    pub call: BTreeMap<String, i32>,
    /// Faults of ranks, by the rank's number.
    pub rank: BTreeMap<String, Rank>,
    /// Faults of GPUs, by the GPU's index.
    pub gpu: BTreeMap<String, Gpu>,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            gpus: 2,
            network: "IB".to_owned(),
            nccl: 23007,
            cuda: 13000,
            call: BTreeMap::new(),
            rank: BTreeMap::new(),
            gpu: BTreeMap::new(),
        }
    }
}

/// The faults of one rank.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rank {
    /// The rank's collectives take this much longer.
    pub delay_ms: u64,
    /// One byte of the rank's output is wrong.
    pub wrong: bool,
    /// The rank's collectives end only when its communicator is aborted.
    pub hang: bool,
    /// The calls that queue the rank's collectives return only when its communicator is aborted.
    pub call_hang: bool,
    /// The rank's communicator is never ready.
    pub init_hang: bool,
    /// The result of ncclCommGetAsyncError after the rank's first collective; zero for none.
    pub async_error: i32,
    /// The rank's process exits in the middle of a collective.
    pub die: bool,
    /// The rank's collectives with other nodes take this much longer.
    pub net_delay_ms: u64,
}

impl Rank {
    /// Combines the faults of both.
    pub fn and(self, other: Rank) -> Rank {
        Rank {
            delay_ms: self.delay_ms + other.delay_ms,
            wrong: self.wrong || other.wrong,
            hang: self.hang || other.hang,
            call_hang: self.call_hang || other.call_hang,
            init_hang: self.init_hang || other.init_hang,
            async_error: self.async_error.max(other.async_error),
            die: self.die || other.die,
            net_delay_ms: self.net_delay_ms + other.net_delay_ms,
        }
    }
}

/// The faults of one GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gpu {
    /// The GPU's computations and copies take this many times as long.
    pub slow: f64,
    /// The result of this function is slightly wrong.
    pub wrong: String,
    /// Creating the GPU's context hangs.
    pub open_hang: bool,
    /// Faults of the rank on this GPU.
    pub comm: Rank,
}

impl Default for Gpu {
    fn default() -> Gpu {
        Gpu {
            slow: 1.0,
            wrong: String::new(),
            open_hang: false,
            comm: Rank::default(),
        }
    }
}

/// Returns the scenario of this process.
pub fn scenario() -> &'static Scenario {
    static SCENARIO: OnceLock<Scenario> = OnceLock::new();
    SCENARIO.get_or_init(|| {
        let path = path();
        let Ok(text) = std::fs::read_to_string(&path) else {
            return Scenario::default();
        };
        // Exits at a mistake in the scenario, because the test would not test what it is meant to test.
        toml::from_str(&text).unwrap_or_else(|error| {
            eprintln!("fake-nccl: {}: {error}", path.display());
            std::process::abort()
        })
    })
}

/// Returns the faults of a GPU.
pub(crate) fn gpu(index: i32) -> Gpu {
    scenario()
        .gpu
        .get(&index.to_string())
        .cloned()
        .unwrap_or_default()
}

/// Returns the code of a function that is to fail.
pub(crate) fn failure(function: &str) -> Option<i32> {
    scenario().call.get(function).copied()
}

fn path() -> PathBuf {
    if let Some(path) = std::env::var_os("PACELINE_FAKE_NCCL") {
        return path.into();
    }
    PathBuf::from(format!("{}.toml", library().display()))
}

/// Returns the path of this library. It distinguishes this node's ranks from those of another node.
pub(crate) fn library() -> PathBuf {
    static HERE: u8 = 0;
    // SAFETY: an all-zero Dl_info is valid, and dladdr either fills it in or does not change it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is one of this library; the pointer is valid for the call.
    let found = unsafe { libc::dladdr(&raw const HERE as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return PathBuf::from("fake-nccl");
    }
    // SAFETY: dladdr returns a zero-terminated name that is valid as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    PathBuf::from(name.to_string_lossy().into_owned())
}
