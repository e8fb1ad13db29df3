//! The files of one journal: segments that are closed, `journal-000001.ndjson` and so on, and `journal.ndjson`, which is
//! written. Read one after the other they are one journal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::thin;

/// A journal is cut into segments of this size, unless it is told otherwise: what has to be folded again after a
/// restart is not more than one.
pub const SEGMENT_BYTES: u64 = 256 << 20;
/// What a journal may take on the disk unless it is told otherwise: raw telemetry of 16,384 ranks for the last ten minutes,
/// of eight ranks for weeks.
pub const BOUND_BYTES: u64 = 8 << 30;
/// Less is no room for a journal.
pub const LEAST_BYTES: u64 = 1 << 20;
/// At least so many segments are within the bound: two are whole, one is written, one is being thinned.
const SEGMENTS: u64 = 8;

/// Room on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A segment is closed when it is so long.
    pub segment_bytes: u64,
    /// What all files of the journal may take together, the two snapshots included. When it comes near, the oldest segments
    /// are thinned.
    pub bound_bytes: u64,
}

impl Limits {
    /// Limits of a journal that may take so much.
    pub fn within(bound_bytes: u64) -> Limits {
        Limits {
            segment_bytes: SEGMENT_BYTES.min(bound_bytes / SEGMENTS),
            bound_bytes,
        }
    }

    /// The same when there is no more room than this.
    pub fn under(self, room_bytes: u64) -> Limits {
        Limits {
            bound_bytes: self.bound_bytes.min(room_bytes),
            ..self
        }
    }

    /// As they are on a disk that has so much left: two segments have to be whole before anything can be thinned.
    pub fn on(self, free_bytes: u64) -> Limits {
        let segment_bytes = self
            .segment_bytes
            .min((free_bytes / SEGMENTS).max(LEAST_BYTES / SEGMENTS));
        Limits {
            segment_bytes,
            ..self
        }
    }

    /// What it may take when a segment was closed: the next one has to fit too, and what is written of one that is thinned.
    pub fn resting_bytes(&self) -> u64 {
        self.bound_bytes
            .saturating_sub(self.segment_bytes.saturating_mul(2))
    }
}

/// Reads `8GiB`, `500MB`, `1048576`: bytes, at least [`LEAST_BYTES`].
///
/// # Errors
/// Why it is no such size.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic() || letter == ' ');
    let unit = match text[digits.len()..].trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1u64 << 40,
        unit => {
            return Err(format!(
                "{unit:?} is not a unit: B, kB, MB, GB, TB, KiB, MiB, GiB or TiB"
            ));
        }
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "expected a size, such as 8GiB".to_owned())?;
    let bytes = number.checked_mul(unit).ok_or("larger than any disk")?;
    if bytes < LEAST_BYTES {
        return Err(format!("{bytes} bytes are too few: at least 1MiB"));
    }
    Ok(bytes)
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::within(BOUND_BYTES)
    }
}

/// The end of a segment's name.
pub(super) const END: &str = ".ndjson";

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
    let mut all = numbered(journal, END)?;
    all.drain(..told_of(&all));
    Ok(all)
}

/// How many of the first segments another one tells of: who took everything out of it was killed before it removed them.
fn told_of(all: &[(u32, PathBuf)]) -> usize {
    usize::from(all.get(1).is_some_and(|(_, path)| thin::is_dropped(path)))
}

/// Removes what somebody left of the segments of the journal at `journal` who was killed.
pub fn sweep(journal: &Path) {
    thin::sweep(journal);
    let all = numbered(journal, END).unwrap_or_default();
    for (_, path) in &all[..told_of(&all)] {
        let _ = fs::remove_file(path);
    }
}

/// Files beside `journal` that are called like it, with a number and this end, in the order of their numbers.
///
/// # Errors
/// When its directory cannot be read.
pub fn numbered(journal: &Path, end: &str) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = named(journal, end)?;
    // A directory or a pipe of that name is none of them, and to read a pipe may take for ever.
    found.retain(|(_, path)| fs::metadata(path).is_ok_and(|meta| meta.is_file()));
    Ok(found)
}

/// As [`numbered`], whatever it is that has such a name.
pub(super) fn named(journal: &Path, end: &str) -> io::Result<Vec<(u32, PathBuf)>> {
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
    fn sizes() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("500 MB", 500_000_000),
            ("1048576", 1 << 20),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "GiB",
            "8 parsecs",
            "-1GiB",
            "1.5GiB",
            "1023KiB",
            "99999999TiB",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        let small = Limits::within(LEAST_BYTES);
        assert!(small.segment_bytes * 4 < small.resting_bytes());
        assert_eq!(Limits::default().segment_bytes, SEGMENT_BYTES);
    }

    #[test]
    fn a_small_disk_counts_as_the_bound() {
        let asked = Limits::within(8 << 30);
        assert_eq!(asked.under(u64::MAX), asked);
        assert_eq!(asked.on(u64::MAX), asked);
        let (free, near) = (64 << 20, 100 << 20);
        let small = asked.on(free).under(near);
        assert_eq!(small.bound_bytes, near);
        assert!(small.segment_bytes * SEGMENTS <= free, "{small:?}");
        assert!(small.resting_bytes() > small.segment_bytes, "{small:?}");
        assert_eq!(asked.on(0).segment_bytes * SEGMENTS, LEAST_BYTES);
    }

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
        fs::create_dir(dir.path().join("journal-000007.ndjson")).unwrap();
        let numbers = |journal: &Path| list(journal).unwrap().into_iter().map(|(number, _)| number);
        assert!(numbers(&journal).eq([2, 10, 1_000_000]));
        assert!(numbers(&dir.path().join("journal.1.ndjson")).eq([1]));
        assert_eq!(files(&journal).unwrap().len(), 3, "between two segments");
        fs::write(&journal, "").unwrap();
        assert_eq!(files(&journal).unwrap().last(), Some(&journal));
        assert_eq!(closed(&journal, 2), dir.path().join("journal-000002.ndjson"));
    }
}
