//! Files of settings: read only where nobody but this user and root can have written them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::{GROUP_WRITES, OTHERS_WRITE, Refused, follow_own_links, is_private_group, is_trusted};

/// A file of settings is shorter.
const MAX_BYTES: u64 = 4 << 20;

/// Why a file of settings is not read.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Whose it is, or who can write it.
    #[error("{0}")]
    Refused(Refused),
    /// What the system says.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The bytes of a file of settings. Links to it must be of this user or root, too. `is_site`: it lies where only root can put
/// it.
///
/// # Errors
/// [`SettingsError`]
pub fn read_settings(path: &Path, is_site: bool) -> Result<Vec<u8>, SettingsError> {
    let path = follow_own_links(path).map_err(refused)?;
    // Whoever reads a pipe waits, maybe for ever.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(&path)?;
    let meta = file.metadata()?;
    // /dev/null says nothing, and only root makes devices.
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
    // After the owner: what another user has put there is left out, whatever it is, and ends no job.
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

/// In the user namespace of a container without root: whoever has no number in it, root of the host among them, shows as the
/// overflow user (user_namespaces(7)). Files that nobody else can write are taken for root's there.
fn is_root_outside(owner: u32) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid");
    overflow.trim() == owner.to_string() && lacks_root(&read("/proc/self/uid_map"))
}

/// Whether a map of numbers has no root of the host in it.
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
