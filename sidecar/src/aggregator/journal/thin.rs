//! Takes lines out of a closed segment of the journal and writes down there what is gone ([`Thinned`]).
//!
//! The new file is written beside the old one, put on the medium and takes its name: whoever is killed leaves the one or
//! the other.

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

/// The end of the name of a file that is not whole yet.
const DRAFT: &str = ".thin";
/// It is asked after so many lines whether to go on.
const ASK_EVERY: u64 = 4096;
/// So much is read of a segment to see whether it was thinned.
const HEAD_BYTES: u64 = 1 << 20;
/// Bytes that are read or written at once.
const CHUNK: usize = 256 << 10;

/// What goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Telemetry.
    Telemetry,
    /// All but what those who come later cannot do without: whose journal it is, and its policy.
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

/// How it is done.
#[derive(Clone, Debug)]
pub struct Hand {
    /// The aggregator's node.
    pub node: NodeId,
    /// The room that the journal is given, bytes.
    pub bound_bytes: u64,
    /// Set by whoever does not want to wait for it.
    pub stop: Arc<AtomicBool>,
}

/// What a segment is now.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    /// What is gone of it, now and before; `None`: nothing.
    pub record: Option<Thinned>,
    /// Whether something went now.
    pub is_new: bool,
}

/// Takes out of the segment at `path` what the rule says. `earlier`, all of which went before, becomes part of it.
///
/// # Errors
/// When a file cannot be read or written, or when it was stopped: what was there stays.
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
        // Who is killed before this leaves a file that the next one tells of: readers leave it out.
        fs::remove_file(earlier)?;
    }
    Ok(Done {
        record: Some(record),
        is_new: true,
    })
}

/// Two aggregators, of which one does not know yet that it was taken for dead, do not meet in it.
fn draft_of(path: &Path) -> PathBuf {
    path.with_added_extension(format!("{:x}{DRAFT}", host::incarnation()))
}

/// Removes what somebody who was killed had begun.
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

/// Whether nothing of a segment and of all before it is left but what nobody can do without: it tells of them.
pub fn is_dropped(path: &Path) -> bool {
    told_in(path).is_some_and(|record| record.whole)
}

/// What a segment says near its beginning of what is gone: there it stands, but for a few lines that are older than all that
/// went. `None` may be wrong, where these are many.
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

/// The line that stands where others stood.
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

/// Every line of these files with its number, without its newline; empty ones are left out. What is longer than any line
/// may be comes in pieces, none of which can be read, as the whole cannot.
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
