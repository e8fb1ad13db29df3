//! The plugin on aarch64 (Grace), built like the release and run by QEMU. This tests layouts, system calls and unsigned
//! `char`. It does not test the weaker memory order, which loom tests for the ring.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::harness::{self, Harness, Read, Said};
use super::{adds_up, elf};

const TRIPLE: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Runs the scenarios one after the other, except `fork`, because QEMU treats MADV_WIPEONFORK as a hint. `tests/run`
/// runs this test where the compiler and the emulator are installed.
#[test]
#[ignore = "needs aarch64-linux-gnu-gcc, qemu-aarch64, and Rust for aarch64"]
fn aarch64() {
    let plugin = elf::cross(TRIPLE, COMPILER);
    elf::needs_system_calls_alone(&plugin);
    let program = emulated();
    let run = |version, scenario, collectives| -> (Said, Read) {
        let mut harness = Harness::new();
        let running = harness.start_with(&program, &plugin, version, scenario, collectives);
        (running.said(), harness.read())
    };
    for version in [4, 5, 6, 7] {
        let (_, read) = run(version, "order", 40);
        let timed = read.timed();
        assert_eq!((read.collectives().len(), timed.len()), (40, 40), "v{version}");
        assert!(
            timed
                .iter()
                .all(|timed| (timed.duration_ns, timed.channels) == (5_031, 32))
        );
        assert!(
            read.collectives()
                .iter()
                .all(|did| did.bytes == 4 << 20 && did.channels == 32)
        );
    }
    let (_, read) = run(5, "stale", 0);
    assert_eq!((read.collectives().len(), read.given_up), (3, 1));
    let (_, read) = run(6, "reload", 0);
    assert_eq!((read.collectives().len(), read.timed().len()), (1_000, 1_000));
    let (said, read) = run(5, "storm", 20_000);
    assert!(read.dropped > 0);
    adds_up(&said, &read);
}

/// Builds the harness for aarch64, and a script that runs it on this machine.
fn emulated() -> PathBuf {
    let program = harness::compile_by(COMPILER, "nccl-harness-aarch64", &["-O2"]);
    let script = harness::target().join("nccl-harness-emulated");
    // `exec` makes QEMU replace the shell and keep its PID.
    let text = format!(
        "#!/bin/sh\nexec qemu-aarch64 -L /usr/aarch64-linux-gnu '{}' \"$@\"\n",
        program.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script
}
