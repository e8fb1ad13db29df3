//! Tests of the life of a journal with a size limit: batches, segments, kills, and damaged snapshots.

#[path = "thinned_tests/bounded.rs"]
mod bounded;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;
use std::thread::JoinHandle;

use paceline_health::event::{Agent, Attach, Beat, FaultSource, GpuFault, GpuFaultKind, Mark, Pulse};
use paceline_health::event::{Phase, Phases, Signal, Step, StepKind};
use paceline_health::id::Rank;
use paceline_health::{Entry, Policy, Provenance};

use super::*;
use crate::aggregator::Plan;
use crate::aggregator::journal::disk::{Disk, on_disk};
use crate::aggregator::journal::lines::{Line, Lines};
use crate::aggregator::journal::room;
use crate::aggregator::journal::segments::{self, Limits};
use crate::sink::status::StatusStream;
use crate::uplink::wire::{Batch, Blob, encode_event};

const MS: u64 = 1_000_000;
const RANKS: u32 = 4;
const LIMITS: Limits = Limits {
    segment_bytes: 40_000,
    bound_bytes: 1_000_000,
};

/// A disk that runs deferred work at once.
#[derive(Debug)]
struct AtOnce(Box<dyn Disk>);

impl Disk for AtOnce {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)
    }
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.0.cut(length)
    }
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn another(&self, file: File) -> Box<dyn Disk> {
        Box::new(AtOnce(on_disk(file)))
    }
    fn run(&mut self, work: Box<dyn FnOnce() + Send>) -> Option<JoinHandle<()>> {
        work();
        None
    }
}

/// The sidecar of one node, its job, and the aggregator.
struct World {
    dir: tempfile::TempDir,
    limits: Limits,
    aggregator: Option<Aggregator>,
    now_ns: u64,
    step: u64,
    seq: u64,
    /// The number of lines sent by event name, without the aggregator's own.
    sent: BTreeMap<String, u64>,
}

/// Creates a directory in memory (tmpfs) if possible, because a hundred segments are synced.
fn temporary() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    made.unwrap()
}

impl World {
    fn new(limits: Limits) -> World {
        let mut world = World {
            dir: temporary(),
            limits,
            aggregator: None,
            now_ns: 1_000 * MS,
            step: 0,
            seq: 0,
            sent: BTreeMap::new(),
        };
        world.open();
        world.introduce();
        world
    }

    fn open(&mut self) {
        self.aggregator = None;
        let plan = Plan {
            job: "j".into(),
            node: "n".into(),
            run_dir: self.dir.path().to_owned(),
            policy: vec![("straggler.min_steps".to_owned(), 6.0)],
            remedy: Default::default(),
            reload: None,
            reported: None,
            journal: self.limits,
            doors: Default::default(),
        };
        let status = StatusStream::to(io::sink()).0;
        let mut medium = |file: File| Box::new(AtOnce(on_disk(file))) as Box<dyn Disk>;
        let opened = Aggregator::open_on(plan, status, self.now_ns, &mut medium);
        self.aggregator = Some(opened.unwrap());
    }

    fn introduce(&mut self) {
        let mut events = vec![Event::Agent(Agent {
            paceline: "0".into(),
            sources: Vec::new(),
            unix_ms: 0,
            rack: "".into(),
            versions: Default::default(),
        })];
        events.extend((0..RANKS).map(|rank| {
            Event::Attach(Attach {
                rank: Rank(rank),
                local_rank: rank,
                world_size: RANKS,
                restart: 0,
                pid: 7 + rank,
                gpu: Some(format!("GPU-{rank}").as_str().into()),
                role: "".into(),
                framework: "test".into(),
            })
        }));
        self.send(events);
    }

    fn send(&mut self, events: Vec<Event>) {
        for event in &events {
            let name = serde_json::to_value(event).unwrap();
            let name = name.as_object().unwrap().keys().next().unwrap().clone();
            *self.sent.entry(name).or_default() += 1;
        }
        let blobs = events
            .iter()
            .map(|event| Blob(encode_event(Provenance::Live, event)));
        let batch = Batch {
            v: 1,
            job: "j".into(),
            node: "m".into(),
            agent: 5,
            after: 0,
            first_seq: self.seq + 1,
            events: blobs.collect(),
        };
        self.seq += events.len() as u64;
        let aggregator = self.aggregator.as_mut().unwrap();
        let now_ns = self.now_ns;
        let down = aggregator.take(&batch, now_ns);
        assert!(matches!(down, crate::uplink::wire::Down::Ack(ack) if ack.upto == self.seq));
        aggregator.tick(now_ns);
    }

