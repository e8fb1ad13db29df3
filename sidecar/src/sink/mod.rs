//! Where conclusions go: files in the run directory, a page of metrics, a page for people, a stream of status lines, and what was asked
//! for beside ([`doors`]). Nothing of it ever comes back to the detector.

mod carrier;
pub mod doors;
pub mod files;
pub mod http;
pub mod metrics;
pub mod notify;
pub mod otlp;
pub mod page;
pub mod status;
mod textfile;

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file so that a reader sees the old one or the new one, never a part. Others may write it at the same time,
/// from other hosts too.
///
/// # Errors
/// When it cannot be written; the old one stays then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // By chance: processes of two containers may have the same number.
    let own = RandomState::new().hash_one(std::process::id());
    let draft = path.with_added_extension(format!("{own:016x}.new"));
    let written = File::create(&draft)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}
