use std::os::unix::fs::{FileExt, PermissionsExt};

use paceline_health::Provenance;
use paceline_health::event::{Event, Phase};
use paceline_health::id::Rank;
use paceline_ring::{
    Attach, Axis, Comm, Detach, Group, Layout, Mark, Note, PhaseWord, Record, Role, Step, Work, Writer,
};

use super::*;

/// A ring directory, its probe, and what the probe sent.
struct Bench {
    dir: tempfile::TempDir,
    probe: Probe,
    sent: Vec<Event>,
    now_ns: u64,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let probe = Probe::new(dir.path().to_owned());
        Bench {
            dir,
            probe,
            sent: Vec::new(),
            now_ns: paceline_ring::monotonic_ns(),
        }
    }

    fn ring(&self, name: &str) -> Writer {
        Writer::create_named(self.dir.path(), name, 128).unwrap()
    }

    /// Polls after two more seconds, so that everything periodic is due.
    fn poll(&mut self) -> Vec<Event> {
        self.now_ns += 2_000_000_000;
        let before = self.sent.len();
        let Bench {
            probe, sent, now_ns, ..
        } = self;
        probe.poll(*now_ns, &mut |provenance, event| {
            assert_eq!(provenance, Provenance::Live);
            sent.push(event);
            sent.len() as u64
        });
        self.sent[before..].to_vec()
    }

    fn pulses(&mut self) -> Vec<Pulse> {
        let mut pulses = Vec::new();
        self.probe.pulses(self.now_ns, &mut pulses);
        pulses
    }

    fn settle(&mut self) {
        self.probe.settled(self.sent.len() as u64);
    }

    fn files(&self) -> usize {
        fs::read_dir(self.dir.path()).unwrap().count()
    }

    /// Replaces the process ID in the ring by that of a process that has ended.
    fn orphan(&self, name: &str) {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let file = fs::File::options()
            .write(true)
            .open(self.dir.path().join(name))
            .unwrap();
        file.write_all_at(&child.id().to_le_bytes(), 24).unwrap();
    }
}

fn attach(rank: u32, restart: u32) -> Record {
    Record::Attach(Attach {
        rank,
        restart,
        world_size: 4,
        version: [2, 15, 0],
        ..Attach::default()
    })
}

fn step(n: u64) -> Record {
    let step = Step {
        step: n,
        duration_ns: 50_000_000,
        wait_us: 7,
        phases_known: true,
        ..Step::default()
    };
    Record::Step(step)
}

