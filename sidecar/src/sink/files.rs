//! Writes `verdicts.ndjson` and `report.json`.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use paceline_health::report::Report;
use paceline_health::verdict::Verdict;

use super::{listener, write_whole};
use crate::aggregator::journal::disk::{Disk, on_disk};
use crate::host::read_plain;
use crate::safe_file;
use crate::warn;

/// The result files of a run directory.
#[derive(Debug)]
pub struct Files {
    dir: PathBuf,
    verdicts: Option<Box<dyn Disk>>,
    /// The length of the complete verdicts in the file, bytes.
    length: u64,
    /// Lines that could not be written because the disk was full.
    waiting: Vec<u8>,
    /// True if an incomplete line follows the complete ones.
    half: bool,
    /// The address of the metrics page, and whether it was written to its file.
    metrics: Option<(String, bool)>,
}

/// The file that contains the address of the metrics page while the page exists.
const METRICS: &str = "metrics.addr";
/// Maximum length of an address.
const MOST_ADDRESS: u64 = 100;

/// Returns the recorded address of the metrics page of the run in `dir`. The file may be left over from a killed
/// process.
pub fn metrics_said(dir: &Path) -> Option<SocketAddr> {
    let text = read_plain(&dir.join(METRICS), MOST_ADDRESS).ok()?;
    text.trim().parse().ok()
}

/// Returns why a token must not be sent to the address recorded by the run in `dir`, or `None` if it may be sent. There
/// are two risks: the writer of the file could direct the token anywhere, and any user of this host may now listen at a
/// loopback address that a run has released.
pub fn token_refusal(dir: &Path, address: SocketAddr) -> Option<String> {
    let path = dir.join(METRICS);
    if let Err(error) = safe_file::open_own(&path) {
        return Some(format!("{}: {error}", path.display()));
    }
    let why = match address.ip().is_loopback().then(|| listener::owner(address)) {
        None => return None,
        Some(Some(owner)) if safe_file::is_trusted(owner) => return None,
        Some(Some(owner)) => format!("another user listens there (uid {owner})"),
        Some(None) => "no process listens there".to_owned(),
    };
    Some(format!("{}: {address}: {why}", path.display()))
}

/// Maximum size of verdicts that wait for space on the disk, bytes. Further ones are lost until the next start, which
/// rebuilds them from the journal.
const MOST_WAITING: usize = 1 << 20;

/// Renames `verdicts.ndjson`, because it was made from more data than is available now and would be overwritten.
pub fn lay_aside(dir: &Path) {
    let path = dir.join("verdicts.ndjson");
    let has_any = fs::metadata(&path).is_ok_and(|file| file.len() > 0);
    let aside = (1u32..).map(|number| dir.join(format!("verdicts.{number}.ndjson")));
    if let Some(aside) = aside.into_iter().find(|aside| has_any && !aside.exists()) {
        let (from, to) = (path.display(), aside.display());
        warn::once(
            "verdicts aside",
            format_args!("{from}: moved to {to}: the journal was thinned and no snapshot of it can be used"),
        );
        if let Err(error) = fs::rename(&path, &aside) {
            warn::once("verdicts", format_args!("{}: {error}", path.display()));
        }
    }
}

impl Files {
    /// Opens `verdicts.ndjson` and truncates it to the length recorded in a snapshot of the journal, or to zero without
    /// a snapshot. Replaying the journal then produces the removed lines again.
    pub fn open(dir: &Path, known: u64) -> Files {
        // A killed process may have left its address file behind. Delete it at once, because a full disk would not
        // accept a new one later.
        let _ = fs::remove_file(dir.join(METRICS));
        let path = dir.join("verdicts.ndjson");
        let verdicts = safe_file::append(&path).and_then(|file| {
            let mut length = file.metadata()?.len().min(known);
            if length < known {
                let lost = known - length;
                warn::once(
                    "verdicts",
                    format_args!("{}: its last {lost} bytes are lost", path.display()),
                );
                // New lines must not be appended to an incomplete one.
                let whole = safe_file::read_own(&path)?
                    .iter()
                    .rposition(|byte| *byte == b'\n');
                length = whole.map_or(0, |at| at as u64 + 1);
            }
            file.set_len(length)?;
            Ok(file)
        });
        let length = verdicts
            .as_ref()
            .ok()
            .and_then(|file| Some(file.metadata().ok()?.len()));
        if let Err(error) = &verdicts {
            warn::once("verdicts", format_args!("{}: {error}", path.display()));
        }
        Files {
            dir: dir.to_owned(),
            verdicts: verdicts.ok().map(on_disk),
            length: length.unwrap_or(0),
            waiting: Vec::new(),
            half: false,
            metrics: None,
        }
    }

    /// Writes one line per change of a verdict.
    pub fn verdict(&mut self, verdict: &Verdict) {
        let Ok(mut line) = serde_json::to_vec(verdict) else {
            return;
        };
        line.push(b'\n');
        if self.waiting.len() + line.len() <= MOST_WAITING {
            self.waiting.extend(line);
        }
        self.write_waiting();
    }

