//! The JSON line: one [`Entry`] of the journal as text. `docs/wire.md` holds the schema.

use crate::frame::{Entry, SCHEMA_VERSION};

/// Longest line that is read, bytes. A writer never comes near it: the largest event is a beat of 16 ranks.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Why a line is not an entry. Columns count bytes from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Longer than [`MAX_LINE_BYTES`].
    #[error("line is {bytes} bytes long, at most {MAX_LINE_BYTES} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Written by a newer version than this one can read.
    #[error(
        "schema version {found} is newer than {SCHEMA_VERSION}, which this version reads: update paceline"
    )]
    FutureVersion {
        /// The version it states.
        found: u16,
    },
    /// Not JSON, or JSON of another shape.
    #[error("column {column}: {message}")]
    Malformed {
        /// Where in the line.
        column: usize,
        /// What was wrong.
        message: String,
    },
}

/// Only what must be known before the rest can be judged.
#[derive(serde::Deserialize)]
struct Versioned {
    frame: Version,
}

#[derive(serde::Deserialize)]
struct Version {
    v: u16,
}

/// The entry as one line of JSON, without the newline.
pub fn encode(entry: &Entry) -> String {
    // Every key of the schema is a string and every float finite by construction, so JSON cannot refuse it; should
    // it ever, an empty line is skipped by every reader.
    serde_json::to_string(entry).unwrap_or_default()
}

/// Reads one line (without its newline).
///
/// # Errors
/// [`LineError`], which names the column; the caller knows the file and the line.
pub fn decode(line: &str) -> Result<Entry, LineError> {
    if line.len() > MAX_LINE_BYTES {
        return Err(LineError::TooLong { bytes: line.len() });
    }
    serde_json::from_str::<Entry>(line)
        .map_err(|error| match serde_json::from_str::<Versioned>(line) {
            Ok(Versioned { frame: Version { v } }) if v > SCHEMA_VERSION => {
                LineError::FutureVersion { found: v }
            }
            _ => malformed(&error),
        })
        .and_then(|entry| {
            let found = entry.frame.v;
            if found > SCHEMA_VERSION {
                Err(LineError::FutureVersion { found })
            } else {
                Ok(entry)
            }
        })
}

fn malformed(error: &serde_json::Error) -> LineError {
    let text = error.to_string();
    // serde_json ends its message with " at line 1 column N"; the line is ours to tell.
    let message = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(head, _)| head)
        .to_owned();
    LineError::Malformed {
        column: error.column().max(1),
        message,
    }
}