fn kinds(events: &[Event]) -> Vec<String> {
    events
        .iter()
        .map(|event| match event {
            Event::Attach(attach) => format!("attach {} {:?}", attach.rank, attach.role),
            Event::Step(step) => format!("step {} {}", step.rank, step.step),
            Event::Mark(mark) => format!("mark {}", mark.kind),
            Event::Detach(detach) => format!("detach {} {}", detach.rank, detach.step),
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn records_become_events() {
    let mut bench = Bench::new();
    assert_eq!(bench.poll(), []);
    let ring = bench.ring("1.ring");
    let mark = Record::Mark(Mark {
        step: 1,
        value: 2,
        kind: "checkpoint".into(),
    });
    let note = Record::Note(Note {
        text: "no CUDA".into(),
    });
    let role = Record::Role(Role { text: "pp1".into() });
    for record in [
        step(0),
        attach(3, 1),
        role,
        step(1),
        mark,
        note,
        Record::Detach(Detach { step: 1 }),
    ] {
        ring.write(&record);
    }
    let events = bench.poll();
    let wanted = [
        r#"attach 3 """#,
        r#"attach 3 "pp1""#,
        "step 3 1",
        "mark checkpoint",
        "mark note: no CUDA",
        "detach 3 1",
    ];
    assert_eq!(kinds(&events), wanted);
    let Event::Step(first) = &events[2] else {
        panic!("no step")
    };
    assert_eq!((first.restart, first.phases.unwrap().wait_ns), (1, 7_000));
    assert_eq!(
        bench.probe.losses(),
        Losses { dropped: 0, torn: 1 },
        "the step of nobody is counted"
    );
}

#[test]
fn slots_are_let_go_when_their_frames_are_safe() {
    let mut bench = Bench::new();
    let ring = bench.ring("1.ring");
    ring.write(&attach(0, 0));
    (1..64).for_each(|n| _ = ring.write(&step(n)));
    bench.poll();
    assert_eq!(
        ring.write(&step(64)),
        paceline_ring::Wrote::Dropped,
        "read is not safe"
    );
    bench.settle();
    assert_eq!(ring.write(&step(65)), paceline_ring::Wrote::Published);
    assert_eq!(bench.probe.losses().dropped, 1);
}

/// The sidecar is killed and restarted. Records whose frames were not acknowledged are sent again, under their rank.
#[test]
fn a_second_sidecar_goes_on() {
    let mut bench = Bench::new();
    let ring = bench.ring("1.ring");
    ring.write(&attach(5, 0));
    ring.write(&step(1));
    bench.poll();
    bench.settle();
    ring.write(&step(2));
    bench.poll();
    bench.probe = Probe::new(bench.dir.path().to_owned());
    assert_eq!(kinds(&bench.poll()), [r#"attach 5 """#, "step 5 2"]);
}

#[test]
fn pulses_follow_the_progress_words() {
    let mut bench = Bench::new();
    let ring = bench.ring("1.ring");
    bench.poll();
    assert_eq!(bench.pulses(), [], "nobody declared yet");
    ring.write(&attach(2, 0));
    ring.progress(7, PhaseWord::Wait);
    bench.poll();
    let pulses = bench.pulses();
    let [pulse] = pulses[..] else { panic!("{pulses:?}") };
    assert_eq!(
        (pulse.rank, pulse.step, pulse.phase, pulse.alive),
        (Rank(2), 7, Phase::Wait, true)
    );
    assert!(pulse.idle_ns > 1_000_000_000);
    ring.write(&Record::Detach(Detach { step: 7 }));
    bench.poll();
    assert_eq!(bench.pulses(), [], "ended in order");
}

/// A process dies without a goodbye. Its ring is read to the end and removed, and its pulse reports the death until the
/// rank returns.
#[test]
fn the_fallen_are_remembered_until_they_return() {
    let mut bench = Bench::new();
    let ring = bench.ring("1.ring");
    ring.write(&attach(1, 0));
    ring.reserve_and_die();
    ring.write(&step(1));
    bench.orphan("1.ring");
    assert_eq!(kinds(&bench.poll()), [r#"attach 1 """#, "step 1 1"]);
    assert_eq!((bench.files(), bench.probe.losses().torn), (1, 1), "not safe yet");
    assert!(bench.probe.is_idle());
    bench.settle();
    bench.poll();
    assert_eq!((bench.files(), bench.probe.losses().torn), (0, 1));
    let alive = |bench: &mut Bench| -> Vec<(u32, bool)> {
        let pulses = bench.pulses();
        pulses.iter().map(|pulse| (pulse.restart, pulse.alive)).collect()
    };
    assert_eq!(alive(&mut bench), [(0, false)]);
    let (idle_ns, half_minute_ns) = (bench.pulses()[0].idle_ns, 30_000_000_000);
    bench.now_ns += half_minute_ns;
    assert_eq!(bench.pulses()[0].idle_ns, idle_ns + half_minute_ns);
    let again = bench.ring("2.ring");
    again.write(&attach(1, 1));
    bench.poll();
    assert_eq!(alive(&mut bench), [(1, true)]);
    assert!(!bench.probe.is_idle());
    again.write(&Record::Detach(Detach { step: 9 }));
    bench.orphan("2.ring");
    bench.probe = Probe {
        rings: BTreeMap::new(),
        ..std::mem::replace(&mut bench.probe, Probe::new("/".into()))
    };
    for _ in 0..2 {
        bench.poll();
        bench.settle();
    }
    bench.poll();
    assert_eq!(
        (alive(&mut bench), bench.files()),
        (Vec::new(), 0),
        "ended in order at last"
    );
}

#[test]
fn files_of_others_are_not_read() {
    let mut bench = Bench::new();
    let ring = bench.ring("1.ring");
    ring.write(&attach(0, 0));
    let open = |mode| fs::set_permissions(ring.path(), fs::Permissions::from_mode(mode)).unwrap();
    open(0o644);
    assert_eq!(bench.poll(), []);
    open(0o600);
    let outside = tempfile::tempdir().unwrap();
    fs::rename(ring.path(), outside.path().join("1.ring")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("1.ring"), bench.dir.path().join("1.ring")).unwrap();
    fs::create_dir(bench.dir.path().join("2.ring")).unwrap();
    fs::write(bench.dir.path().join("3.ring"), b"no ring").unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(bench.dir.path().join("4.ring"))
        .status();
    assert!(made.is_ok());
    assert_eq!(bench.poll(), []);
    fs::remove_file(bench.dir.path().join("1.ring")).unwrap();
    fs::rename(outside.path().join("1.ring"), bench.dir.path().join("1.ring")).unwrap();
    assert_eq!(bench.poll().len(), 1);
}

fn work(n: u64) -> Record {
    Record::Work(Work {
        step: n,
        sum_sq: 100 + n,
        expert_tokens: 200 + n,
        gc_us: 3,
    })
}

fn declared(event: &Event) -> (u64, u64, u64, u64) {
    let Event::Step(step) = event else {
        panic!("{event:?}")
    };
    let gc_ns = step.phases.map_or(0, |phases| phases.gc_ns);
    (step.step, step.sum_sq, step.expert_tokens, gc_ns)
}

/// A work record before a step's record belongs to that step only.
#[test]
fn work_joins_its_step() {
    let mut bench = Bench::new();
    let ring = bench.ring("1.ring");
    for record in [attach(0, 0), work(1), step(1), step(2), work(3), step(4)] {
        ring.write(&record);
    }
    let events = bench.poll();
    let found: Vec<_> = events[1..].iter().map(declared).collect();
    assert_eq!(found, [(1, 101, 201, 3_000), (2, 0, 0, 0), (4, 0, 0, 0)]);
}

/// A sidecar that dies between the work record and the step record leaves both to the next sidecar.
#[test]
fn work_without_its_step_is_kept() {
    let mut bench = Bench::new();
    let ring = bench.ring("1.ring");
    ring.write(&attach(0, 0));
    ring.write(&work(1));
    bench.poll();
    bench.settle();
    bench.probe = Probe::new(bench.dir.path().to_owned());
    ring.write(&step(1));
    assert_eq!(declared(&bench.poll()[1]), (1, 101, 201, 3_000));
}

#[test]
fn layout_and_groups_are_told_once_and_to_every_new_aggregator() {
    let mut bench = Bench::new();
    let ring = bench.ring("1.ring");
    let layout = |index| {
        Record::Layout(Layout {
            tp: Axis { index, size: 4 },
            micro_batches: 8,
            ..Layout::default()
        })
    };
    let group = Record::Group(Group {
        comm: 7,
        size: 4,
        name: "tp".into(),
    });
    let comm = Record::Comm(Comm {
        step: 1,
        comm: 7,
        bytes: 5,
        duration_ns: 6,
        collectives: 2,
    });
    // The second round is the writer's repetition. A layout with an index outside its axis is dropped.
    for record in [
        attach(2, 1),
        layout(3),
        group.clone(),
        comm,
        layout(3),
        group,
        layout(4),
    ] {
        ring.write(&record);
    }
    let events = bench.poll();
    let [_, Event::Layout(told), Event::Group(member), Event::Comm(sums)] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!((told.rank, told.restart, told.micro_batches), (Rank(2), 1, 8));
    assert_eq!((told.tp.index, told.tp.size, told.dp.size), (3, 4, 1));
    assert_eq!((member.comm, member.size, &*member.name), (7, 4, "tp"));
    assert_eq!((sums.step, sums.comm, sums.bytes), (1, 7, 5));
    assert_eq!((sums.dur_ns, sums.collectives, sums.rank), (6, 2, Rank(2)));
    let mut again = Vec::new();
    bench.probe.introduce(&mut |_, event| {
        again.push(event);
        0
    });
    assert_eq!(again, events[..3]);
}

#[test]
fn versions_of_what_the_rank_runs_in() {
    let check = |nccl, cuda, wanted: &str| {
        let mut bench = Bench::new();
        let record = Attach {
            version: [2, 15, 0],
            framework: paceline_ring::Framework::Torch,
            nccl,
            cuda,
            ..Attach::default()
        };
        bench.ring("1.ring").write(&Record::Attach(record));
        let [Event::Attach(attach)] = &bench.poll()[..] else {
            panic!("no attach")
        };
        assert_eq!(&*attach.framework, wanted);
    };
    check([0; 3], [0; 2], "torch 2.15.0");
    check([2, 27, 5], [13, 0], "torch 2.15.0 cuda 13.0 nccl 2.27.5");
}
