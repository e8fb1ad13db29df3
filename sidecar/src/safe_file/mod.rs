//! Opens files and makes directories where other users may have been first: configuration files, and run directories, whose
//! names can be guessed. Nothing of another user is trusted: no symbolic link of theirs is followed, and only regular files of
//! this user (or root) are read as settings or written to. What is checked is the file that was opened, not its name.

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

/// For every file of a run: only its owner writes to it, whatever the umask is.
const FILE_MODE: u32 = 0o644;
/// For one that users share their umask decides.
const SHARED_MODE: u32 = 0o666;
const DIR_MODE: u32 = 0o755;
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const STICKY: u32 = 0o1000;
/// Links that lead from one to the next.
const MAX_LINKS: usize = 8;
/// A name that others make and remove at the same time is tried again so often.
const ATTEMPTS: usize = 4;

/// Opens a file for reading: no symbolic link, no pipe, no device. Its owner may be anybody.
///
/// # Errors
/// [`Refused`] as `PermissionDenied`, or what the system says.
pub fn open(path: &Path) -> io::Result<File> {
    let file = open_with(path, File::options().read(true), 0)?;
    regular(&file)?;
    Ok(file)
}

/// As [`open`], and the file must belong to this user or root.
///
/// # Errors
/// As [`open`].
pub fn open_own(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    own(&file, path)?;
    Ok(file)
}

/// The bytes of such a file.
///
/// # Errors
/// As [`open_own`].
pub fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut open_own(path)?, &mut bytes)?;
    Ok(bytes)
}

/// Makes a file that is not there yet.
///
/// # Errors
/// `AlreadyExists`, or what the system says.
pub fn create_new(path: &Path) -> io::Result<File> {
    open_with(
        path,
        File::options().create_new(true).read(true).write(true),
        FILE_MODE,
    )
}

/// Opens a file for appending and reading, and makes it if it is not there.
///
/// # Errors
/// [`Refused`] as `PermissionDenied`, or what the system says.
pub fn append(path: &Path) -> io::Result<File> {
    open_or_make(path, true)
}

/// Opens a file for reading and writing from its beginning, and makes it if it is not there. What it holds stays.
///
/// # Errors
/// As [`append`].
pub fn open_to_write(path: &Path) -> io::Result<File> {
    open_or_make(path, false)
}

/// As [`open_to_write`], emptied.
///
/// # Errors
/// As [`append`].
pub fn create(path: &Path) -> io::Result<File> {
    let file = open_or_make(path, false)?;
    // Not by O_TRUNC: a file is emptied once it is known whose it is.
    file.set_len(0)?;
    Ok(file)
}

/// As [`open_to_write`], of a file that users share: its owner may be anybody who can write there.
///
/// # Errors
/// As [`append`].
pub fn open_shared(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true);
    let file = open_with(path, &mut options, SHARED_MODE)?;
    regular(&file)?;
    Ok(file)
}

/// As [`append`], of a file that users share.
///
/// # Errors
/// As [`append`].
pub fn append_shared(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).read(true).append(true);
    let file = open_with(path, &mut options, SHARED_MODE)?;
    regular(&file)?;
    Ok(file)
}

/// Opens a file that is there for reading and writing. Its owner may be anybody.
///
/// # Errors
/// As [`open`].
pub fn open_existing(path: &Path) -> io::Result<File> {
    let file = open_with(path, File::options().read(true).write(true), 0)?;
    regular(&file)?;
    Ok(file)
}

/// Opens what the user named for output, emptied: a file, a pipe, a device, and what a link of theirs or root's leads to. What
/// another user's link leads to, and a file of another user, is refused.
///
/// # Errors
/// As [`append`].
pub fn create_named(path: &Path) -> io::Result<File> {
    let refused = match create(path) {
        Err(error) => error,
        opened => return opened,
    };
    match refused.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(Refused::Link) => match follow_own_links(path) {
            // /dev/stdout leads to what has no name.
            Err(error) if error.kind() == ErrorKind::NotFound => File::create(path),
            target => create(&target?),
        },
        Some(Refused::NotAFile) => File::options().write(true).open(path),
        _ => Err(refused),
    }
}

/// Writes a whole file that the user named, as [`create_named`].
///
/// # Errors
/// As [`append`].
pub fn write_named(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_named(path)?.write_all(bytes)
}

/// Writes a whole file that nobody reads meanwhile.
///
/// # Errors
/// As [`append`].
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
                // Another name of a file of ours that lies elsewhere.
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
    // A pipe that nobody reads or writes would be waited for.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = options
        .mode(mode)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => Refused::Link.into(),
        // A pipe or a socket.
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

/// Whether an open file is of this user or root.
fn own(file: &File, path: &Path) -> io::Result<()> {
    let meta = file.metadata()?;
    if is_trusted(meta.uid()) || observed_owner(parent(path)) == Some(meta.uid()) {
        return Ok(());
    }
    Err(Refused::of(meta.uid(), meta.mode()).into())
}

/// Makes a directory with all that is above it, if it is not there, and checks it as [`check_dir`] does.
///
/// # Errors
/// As [`check_dir`].
pub fn make_dir(dir: &Path) -> io::Result<PathBuf> {
    if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(DIR_MODE).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => check_dir(dir),
    }
}

/// Whether this user may write into a directory: it, and symbolic links that lead to it, belong to this user or root, and not
/// everybody may write there, nor rename a directory above it. A group may: its owner has let it in, and every file is checked
/// when it is opened. In a pod everybody may: a volume of Kubernetes is open to all of the pod's containers, and to nobody
/// else. Gives the directory behind the links.
///
/// # Errors
/// [`Refused`] as `PermissionDenied`, or what the system says.
pub fn check_dir(dir: &Path) -> io::Result<PathBuf> {
    let real = follow_own_links(dir)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&real, flags, Mode::empty()).map(File::from);
    let meta = match opened {
        Ok(opened) => opened.metadata()?,
        Err(Errno::LOOP) => return Err(Refused::Link.into()),
        // Who may not list it may still be allowed to make files in it.
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

/// Whether every user may rename a directory, or one above it, and put another in its place between two writes: the directory
/// that holds it is open to all and has no sticky bit.
fn is_replaceable(dir: &Path) -> io::Result<bool> {
    for above in fs::canonicalize(dir)?.ancestors().skip(1) {
        let mode = fs::metadata(above)?.mode();
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Mode 0600 for a Unix socket, and not for what somebody's link leads to that has taken its name.
///
/// # Errors
/// What the system says.
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

/// What a path leads to by symbolic links in the place of its last part: each must be of this user or root.
fn follow_own_links(path: &Path) -> io::Result<PathBuf> {
    // Without a slash at its end, behind which a link would be followed unseen.
    let mut path: PathBuf = path.components().collect();
    for _ in 0..MAX_LINKS {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&path, flags, Mode::empty())?;
        // Asked of what is open: nobody can put another link in its place meanwhile.
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
