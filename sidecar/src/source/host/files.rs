//! Reads small files of the kernel, below a root directory that tests can choose.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use paceline_health::event::{Missing, Reading};
use rustix::io::Errno;

/// Maximum bytes read from a file. The kernel's files have a few kilobytes.
const MOST: u64 = 1 << 16;

/// Reads files into a reused buffer.
#[derive(Debug)]
pub struct Files {
    root: PathBuf,
    text: String,
}

impl Files {
    /// Reads files below `root`, which is `/` outside tests.
    pub fn new(root: &Path) -> Files {
        Files {
            root: root.to_owned(),
            text: String::new(),
        }
    }

    /// Returns the full path of `path`, which has no leading slash.
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// Returns the text of a file.
    ///
    /// # Errors
    /// The reason for a missing value.
    pub fn text(&mut self, path: impl AsRef<Path>) -> Result<&str, Missing> {
        let path = self.root.join(path);
        let mut bytes = std::mem::take(&mut self.text).into_bytes();
        bytes.clear();
        let read = File::open(&path).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
        // Replace invalid UTF-8, because a process name may contain any bytes.
        self.text = String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        read.map_err(|error| missing(&error))?;
        Ok(self.text.trim_end())
    }

    /// Opens a file for repeated reads.
    ///
    /// # Errors
    /// The reason for a missing value.
    pub fn keep(&self, path: impl AsRef<Path>) -> Result<Kept, Missing> {
        let file = File::open(self.root.join(path)).map_err(|error| missing(&error))?;
        Ok(Kept(file))
    }

    /// Returns the number in a file that contains nothing else.
    ///
    /// # Errors
    /// The reason for a missing value.
    pub fn number(&mut self, path: impl AsRef<Path>) -> Result<f64, Missing> {
        self.text(path)?.parse().map_err(|_| Missing::Unsupported)
    }

    /// Returns the number after a word, in a file of lines such as `throttled_usec 17`.
    ///
    /// # Errors
    /// The reason for a missing value.
    pub fn field(&mut self, path: impl AsRef<Path>, word: &str) -> Result<f64, Missing> {
        field(self.text(path)?, word).ok_or(Missing::Unsupported)
    }

    /// Returns the sorted names in a directory, or no names if it does not exist.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(path));
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }
}

/// A short file of one line that stays open. Each read returns the kernel's current value.
#[derive(Debug)]
pub struct Kept(File);

impl Kept {
    /// Reads the line and parses it with `parse`. Also returns `None` if the line cannot be read.
    pub fn read<T>(&self, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let mut line = [0; 96];
        let read = self.0.read_at(&mut line, 0).ok()?;
        parse(std::str::from_utf8(line.get(..read)?).ok()?.trim_end())
    }
}

fn field(text: &str, word: &str) -> Option<f64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == word)?.1.trim().parse().ok()
}

/// Returns why a read failed. An error counts as unsupported if the kernel, the device or its current state does not
/// provide the value.
pub fn missing(error: &io::Error) -> Missing {
    let lacks = [
        Errno::NOENT,
        Errno::NOTDIR,
        Errno::INVAL,
        Errno::OPNOTSUPP,
        Errno::NODEV,
        Errno::SRCH,
    ];
    match error.raw_os_error() {
        Some(code) if lacks.iter().any(|lack| lack.raw_os_error() == code) => Missing::Unsupported,
        _ => Missing::Error(error.kind().to_string().into()),
    }
}

/// Converts a result to a reading.
pub fn reading(read: Result<f64, Missing>) -> Reading {
    read.map_or_else(Reading::Missing, Reading::Value)
}
