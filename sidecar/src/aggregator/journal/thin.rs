//! Removes lines from a closed segment of the journal, and records there what was removed ([`Thinned`]).
//!
//! The new file is written beside the old one, synced, and renamed over it. If the process is killed, either the old or
//! the new file remains.

mod survey;

use std::fs;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use paceline_health::codec::line::{self, MAX_LINE_BYTES};
use paceline_health::event::{Event, Thinned, is_telemetry};
use paceline_health::frame::{AGGREGATOR, SCHEMA_VERSION};
use paceline_health::id::NodeId;
use paceline_health::{Entry, Frame, Provenance, Time};

use self::survey::{Seen, Survey};
use super::snapshot::sync_dir;
use crate::{host, safe_file};

/// File name suffix of an incomplete file.
const DRAFT: &str = ".thin";
/// Number of lines between two checks of the stop flag.
const ASK_EVERY: u64 = 4096;
/// Number of bytes to read from a segment to find out whether it was thinned.
const HEAD_BYTES: u64 = 1 << 20;
/// Bytes read or written at once.
const CHUNK: usize = 256 << 10;

/// Which entries to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Telemetry.
    Telemetry,
    /// Everything but the essential entries, which are the journal's job and its policy.
    Everything,
}

impl Rule {
    fn takes(self, kind: &str) -> bool {
        match self {
            Rule::Telemetry => is_telemetry(kind),
            Rule::Everything => !matches!(kind, "job" | "policy"),
        }
    }
}

/// Parameters of thinning.
#[derive(Clone, Debug)]
pub struct Hand {
    /// The aggregator's node.
    pub node: NodeId,
    /// Size limit of the journal, bytes.
    pub bound_bytes: u64,
    /// Set to stop early.
    pub stop: Arc<AtomicBool>,
}

/// The result of thinning a segment.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    /// The record of everything removed from the segment so far; `None` if nothing was removed.
    pub record: Option<Thinned>,
    /// True if something was removed now.
    pub is_new: bool,
}

/// Removes the entries that the rule selects from the segment at `path`. `earlier`, a segment that was already dropped,
/// is merged into it.
///
/// # Errors
/// If a file cannot be read or written, or if stopped; existing files stay.
pub fn squeeze(earlier: Option<&Path>, path: &Path, rule: Rule, hand: &Hand) -> io::Result<Done> {
    let inputs: Vec<&Path> = earlier.into_iter().chain([path]).collect();
    let mut survey = Survey::new(rule);
    each_line(&inputs, &hand.stop, |number, text| {
        survey.take(number, Seen::of(text).as_ref());
        Ok(())
    })?;
    survey.end();
    if survey.is_idle() && earlier.is_none() {
        return Ok(Done {
            record: survey.records.pop(),
            is_new: false,
        });
    }
    let record = survey.record(hand.bound_bytes);
    let draft = draft_of(path);
    let written = write(&draft, &inputs, &survey, &record, hand).and_then(|()| fs::rename(&draft, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&draft);
        return Err(error);
    }
    sync_dir(path)?;
    if let Some(earlier) = earlier {
        // If the process is killed before this line, a file remains that the next one has replaced. Readers skip it.
        fs::remove_file(earlier)?;
    }
    Ok(Done {
        record: Some(record),
        is_new: true,
    })
}

/// Returns the path of the draft. The name is unique because an aggregator that was superseded without noticing must
/// not write to the same draft.
fn draft_of(path: &Path) -> PathBuf {
    path.with_added_extension(format!("{:x}{DRAFT}", host::incarnation()))
}

/// Removes drafts of killed processes.
pub fn sweep(journal: &Path) {
    let stem = format!("{}-", journal.file_stem().unwrap_or_default().to_string_lossy());
    let dir = journal.parent().unwrap_or(Path::new("."));
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = file.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&stem) && name.ends_with(DRAFT) {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Returns true if a segment holds only essential entries, both of itself and of all segments before it, which it
/// replaces.
pub fn is_dropped(path: &Path) -> bool {
    told_in(path).is_some_and(|record| record.whole)
}

/// Returns the record of removed lines near the beginning of a segment. Only lines older than all removed lines precede
/// it. If there are many of those, this may return `None` although there is a record.
pub fn told_in(path: &Path) -> Option<Thinned> {
    let head = BufReader::new(safe_file::open_own(path).ok()?.take(HEAD_BYTES));
    let mut lines = head.split(b'\n').map_while(Result::ok);
    lines.find_map(|text| Seen::of(&text)?.record)
}

fn write(draft: &Path, inputs: &[&Path], survey: &Survey, record: &Thinned, hand: &Hand) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(CHUNK, safe_file::create(draft)?);
    let mut is_told = false;
    each_line(inputs, &hand.stop, |number, text| {
        let seen = Seen::of(text);
        if !survey.goes(number, seen.as_ref()) {
            return copy(&mut out, text);
        }
        if let Some(seen) = seen
            && !std::mem::replace(&mut is_told, true)
        {
            copy(&mut out, tell(seen.n, seen.at_ns, record, hand).as_bytes())?;
        }
        Ok(())
    })?;
    if !is_told {
        let (n, at_ns) = survey.last();
        copy(&mut out, tell(n, at_ns, record, hand).as_bytes())?;
    }
    out.into_inner().map_err(|error| error.into_error())?.sync_data()
}

/// Returns the line that replaces removed lines.
fn tell(n: u64, at_ns: u64, record: &Thinned, hand: &Hand) -> String {
    line::encode_sealed(&Entry {
        n,
        at_ns: Time(at_ns),
        frame: Frame {
            v: SCHEMA_VERSION,
            node: hand.node.clone(),
            agent: AGGREGATOR,
            seq: 0,
            provenance: Provenance::Live,
            event: Event::Thinned(record.clone()),
        },
    })
}

fn copy(out: &mut impl Write, text: &[u8]) -> io::Result<()> {
    out.write_all(text)?;
    out.write_all(b"\n")
}

/// Calls `each` with every line of these files, without its newline, and with its number. Empty lines are skipped. An
/// oversized line arrives in several pieces, each of which is unreadable like the whole.
fn each_line(
    inputs: &[&Path],
    stop: &AtomicBool,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let (mut number, mut buffer) = (0u64, Vec::new());
    for input in inputs {
        let mut reader = BufReader::with_capacity(CHUNK, safe_file::open_own(input)?);
        loop {
            buffer.clear();
            let most = MAX_LINE_BYTES as u64 + 1;
            if reader.by_ref().take(most).read_until(b'\n', &mut buffer)? == 0 {
                break;
            }
            let text = buffer.strip_suffix(b"\n").unwrap_or(&buffer);
            number += 1;
            if number.is_multiple_of(ASK_EVERY) && stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if !text.trim_ascii().is_empty() {
                each(number, text)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "thin/thin_tests.rs"]
mod tests;
