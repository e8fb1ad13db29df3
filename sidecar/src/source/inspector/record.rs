//! One line of NCCL Inspector: one collective of one rank of one communicator.
//!
//! <https://github.com/NVIDIA/nccl/tree/master/plugins/profiler/inspector>, format v4.

use std::sync::Arc;

use serde::Deserialize;

/// Maximum length of a name.
const MAX_NAME: usize = 128;
/// Upper bound of a collective's duration, microseconds.
const MAX_US: f64 = 1e12;

/// The contents of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The communicator, the same on all of its ranks.
    pub comm: u64,
    /// The application's name for it; empty if none.
    pub name: Arc<str>,
    /// Rank in the communicator.
    pub rank: u32,
    /// Number of ranks in it.
    pub ranks: u32,
    /// Host of the process.
    pub host: Arc<str>,
    /// Process ID.
    pub pid: u32,
    /// The collective, if it was timed by the GPU.
    pub done: Option<Done>,
}

/// A collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// `AllReduce`.
    pub collective: Arc<str>,
    /// Sequence number among collectives of its kind in the communicator.
    pub number: u64,
    /// Payload, bytes.
    pub bytes: u64,
    /// From its first channel's start to its last one's end, nanoseconds.
    pub dur_ns: u64,
}

/// Why a line is not one of NCCL Inspector's.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not JSON, or a different structure.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A field has an invalid value.
    #[error("{0}")]
    Value(&'static str),
}

#[derive(Deserialize)]
struct Raw {
    header: RawHeader,
    metadata: RawMetadata,
    coll_perf: Option<RawColl>,
}

#[derive(Deserialize)]
struct RawHeader {
    id: String,
    #[serde(default)]
    comm_name: String,
    rank: u32,
    n_ranks: u32,
}

#[derive(Deserialize)]
struct RawMetadata {
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    pid: u32,
}

#[derive(Deserialize)]
struct RawColl {
    coll: String,
    coll_sn: u64,
    coll_msg_size_bytes: u64,
    coll_exec_time_us: f64,
    #[serde(default)]
    coll_timing_source: String,
}

/// Parses a line. Sends and receives, proxies and drop counts have no collective.
///
/// # Errors
/// [`RecordError`].
pub fn read(line: &[u8]) -> Result<Record, RecordError> {
    let raw: Raw = serde_json::from_slice(line)?;
    let comm = u64::from_str_radix(raw.header.id.trim_start_matches("0x"), 16);
    let comm = comm.map_err(|_| RecordError::Value("header.id is not a number"))?;
    if raw.header.rank >= raw.header.n_ranks {
        return Err(RecordError::Value("header.rank is outside of the communicator"));
    }
    let name = Some(raw.header.comm_name).filter(|name| name != "unknown");
    Ok(Record {
        comm,
        name: short(&name.unwrap_or_default()),
        rank: raw.header.rank,
        ranks: raw.header.n_ranks,
        host: short(&raw.metadata.hostname),
        pid: raw.metadata.pid,
        done: raw.coll_perf.map(done).transpose()?.flatten(),
    })
}

fn done(raw: RawColl) -> Result<Option<Done>, RecordError> {
    // The host's enqueue times do not show how long it took. Older versions name no source, and use the GPU's.
    if !matches!(raw.coll_timing_source.as_str(), "" | "kernel_gpu") {
        return Ok(None);
    }
    let us = raw.coll_exec_time_us;
    if !(0.0..MAX_US).contains(&us) {
        return Err(RecordError::Value("coll_perf.coll_exec_time_us is out of bounds"));
    }
    Ok(Some(Done {
        collective: short(&raw.coll),
        number: raw.coll_sn,
        bytes: raw.coll_msg_size_bytes,
        dur_ns: (us * 1e3) as u64,
    }))
}

fn short(text: &str) -> Arc<str> {
    text.chars().take(MAX_NAME).collect::<String>().into()
}
