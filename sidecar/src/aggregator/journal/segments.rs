//! The files of one journal: the closed segments (`journal-000001.ndjson` and so on) and the open segment
//! (`journal.ndjson`). Read in this order, they form the whole journal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::thin;

/// Default size of a segment. A restart folds at most one segment again.
pub const SEGMENT_BYTES: u64 = 256 << 20;
/// Default limit of a journal's disk usage. It holds the raw telemetry of 16,384 ranks for about ten minutes, or of
/// eight ranks for weeks.
pub const BOUND_BYTES: u64 = 8 << 30;
/// Minimum limit of a journal.
pub const LEAST_BYTES: u64 = 1 << 20;
/// Minimum number of segments within the limit: two complete segments, the open one, and one that is being thinned.
const SEGMENTS: u64 = 8;

/// Limits of disk usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size at which a segment is closed.
    pub segment_bytes: u64,
    /// Limit of all files of the journal together, including the two snapshots. When the journal gets near it, the
    /// oldest segments are thinned.
    pub bound_bytes: u64,
}

impl Limits {
    /// Returns the limits of a journal with this maximum size.
    pub fn within(bound_bytes: u64) -> Limits {
        Limits {
            segment_bytes: SEGMENT_BYTES.min(bound_bytes / SEGMENTS),
            bound_bytes,
        }
    }

    /// Lowers the limit to the available space.
    pub fn under(self, room_bytes: u64) -> Limits {
        Limits {
            bound_bytes: self.bound_bytes.min(room_bytes),
            ..self
        }
    }

    /// Returns the limits on a disk with this much free space. Two segments must be complete before anything can be
    /// thinned.
    pub fn on(self, free_bytes: u64) -> Limits {
        let segment_bytes = self
            .segment_bytes
            .min((free_bytes / SEGMENTS).max(LEAST_BYTES / SEGMENTS));
        Limits {
            segment_bytes,
            ..self
        }
    }

    /// Returns the maximum size of the journal right after a segment is closed. It leaves room for the next segment and
    /// for the copy of a segment that is being thinned.
    pub fn resting_bytes(&self) -> u64 {
        self.bound_bytes
            .saturating_sub(self.segment_bytes.saturating_mul(2))
    }
}

/// Parses a size such as `8GiB`, `500MB` or `1048576` (bytes), at least [`LEAST_BYTES`].
///
/// # Errors
/// Why the size is invalid.
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

/// File name suffix of a segment.
pub(super) const END: &str = ".ndjson";

/// Returns the path of the closed segment with this number, for the journal at `journal`.
pub fn closed(journal: &Path, number: u32) -> PathBuf {
    let stem = journal.file_stem().unwrap_or_default().to_string_lossy();
    journal.with_file_name(format!("{stem}-{number:06}.ndjson"))
}

/// Returns the closed segments of the journal at `journal` in order, with their numbers.
///
/// # Errors
/// When its directory cannot be read.
pub fn list(journal: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut all = numbered(journal, END)?;
    all.drain(..told_of(&all));
    Ok(all)
}

/// Returns the number of leading segments that were already merged into the next one. There are such segments if the
/// merging process was killed before it removed them.
fn told_of(all: &[(u32, PathBuf)]) -> usize {
    usize::from(all.get(1).is_some_and(|(_, path)| thin::is_dropped(path)))
}

/// Removes the leftovers of a killed process from the segments of the journal at `journal`.
pub fn sweep(journal: &Path) {
    thin::sweep(journal);
    let all = numbered(journal, END).unwrap_or_default();
    for (_, path) in &all[..told_of(&all)] {
        let _ = fs::remove_file(path);
    }
}

/// Returns the files beside `journal` with its name, a number and this suffix, sorted by number.
///
/// # Errors
/// When its directory cannot be read.
pub fn numbered(journal: &Path, end: &str) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = named(journal, end)?;
    // Skip directories and pipes with such a name, because reading a pipe may block forever.
    found.retain(|(_, path)| fs::metadata(path).is_ok_and(|meta| meta.is_file()));
    Ok(found)
}

/// Like [`numbered`], but includes directories and pipes.
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

/// Returns all existing files of the journal at `journal`, in order.
///
/// # Errors
/// When its directory cannot be read.
pub fn files(journal: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = list(journal)?.into_iter().map(|(_, path)| path).collect();
    // The open segment is missing if the process was killed between closing one and creating the next.
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
