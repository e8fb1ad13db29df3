//! The Python hook. It is embedded in the binary, written to a directory for one run, and prepended to PYTHONPATH.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::Path;

/// The hook's files: path below the hook's directory, and contents.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/hook_files.rs"));

/// Writes the hook under `folder`.
pub(crate) fn write(folder: &Path) -> io::Result<()> {
    for (name, text) in FILES {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, text)?;
    }
    Ok(())
}

/// Writes the hook to `folder` atomically. Does nothing if another task has already done it.
pub(crate) fn write_whole(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    let own = folder.with_extension(std::process::id().to_string());
    if let Err(problem) = write(&own) {
        let _ = fs::remove_dir_all(own);
        return Err(problem);
    }
    match fs::rename(&own, folder) {
        Err(_) if folder.exists() => fs::remove_dir_all(own),
        renamed => renamed,
    }
}

/// Prepends `folder` to `before`, so that the user's entries stay in effect after it.
pub(crate) fn python_path(folder: &Path, before: Option<&OsStr>) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for name in [
            "sitecustomize.py",
            "paceline/__init__.py",
            "paceline/_hook.py",
            "paceline/_ring.py",
        ] {
            assert!(folder.path().join(name).is_file(), "{name}");
        }
        assert!(FILES.iter().all(|(name, _)| !name.contains("tests")));
    }

    #[test]
    fn two_tasks_write_one_hook() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("python");
        write_whole(&folder).unwrap();
        fs::write(folder.join("mark"), "").unwrap();
        write_whole(&folder).unwrap();
        assert!(folder.join("mark").exists() && folder.join("sitecustomize.py").exists());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_users_path_stays() {
        let folder = Path::new("/ring/python");
        assert_eq!(python_path(folder, None), "/ring/python");
        assert_eq!(python_path(folder, Some(OsStr::new(""))), "/ring/python");
        assert_eq!(
            python_path(folder, Some(OsStr::new("/a:/b"))),
            "/ring/python:/a:/b"
        );
    }
}
