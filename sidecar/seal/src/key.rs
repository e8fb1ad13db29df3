//! Loads the key, either from a file that only its owner can read, or from a file that is created once for the user.
//! Each job has its own key, which is derived from this one.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use blake2::digest::{KeyInit, Mac, consts::U32};
use blake2::{Blake2s256, Blake2sMac, Digest};

/// Limits of a key file's size, bytes. The minimum makes guessing infeasible.
const LEAST: usize = 32;
const MOST: u64 = 4096;

/// A key. It is never printed, not even by `{:?}`.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Why there is no key. An error never contains the contents of a file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be opened, read or created.
    #[error("the key file {}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users could read or change the file.
    #[error("the key file {} is open to others (mode {mode:04o}): chmod 600 it, or mount the secret with mode 0400", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Mode of the file.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error("the key file {} belongs to user {owner}, neither to this one ({ours}) nor to root", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// Owner of the file.
        owner: u32,
        /// The uid of this process.
        ours: u32,
    },
    /// The file is too short for a secret, too long for a key, or not a regular file.
    #[error("the key file {} has {bytes} bytes: {LEAST} to {MOST} are a key (head -c 32 /dev/urandom | base64)", path.display())]
    Size {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file.
        bytes: usize,
    },
    /// The system provides no random numbers.
    #[error("no random numbers: {0}")]
    Chance(io::Error),
    /// No path was given, and the user has no configuration directory.
    #[error("there is no key: use --key-file or PACELINE_KEY_FILE, or set HOME")]
    Nowhere,
}

impl Key {
    /// Reads a key from a file. The file must belong to this user or to root, and must not be readable by others. A
    /// file of root may be readable by a group, because Kubernetes gives a Secret to a non-root user in this way. A
    /// file mounted by a kubelet has the mode chosen by the pod's author, plus the group bits that the kubelet adds for
    /// an fsGroup. That is accepted, because only the pod's containers see it.
    pub fn read(path: &Path) -> Result<Key, KeyError> {
        let failed = |source| KeyError::File {
            path: path.into(),
            source,
        };
        // Opening must not block on a pipe. The checks apply to the opened file, not to its name.
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(nonblock)
            .open(path)
            .map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        let (mode, owner) = (about.mode() & 0o7777, about.uid());
        let ours = rustix::process::geteuid().as_raw();
        if owner != ours && owner != 0 {
            let path = path.into();
            return Err(KeyError::Foreign { path, owner, ours });
        }
        let allowed = match owner == 0 {
            true if is_mounted_by_a_kubelet(path) => 0o644,
            true if ours != 0 => 0o640,
            _ => 0o600,
        };
        // The owner's own permissions do not matter.
        if mode & 0o077 & !allowed != 0 {
            let path = path.into();
            return Err(KeyError::Open { path, mode });
        }
        let mut bytes = Vec::new();
        if about.is_file() {
            file.take(MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
        }
        let text = bytes.trim_ascii();
        if text.len() < LEAST || bytes.len() as u64 > MOST {
            let (path, bytes) = (path.into(), text.len());
            return Err(KeyError::Size { path, bytes });
        }
        Ok(Key::of_text(text))
    }

    /// Returns the key in a file with this text. Surrounding white space is ignored.
    pub fn of_text(text: &[u8]) -> Key {
        Key(Blake2s256::digest(text.trim_ascii()).into())
    }

    /// Returns true if the keys are equal. The time taken does not reveal where they differ.
    pub fn matches(&self, other: &Key) -> bool {
        let differs = self
            .0
            .iter()
            .zip(&other.0)
            .fold(0, |all, (one, two)| all | (one ^ two));
        std::hint::black_box(differs) == 0
    }

    /// Finds the key. It comes from the file in `flag`, otherwise from PACELINE_KEY_FILE, otherwise from the user's own
    /// file in the configuration directory, which is created if missing. `variable` looks up environment variables.
    pub fn find(flag: Option<&Path>, variable: impl Fn(&str) -> Option<String>) -> Result<Key, KeyError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        if let Some(path) = flag
            .map(PathBuf::from)
            .or_else(|| set("PACELINE_KEY_FILE").map(PathBuf::from))
        {
            return Key::read(&path);
        }
        let folder = set("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| set("HOME").map(|home| Path::new(&home).join(".config")))
            .ok_or(KeyError::Nowhere)?;
        Key::of_user(&folder.join("paceline"))
    }

    /// Returns the user's own key in `folder`, which is created if missing. Many nodes may create it at once, because
    /// home is shared on most clusters. One of them wins, and all read the same key.
    pub fn of_user(folder: &Path) -> Result<Key, KeyError> {
        let path = folder.join("key");
        match Key::read(&path) {
            Err(KeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        make(folder, &path).map_err(|source| KeyError::File {
            path: path.clone(),
            source,
        })?;
        Key::read(&path)
    }

    /// Derives the key of one job.
    pub fn of_job(&self, job: &str) -> Key {
        // This cannot fail, because a BLAKE2s MAC takes keys of up to 32 bytes.
        let Ok(mut mac) = <Blake2sMac<U32> as KeyInit>::new_from_slice(&self.0) else {
            unreachable!("BLAKE2s takes keys of 32 bytes");
        };
        Mac::update(&mut mac, b"paceline job key 1\0");
        Mac::update(&mut mac, job.as_bytes());
        Key(mac.finalize().into_bytes().into())
    }

    /// Makes a random key, for a process whose parts communicate with each other.
    ///
    /// # Errors
    /// [`KeyError::Chance`]
    pub fn of_chance() -> Result<Key, KeyError> {
        let mut bytes = [0; 32];
        fill(&mut bytes).map_err(KeyError::Chance)?;
        Ok(Key(bytes))
    }

    /// Makes a key from any bytes. This is for tests, and for processes that inherit a key.
    pub fn from_bytes(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// Returns the bytes of the key. Use this only for a process that inherits it.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Returns true if the file is mounted like a kubelet's Secret. There, `key` links to `..data/key`, which is in a
/// directory with a timestamp in its name (pkg/volume/util/atomic_writer.go).
fn is_mounted_by_a_kubelet(path: &Path) -> bool {
    let place = fs::canonicalize(path).ok();
    let directory = place.as_deref().and_then(Path::parent).and_then(Path::file_name);
    path.is_symlink() && directory.is_some_and(|name| name.as_encoded_bytes().starts_with(b".."))
}

/// Creates a new key under a temporary name, then links it to its final name. Creating a link is atomic and never
/// replaces an existing file, on NFS too.
fn make(folder: &Path, path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let text = random_hex(32)?;
    // The name must be unique, because other nodes, containers with the same host name and threads may do the same
    // concurrently.
    let own = folder.join(format!(".key-{}", random_hex(8)?));
    let written = write_private(&own, &text).and_then(|()| match fs::hard_link(&own, path) {
        Err(problem) if problem.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    let _ = fs::remove_file(&own);
    written
}

fn random_hex(bytes: usize) -> io::Result<String> {
    let mut secret = vec![0_u8; bytes];
    fill(&mut secret)?;
    Ok(secret.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn fill(secret: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < secret.len() {
        filled += rustix::rand::getrandom(&mut secret[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()
}
