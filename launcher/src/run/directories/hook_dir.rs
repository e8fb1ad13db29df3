//! Creates temporary directories for one run, in memory or where temporary files are. They are removed with the run.
//! One of them contains only the hook.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use paceline_sidecar::agent::tasks;

use super::place::places;
use crate::run::{hook, identity};

/// A directory that contains only the hook. It is removed on drop.
#[derive(Debug)]
pub(crate) struct HookDir {
    dir: PathBuf,
    python: PathBuf,
    _held: Option<File>,
}

impl HookDir {
    /// Writes the hook to the first place with room for it.
    ///
    /// # Errors
    /// If no place has room.
    pub(crate) fn make() -> io::Result<HookDir> {
        first_of(&places(), |place| {
            let dir = make_in(place)?;
            let made = HookDir {
                python: dir.join("python"),
                _held: tasks::hold(&dir),
                dir,
            };
            hook::write_whole(&made.python)?;
            Ok(made)
        })
    }

    /// Returns the entry for PYTHONPATH.
    pub(crate) fn python(&self) -> &Path {
        &self.python
    }
}

impl Drop for HookDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Returns the result of `make` in the first of these places where it succeeds.
pub(super) fn first_of<T>(places: &[PathBuf], make: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for place in places {
        match make(place) {
            Ok(made) => return Ok(made),
            Err(problem) => last = problem,
        }
    }
    Err(last)
}

/// Creates `paceline-<pid>-<random>` in `place`. The builder never uses an existing directory.
pub(super) fn make_in(place: &Path) -> io::Result<PathBuf> {
    let name = format!(
        "paceline-{}-{:08x}",
        std::process::id(),
        identity::chance() as u32
    );
    let path = place.join(name);
    DirBuilder::new().mode(0o700).create(&path)?;
    tasks::make_holdable(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_ring_directory_is_private_and_fresh() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (make_in(folder.path()).unwrap(), make_in(folder.path()).unwrap());
        assert_ne!(one, two);
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
