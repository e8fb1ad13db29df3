//! Outputs: files in the run directory, a metrics page, a live page, a stream of status lines, and requested exports
//! ([`doors`]). No output ever affects the detector.

mod carrier;
pub mod doors;
pub mod files;
pub mod http;
mod listener;
pub mod metrics;
pub mod notify;
pub mod otlp;
pub mod page;
pub mod status;
mod textfile;

use std::fs::{self, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::safe_file;

/// Writes a file atomically, so that a reader sees either the old or the new contents. Other processes may write it at
/// the same time, even on other hosts.
///
/// # Errors
/// If it cannot be written; the old file is kept then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, None)
}

/// Like [`write_whole`], but other users can read the file, whatever the umask.
///
/// # Errors
/// Like [`write_whole`].
pub fn write_whole_for_all(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, Some(Permissions::from_mode(0o644)))
}

fn replace(path: &Path, bytes: &[u8], permissions: Option<Permissions>) -> io::Result<()> {
    // The name is random, because processes in two containers may have the same process ID.
    let own = RandomState::new().hash_one(std::process::id());
    let draft = path.with_added_extension(format!("{own:016x}.new"));
    let written = safe_file::create_new(&draft)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            permissions.map_or(Ok(()), |permissions| file.set_permissions(permissions))
        })
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}
