//! `verdicts.ndjson` and `report.json`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use paceline_health::report::Report;
use paceline_health::verdict::Verdict;

use super::write_whole;
use crate::aggregator::disk::{Disk, on_disk};
use crate::warn;

/// The files of a run directory that say what was concluded.
#[derive(Debug)]
pub struct Files {
    dir: PathBuf,
    verdicts: Option<Box<dyn Disk>>,
    /// Of the verdicts, bytes.
    length: u64,
}

/// Gives `verdicts.ndjson` another name: what is known now is less than what it was told by, and it would be begun anew.
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
    /// Opens `verdicts.ndjson` and cuts it to what a snapshot of the journal knows to stand there, zero without one: what
    /// is folded again gives the same lines again.
    pub fn open(dir: &Path, known: u64) -> Files {
        let path = dir.join("verdicts.ndjson");
        let verdicts = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|file| {
                let mut length = file.metadata()?.len().min(known);
                if length < known {
                    let lost = known - length;
                    warn::once(
                        "verdicts",
                        format_args!("{}: its last {lost} bytes are lost", path.display()),
                    );
                    // What follows must not be part of half a line.
                    let whole = fs::read(&path)?.iter().rposition(|byte| *byte == b'\n');
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
        }
    }

    /// One line per change of a verdict.
    pub fn verdict(&mut self, verdict: &Verdict) {
        let Ok(mut line) = serde_json::to_vec(verdict) else {
            return;
        };
        line.push(b'\n');
        let written = self.verdicts.as_mut().map_or(Ok(()), |file| file.append(&line));
        if let Err(error) = written {
            warn::once("verdicts", format_args!("verdicts.ndjson: {error}"));
        } else {
            self.length += line.len() as u64;
        }
    }

    /// How long the verdicts are, bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The verdicts that were told are put on the medium, without waiting for it.
    pub fn commit(&mut self) {
        if let Some(Err(error)) = self.verdicts.as_mut().map(|file| file.sync_soon()) {
            warn::once("verdicts", format_args!("verdicts.ndjson: {error}"));
        }
    }

    /// The whole of what is known; how many bytes that is.
    pub fn report(&self, report: &Report) -> usize {
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

    /// Where the metrics page is.
    pub fn metrics_address(&self, address: &str) {
        let path = self.dir.join("metrics.addr");
        if let Err(error) = write_whole(&path, format!("{address}\n").as_bytes()) {
            warn::once("metrics.addr", format_args!("{}: {error}", path.display()));
        }
    }
}
