//! JSON lines: one [`Entry`] of the journal as text. `docs/wire.md` defines the schema.

use std::fmt::Write;

use crate::codec::hash::crc32;
use crate::frame::{Entry, SCHEMA_VERSION};

/// Maximum length of a line that is read, in bytes. Lines that we write are far shorter, because the largest event is a
/// beat of 16 ranks.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Why a line is not a valid entry. Columns count bytes from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line is longer than [`MAX_LINE_BYTES`].
    #[error("line is {bytes} bytes long, at most {MAX_LINE_BYTES} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The line was written by a version newer than this one supports.
    #[error(
        "schema version {found} is newer than {SCHEMA_VERSION}, which this version reads: update paceline"
    )]
    FutureVersion {
        /// The schema version of the line.
        found: u16,
    },
    /// The checksum does not match.
    #[error("damaged: its checksum is {found:08x}, not {stated}")]
    Damaged {
        /// The computed checksum.
        found: u32,
        /// The checksum in the line, as text.
        stated: String,
    },
    /// The line is not JSON, or is JSON that does not match the schema.
    #[error("column {column}: {message}")]
    Malformed {
        /// The column of the error.
        column: usize,
        /// The error message.
        message: String,
    },
}

/// The part that is needed to check the version.
#[derive(serde::Deserialize)]
struct Versioned {
    frame: Version,
}

#[derive(serde::Deserialize)]
struct Version {
    v: u16,
}

/// Encodes an entry as one line of JSON, without the newline.
pub fn encode(entry: &Entry) -> String {
    // Every key of the schema is a string, and every float is finite by construction, so serialization cannot fail. If
    // it ever does, the line is empty, and all readers skip empty lines.
    serde_json::to_string(entry).unwrap_or_default()
}

/// Encodes like [`encode`] and adds a checksum of everything before it as the last field, for storage.
pub fn encode_sealed(entry: &Entry) -> String {
    let mut text = encode(entry);
    if text.pop().is_some() {
        let sum = crc32(text.as_bytes());
        // Writing to a string does not fail.
        let _ = write!(text, "{SUM}{sum:08x}\"}}");
    }
    text
}

/// The start of the checksum field.
const SUM: &str = ",\"crc\":\"";

/// Checks the checksum. Lines without one (of an older version, or written by hand) are accepted.
fn check_sum(line: &str) -> Result<(), LineError> {
    let sealed = line.len().checked_sub(SUM.len() + 10).and_then(|at| {
        let (body, tail) = line.split_at_checked(at)?;
        let stated = tail.strip_prefix(SUM)?.strip_suffix("\"}")?;
        Some((body, stated))
    });
    let Some((body, stated)) = sealed else {
        return Ok(());
    };
    let found = crc32(body.as_bytes());
    if u32::from_str_radix(stated, 16) == Ok(found) {
        return Ok(());
    }
    let stated = stated.to_owned();
    Err(LineError::Damaged { found, stated })
}

/// Decodes one line (without its newline).
///
/// # Errors
/// [`LineError`], which gives the column; the caller adds the file and the line.
pub fn decode(line: &str) -> Result<Entry, LineError> {
    if line.len() > MAX_LINE_BYTES {
        return Err(LineError::TooLong { bytes: line.len() });
    }
    check_sum(line)?;
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

/// The fields of a line that [`glance`] extracts without parsing all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance<'a> {
    /// [`Entry::n`]
    pub n: u64,
    /// [`Entry::at_ns`]
    pub at_ns: u64,
    /// The node's name.
    pub node: &'a str,
    /// [`crate::Frame::agent`]
    pub agent: u64,
    /// The name of its event.
    pub kind: &'a str,
}

/// Extracts fields from a line in the exact format of [`encode_sealed`] with a valid checksum. Returns `None` if the
/// line is in another format or needs [`decode`].
pub fn glance(line: &str) -> Option<Glance<'_>> {
    let is_sealed = line.len() <= MAX_LINE_BYTES && line.get(line.len().checked_sub(18)?..)?.starts_with(SUM);
    if !is_sealed || check_sum(line).is_err() {
        return None;
    }
    let (n, rest) = number(line.strip_prefix("{\"n\":")?)?;
    let (at_ns, rest) = number(rest.strip_prefix(",\"at_ns\":")?)?;
    let (v, rest) = number(rest.strip_prefix(",\"frame\":{\"v\":")?)?;
    let (node, rest) = rest.strip_prefix(",\"node\":\"")?.split_once('"')?;
    let (agent, rest) = number(rest.strip_prefix(",\"agent\":")?)?;
    let (_, rest) = number(rest.strip_prefix(",\"seq\":")?)?;
    let (_, rest) = rest.strip_prefix(",\"provenance\":\"")?.split_once('"')?;
    let (kind, _) = rest.strip_prefix(",\"event\":{\"")?.split_once('"')?;
    let is_plain = v <= u64::from(SCHEMA_VERSION) && !node.contains('\\') && !kind.contains('\\');
    is_plain.then_some(Glance {
        n,
        at_ns,
        node,
        agent,
        kind,
    })
}

fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit())?;
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

fn malformed(error: &serde_json::Error) -> LineError {
    let text = error.to_string();
    // serde_json ends its message with " at line 1 column N"; the caller adds the line.
    let message = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(head, _)| head)
        .to_owned();
    LineError::Malformed {
        column: error.column().max(1),
        message,
    }
}
