//! Imports results of nccl-tests (<https://github.com/NVIDIA/nccl-tests>), as text or as the JSON of its `-J`. Reports
//! of this program are accepted too.
//!
//! Missing data stays unknown. This applies to percentiles without the per-iteration times of `-J`, and always to the
//! times of single ranks, which nccl-tests does not record. An invalid row is reported as an error with its line,
//! because a result with gaps would otherwise be compared like a complete one.

mod json;
mod text;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::collective::Collective;
use crate::dtype::Dtype;
use crate::measure::{RankPlace, Report, Row, SCHEMA_VERSION, Timing};
use crate::transport::About;

/// Size limit of a file. Files of nccl-tests have a few kilobytes.
const MOST: u64 = 64 << 20;

/// Why a file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// The file is too large for a result.
    #[error("more than {} MiB: not a result of nccl-tests", MOST >> 20)]
    TooLarge,
    /// A line of text is invalid.
    #[error("line {line}: {what}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// The error.
        what: String,
    },
    /// The JSON is invalid.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A value in the JSON is invalid.
    #[error("{place}: {what}")]
    Value {
        /// The value's path, such as `results[3].type`.
        place: String,
        /// The error.
        what: String,
    },
    /// The file contains no results.
    #[error("no rows of results: not the output of nccl-tests, or of a run that failed")]
    Empty,
    /// The file does not name the collective.
    #[error("the file does not name its collective (versions before 2.17 do not): use --collective")]
    Collective,
    /// The file and the caller name different collectives.
    #[error("the file has {said}, not {asked}")]
    OtherCollective {
        /// The collective that the file names.
        said: Collective,
        /// The collective that the caller names.
        asked: Collective,
    },
}

/// Reads a file. `collective` is required if the file does not name the collective.
///
/// # Errors
/// Returns [`ImportError`] if the file cannot be imported.
pub fn file(path: &Path, collective: Option<Collective>) -> Result<Report, ImportError> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(MOST + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(ImportError::TooLarge);
    }
    // Replace invalid UTF-8, because host names and interleaved logs may be in any encoding.
    read(&String::from_utf8_lossy(&bytes), collective)
}

/// Returns a report of nccl-tests. Its transport is always NCCL, and it is never simulated.
fn report(
    version: String,
    details: BTreeMap<String, String>,
    (said, asked): (Option<Collective>, Option<Collective>),
    ranks: Vec<RankPlace>,
    results: Vec<Row>,
) -> Result<Report, ImportError> {
    // The metadata is useless without results.
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
/// Returns [`ImportError`] if the content cannot be imported.
pub fn read(text: &str, collective: Option<Collective>) -> Result<Report, ImportError> {
    if text.trim_start().starts_with('{') {
        json::read(text, collective)
    } else {
        text::read(text, collective)
    }
}

/// Returns the collective that the sources name. It is an error if they disagree or if neither names one.
fn agreed(said: Option<Collective>, asked: Option<Collective>) -> Result<Collective, ImportError> {
    match (said, asked) {
        (Some(said), Some(asked)) if said != asked => Err(ImportError::OtherCollective { said, asked }),
        (said, asked) => said.or(asked).ok_or(ImportError::Collective),
    }
}

/// Returns the collective of an nccl-tests program, such as `all_reduce_perf`, with or without a path.
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

/// Returns an element type by its name in nccl-tests.
fn dtype(name: &str) -> Result<Dtype, String> {
    let known = Dtype::ALL.into_iter().find(|dtype| dtype.name() == name);
    known.ok_or_else(|| format!("type {name} is not one of float, half, bfloat16, int32"))
}

/// Returns a timing that has only a mean.
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
