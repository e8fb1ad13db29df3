//! Real sidecars on real rings: what the launcher sees of them, and what their deaths leave behind.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use paceline_health::event::Event;
use paceline_health::{Entry, line};
use paceline_ring::{Attach, Detach, Record, Step, Writer};
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(20);

/// One sidecar as the launcher runs it.
struct Sidecar {
    child: Child,
    stdin: Option<ChildStdin>,
    status: Receiver<Value>,
}

/// A job's directories.
struct Job {
    dir: tempfile::TempDir,
    name: String,
}

impl Job {
    fn new(name: &str) -> Job {
        let name = format!("{name}-{}", std::process::id());
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("rings")).unwrap();
        Job { dir, name }
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn rings(&self) -> PathBuf {
        self.dir.path().join("rings")
    }

    fn start(&self, node: &str, more: &[&str]) -> Sidecar {
        self.start_at(node, &self.rings(), more)
    }

    fn start_at(&self, node: &str, rings: &Path, more: &[&str]) -> Sidecar {
        let mut child = Command::new(env!("CARGO_BIN_EXE_paceline-sidecar"))
            .args(["--job", &self.name, "--node", node])
            .arg("--run-dir")
            .arg(self.run_dir())
            .arg("--ring-dir")
            .arg(rings)
            .args(more)
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

    fn entries(&self, dir: &Path) -> Vec<Entry> {
        let text = std::fs::read_to_string(dir.join("journal.ndjson")).unwrap_or_default();
        text.lines().filter_map(|text| line::decode(text).ok()).collect()
    }

    /// Steps of a rank in the journal.
    fn steps(&self, rank: u32) -> BTreeSet<u64> {
        let step = |entry: Entry| match entry.frame.event {
            Event::Step(step) if step.rank.0 == rank => Some(step.step),
            _ => None,
        };
        self.entries(&self.run_dir())
            .into_iter()
            .filter_map(step)
            .collect()
    }

    fn has_steps(&self, rank: u32, upto: u64) {
        until(&format!("steps of rank {rank} up to {upto}"), || {
            (1..=upto).all(|step| self.steps(rank).contains(&step))
        });
    }

    fn report(&self, dir: &Path) -> Value {
        serde_json::from_slice(&std::fs::read(dir.join("report.json")).unwrap()).unwrap()
    }
}

impl Sidecar {
    fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits for a status line of this kind.
    fn hear(&self, kind: &str) -> Value {
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

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end: the exit code and what it warned of.
    fn end(mut self) -> (Option<i32>, String) {
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
        // Only when a test failed on the way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn trainer(job: &Job, rank: u32) -> Writer {
    let writer = Writer::create_named(&job.rings(), &format!("{rank}.ring"), 4096).unwrap();
    writer.write(&Record::Attach(Attach {
        rank,
        world_size: 2,
        ..Attach::default()
    }));
    writer
}

fn train(writer: &Writer, steps: std::ops::RangeInclusive<u64>) {
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

fn page(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_run_from_start_to_end() {
    let job = Job::new("whole");
    let mut sidecar = job.start("n0", &["--sim-gpus", "gpus=2"]);
    let ready = sidecar.hear("ready");
    let ring = trainer(&job, 0);
    train(&ring, 1..=40);
    job.has_steps(0, 40);
    let progress = sidecar.hear("progress");
    assert!(progress["step"].is_u64() && progress["ranks"].is_u64());
    let http = ready["http"].as_str().unwrap();
    assert_eq!(
        std::fs::read_to_string(job.run_dir().join("metrics.addr"))
            .unwrap()
            .trim(),
        http
    );
    let page = page(http);
    assert!(
        page.contains("paceline_rank_up{rank=\"0\"} 1") && page.contains("provenance=\"sim\""),
        "{page}"
    );
    ring.write(&Record::Detach(Detach { step: 40 }));
    let began = Instant::now();
    sidecar.say(r#"{"exit":{"code":3}}"#);
    let (code, stderr) = sidecar.end();
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "the launcher waits no longer"
    );
    let report = job.report(&job.run_dir());
    assert_eq!(
        (report["exits"][0]["code"].as_i64(), report["steps"].as_u64()),
        (Some(3), Some(40))
    );
    let events: Vec<Event> = job
        .entries(&job.run_dir())
        .into_iter()
        .map(|entry| entry.frame.event)
        .collect();
    assert!(matches!(events.first(), Some(Event::Job(_))) && matches!(events.last(), Some(Event::End(_))));
}

/// Killed three times in the middle: every step is in the journal, and its time goes on.
#[test]
fn a_sidecar_that_is_killed_goes_on() {
    let job = Job::new("killed");
    let ring = trainer(&job, 0);
    for round in 0..3u64 {
        let sidecar = job.start("n0", &[]);
        train(&ring, round * 100 + 1..=round * 100 + 60);
        job.has_steps(0, round * 100 + 30);
        sidecar.kill();
        train(&ring, round * 100 + 61..=round * 100 + 100);
    }
    let mut sidecar = job.start("n0", &[]);
    job.has_steps(0, 300);
    ring.write(&Record::Detach(Detach { step: 300 }));
    sidecar.say(r#"{"exit":{"code":0}}"#);
    sidecar.end();
    let entries = job.entries(&job.run_dir());
    assert!(entries.is_sorted_by(|a, b| a.n < b.n && a.at_ns <= b.at_ns));
    let agents: BTreeSet<u64> = entries.iter().map(|entry| entry.frame.agent).collect();
    assert_eq!(agents.len(), 5, "four incarnations and the aggregator itself");
    assert_eq!(job.report(&job.run_dir())["coverage"]["ring_dropped"], 0);
}

/// Two nodes on one host. The one that aggregates dies; the other takes its place and goes on in the same journal.
#[test]
fn another_node_takes_over() {
    let job = Job::new("over");
    let first = job.start("a", &[]);
    let at = first.hear("ready");
    assert!(at["http"].is_string());
    let other_rings = job.dir.path().join("other");
    std::fs::create_dir(&other_rings).unwrap();
    let mut second = job.start_at("b", &other_rings, &[]);
    let joined = second.hear("ready");
    assert_eq!(
        (&joined["aggregator"], &joined["http"]),
        (&at["aggregator"], &Value::Null)
    );
    let ring = Writer::create_named(&other_rings, "1.ring", 4096).unwrap();
    ring.write(&Record::Attach(Attach {
        rank: 1,
        world_size: 2,
        ..Attach::default()
    }));
    train(&ring, 1..=50);
    job.has_steps(1, 50);
    first.kill();
    train(&ring, 51..=100);
    let taken = second.hear("ready");
    assert_eq!(taken["aggregator"], at["aggregator"]);
    assert!(taken["http"].is_string());
    job.has_steps(1, 100);
    let mut third = job.start("a", &[]);
    assert_eq!(third.hear("ready")["http"], Value::Null, "the place is taken");
    ring.write(&Record::Detach(Detach { step: 100 }));
    for sidecar in [&mut third, &mut second] {
        sidecar.say(r#"{"exit":{"code":0}}"#);
    }
    third.end();
    second.end();
    let last = job.entries(&job.run_dir()).pop().unwrap();
    assert!(
        matches!(last.frame.event, Event::End(end) if end.missing.is_empty()),
        "everybody said goodbye"
    );
}

/// The port is somebody else's: this node is watched alone, and its journal says why.
#[test]
fn a_port_in_use() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    check_alone("port", &address, "taken by another program");
}

#[test]
fn two_jobs_on_one_port() {
    let other = Job::new("first");
    let holder = other.start("n0", &["--aggregator", "127.0.0.1:0"]);
    let address = holder.hear("ready")["aggregator"].as_str().unwrap().to_owned();
    check_alone("second", &address, "aggregator of job first-");
    holder.kill();
}

#[test]
fn an_address_that_is_not_loopback() {
    check_alone("remote", "192.0.2.1:4711", "not authenticated yet");
}

fn check_alone(name: &str, address: &str, why: &str) {
    let job = Job::new(name);
    let ring = trainer(&job, 0);
    train(&ring, 1..=5);
    let mut sidecar = job.start("n0", &["--aggregator", address]);
    let ready = sidecar.hear("ready");
    assert_ne!(ready["aggregator"].as_str(), Some(address));
    job.has_steps(0, 5);
    ring.write(&Record::Detach(Detach { step: 5 }));
    sidecar.say(r#"{"exit":{"code":0}}"#);
    let (_, stderr) = sidecar.end();
    assert!(stderr.contains(why), "{stderr}");
    let sources = job
        .entries(&job.run_dir())
        .into_iter()
        .find_map(|entry| match entry.frame.event {
            Event::Agent(agent) => Some(agent.sources),
            _ => None,
        });
    assert!(
        sources
            .unwrap()
            .iter()
            .any(|source| source.starts_with("alone: ") && source.contains(why))
    );
    assert_eq!(job.report(&job.run_dir())["steps"], 5);
}

/// Ctrl-C and a hang-up are the launcher's to pass on; SIGTERM ends the watch in order.
#[test]
fn signals() {
    let job = Job::new("signals");
    let sidecar = job.start("n0", &[]);
    sidecar.hear("ready");
    sidecar.signal("-INT");
    sidecar.signal("-HUP");
    sidecar.hear("progress");
    sidecar.hear("progress");
    sidecar.signal("-TERM");
    assert_eq!(sidecar.end().0, Some(0));
    let bye = job
        .entries(&job.run_dir())
        .into_iter()
        .find_map(|entry| match entry.frame.event {
            Event::Bye(bye) => Some(bye.reason.to_string()),
            _ => None,
        });
    assert_eq!(bye.as_deref(), Some("terminated"));
}

/// The launcher is killed: the trainer is watched to its end, and nothing stays behind.
#[test]
fn the_launcher_dies() {
    let job = Job::new("orphan");
    let mut trainer_process = Command::new("sleep").arg("60").spawn().unwrap();
    let mut sidecar = job.start("n0", &[]);
    sidecar.say(&format!(r#"{{"child":{}}}"#, trainer_process.id()));
    sidecar.hear("ready");
    sidecar.stdin = None;
    let ring = trainer(&job, 0);
    train(&ring, 1..=5);
    job.has_steps(0, 5);
    ring.write(&Record::Detach(Detach { step: 5 }));
    trainer_process.kill().unwrap();
    trainer_process.wait().unwrap();
    assert_eq!(sidecar.end().0, Some(0));
    assert_eq!(job.report(&job.run_dir())["steps"], 5);
}

/// An old journal is sent again: marked, so that nothing acts on it, and with the same conclusion.
#[test]
fn a_replay_is_marked() {
    let old = Job::new("old");
    let ring = trainer(&old, 0);
    train(&ring, 1..=10);
    let mut sidecar = old.start("n0", &[]);
    old.has_steps(0, 10);
    ring.write(&Record::Detach(Detach { step: 10 }));
    sidecar.say(r#"{"exit":{"code":0}}"#);
    sidecar.end();
    let new = Job::new("new");
    let journal = old.run_dir().join("journal.ndjson");
    let sidecar = new.start("m0", &["--replay", journal.to_str().unwrap()]);
    new.has_steps(0, 10);
    sidecar.kill();
    let replayed = new.entries(&new.run_dir()).into_iter().filter(|entry| {
        matches!(
            entry.frame.event,
            Event::Step(_) | Event::Attach(_) | Event::Detach(_)
        )
    });
    let marks: BTreeSet<_> = replayed.map(|entry| entry.frame.provenance).collect();
    assert_eq!(marks, [paceline_health::Provenance::Replay].into());
}

#[test]
fn bad_command_lines() {
    for arguments in [
        &["--nonsense"][..],
        &["--policy", "straggler.nonsense=1"],
        &["--sim-gpus", "gpus=x"],
    ] {
        let out = Command::new(env!("CARGO_BIN_EXE_paceline-sidecar"))
            .args(["--job", "j", "--run-dir", "/nowhere"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(64), "{arguments:?}");
    }
}
