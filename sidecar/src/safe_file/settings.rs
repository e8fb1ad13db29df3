//! Reads settings files. A file is read only if no user other than this one and root can have written it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::{GROUP_WRITES, OTHERS_WRITE, Refused, follow_own_links, is_private_group, is_trusted};

/// Maximum size of a settings file.
const MAX_BYTES: u64 = 4 << 20;

/// Why a settings file is not read.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The owner is not trusted, or other users can write the file.
    #[error("{0}")]
    Refused(Refused),
    /// The system's error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Returns the bytes of a settings file. Links to it must also belong to this user or root. `is_site` means that the
/// file is in a place where only root can write.
///
/// # Errors
/// [`SettingsError`]
pub fn read_settings(path: &Path, is_site: bool) -> Result<Vec<u8>, SettingsError> {
    let path = follow_own_links(path).map_err(refused)?;
    // Open the file without blocking, because reading from a pipe could block forever.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(&path)?;
    let meta = file.metadata()?;
    // Skip the check for a device such as /dev/null, which is empty, because only root creates devices.
    if !meta.file_type().is_char_device() {
        check(&meta, is_site)?;
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn check(meta: &fs::Metadata, is_site: bool) -> Result<(), SettingsError> {
    let (owner, mode) = (meta.uid(), meta.mode() & 0o7777);
    let may_own = is_trusted(owner) || is_site && is_root_outside(owner);
    if !may_own {
        return Err(SettingsError::Refused(Refused::Foreign { owner, mode }));
    }
    // Check this after the owner. An object of another user is then refused like any foreign file, which never ends a
    // job.
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file").into());
    }
    let group_writes = mode & GROUP_WRITES != 0 && !is_private_group(meta.gid(), owner);
    if mode & OTHERS_WRITE != 0 || group_writes {
        return Err(SettingsError::Refused(Refused::Writable { owner, mode }));
    }
    Ok(())
}

fn refused(error: io::Error) -> SettingsError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Refused>());
    match inner {
        Some(refused) => SettingsError::Refused(*refused),
        None => error.into(),
    }
}

/// Returns true if a file's owner may be the host's root. In the user namespace of a rootless container, users without
/// a mapping, including the host's root, appear as the overflow user (user_namespaces(7)). There, files that no other
/// user can write are treated as root's.
fn is_root_outside(owner: u32) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid");
    overflow.trim() == owner.to_string() && lacks_root(&read("/proc/self/uid_map"))
}

/// Returns true if a uid map does not contain the host's root.
fn lacks_root(map: &str) -> bool {
    let mut lines = map
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    !map.is_empty() && !lines.any(|parts| parts.get(1) == Some(&"0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_user_namespaces() {
        assert!(!lacks_root("         0          0 4294967295\n"));
        assert!(lacks_root("         0       1000          1\n"));
        assert!(lacks_root("      1000       1000          1\n"));
        assert!(!lacks_root(""), "no /proc");
    }
}
