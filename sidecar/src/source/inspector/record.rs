//! One line of NCCL Inspector's output: one collective of one rank of one communicator.
//!
//! The format is v4 of <https://github.com/NVIDIA/nccl/tree/master/plugins/profiler/inspector>.

use std::sync::Arc;

use serde::Deserialize;

/// Maximum length of a name.
const MAX_NAME: usize = 128;
/// Upper bound of a collective's duration, microseconds.
const MAX_US: f64 = 1e12;

/// The contents of one line.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// ID of the communicator, the same on all of its ranks.
    pub comm: u64,
    /// The application's name for the communicator; empty if it has none.
    pub name: Arc<str>,
    /// Rank of the process in the communicator.
    pub rank: u32,
    /// Number of ranks in the communicator.
    pub ranks: u32,
    /// Host on which the process runs.
    pub host: Arc<str>,
    /// Process ID.
    pub pid: u32,
    /// The collective, if it was timed by the GPU.
    pub done: Option<Done>,
}

/// One collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Name of the function, such as `AllReduce`.
    pub collective: Arc<str>,
    /// Sequence number among collectives of the same kind in the communicator.
    pub number: u64,
    /// Size of the payload, bytes.
    pub bytes: u64,
    /// Time from the start of its first channel to the end of its last one, nanoseconds.
    pub dur_ns: u64,
}

/// Why a line is not valid output of NCCL Inspector.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The line is not JSON, or has a different structure.
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

/// Parses a line. Lines about sends and receives, proxies and drop counts contain no collective.
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
    // Skip collectives timed by the host: its enqueue times do not show how long a collective took. Older versions name
    // no source and use the GPU's times.
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
