//! Imports results of nccl-tests (<https://github.com/NVIDIA/nccl-tests>), as text or as the JSON of its `-J`. Our own
//! reports are accepted too.
//!
//! Missing data stays unknown: percentiles without `-J`'s per-iteration times, and always the times of single ranks,
//! which nccl-tests does not record. An invalid row is an error with its line: a result with gaps would be compared
//! like a complete one.

mod json;
mod text;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::collective::Collective;
use crate::dtype::Dtype;
use crate::measure::{RankPlace, Report, Row, SCHEMA_VERSION, Timing};
use crate::transport::About;

/// Largest accepted file; those of nccl-tests have a few kilobytes.
const MOST: u64 = 64 << 20;

/// Why a file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It cannot be read.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// It is too large for a result.
    #[error("more than {} MiB: not a result of nccl-tests", MOST >> 20)]
    TooLarge,
    /// An invalid line of text.
    #[error("line {line}: {what}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// The error.
        what: String,
    },
    /// Invalid JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// An invalid value in JSON.
    #[error("{place}: {what}")]
    Value {
        /// Its path: `results[3].type`.
        place: String,
        /// The error.
        what: String,
    },
    /// It contains no results.
    #[error("no rows of results: not the output of nccl-tests, or of a run that failed")]
    Empty,
    /// It does not name the collective.
    #[error("the file does not name its collective (versions before 2.17 do not): use --collective")]
    Collective,
    /// The file and the caller name different collectives.
    #[error("the file has {said}, not {asked}")]
    OtherCollective {
        /// The file's.
        said: Collective,
        /// The caller's.
        asked: Collective,
    },
}

/// Reads a file. `collective` is required if the file does not name it.
///
/// # Errors
/// [`ImportError`].
pub fn file(path: &Path, collective: Option<Collective>) -> Result<Report, ImportError> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(MOST + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(ImportError::TooLarge);
    }
    // Host names and interleaved logs may be in any encoding.
    read(&String::from_utf8_lossy(&bytes), collective)
}

/// A report of nccl-tests, always over NCCL and never simulated.
fn report(
    version: String,
    details: BTreeMap<String, String>,
    (said, asked): (Option<Collective>, Option<Collective>),
    ranks: Vec<RankPlace>,
    results: Vec<Row>,
) -> Result<Report, ImportError> {
    // Without results the metadata is useless.
    let first = results.first().ok_or(ImportError::Empty)?;
    Ok(Report {
        schema_version: SCHEMA_VERSION,
        version,
        about: About {
            transport: "nccl".into(),
            simulated: false,
            details,
        },
        collective: agreed(said, asked)?,
        dtype: first.dtype,
        ranks,
        results,
    })
}

/// Parses the content of a file.
///
/// # Errors
/// [`ImportError`].
pub fn read(text: &str, collective: Option<Collective>) -> Result<Report, ImportError> {
    if text.trim_start().starts_with('{') {
        json::read(text, collective)
    } else {
        text::read(text, collective)
    }
}

/// The collective, if both sources agree.
fn agreed(said: Option<Collective>, asked: Option<Collective>) -> Result<Collective, ImportError> {
    match (said, asked) {
        (Some(said), Some(asked)) if said != asked => Err(ImportError::OtherCollective { said, asked }),
        (said, asked) => said.or(asked).ok_or(ImportError::Collective),
    }
}

/// The collective of an nccl-tests program: `all_reduce_perf`, with or without a path.
fn of_program(name: &str) -> Option<Collective> {
    let name = name.rsplit('/').next().unwrap_or(name);
    Some(match name.strip_suffix("_perf").unwrap_or(name) {
        "all_reduce" => Collective::AllReduce,
        "reduce_scatter" => Collective::ReduceScatter,
        "all_gather" => Collective::AllGather,
        "broadcast" => Collective::Broadcast,
        "alltoall" => Collective::AllToAll,
        _ => return None,
    })
}

/// An element type by its name in nccl-tests.
fn dtype(name: &str) -> Result<Dtype, String> {
    let known = Dtype::ALL.into_iter().find(|dtype| dtype.name() == name);
    known.ok_or_else(|| format!("type {name} is not one of float, half, bfloat16, int32"))
}

/// A timing with only a mean.
fn timing([time, alg_bw, bus_bw]: [f64; 3], nwrong: Option<u64>) -> Timing {
    Timing {
        time,
        alg_bw,
        bus_bw,
        nwrong,
        p50: 0.0,
        p99: 0.0,
        slowest_rank: None,
        ranks: Vec::new(),
    }
}
