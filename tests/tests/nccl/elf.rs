//! Checks the released library's system requirements, and the measured cost per callback.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::harness::{self, Harness};

/// The only symbols that the plugin may need, which are system calls and strings. There is no allocator, unwinder,
/// thread or lock.
const ALLOWED: [&str; 19] = [
    "bcmp",
    "clock_gettime",
    "close",
    // Used to detect the atomic instructions of an aarch64 CPU.
    "getauxval",
    "getenv",
    "geteuid",
    "getpid",
    "madvise",
    "memcpy",
    "memset",
    "getrlimit",
    "mmap",
    "posix_fallocate",
    "open",
    "rename",
    "sched_yield",
    "strlen",
    "unlink",
    "__cxa_finalize",
];

/// The release build must need nothing that can block, allocate or unwind, and nothing newer than glibc 2.17. It must
/// stay loaded when NCCL unloads it.
#[test]
fn the_shipped_plugin_needs_system_calls_alone() {
    needs_system_calls_alone(&release());
}

/// Checks a library of any architecture.
pub fn needs_system_calls_alone(library: &Path) {
    let symbols = readelf(library, "--dyn-syms");
    let mut exported = Vec::new();
    for line in symbols
        .lines()
        .filter(|line| line.contains(" GLOBAL ") || line.contains(" WEAK "))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (is_needed, name) = (words[6] == "UND", words[7]);
        let (name, version) = name.split_once('@').unwrap_or((name, ""));
        if !is_needed {
            exported.push(name.to_owned());
            continue;
        }
        // Skips weak symbols, which are optional and occur in every library linked by gcc.
        if name.starts_with("_ITM_") || name == "__gmon_start__" {
            continue;
        }
        assert!(ALLOWED.contains(&name), "the plugin needs {name}");
        let version = version
            .trim_start_matches('@')
            .strip_prefix("GLIBC_2.")
            .unwrap_or("99");
        let minor: f64 = version.parse().unwrap();
        assert!(minor <= 17.0, "{name} is of glibc 2.{version}");
    }
    exported.sort();
    assert_eq!(
        exported,
        [4, 5, 6, 7].map(|version| format!("ncclProfiler_v{version}"))
    );
    let dynamic = readelf(library, "-d");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    let needed: Vec<&str> = dynamic.lines().filter(|line| line.contains("(NEEDED)")).collect();
    // NCCL itself needs all of these libraries too, so they are present wherever it runs.
    let is_everywhere = |line: &&str| {
        ["[libc.so.6]", "[libgcc_s.so.1]", "[ld-linux"]
            .iter()
            .any(|name| line.contains(name))
    };
    assert!(needed.iter().all(is_everywhere), "{needed:?}");
}

/// A callback may cost NCCL's threads at most 150 ns, on an otherwise idle machine.
#[test]
#[ignore = "a measurement, for a quiet machine"]
fn cost_of_a_callback() {
    let program = harness::compile("nccl-harness-fast", &["-O2"]);
    let plugin = release();
    let once = || {
        let mut harness = Harness::new();
        let mut running = harness.start_with(&program, &plugin, 5, "bench", 500);
        let read = harness.follow(&mut running);
        let said = running.said();
        println!("{said:?}, {} dropped", read.dropped);
        assert_eq!(read.dropped, 0, "a ring that is full costs less");
        said["enqueue_ns"].max(said["kernel_ns"])
    };
    // Takes the least of five runs, because other load can only increase the cost.
    let least = (0..5).map(|_| once()).min();
    assert!(least.is_some_and(|ns| ns <= 150), "{least:?} ns");
}

/// The release build of the plugin.
pub fn release() -> PathBuf {
    build(&mut cargo());
    target().join("release/libpaceline_nccl.so")
}

/// Builds the plugin for another architecture, linked by that compiler.
pub fn cross(triple: &str, compiler: &str) -> PathBuf {
    let linker = format!("target.{triple}.linker='{compiler}'");
    build(cargo().args(["--target", triple, "--config", &linker]));
    of_target(triple)
}

/// Builds the plugin with AddressSanitizer, for a program that contains its runtime (gcc's and LLVM's are compatible).
pub fn sanitized() -> PathBuf {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let flags = format!("target.{triple}.rustflags=['-Zsanitizer=address']");
    // Sanitizers need nightly options, which RUSTC_BOOTSTRAP enables in this compiler.
    let mut cargo = cargo();
    cargo.env("RUSTC_BOOTSTRAP", "1").env_remove("RUSTFLAGS");
    build(cargo.args(["--target", &triple, "--config", &flags]));
    let library = of_target(&triple);
    assert!(readelf(&library, "--dyn-syms").contains("__asan_report_store"));
    library
}

/// Returns a cargo command for the release build of the plugin.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "-q", "--release", "--locked"]);
    cargo.args(["-p", "paceline-nccl-profiler", "--target-dir"]);
    cargo.arg(target());
    cargo
}

/// Returns a separate target directory, because a parallel release build holds the lock of the usual one.
fn target() -> PathBuf {
    harness::target().join("nccl-plugin")
}

fn build(cargo: &mut Command) {
    assert!(cargo.status().unwrap().success());
}

fn of_target(triple: &str) -> PathBuf {
    target().join(triple).join("release/libpaceline_nccl.so")
}

fn readelf(library: &Path, what: &str) -> String {
    let output = Command::new("readelf").arg("-W").arg(what).arg(library).output();
    let output = output.expect("readelf, of binutils as Rust's linker is");
    String::from_utf8(output.stdout).unwrap()
}
