//! Builds the C program once, runs it, and reads the rings that it writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use paceline_ring::{Collective, Next, Reader, Record, Timed};
use tempfile::TempDir;

/// The numbers in the program's output, by name.
pub type Said = BTreeMap<String, u64>;

/// A ring directory and the environment for a program.
pub struct Harness {
    dir: TempDir,
    env: BTreeMap<&'static str, Option<String>>,
    pid: u32,
}

/// A running program.
pub struct Running {
    child: Child,
}

/// The contents of a ring.
#[derive(Default)]
pub struct Read {
    /// The first hundred thousand records.
    pub records: Vec<Record>,
    pub count: u64,
    pub dropped: u64,
    pub torn: u64,
    pub given_up: u64,
}

impl Harness {
    pub fn new() -> Harness {
        let dir = TempDir::new().unwrap();
        let ring_dir = dir.path().join("rings");
        std::fs::create_dir(&ring_dir).unwrap();
        let env = [
            ("PACELINE_RING_DIR", ring_dir.to_str().unwrap()),
            ("PACELINE_NCCL_SAMPLE", "1"),
            ("PACELINE_NCCL_AFTER", "0"),
            // With AddressSanitizer and parallel tests, the plugin would exceed any budget.
            ("PACELINE_NCCL_BUDGET_PPM", "1000000000"),
            ("RANK", "3"),
            ("LOCAL_RANK", "1"),
            ("WORLD_SIZE", "8"),
        ];
        let env = env
            .into_iter()
            .map(|(name, value)| (name, Some(value.to_owned())));
        Harness {
            env: env.collect(),
            dir,
            pid: 0,
        }
    }

    pub fn set(&mut self, name: &'static str, value: Option<&str>) {
        self.env.insert(name, value.map(str::to_owned));
    }

    pub fn ring_dir(&self) -> PathBuf {
        self.dir.path().join("rings")
    }

    /// Runs a scenario to its end.
    pub fn run(&mut self, version: u32, scenario: &str, collectives: u64) -> Said {
        let said = self.start(version, scenario, collectives).said();
        assert_eq!(said["pid"], u64::from(self.pid));
        said
    }

    pub fn start(&mut self, version: u32, scenario: &str, collectives: u64) -> Running {
        self.start_with(&program(), &plugin(), version, scenario, collectives)
    }

    /// Like `start`, with other builds of the program and the plugin.
    pub fn start_with(
        &mut self,
        program: &Path,
        plugin: &Path,
        version: u32,
        scenario: &str,
        collectives: u64,
    ) -> Running {
        let mut command = Command::new(program);
        command
            .arg(plugin)
            .args([version.to_string(), scenario.to_owned(), collectives.to_string()]);
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        self.pid = child.id();
        Running { child }
    }

    /// Runs a scenario that must fail: returns its exit code and stderr.
    pub fn fails(&mut self, version: u32, scenario: &str, collectives: u64) -> (i32, String) {
        let output = self
            .start(version, scenario, collectives)
            .child
            .wait_with_output();
        let output = output.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap_or(-1), stderr)
    }

    /// Opens the ring of the last started program, once it exists.
    pub fn reader(&self) -> Reader {
        let path = self.ring_dir().join(format!("{}-nccl.ring", self.pid));
        let began = Instant::now();
        while !path.exists() && began.elapsed() < Duration::from_secs(30) {
            std::thread::yield_now();
        }
        Reader::open(&path).unwrap()
    }

    /// Reads the ring of a program that has ended.
    pub fn read(&self) -> Read {
        let mut reader = self.reader();
        let mut read = Read::default();
        read.drain(&mut reader, false);
        read
    }

    /// Reads while the program runs.
    pub fn follow(&self, running: &mut Running) -> Read {
        let mut reader = self.reader();
        let mut read = Read::default();
        loop {
            let is_over = running.child.try_wait().unwrap().is_some();
            read.drain(&mut reader, !is_over);
            reader.release(reader.position());
            if is_over {
                return read;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn rings(&self) -> usize {
        std::fs::read_dir(self.ring_dir()).unwrap().count()
    }
}

impl Read {
    fn drain(&mut self, reader: &mut Reader, is_alive: bool) {
        loop {
            match reader.next(paceline_ring::monotonic_ns(), is_alive) {
                Next::Record(record) => {
                    self.count += 1;
                    if self.records.len() < 100_000 {
                        self.records.push(record);
                    }
                }
                Next::Torn => {}
                Next::Empty | Next::Pending => break,
                Next::Broken => panic!("the ring is broken"),
            }
        }
        (self.dropped, self.torn, self.given_up) = (reader.dropped(), reader.torn(), reader.given_up());
    }

    pub fn collectives(&self) -> Vec<Collective> {
        let of = |record: &Record| match record {
            Record::Collective(did) => Some(*did),
            _ => None,
        };
        self.records.iter().filter_map(of).collect()
    }

    /// Returns the texts of the notes.
    pub fn notes(&self) -> Vec<&str> {
        let mut notes = Vec::new();
        for record in &self.records {
            if let Record::Note(note) = record {
                notes.push(note.text.as_str());
            }
        }
        notes
    }

    pub fn timed(&self) -> Vec<Timed> {
        let of = |record: &Record| match record {
            Record::Timed(timed) => Some(*timed),
            _ => None,
        };
        self.records.iter().filter_map(of).collect()
    }
}

impl Running {
    /// Waits for a successful end and returns the program's output.
    pub fn said(self) -> Said {
        let output = self.child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", output.status);
        let text = String::from_utf8(output.stdout).unwrap();
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(name, value)| (name.to_owned(), value.parse::<f64>().unwrap() as u64))
            .collect()
    }
}

/// Returns the path of the plugin that cargo built for these tests.
fn plugin() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.with_file_name("libpaceline_nccl.so");
    assert!(built.exists(), "{} is not built", built.display());
    built
}

/// Returns cargo's target directory.
pub fn target() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(3).unwrap().to_owned()
}

/// Builds the harness under AddressSanitizer and UndefinedBehaviorSanitizer.
pub fn program() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            compile(
                "nccl-harness-asan",
                &["-O1", "-g", "-fsanitize=address,undefined"],
            )
        })
        .clone()
}

/// Builds the harness with the C compiler that Rust links with.
pub fn compile(name: &str, flags: &[&str]) -> PathBuf {
    compile_by("cc", name, flags)
}

/// Builds the harness with another compiler.
pub fn compile_by(compiler: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("nccl-harness/harness.c");
    // Builds to a temporary name first, because parallel tests build and run the same program.
    let drafts = TempDir::new_in(target()).unwrap();
    let (draft, built) = (drafts.path().join(name), target().join(name));
    let output = Command::new(compiler)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"])
        .args(flags)
        .arg("-o")
        .args([&draft, &source])
        .args(["-ldl", "-lpthread"])
        .output()
        .expect("a C compiler, which Rust needs as well");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(&draft, &built).unwrap();
    built
}
