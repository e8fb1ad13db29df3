//! Checks the owner of a file, and which other users could write to it.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// Why a file or directory is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It belongs to another user.
    #[error("it belongs to another user (uid {owner}, mode {mode:04o})")]
    Foreign {
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Other users can write to it.
    #[error("users other than its owner can write to it (uid {owner}, mode {mode:04o}); chmod go-w")]
    Writable {
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Other users can put another directory in its place.
    #[error(
        "every user can rename it: a directory above it is writable by all without a sticky bit; chmod +t that one"
    )]
    Replaceable,
    /// It is a symbolic link.
    #[error("it is a symbolic link, which is not followed here")]
    Link,
    /// It is a directory, a pipe or a device.
    #[error("it is not a regular file")]
    NotAFile,
    /// It has other hard links.
    #[error("it has {0} hard links: it may be another file by another name")]
    HardLinks(u64),
}

impl Refused {
    pub(super) fn of(owner: u32, mode: u32) -> Refused {
        let mode = mode & 0o7777;
        Refused::Foreign { owner, mode }
    }
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, refused)
    }
}

/// Returns true if the owner is this user or root.
pub fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == geteuid().as_raw()
}

/// Returns the owner that our files have in this directory according to its file system. A network file system may map
/// root's files to an anonymous user, and one without owners shows one user for all files. To find out, this creates a
/// file.
pub(super) fn observed_owner(dir: &Path) -> Option<u32> {
    let name = format!(
        ".paceline-{:016x}",
        RandomState::new().hash_one(std::process::id())
    );
    let path = dir.join(name);
    let made = File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&path)
        .ok()?;
    let owner = made.metadata().map(|meta| meta.uid()).ok();
    let _ = fs::remove_file(&path);
    owner
}

/// Returns true if this user is the only member of a group. Such a group has the same number as the user or, according
/// to the system's own files, the same name and no other members. Users with such groups often have a umask that lets
/// the group write (pam_umask(8)).
pub(super) fn is_private_group(group: u32, user: u32) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    group == user || is_named_alike(&read("/etc/group"), group, &read("/etc/passwd"), user)
}

fn is_named_alike(groups: &str, group: u32, users: &str, user: u32) -> bool {
    // A line has the form NAME:x:NUMBER:...
    let line_of = |text: &str, number: u32| {
        let mut lines = text
            .lines()
            .map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>());
        lines.find(|parts| parts.get(2).is_some_and(|known| *known == number.to_string()))
    };
    let (Some(group), Some(user)) = (line_of(groups, group), line_of(users, user)) else {
        return false;
    };
    let members = group.get(3).map_or("", String::as_str);
    let is_alone = members
        .split(',')
        .all(|member| member.is_empty() || member == user[0]);
    group[0] == user[0] && is_alone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_one_user() {
        let groups = "root:x:0:\nada:x:1005:\nlab:x:2000:ada,bob\nbob:x:1006:bob,eve\n";
        let users =
            "root:x:0:0::/root:/bin/sh\nada:x:1001:1005::/home/ada:/bin/sh\nbob:x:1002:1006::/:/bin/sh\n";
        let check = |group, user| is_named_alike(groups, group, users, user);
        assert!(check(1005, 1001) && check(0, 0));
        assert!(!check(2000, 1001), "a group of several");
        assert!(!check(1006, 1002), "of the same name, with another member");
        assert!(!check(1005, 1002) && !check(77, 1001) && !check(1005, 77));
        assert!(is_private_group(4711, 4711) && !is_private_group(4711, 4712));
    }
}
