//! The Python hook: carried in the binary, written out for one run, put in front of PYTHONPATH.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::Path;

/// Path below the hook's directory, and text.
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

/// `before` with `folder` in front: what the user set stays in force behind it.
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
