//! A job's directories, its sidecars as started by the launcher, and its trainers' rings.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use paceline_health::Entry;
use paceline_health::codec::line;
use paceline_health::event::Event;
use paceline_ring::{Attach, Record, Step, Writer};
use serde_json::Value;

pub const DEADLINE: Duration = Duration::from_secs(120);

/// One sidecar as started by the launcher.
pub struct Sidecar {
    child: Child,
    pub stdin: Option<ChildStdin>,
    status: Receiver<Value>,
}

/// A job's directories.
pub struct Job {
    pub dir: tempfile::TempDir,
    /// Directory of the user's own key.
    pub home: PathBuf,
    name: String,
}

impl Job {
    pub fn new(name: &str) -> Job {
        let name = format!("{name}-{}", std::process::id());
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("rings")).unwrap();
        let home = dir.path().to_owned();
        Job { dir, home, name }
    }

    /// The same job on a machine that shares only the user's home directory.
    pub fn beside(&self) -> Job {
        Job {
            name: self.name.clone(),
            home: self.home.clone(),
            ..Job::new("beside")
        }
    }

    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub fn rings(&self) -> PathBuf {
        self.dir.path().join("rings")
    }

    pub fn start(&self, node: &str, more: &[&str]) -> Sidecar {
        self.start_at(node, &self.rings(), more)
    }

    pub fn start_at(&self, node: &str, rings: &Path, more: &[&str]) -> Sidecar {
        let mut child = Command::new(env!("CARGO_BIN_EXE_paceline-sidecar"))
            .args(["--job", &self.name, "--node", node])
            .arg("--run-dir")
            .arg(self.run_dir())
            .arg("--ring-dir")
            .arg(rings)
            .args(more)
            .env("HOME", &self.home)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("PACELINE_KEY_FILE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, status) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        let stdin = child.stdin.take();
        Sidecar { child, stdin, status }
    }

    pub fn entries(&self, dir: &Path) -> Vec<Entry> {
        let text = std::fs::read_to_string(dir.join("journal.ndjson")).unwrap_or_default();
        text.lines().filter_map(|text| line::decode(text).ok()).collect()
    }

    /// Steps of a rank in the journal.
    pub fn steps(&self, rank: u32) -> BTreeSet<u64> {
        let step = |entry: Entry| match entry.frame.event {
            Event::Step(step) if step.rank.0 == rank => Some(step.step),
            _ => None,
        };
        self.entries(&self.run_dir())
            .into_iter()
            .filter_map(step)
            .collect()
    }

    pub fn has_steps(&self, rank: u32, upto: u64) {
        until(&format!("steps of rank {rank} up to {upto}"), || {
            (1..=upto).all(|step| self.steps(rank).contains(&step))
        });
    }

    pub fn report(&self, dir: &Path) -> Value {
        serde_json::from_slice(&std::fs::read(dir.join("report.json")).unwrap()).unwrap()
    }
}

impl Sidecar {
    pub fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits for a status line of this kind.
    pub fn hear(&self, kind: &str) -> Value {
        let began = Instant::now();
        loop {
            let left = DEADLINE.saturating_sub(began.elapsed());
            let status = self
                .status
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("no {kind}"));
            if let Some(value) = status.get(kind) {
                return value.clone();
            }
        }
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end: returns the exit code and its warnings.
    pub fn end(mut self) -> (Option<i32>, String) {
        until("the end", || self.child.try_wait().unwrap().is_some());
        let mut stderr = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        (self.child.wait().unwrap().code(), stderr)
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // Only if the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn trainer(job: &Job, rank: u32) -> Writer {
    let writer = Writer::create_named(&job.rings(), &format!("{rank}.ring"), 4096).unwrap();
    writer.write(&Record::Attach(Attach {
        rank,
        world_size: 2,
        ..Attach::default()
    }));
    writer
}

pub fn train(writer: &Writer, steps: std::ops::RangeInclusive<u64>) {
    for step in steps {
        let step = Step {
            step,
            duration_ns: 50_000_000,
            compute_us: 40_000,
            phases_known: true,
            ..Step::default()
        };
        writer.write(&Record::Step(step));
    }
}

pub fn page(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
