//! Real sidecars on real rings: their status for the launcher, and the effects of their deaths.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod alone;
mod bound;
mod faults;
mod job;
mod relay;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use paceline_health::event::Event;
use paceline_ring::{Attach, Detach, Record, Writer};
use serde_json::Value;

use job::{Job, page, train, trainer, until};

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

/// Killed three times in the middle: every step is in the journal, and its time continues.
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

/// Two nodes on one host. The aggregating one dies; the other takes over and continues the same journal.
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

/// The port belongs to another program: this node is monitored alone, and its journal gives the reason.
#[test]
fn a_port_in_use() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    check_alone(Job::new("port"), &address, "taken by another program");
}

#[test]
fn two_jobs_on_one_port() {
    let other = Job::new("first");
    let holder = other.start("n0", &["--aggregator", "127.0.0.1:0"]);
    let address = holder.hear("ready")["aggregator"].as_str().unwrap().to_owned();
    let mut job = Job::new("second");
    job.home.clone_from(&other.home); // Of the same user.
    check_alone(job, &address, "does not have this job's key");
    holder.kill();
}

/// Without a key for sealing, nothing is sent to another host.
#[test]
fn another_host_and_no_key() {
    let mut job = Job::new("remote");
    job.home = "/dev/null".into();
    check_alone(job, "192.0.2.1:4711", "its aggregator is on another host (");
}

fn check_alone(job: Job, address: &str, why: &str) {
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

/// The launcher forwards Ctrl-C and a hang-up; SIGTERM ends monitoring normally.
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

/// A kubelet leaves 2 s: everything is written by then, even if another node died without notice.
#[test]
fn in_a_pod_a_dead_node_is_not_waited_for_until_the_kubelet_kills() {
    let job = Job::new("pod");
    let address = {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().to_string()
    };
    let first = job.start("n0", &["--pod", "--status-json", "--aggregator", &address]);
    first.hear("ready");
    let elsewhere = job.beside();
    let second = elsewhere.start("n1", &["--pod", "--status-json", "--aggregator", &address]);
    second.hear("ready");
    until("both nodes", || {
        let entries = job.entries(&job.run_dir());
        entries.iter().any(|entry| entry.frame.node.as_str() == "n1")
    });
    second.kill();
    let began = Instant::now();
    first.signal("-TERM");
    assert_eq!(first.end().0, Some(0));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    let last = job.entries(&job.run_dir()).pop().unwrap();
    assert!(
        matches!(&last.frame.event, Event::End(end) if end.missing == ["n1".into()]),
        "{last:?}"
    );
    assert!(job.report(&job.run_dir())["job"].is_string());
}

/// The launcher is killed: the trainer is monitored until its end, and nothing is left behind.
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

/// An old journal is sent again: marked, so that it triggers no action, and with the same conclusion.
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