    /// Simulates a tenth of a second of the job. Rank 2 is slow from step 100 and recovers at step 400.
    fn row(&mut self, also: Vec<Event>) {
        self.now_ns += 100 * MS;
        self.step += 1;
        let step = self.step;
        let own_ns = |rank: u32| {
            let noise = (u64::from(rank) * 7_919 + step * 104_729) % 997;
            let is_slow = rank == 2 && (100..400).contains(&step);
            (60 * MS + noise * 200) * if is_slow { 13 } else { 10 } / 10
        };
        let mut events: Vec<Event> = (0..RANKS)
            .map(|rank| {
                let compute_ns = own_ns(rank);
                Event::Step(Step {
                    rank: Rank(rank),
                    restart: 0,
                    step,
                    kind: StepKind::Train,
                    dur_ns: 100 * MS,
                    phases: Some(Phases {
                        compute_ns,
                        wait_ns: 100 * MS - compute_ns,
                        ..Phases::default()
                    }),
                    micro_batches: 1,
                    tokens: 0,
                    signal: Signal::S2,
                    sum_sq: 0,
                    expert_tokens: 0,
                })
            })
            .collect();
        if step.is_multiple_of(10) {
            let pulse = |rank| Pulse {
                rank: Rank(rank),
                restart: 0,
                step: step + 1,
                phase: Phase::Compute,
                idle_ns: MS,
                alive: true,
            };
            events.push(Event::Beat(Beat {
                ranks: (0..RANKS).map(pulse).collect(),
                ..Beat::default()
            }));
        }
        events.extend(also);
        self.send(events);
    }

    fn report(&self) -> paceline_health::report::Report {
        self.aggregator.as_ref().unwrap().report()
    }

    fn journal(&self) -> std::path::PathBuf {
        self.dir.path().join("journal.ndjson")
    }

    fn entries(&self) -> Vec<Entry> {
        let files = segments::files(&self.journal()).unwrap();
        files.iter().flat_map(|file| entries(file)).collect()
    }

    /// Asserts that every line sent is in the journal or recorded as removed.
    fn accounts(&self) {
        let mut there: BTreeMap<String, u64> = BTreeMap::new();
        for entry in self.entries() {
            if let Event::Thinned(thinned) = &entry.frame.event
                && thinned.here
            {
                for (kind, lines) in &thinned.gone {
                    *there.entry(kind.to_string()).or_default() += lines;
                }
            } else if entry.frame.agent != OWN_AGENT {
                let name = serde_json::to_value(&entry.frame.event).unwrap();
                let name = name.as_object().unwrap().keys().next().unwrap().clone();
                *there.entry(name).or_default() += 1;
            }
        }
        // Ignore records of earlier thinning. They are the aggregator's own lines, and may be removed with the rest.
        there.retain(|kind, _| kind != "thinned" && kind != "damaged");
        assert_eq!(there, self.sent);
    }

    /// Returns the detector's state, folded from the journal alone without a snapshot.
    fn folded(&self) -> paceline_health::Detector {
        let mut detector = paceline_health::Detector::new(Policy::default());
        for entry in self.entries() {
            detector.observe(entry.at_ns, &entry.frame);
        }
        detector
    }
}

fn entries(path: &Path) -> Vec<Entry> {
    let lines = Lines::new(BufReader::new(File::open(path).unwrap()));
    let entry = |line: io::Result<Line>| match line.unwrap() {
        Line::Entry(entry) => *entry,
        other => panic!("{}: {other:?}", path.display()),
    };
    lines.map(entry).collect()
}

fn fault(number: u32) -> Event {
    Event::GpuFault(GpuFault {
        gpu: Some("GPU-3".into()),
        pci: "0000:01:00.0".into(),
        kind: GpuFaultKind::Xid,
        xid: 48,
        count: number,
        seen_by: FaultSource::Kernel,
        text: "".into(),
    })
}

fn mark(step: u64) -> Event {
    Event::Mark(Mark {
        rank: Rank(0),
        step,
        kind: "checkpoint".into(),
        value: 0,
    })
}

fn named(report: &paceline_health::report::Report) -> Vec<String> {
    let verdicts = report.verdicts.iter();
    verdicts
        .map(|verdict| format!("{:?} {} {:?}", verdict.finding, verdict.subject, verdict.state))
        .collect()
}

fn note(report: &paceline_health::report::Report) -> String {
    let notes = report.coverage.notes.iter();
    notes
        .filter(|note| note.starts_with("telemetry of the first"))
        .map(|note| note.to_string())
        .collect()
}
