use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use paceline_health::Provenance;
use paceline_health::event::{Agent, Attach, FaultSource, GpuFault, GpuFaultKind, Signal, Step, StepKind};
use paceline_health::id::Rank;

use super::*;
use crate::aggregator::Plan;
use crate::aggregator::journal::segments::{self, Limits};
use crate::sink::status::StatusStream;
use crate::uplink::wire::{Batch, Blob, encode_event};

const SECOND: u64 = 1_000_000_000;

fn open(dir: &Path, now_ns: u64) -> Aggregator {
    let plan = Plan {
        job: "j".into(),
        node: "n".into(),
        run_dir: dir.to_owned(),
        policy: vec![("straggler.min_steps".to_owned(), 6.0)],
        remedy: Default::default(),
        reload: None,
        reported: None,
        doors: Default::default(),
        journal: Limits {
            segment_bytes: 20_000,
            bound_bytes: u64::MAX,
        },
    };
    Aggregator::open(plan, StatusStream::to(std::io::sink()).0, now_ns).unwrap()
}

fn attach(rank: u32) -> Event {
    Event::Attach(Attach {
        rank: Rank(rank),
        local_rank: rank,
        world_size: 4,
        restart: 0,
        pid: 7 + rank,
        gpu: Some("GPU-a".into()),
        role: "".into(),
        framework: "test".into(),
    })
}

fn step(rank: u32, step: u64) -> Event {
    // Rank 2 of four becomes slow.
    let dur_ns = if rank == 2 && step > 60 {
        150_000_000
    } else {
        100_000_000
    };
    Event::Step(Step {
        rank: Rank(rank),
        restart: 0,
        step,
        dur_ns,
        kind: StepKind::Train,
        signal: Signal::S0,
        phases: None,
        micro_batches: 1,
        tokens: 0,
        sum_sq: 0,
        expert_tokens: 0,
    })
}

fn fault(number: u32) -> Event {
    Event::GpuFault(GpuFault {
        gpu: Some("GPU-a".into()),
        pci: "0000:01:00.0".into(),
        kind: GpuFaultKind::Xid,
        xid: 48,
        count: number,
        seen_by: FaultSource::Kernel,
        text: "".into(),
    })
}

/// Runs a job of four ranks up to its 120th step, then kills its aggregator. Returns the time of the kill.
fn killed(dir: &Path) -> u64 {
    let mut aggregator = open(dir, SECOND);
    let agent = Event::Agent(Agent {
        paceline: "0".into(),
        sources: Vec::new(),
        unix_ms: 0,
        rack: "".into(),
        versions: Default::default(),
    });
    let mut events = vec![agent];
    events.extend((0..4).map(attach));
    let (mut seq, mut now_ns) = (1, SECOND);
    for at in 1..=120 {
        events.extend((0..4).map(|rank| step(rank, at)));
        if at % 50 == 0 {
            events.push(fault(at as u32));
        }
        now_ns += SECOND / 10;
        let blobs = events
            .iter()
            .map(|event| Blob(encode_event(Provenance::Live, event)));
        aggregator.take(
            &Batch {
                v: 1,
                job: "j".into(),
                node: "m".into(),
                agent: 5,
                after: 0,
                first_seq: seq,
                events: blobs.collect(),
            },
            now_ns,
        );
        aggregator.tick(now_ns);
        seq += events.len() as u64;
        events.clear();
        wait_for_snapshot(dir, &aggregator);
    }
    now_ns
}

