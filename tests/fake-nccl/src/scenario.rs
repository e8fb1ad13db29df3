//! The scenario file: which GPUs there are, which versions, and what goes wrong. It is named by `PACELINE_FAKE_NCCL`, or
//! lies beside the library under its name and `.toml`; without one, two healthy GPUs. It is read once a process.
//!
//! ```toml
//! gpus = 2
//! network = "IB"              # what NCCL says that it uses, where NCCL_DEBUG=INFO
//! nccl = 23007                # what ncclGetVersion says
//! cuda = 13000                # what cuDriverGetVersion says
//!
//! [call]                      # functions that fail, and with which code
//! cuInit = 100
//!
//! [rank.1]                    # rank 1 of every communicator
//! delay_ms = 20               # its collectives take so much longer
//! wrong = true                # one byte of what it receives is another
//! hang = true                 # its collectives end only when it is aborted
//! call_hang = true            # the calls that queue its collectives return only when it is aborted: a peer does not connect
//! init_hang = true            # its communicator is never ready
//! async_error = 6             # what ncclCommGetAsyncError answers after its first collective
//! die = true                  # its process ends in the middle of a collective
//! net_delay_ms = 20           # its collectives with ranks that use another copy of this library, as if on another node
//!
//! [gpu.1]
//! slow = 1.5                  # what it computes and copies takes so many times as long
//! wrong = "cublasGemmEx"      # what this function computes or copies is not quite right
//! open_hang = true            # its context is never there
//!
//! [gpu.1.comm]                # the same as of a rank, whatever its number
//! hang = true
//! ```

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde::Deserialize;

/// See the module.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// How many GPUs.
    pub gpus: i32,
    /// What NCCL says that it uses.
    pub network: String,
    /// NCCL's version.
    pub nccl: i32,
    /// The driver's.
    pub cuda: i32,
    /// Functions that fail.
    pub call: BTreeMap<String, i32>,
    /// What is particular about ranks.
    pub rank: BTreeMap<String, Rank>,
    /// What is particular about GPUs.
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

/// What is particular about one rank.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rank {
    /// Its collectives take so much longer.
    pub delay_ms: u64,
    /// One byte of what it receives is another.
    pub wrong: bool,
    /// Its collectives end only when it is aborted.
    pub hang: bool,
    /// The calls that queue its collectives return only when it is aborted.
    pub call_hang: bool,
    /// Its communicator is never ready.
    pub init_hang: bool,
    /// What ncclCommGetAsyncError answers after its first collective; zero: nothing.
    pub async_error: i32,
    /// Its process ends in the middle of a collective.
    pub die: bool,
    /// Its collectives with other nodes take so much longer.
    pub net_delay_ms: u64,
}

impl Rank {
    /// What is particular about both.
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

/// What is particular about one GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gpu {
    /// What it computes and copies takes so many times as long.
    pub slow: f64,
    /// What this function computes or copies is not quite right.
    pub wrong: String,
    /// Its context is never there.
    pub open_hang: bool,
    /// What is particular about the rank on it.
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

/// The scenario of this process.
pub fn scenario() -> &'static Scenario {
    static SCENARIO: OnceLock<Scenario> = OnceLock::new();
    SCENARIO.get_or_init(|| {
        let path = path();
        let Ok(text) = std::fs::read_to_string(&path) else {
            return Scenario::default();
        };
        // One with a mistake would test something else than its author thinks.
        toml::from_str(&text).unwrap_or_else(|error| {
            eprintln!("fake-nccl: {}: {error}", path.display());
            std::process::abort()
        })
    })
}

/// What is particular about a GPU.
pub(crate) fn gpu(index: i32) -> Gpu {
    scenario()
        .gpu
        .get(&index.to_string())
        .cloned()
        .unwrap_or_default()
}

/// What a function answers if it is to fail.
pub(crate) fn failure(function: &str) -> Option<i32> {
    scenario().call.get(function).copied()
}

fn path() -> PathBuf {
    if let Some(path) = std::env::var_os("PACELINE_FAKE_NCCL") {
        return path.into();
    }
    PathBuf::from(format!("{}.toml", library().display()))
}

/// The file of this library, by which its ranks are told from those of another node.
pub(crate) fn library() -> PathBuf {
    static HERE: u8 = 0;
    // SAFETY: an all-zero Dl_info is valid, and dladdr fills it in or leaves it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is one of this library; the pointer is valid for the call.
    let found = unsafe { libc::dladdr(&raw const HERE as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return PathBuf::from("fake-nccl");
    }
    // SAFETY: dladdr gives a zero-terminated name that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    PathBuf::from(name.to_string_lossy().into_owned())
}
