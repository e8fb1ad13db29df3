//! A directory that only this user can access. It contains the sockets between our own code and ZeroMQ.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::agent::tasks;
use crate::host;

/// Maximum length of the path of a Unix socket, with room for the socket's own name (`sun_path` of unix(7) has 108
/// bytes).
const LONGEST: usize = 90;

/// The number of directories that this process has created. It makes names unique, because the clock may not advance
/// between two of them.
static DUG: AtomicU32 = AtomicU32::new(0);

/// A private directory (see the module documentation). It is removed with its last owner.
#[derive(Debug)]
pub struct Den {
    dir: PathBuf,
    sockets: AtomicU32,
    /// The open directory, if it is not inside another directory of ours. It protects the directory from being cleaned
    /// up as a leftover. Otherwise the owner of the surrounding directory removes it.
    _held: Option<File>,
}

impl Den {
    /// Creates a directory in `place`, or in the temporary directory if `place` is not given or its path is too long.
    ///
    /// # Errors
    /// The system's error.
    pub fn dig(place: Option<&Path>) -> io::Result<Den> {
        // Never use an existing directory, which may belong to another user. The name is unique, and creation fails if
        // it exists.
        let name = format!(
            "guard-{}-{:016x}-{}",
            std::process::id(),
            host::incarnation(),
            DUG.fetch_add(1, Ordering::Relaxed)
        );
        let within = place
            .map(|place| place.join(&name))
            .filter(|dir| dir.as_os_str().len() < LONGEST);
        let stands_alone = within.is_none();
        let dir = within.unwrap_or_else(|| std::env::temp_dir().join(format!("paceline-{name}")));
        DirBuilder::new().mode(0o700).create(&dir)?;
        let mut den = Den {
            dir,
            sockets: AtomicU32::new(0),
            _held: None,
        };
        if stands_alone {
            tasks::make_holdable(&den.dir)?;
            den._held = tasks::hold(&den.dir);
        }
        Ok(den)
    }

    /// Creates a socket in the directory. Returns the socket and its path.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen(&self) -> io::Result<(UnixListener, PathBuf)> {
        let path = self
            .dir
            .join(self.sockets.fetch_add(1, Ordering::Relaxed).to_string());
        Ok((UnixListener::bind(&path)?, path))
    }
}

impl Drop for Den {
    fn drop(&mut self) {
        // The directory may already have been removed with the one around it.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    #[test]
    fn no_two_are_the_same() {
        let place = tempfile::tempdir().unwrap();
        let dens: Vec<Den> = std::thread::scope(|scope| {
            let diggers: Vec<_> = (0..64)
                .map(|_| scope.spawn(|| Den::dig(Some(place.path())).unwrap()))
                .collect();
            diggers.into_iter().map(|digger| digger.join().unwrap()).collect()
        });
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), dens.len());
    }

    #[test]
    fn is_private_and_goes_away() {
        let place = tempfile::tempdir().unwrap();
        let den = Den::dig(Some(place.path())).unwrap();
        let (_listener, path) = den.listen().unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        let mode = fs::metadata(&den.dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        drop(den);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        // If the path of the place is too long, the temporary directory is used.
        let long = place.path().join("x".repeat(LONGEST));
        fs::create_dir(&long).unwrap();
        let den = Den::dig(Some(&long)).unwrap();
        assert!(den.listen().is_ok() && !den.dir.starts_with(&long));
    }

    #[test]
    fn one_whose_owner_was_killed_is_left_behind() {
        let mut den = Den::dig(None).unwrap();
        let age = || {
            let then = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
            File::open(&den.dir).unwrap().set_modified(then).unwrap();
        };
        age();
        assert!(tasks::left_behind(&den.dir).is_none());
        den._held = None;
        assert!(tasks::left_behind(&den.dir).is_some());
    }
}
