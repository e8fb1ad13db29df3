//! Follows a growing file line by line. An existing file is followed from its end; a file that is created later,
//! replaced or truncated is read from its beginning. Use this in a separate thread, because a file system may hang.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// Maximum length of a line. Longer lines are skipped and counted.
pub const MAX_LINE: usize = 16 << 10;
const PIECE: usize = 64 << 10;
/// Maximum pieces per read.
const MAX_PIECES: usize = 16;

/// The follower of one file; see the module.
#[derive(Debug)]
pub struct Follow {
    path: PathBuf,
    file: Option<File>,
    inode: u64,
    read: u64,
    line: Vec<u8>,
    is_too_long: bool,
    /// Number of bytes of existing content to skip.
    skips: u64,
    too_long: u64,
}

impl Follow {
    /// Follows `path`. If `old` is set, its existing content is read as well.
    pub fn new(path: PathBuf, old: bool) -> Follow {
        Follow {
            skips: fs::metadata(&path)
                .ok()
                .filter(|_| !old)
                .map_or(0, |meta| meta.len()),
            path,
            file: None,
            inode: 0,
            read: 0,
            line: Vec::new(),
            is_too_long: false,
            too_long: 0,
        }
    }

    /// Returns true if the file exists and is open.
    pub fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the number of lines skipped because of their length.
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Reads available content up to a limit, without waiting for more. Returns false if there is more to read.
    ///
    /// # Errors
    /// If reading fails; a file that does not exist yet is not an error.
    pub fn read(&mut self, tell: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        if self.file.is_none() && !self.open()? {
            return Ok(true);
        }
        let mut piece = vec![0; PIECE];
        for _ in 0..MAX_PIECES {
            let Some(file) = &mut self.file else { break };
            let count = match file.read(&mut piece) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if count == 0 {
                self.turn()?;
                return Ok(true);
            }
            self.read += count as u64;
            for byte in piece.get(..count).unwrap_or_default() {
                self.take(*byte, tell);
            }
        }
        Ok(false)
    }

    fn open(&mut self) -> io::Result<bool> {
        let no_wait = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let opened = File::options().read(true).custom_flags(no_wait).open(&self.path);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        self.inode = file.metadata()?.ino();
        self.read = 0;
        let skips = std::mem::take(&mut self.skips);
        if skips > 0 {
            // A pipe cannot seek, so skip nothing there.
            self.read = file.seek(SeekFrom::Start(skips)).unwrap_or(0);
        }
        self.file = Some(file);
        Ok(true)
    }

    /// At the end of the file, checks whether the file was replaced or truncated.
    fn turn(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        // If the file was removed, keep it open: it may be created again later, and until then more may be written to
        // the open file.
        let is_other = fs::metadata(&self.path).is_ok_and(|meta| meta.ino() != self.inode);
        if is_other {
            self.file = None;
            self.line.clear();
        } else if file.metadata()?.is_file() && file.metadata()?.len() < self.read {
            self.read = file.seek(SeekFrom::Start(0))?;
            self.line.clear();
        }
        Ok(())
    }

    /// Takes one byte. A carriage return also ends a line, because progress bars use it; so does a zero byte, because a
    /// hole in a file reads as zeros.
    fn take(&mut self, byte: u8, tell: &mut dyn FnMut(&[u8])) {
        if !matches!(byte, b'\n' | b'\r' | 0) {
            if self.line.len() < MAX_LINE {
                self.line.push(byte);
            } else {
                self.is_too_long = true;
            }
            return;
        }
        if std::mem::take(&mut self.is_too_long) {
            self.too_long += 1;
        } else if !self.line.is_empty() {
            tell(&self.line);
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn lines(follow: &mut Follow) -> Vec<String> {
        let mut lines = Vec::new();
        // Read twice, because a replaced file is opened only in the second round.
        for _ in 0..2 {
            let tell = &mut |line: &[u8]| lines.push(String::from_utf8_lossy(line).into_owned());
            while !follow.read(tell).unwrap() {}
        }
        lines
    }

    #[test]
    fn grows_is_cut_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let append = |text: &str| {
            let mut file = File::options().create(true).append(true).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        append("old\n");
        let mut follow = Follow::new(path.clone(), false);
        assert!(lines(&mut follow).is_empty());
        append("one\r\ntwo\rthr");
        assert_eq!(lines(&mut follow), ["one", "two"]);
        append("ee\n");
        assert_eq!(lines(&mut follow), ["three"]);
        fs::write(&path, "cut\n").unwrap();
        assert_eq!(lines(&mut follow), ["cut"]);
        fs::rename(&path, dir.path().join("log.1")).unwrap();
        assert!(lines(&mut follow).is_empty());
        append("new\n");
        assert_eq!(lines(&mut follow), ["new"]);
        append(&format!("{}\nshort\n", "x".repeat(MAX_LINE + 1)));
        assert_eq!(
            (lines(&mut follow), follow.too_long()),
            (vec!["short".to_owned()], 1)
        );
        // A file created later is read from its beginning.
        let mut follow = Follow::new(dir.path().join("later"), false);
        assert!(lines(&mut follow).is_empty());
        fs::write(dir.path().join("later"), "first\n").unwrap();
        assert_eq!(lines(&mut follow), ["first"]);
        // Existing content is read if requested.
        assert_eq!(lines(&mut Follow::new(path, true)), ["new", "short"]);
    }
}
