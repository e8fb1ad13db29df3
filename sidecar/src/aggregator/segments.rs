//! The files of one journal: segments that are closed, `journal-000001.ndjson` and so on, and `journal.ndjson`, which is
//! written. Read one after the other they are one journal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A journal is cut into segments of this size, unless it is told otherwise: what has to be folded again after a
/// restart is not more than one.
pub const SEGMENT_BYTES: u64 = 256 << 20;

/// Room on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A segment is closed when it is so long.
    pub segment_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            segment_bytes: SEGMENT_BYTES,
        }
    }
}

/// Where the closed segment of that number of the journal at `journal` is.
pub fn closed(journal: &Path, number: u32) -> PathBuf {
    let stem = journal.file_stem().unwrap_or_default().to_string_lossy();
    journal.with_file_name(format!("{stem}-{number:06}.ndjson"))
}

/// The closed segments of the journal at `journal` in their order, with their numbers.
///
/// # Errors
/// When its directory cannot be read.
pub fn list(journal: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    numbered(journal, ".ndjson")
}

/// Files beside `journal` that are called like it, with a number and this end, in the order of their numbers.
///
/// # Errors
/// When its directory cannot be read.
pub fn numbered(journal: &Path, end: &str) -> io::Result<Vec<(u32, PathBuf)>> {
    let stem = format!("{}-", journal.file_stem().unwrap_or_default().to_string_lossy());
    let dir = match journal.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    let mut found = Vec::new();
    for file in fs::read_dir(dir)? {
        let path = file?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let digits = name.strip_prefix(&stem).and_then(|rest| rest.strip_suffix(end));
        let number = digits
            .filter(|digits| digits.len() >= 6 && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok());
        found.extend(number.map(|number| (number, path)));
    }
    found.sort();
    Ok(found)
}

/// All files of the journal at `journal` that there are, in their order.
///
/// # Errors
/// When its directory cannot be read.
pub fn files(journal: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = list(journal)?.into_iter().map(|(_, path)| path).collect();
    // One that was killed between closing a segment and beginning the next has none.
    if files.is_empty() || journal.exists() {
        files.push(journal.to_owned());
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_found_by_their_journal() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("journal.ndjson");
        assert_eq!(
            files(&journal).unwrap(),
            std::slice::from_ref(&journal),
            "one that is not there"
        );
        for name in [
            "journal-000002.ndjson",
            "journal-000010.ndjson",
            "journal-1000000.ndjson",
            "journal-2.ndjson",
            "journal-00000x.ndjson",
            "journal.1-000001.ndjson",
            "journal-000002.state",
        ] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let numbers = |journal: &Path| list(journal).unwrap().into_iter().map(|(number, _)| number);
        assert!(numbers(&journal).eq([2, 10, 1_000_000]));
        assert!(numbers(&dir.path().join("journal.1.ndjson")).eq([1]));
        assert_eq!(files(&journal).unwrap().len(), 3, "between two segments");
        fs::write(&journal, "").unwrap();
        assert_eq!(files(&journal).unwrap().last(), Some(&journal));
        assert_eq!(closed(&journal, 2), dir.path().join("journal-000002.ndjson"));
    }
}