/// Waits for the snapshot, which a separate thread writes to disk.
fn wait_for_snapshot(dir: &Path, aggregator: &Aggregator) {
    let journal = dir.join("journal.ndjson");
    let last = |files: Vec<(u32, PathBuf)>| files.last().map(|(number, _)| *number);
    let closed = last(segments::list(&journal).unwrap());
    let begun = Instant::now();
    while last(snapshot::list(&journal).unwrap()) < closed || aggregator.journal.is_keeping() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "no snapshot behind {closed:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the state of an aggregator that resumes in a copy of `dir`, after `happened` changed the copy.
fn gone_on(dir: &Path, now_ns: u64, happened: impl FnOnce(&Path)) -> (String, String, String) {
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        if path.file_name().unwrap() != "journal.owner" {
            fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    happened(copy.path());
    let aggregator = open(copy.path(), now_ns);
    let report = serde_json::to_string(&aggregator.report()).unwrap();
    let upto = format!(
        "{:?} {:?}",
        aggregator.intake.upto(&"m".into(), 5),
        aggregator.last_n
    );
    let told = fs::read_to_string(copy.path().join("verdicts.ndjson")).unwrap();
    (report, upto, told)
}

#[test]
fn a_snapshot_and_what_came_after_is_all_of_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let now_ns = killed(dir.path()) + SECOND;
    let journal = dir.path().join("journal.ndjson");
    let closed = segments::list(&journal).unwrap();
    assert!(closed.len() > 3, "{closed:?}");
    let last = closed.len();
    let numbered = |number: usize, end: &str| format!("journal-{number:06}.{end}");
    let without_snapshots = gone_on(dir.path(), now_ns, |copy| {
        snapshot::forget(&copy.join("journal.ndjson"))
    });
    assert!(
        without_snapshots.2.lines().count() >= 2,
        "{}",
        without_snapshots.2
    );
    let same = |what: &str, happened: &dyn Fn(&Path)| {
        assert_eq!(gone_on(dir.path(), now_ns, happened), without_snapshots, "{what}");
    };
    same("nothing happened", &|_| {});
    same("older segments are not needed", &|copy| {
        // Keep the first segment, which names the journal's job.
        for number in 2..=last {
            fs::remove_file(copy.join(numbered(number, "ndjson"))).unwrap();
        }
    });
    same("the newest snapshot was not written yet", &|copy| {
        fs::remove_file(copy.join(numbered(last, "state"))).unwrap();
    });
    same("half of it was written", &|copy| {
        let path = copy.join(numbered(last, "state"));
        let bytes = fs::read(&path).unwrap();
        fs::write(path.with_added_extension("new"), &bytes[..bytes.len() / 2]).unwrap();
        fs::remove_file(path).unwrap();
    });
    same("it is damaged", &|copy| {
        let path = copy.join(numbered(last, "state"));
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    });
    same("both are damaged", &|copy| {
        for number in [last - 1, last] {
            fs::write(copy.join(numbered(number, "state")), "").unwrap();
        }
    });
    same("killed before it was closed", &|copy| {
        // Restore the state before the last segment was closed, when all of it was in the open file.
        let path = copy.join(numbered(last, "ndjson"));
        let mut all = fs::read(&path).unwrap();
        all.extend(fs::read(copy.join("journal.ndjson")).unwrap());
        fs::write(copy.join("journal.ndjson"), all).unwrap();
        fs::remove_file(path).unwrap();
        fs::remove_file(copy.join(numbered(last, "state"))).unwrap();
    });
}

#[test]
fn one_that_was_killed_between_two_segments_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let now_ns = killed(dir.path()) + SECOND;
    let parts = |copy: &Path, with_snapshot: bool| {
        fs::remove_file(copy.join("journal.ndjson")).unwrap();
        if !with_snapshot {
            snapshot::forget(&copy.join("journal.ndjson"));
        }
    };
    let folded = gone_on(dir.path(), now_ns, |copy| parts(copy, false));
    assert_eq!(gone_on(dir.path(), now_ns, |copy| parts(copy, true)), folded);
}

#[test]
fn verdicts_that_lost_their_end_have_no_half_line() {
    let dir = tempfile::tempdir().unwrap();
    let now_ns = killed(dir.path()) + SECOND;
    let (_, _, told) = gone_on(dir.path(), now_ns, |copy| {
        let path = copy.join("verdicts.ndjson");
        let text = fs::read(&path).unwrap();
        let first = text.iter().position(|byte| *byte == b'\n').unwrap();
        fs::write(&path, &text[..first + 9]).unwrap();
    });
    assert!(told.lines().count() >= 1);
    for line in told.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}
