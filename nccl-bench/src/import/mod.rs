//! Results of nccl-tests (<https://github.com/NVIDIA/nccl-tests>), as text or as the JSON of its `-J`, in our own types.
//! Our own reports are taken too.
//!
//! What a file does not hold is left unknown: percentiles without `-J`'s per-iteration times, and always the ranks' own
//! times, which nccl-tests does not keep. A row that cannot be read is an error with its line: a result with holes would
//! be compared as if it were whole.

mod json;
mod text;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::collective::Collective;
use crate::dtype::Dtype;
use crate::measure::{RankPlace, Report, Row, SCHEMA_VERSION, Timing};
use crate::transport::About;

/// Largest file that is read; nccl-tests' are a few kilobytes.
const MOST: u64 = 64 << 20;

/// Why a file cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It cannot be read.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// It is larger than any result.
    #[error("more than {} MiB: not a result of nccl-tests", MOST >> 20)]
    TooLarge,
    /// A line of text.
    #[error("line {line}: {what}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A place in JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A value in JSON.
    #[error("{place}: {what}")]
    Value {
        /// Where: `results[3].type`.
        place: String,
        /// What is wrong with it.
        what: String,
    },
    /// There is nothing in it.
    #[error("no rows of results: not the output of nccl-tests, or of a run that failed")]
    Empty,
    /// It does not say what was measured.
    #[error("the file does not name its collective (versions before 2.17 do not): use --collective")]
    Collective,
    /// It says one thing, the caller another.
    #[error("the file has {said}, not {asked}")]
    OtherCollective {
        /// The file's.
        said: Collective,
        /// The caller's.
        asked: Collective,
    },
}

/// Reads a file. `collective` is needed where the file does not say it.
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
    // Host names and logs in between may be anything.
    read(&String::from_utf8_lossy(&bytes), collective)
}

/// What nccl-tests measured, always over NCCL and never simulated.
fn report(
    version: String,
    details: BTreeMap<String, String>,
    (said, asked): (Option<Collective>, Option<Collective>),
    ranks: Vec<RankPlace>,
    results: Vec<Row>,
) -> Result<Report, ImportError> {
    // What holds nothing says nothing of what it is either.
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

/// Reads what a file holds.
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

/// What both say of the collective.
fn agreed(said: Option<Collective>, asked: Option<Collective>) -> Result<Collective, ImportError> {
    match (said, asked) {
        (Some(said), Some(asked)) if said != asked => Err(ImportError::OtherCollective { said, asked }),
        (said, asked) => said.or(asked).ok_or(ImportError::Collective),
    }
}

/// The collective of a program of nccl-tests: `all_reduce_perf`, with or without a path.
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

/// An element type by nccl-tests' name.
fn dtype(name: &str) -> Result<Dtype, String> {
    let known = Dtype::ALL.into_iter().find(|dtype| dtype.name() == name);
    known.ok_or_else(|| format!("type {name} is not one of float, half, bfloat16, int32"))
}

/// A timing of which the mean alone is known.
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
