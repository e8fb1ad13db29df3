//! Tests conditions in which no ring can be created. Above `ulimit -f` and in full memory, the creation fails and the
//! calling process survives. Each case runs this test again in a separate process.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use paceline_ring::{Bare, KIND_TIMED, Writer, Wrote};

/// Name of the variable that gives the separate process its ring directory.
const WHERE: &str = "PACELINE_RING_TEST";

fn try_both(dir: &Path) {
    static BARE: Bare = Bare::new();
    assert!(Writer::create(dir).is_err());
    let c_dir = CString::new(dir.as_os_str().as_bytes()).unwrap();
    assert!(!BARE.create(&c_dir));
    assert_eq!(BARE.write(KIND_TIMED, [0; 6]), Wrote::Off);
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "a draft is left");
}

/// Runs this test again, in a shell, after `before`; returns its output on failure.
fn again(name: &str, before: &str, dir: &Path) -> Option<String> {
    let output = Command::new("sh")
        .args(["-c", &format!("{before}; exec \"$@\""), "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(WHERE, dir)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = format!("{}: {}", output.status, String::from_utf8_lossy(&said));
    (!output.status.success()).then_some(said)
}

#[test]
fn above_the_limit_of_files() {
    if let Some(dir) = std::env::var_os(WHERE) {
        return try_both(Path::new(&dir));
    }
    let dir = std::env::temp_dir().join(format!("paceline-limit-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let failed = again("above_the_limit_of_files", "ulimit -f 16", &dir);
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(failed, None);
}

#[test]
fn in_memory_that_is_full() {
    if let Some(dir) = std::env::var_os(WHERE) {
        return try_both(Path::new(&dir));
    }
    let dir = std::env::temp_dir().join(format!("paceline-full-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mount = "[ \"$INSIDE\" ] || exec env INSIDE=1 unshare --map-root-user --mount sh -c \
                 'mount -t tmpfs -o size=64k tmpfs \"$PACELINE_RING_TEST\" || exit 250; exec \"$@\"' sh \"$@\"";
    let failed = again("in_memory_that_is_full", mount, &dir);
    std::fs::remove_dir_all(&dir).unwrap();
    match failed {
        Some(said) if said.contains("250") || said.contains("unshare: ") => {
            eprintln!("LEFT OUT: full memory: no mounts of our own here: {said}");
        }
        failed => assert_eq!(failed, None),
    }
}
