//! Opens files and creates directories in places where other users may have created something first. Such places are
//! configuration files, and run directories, whose names can be guessed. Objects of other users are not trusted: their
//! symbolic links are not followed, and only regular files of this user (or root) are read as settings or written to.
//! The checks apply to the opened file, not to its name.

mod owner;
mod settings;

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, readlinkat, statat};
use rustix::io::Errno;

pub use owner::Refused;
pub use owner::is_trusted;
use owner::{is_private_group, observed_owner};
pub use settings::{SettingsError, read_settings};

/// Mode of every file of a run. Only its owner can write to it, whatever the umask.
const FILE_MODE: u32 = 0o644;
/// Mode of a shared file, to which the users' umask applies.
const SHARED_MODE: u32 = 0o666;
const DIR_MODE: u32 = 0o755;
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const STICKY: u32 = 0o1000;
/// Maximum length of a chain of symbolic links.
const MAX_LINKS: usize = 8;
/// Number of attempts for a name that other processes create and remove at the same time.
const ATTEMPTS: usize = 4;

/// Opens a file for reading. It must not be a symbolic link, a pipe or a device. It may belong to any user.
///
/// # Errors
/// [`Refused`] as `PermissionDenied`, or the system's error.
pub fn open(path: &Path) -> io::Result<File> {
    let file = open_with(path, File::options().read(true), 0)?;
    regular(&file)?;
    Ok(file)
}

/// Like [`open`], but the file must belong to this user or root.
///
/// # Errors
/// Like [`open`].
pub fn open_own(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    own(&file, path)?;
    Ok(file)
}

/// Reads the bytes of a file that belongs to this user or root.
///
/// # Errors
/// Like [`open_own`].
pub fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut open_own(path)?, &mut bytes)?;
    Ok(bytes)
}

/// Creates a file that does not exist yet.
///
/// # Errors
/// `AlreadyExists`, or the system's error.
pub fn create_new(path: &Path) -> io::Result<File> {
    open_with(
        path,
        File::options().create_new(true).read(true).write(true),
        FILE_MODE,
    )
}

/// Opens a file for appending and reading. Creates it if it is missing.
///
/// # Errors
/// [`Refused`] as `PermissionDenied`, or the system's error.
pub fn append(path: &Path) -> io::Result<File> {
    open_or_make(path, true)
}

/// Opens a file for reading and writing from its beginning. Creates it if it is missing, and keeps its contents
/// otherwise.
///
/// # Errors
/// Like [`append`].
pub fn open_to_write(path: &Path) -> io::Result<File> {
    open_or_make(path, false)
}

/// Like [`open_to_write`], but truncates the file.
///
/// # Errors
/// Like [`append`].
pub fn create(path: &Path) -> io::Result<File> {
    let file = open_or_make(path, false)?;
    // Do not use O_TRUNC, because the owner must be checked before the file is truncated.
    file.set_len(0)?;
    Ok(file)
}

/// Like [`open_to_write`], but for a shared file. It may belong to any user who can write there.
///
/// # Errors
/// Like [`append`].
pub fn open_shared(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true);
    let file = open_with(path, &mut options, SHARED_MODE)?;
    regular(&file)?;
    Ok(file)
}

/// Like [`append`], but for a shared file.
///
/// # Errors
/// Like [`append`].
pub fn append_shared(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).read(true).append(true);
    let file = open_with(path, &mut options, SHARED_MODE)?;
    regular(&file)?;
    Ok(file)
}

/// Opens an existing file for reading and writing. It may belong to any user.
///
/// # Errors
/// Like [`open`].
pub fn open_existing(path: &Path) -> io::Result<File> {
    let file = open_with(path, File::options().read(true).write(true), 0)?;
    regular(&file)?;
    Ok(file)
}

/// Opens and truncates an output that the user named. It may be a file, a pipe, a device, or the target of a link that
/// belongs to this user or root. Another user's file, and the target of another user's link, are refused.
///
/// # Errors
/// Like [`append`].
pub fn create_named(path: &Path) -> io::Result<File> {
    let refused = match create(path) {
        Err(error) => error,
        opened => return opened,
    };
    match refused.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(Refused::Link) => match follow_own_links(path) {
            // The target of /dev/stdout may have no path, so open it through the link.
            Err(error) if error.kind() == ErrorKind::NotFound => File::create(path),
            target => create(&target?),
        },
        Some(Refused::NotAFile) => File::options().write(true).open(path),
        _ => Err(refused),
    }
}

/// Writes a whole file that the user named, like [`create_named`].
///
/// # Errors
/// Like [`append`].
pub fn write_named(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_named(path)?.write_all(bytes)
}

/// Writes a whole file that has no concurrent readers.
///
/// # Errors
/// Like [`append`].
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

fn open_or_make(path: &Path, appends: bool) -> io::Result<File> {
    let mut problem = io::Error::from(ErrorKind::NotFound);
    for _ in 0..ATTEMPTS {
        let fresh = open_with(
            path,
            File::options()
                .create_new(true)
                .read(true)
                .write(!appends)
                .append(appends),
            FILE_MODE,
        );
        match fresh {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made,
        }
        match open_with(
            path,
            File::options().read(true).write(!appends).append(appends),
            0,
        ) {
            Err(error) if error.kind() == ErrorKind::NotFound => problem = error,
            Err(error) => return Err(error),
            Ok(file) => {
                let meta = regular(&file)?;
                own(&file, path)?;
                // The name may be a hard link to another file of ours.
                if meta.nlink() > 1 {
                    return Err(Refused::HardLinks(meta.nlink()).into());
                }
                return Ok(file);
            }
        }
    }
    Err(problem)
}