    fn write_waiting(&mut self) {
        let Some(file) = self.verdicts.as_mut().filter(|_| !self.waiting.is_empty()) else {
            return;
        };
        if self.half {
            self.half = file.cut(self.length).is_err();
        }
        if self.half {
            return;
        }
        match file.append(&self.waiting) {
            Ok(()) => {
                self.length += self.waiting.len() as u64;
                self.waiting.clear();
            }
            Err(error) => {
                warn::once("verdicts", format_args!("verdicts.ndjson: {error}"));
                self.half = file.cut(self.length).is_err();
            }
        }
    }

    /// Returns the length of the verdicts, bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Starts writing the verdicts to the medium, without waiting for it.
    pub fn commit(&mut self) {
        self.write_waiting();
        if let Some(Err(error)) = self.verdicts.as_mut().map(|file| file.sync_soon()) {
            warn::once("verdicts", format_args!("verdicts.ndjson: {error}"));
        }
    }

    /// Writes the whole report and any waiting verdicts. Returns the length of the report in bytes.
    pub fn report(&mut self, report: &Report) -> usize {
        self.write_waiting();
        self.write_metrics();
        let mut text = serde_json::to_vec_pretty(report).unwrap_or_default();
        if text.is_empty() {
            return 0;
        }
        text.push(b'\n');
        let path = self.dir.join("report.json");
        if let Err(error) = write_whole(&path, &text) {
            warn::once("report", format_args!("{}: {error}", path.display()));
        }
        text.len()
    }

    /// Sets the address of the metrics page.
    pub fn metrics_address(&mut self, address: &str) {
        self.metrics = Some((format!("{address}\n"), false));
        self.write_metrics();
    }

    fn write_metrics(&mut self) {
        let path = self.dir.join(METRICS);
        if let Some((text, is_written)) = self.metrics.as_mut().filter(|(_, written)| !written) {
            match write_whole(&path, text.as_bytes()) {
                Ok(()) => *is_written = true,
                Err(error) => warn::once(METRICS, format_args!("{}: {error}", path.display())),
            }
        }
    }

    /// Removes the address file when the metrics page is closed, unless it contains the address of another process that
    /// took over.
    pub fn close(&mut self) {
        let path = self.dir.join(METRICS);
        let is_ours =
            |(text, _): &(String, bool)| read_plain(&path, MOST_ADDRESS).is_ok_and(|said| said == *text);
        if self.metrics.take().is_some_and(|own| is_ours(&own)) {
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use paceline_health::{Detector, Policy};

    use super::*;

    /// A simulated disk. It accepts bytes until it is full, even if that ends within a line.
    #[derive(Debug)]
    struct Narrow {
        file: Box<dyn Disk>,
        room: Arc<AtomicUsize>,
    }

    impl Disk for Narrow {
        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            let taken = bytes.len().min(self.room.load(Ordering::Relaxed));
            self.room.fetch_sub(taken, Ordering::Relaxed);
            self.file.append(&bytes[..taken])?;
            if taken < bytes.len() {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            Ok(())
        }
        fn cut(&mut self, length: u64) -> io::Result<()> {
            self.file.cut(length)
        }
        fn length(&self) -> io::Result<u64> {
            self.file.length()
        }
        fn sync(&mut self) -> io::Result<()> {
            self.file.sync()
        }
    }

    #[test]
    fn a_full_disk_keeps_no_half_verdict_and_gets_the_others_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::open(dir.path(), 0);
        let room = Arc::new(AtomicUsize::new(7));
        let file = files.verdicts.take().unwrap();
        files.verdicts = Some(Box::new(Narrow {
            file,
            room: Arc::clone(&room),
        }));
        let there = || fs::read_to_string(dir.path().join("verdicts.ndjson")).unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            files.waiting.extend(line.as_bytes());
            files.write_waiting();
        }
        assert_eq!((there().as_str(), files.length()), ("one\n", 4));
        room.store(100, Ordering::Relaxed);
        files.commit();
        assert_eq!((there().as_str(), files.length()), ("one\ntwo\nthree\n", 14));
    }

    #[test]
    fn an_address_lasts_no_longer_than_its_page() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(METRICS);
        fs::write(&path, "127.0.0.1:1\n").unwrap();
        let mut files = Files::open(dir.path(), 0);
        assert_eq!(metrics_said(dir.path()), None, "of somebody who was killed");
        let address = SocketAddr::from(([127, 0, 0, 1], 4));
        // The write fails at first, because a directory cannot be replaced by a file.
        fs::create_dir_all(path.join("full")).unwrap();
        files.metrics_address(&address.to_string());
        assert_eq!(metrics_said(dir.path()), None);
        fs::remove_dir_all(&path).unwrap();
        files.report(&Detector::new(Policy::default()).report());
        assert_eq!(metrics_said(dir.path()), Some(address));
        files.close();
        assert!(!path.exists());
        files.metrics_address("127.0.0.1:1");
        fs::write(&path, "127.0.0.1:2\n").unwrap();
        files.close();
        assert!(path.exists(), "another's");
    }
}