fn open_with(path: &Path, options: &mut fs::OpenOptions, mode: u32) -> io::Result<File> {
    // Do not block, which opening a pipe without a reader or writer would do.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = options
        .mode(mode)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => Refused::Link.into(),
        // The file is a pipe or a socket.
        Some(code) if code == Errno::NXIO.raw_os_error() => Refused::NotAFile.into(),
        _ => error,
    })
}

fn regular(file: &File) -> io::Result<fs::Metadata> {
    let meta = file.metadata()?;
    match meta.is_file() {
        true => Ok(meta),
        false => Err(Refused::NotAFile.into()),
    }
}

/// Checks that an open file belongs to this user or root.
fn own(file: &File, path: &Path) -> io::Result<()> {
    let meta = file.metadata()?;
    if is_trusted(meta.uid()) || observed_owner(parent(path)) == Some(meta.uid()) {
        return Ok(());
    }
    Err(Refused::of(meta.uid(), meta.mode()).into())
}

/// Creates a directory and its parents if they are missing, and checks it like [`check_dir`].
///
/// # Errors
/// Like [`check_dir`].
pub fn make_dir(dir: &Path) -> io::Result<PathBuf> {
    if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(DIR_MODE).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => check_dir(dir),
    }
}

/// Checks that this user may write into a directory, and returns the directory behind its links. The directory and
/// symbolic links to it must belong to this user or root. It must not be writable by all users, and they must not be
/// able to rename a directory above it. A group may write, because the owner has allowed that, and every file is
/// checked when it is opened. In a pod all users may write, because a Kubernetes volume is accessible only to the pod's
/// containers.
///
/// # Errors
/// [`Refused`] as `PermissionDenied`, or the system's error.
pub fn check_dir(dir: &Path) -> io::Result<PathBuf> {
    let real = follow_own_links(dir)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&real, flags, Mode::empty()).map(File::from);
    let meta = match opened {
        Ok(opened) => opened.metadata()?,
        Err(Errno::LOOP) => return Err(Refused::Link.into()),
        // This user may not list the directory, but may still be able to write to it.
        Err(Errno::ACCESS) => fs::symlink_metadata(&real)?,
        Err(error) => return Err(error.into()),
    };
    if !meta.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    if !is_trusted(meta.uid()) && observed_owner(&real) != Some(meta.uid()) {
        return Err(Refused::of(meta.uid(), meta.mode()).into());
    }
    if meta.mode() & OTHERS_WRITE != 0 && !is_in_pod() {
        return Err(Refused::Writable {
            owner: meta.uid(),
            mode: meta.mode() & 0o7777,
        }
        .into());
    }
    if !is_in_pod() && is_replaceable(&real)? {
        return Err(Refused::Replaceable.into());
    }
    Ok(real)
}

/// Returns true if every user can rename this directory, or one above it, and put another in its place between two
/// writes. This is possible if the directory that contains it is writable by all and has no sticky bit.
fn is_replaceable(dir: &Path) -> io::Result<bool> {
    for above in fs::canonicalize(dir)?.ancestors().skip(1) {
        let mode = fs::metadata(above)?.mode();
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sets mode 0600 on a Unix socket. Does not follow a link that may have replaced it.
///
/// # Errors
/// The system's error.
pub fn make_socket_private(path: &Path) -> io::Result<()> {
    let held = rustix::fs::open(
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    if !FileType::from_raw_mode(rustix::fs::fstat(&held)?.st_mode).is_socket() {
        return Err(ErrorKind::AlreadyExists.into());
    }
    let path = Path::new("/proc/self/fd").join(held.as_raw_fd().to_string());
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
}

/// Resolves symbolic links in the last component of a path. Each link must belong to this user or root.
fn follow_own_links(path: &Path) -> io::Result<PathBuf> {
    // Remove a trailing slash, because it would make the system follow a link unchecked.
    let mut path: PathBuf = path.components().collect();
    for _ in 0..MAX_LINKS {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&path, flags, Mode::empty())?;
        // Check the open descriptor, so that the link cannot be replaced meanwhile.
        let found = statat(&opened, OsStr::new(""), AtFlags::EMPTY_PATH)?;
        if !FileType::from_raw_mode(found.st_mode).is_symlink() {
            return Ok(path);
        }
        if !is_trusted(found.st_uid) {
            return Err(Refused::of(found.st_uid, found.st_mode).into());
        }
        let target = readlinkat(&opened, OsStr::new(""), Vec::new())?;
        path = parent(&path).join(OsStr::from_bytes(target.as_bytes()));
    }
    Err(Refused::Link.into())
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    }
}

fn is_in_pod() -> bool {
    ["PACELINE_POD", "KUBERNETES_SERVICE_HOST"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

#[cfg(test)]
mod tests;
