//! How the probe reports the NCCL plugin's ring when there is also a hook's ring, and without one.

use paceline_health::event::Event;
use paceline_ring::{
    Attach, Collective, Detach, Framework, Function, Group, PhaseWord, Record, Timed, Writer,
};

use super::*;

struct Bench {
    dir: tempfile::TempDir,
    probe: Probe,
    now_ns: u64,
    sent: u64,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        Bench {
            probe: Probe::new(dir.path().to_owned()),
            dir,
            now_ns: paceline_ring::monotonic_ns(),
            sent: 0,
        }
    }

    fn ring(&self, name: &str) -> Writer {
        Writer::create_named(self.dir.path(), name, 1 << 14).unwrap()
    }

    fn poll(&mut self) -> Vec<Event> {
        self.now_ns += 2_000_000_000;
        let mut events = Vec::new();
        let Bench {
            probe, sent, now_ns, ..
        } = self;
        probe.poll(*now_ns, &mut |_, event| {
            events.push(event);
            *sent += 1;
            *sent
        });
        events
    }

    fn pulses(&mut self) -> Vec<Pulse> {
        let mut pulses = Vec::new();
        self.probe.pulses(self.now_ns, &mut pulses);
        pulses
    }
}

fn attach(framework: Framework) -> Record {
    Record::Attach(Attach {
        rank: 2,
        world_size: 8,
        framework,
        version: [2, 15, 0],
        ..Attach::default()
    })
}

/// Writes steps with this many collectives in three communicators. One window of eight steps in `every` is timed.
fn train(ring: &Writer, steps: std::ops::Range<u32>, collectives: u32, every: u32) {
    for step in steps {
        for n in 0..collectives {
            let did = Collective {
                comm: 0x1234_5678_9abc_def0 + u64::from(n % 3),
                sequence: u64::from(step * collectives + n),
                bytes: 48 << 20,
                ticket: step * collectives + n,
                step,
                function: Function::AllReduce,
                channels: 16,
                is_timed: (step / 8).is_multiple_of(every),
                ..Collective::default()
            };
            ring.write(&Record::Collective(did));
            if did.is_timed {
                ring.write(&Record::Timed(Timed {
                    comm: did.comm,
                    start_ns: (1 << 60) + 2_000_000 * u64::from(did.ticket),
                    duration_ns: 1_234_567,
                    ticket: did.ticket,
                    channels: 16,
                }));
            }
        }
    }
}

fn comms(events: &[Event]) -> Vec<&paceline_health::event::Comm> {
    let mut comms = Vec::new();
    for event in events {
        if let Event::Comm(comm) = event {
            comms.push(comm);
        }
    }
    comms
}

/// An action on a fault in the first second must reach the ranks that have already started.
#[test]
fn a_trainer_is_known_with_its_first_record() {
    let mut bench = Bench::new();
    let trainers = Trainers::default();
    bench.probe = Probe::new(bench.dir.path().to_owned()).telling(trainers.clone());
    bench.ring("a.ring").write(&attach(Framework::Torch));
    bench.poll();
    let ranks: Vec<u32> = trainers.now().into_keys().map(|rank| rank.0).collect();
    assert_eq!(ranks, [2]);
}

#[test]
fn collectives_become_sums_of_a_step() {
    let mut bench = Bench::new();
    let ring = bench.ring("1-nccl.ring");
    ring.write(&attach(Framework::Nccl));
    ring.write(&Record::Group(Group {
        comm: 0x1234_5678_9abc_def0,
        size: 4,
        name: "TP".into(),
    }));
    train(&ring, 1..6, 30, 1);
    let events = bench.poll();
    assert!(matches!(&events[0], Event::Attach(attach) if &*attach.framework == "nccl"));
    assert!(matches!(&events[1], Event::Group(group) if group.size == 4 && &*group.name == "TP"));
    let sums = comms(&events);
    let steps: Vec<u64> = sums.iter().map(|comm| comm.step).collect();
    assert_eq!(
        steps,
        [2, 2, 2, 3, 3, 3, 4, 4, 4],
        "the first in part, the last goes on"
    );
    assert!(
        sums.iter()
            .all(|comm| comm.gpu && comm.collectives == 10 && comm.dur_ns == 12_345_670)
    );
    assert_eq!(bench.probe.losses(), Losses::default());
}

/// If both rings exist, the hook's attach and pulse count, because the hook has more data on a rank. The order in which
/// the rings are read does not matter.
#[test]
fn the_hook_speaks_for_the_rank() {
    let mut bench = Bench::new();
    let hook = bench.ring("1.ring");
    hook.write(&attach(Framework::Torch));
    hook.progress(17, PhaseWord::Compute);
    assert_eq!(bench.poll().len(), 1);
    let plugin = bench.ring("1-nccl.ring");
    plugin.write(&attach(Framework::Nccl));
    assert_eq!(bench.poll(), []);
    assert_eq!(
        bench.pulses().iter().map(|pulse| pulse.step).collect::<Vec<_>>(),
        [17]
    );
    hook.write(&Record::Detach(Detach { step: 17 }));
    assert_eq!(bench.poll().len(), 1);
    assert_eq!(
        bench.pulses(),
        [],
        "it ended in order, and the plugin does not contradict"
    );
}

/// Sums of all three communicators are sent, and up to a given step the single collectives of the requested one.
#[test]
fn each_collective_where_it_is_asked_for() {
    let mut bench = Bench::new();
    let ring = bench.ring("1-nccl.ring");
    ring.write(&attach(Framework::Nccl));
    train(&ring, 1..4, 30, 1);
    let alone = |events: &[Event]| -> Vec<paceline_health::event::Collectives> {
        let each = events.iter().filter_map(|event| match event {
            Event::Collectives(did) => Some(did.clone()),
            _ => None,
        });
        each.collect()
    };
    assert_eq!(alone(&bench.poll()), []);
    let comm = 0x1234_5678_9abc_def1;
    let other = Want {
        comm: comm + 1,
        restart: 1,
        until: 99,
    };
    let want = Want {
        comm,
        restart: 0,
        until: 7,
    };
    bench.probe.wanted(&[want, other]);
    train(&ring, 4..20, 30, 1);
    let events = bench.poll();
    let told = alone(&events);
    let steps: Vec<u64> = told.iter().map(|did| did.step).collect();
    assert_eq!(steps, [4, 5, 6, 7], "of the epoch that is, and no further");
    for did in &told {
        let sequences: Vec<u64> = did.each.iter().map(|one| one.sequence).collect();
        let wanted: Vec<u64> = (0..10).map(|n| did.step * 30 + 1 + 3 * n).collect();
        assert_eq!((did.comm, sequences, did.left_out), (comm, wanted, 0));
        let is_it = |one: &paceline_health::event::Collective| {
            (one.function, one.bytes, one.dur_ns) == (1, 48 << 20, 1_234_567)
        };
        assert!(did.each.iter().all(is_it));
    }
    let bytes = rmp_serde::to_vec(&Event::Collectives(told[0].clone()))
        .unwrap()
        .len();
    println!("{bytes} bytes for ten collectives");
    assert!(bytes <= 200, "{bytes}");
    // Single collectives must come before the sums of the same step, because the sums close it.
    let place = |is_it: &dyn Fn(&Event) -> bool| events.iter().position(is_it).unwrap();
    let alone = place(&|event| matches!(event, Event::Collectives(did) if did.step == 5));
    let sum = place(&|event| matches!(event, Event::Comm(did) if did.step == 5 && did.comm == comm));
    assert!(alone < sum, "{alone} {sum}");
}

/// Counts the bytes sent for a rank with 200 collectives per step, with the default sampling.
#[test]
fn bytes_of_a_rank_and_step() {
    let mut bench = Bench::new();
    let mut bytes = 0;
    let ring = bench.ring("1-nccl.ring");
    ring.write(&attach(Framework::Nccl));
    for step in 1..65 {
        train(&ring, step..step + 1, 200, 4);
        let events = bench.poll();
        let sums = comms(&events).into_iter().cloned();
        bytes += sums
            .map(|comm| rmp_serde::to_vec(&Event::Comm(comm)).unwrap().len() + 2)
            .sum::<usize>();
        bench.probe.settled(bench.sent);
    }
    assert_eq!(bench.probe.losses(), Losses::default());
    let a_step = bytes as f64 / 63.0;
    println!("{a_step:.1} bytes a step and rank");
    assert!(a_step > 0.0 && a_step <= 128.0, "{a_step}");
}

/// Writes the collectives of a program without a hook for these steps. Each takes half a second and follows the
/// previous one.
fn train_alone(ring: &Writer, steps: std::ops::Range<u32>) {
    for step in steps {
        for (n, mib) in [(0, 4), (1, 9), (2, 25)] {
            let ticket = 3 * step + n;
            let did = Collective {
                comm: 7,
                sequence: ticket.into(),
                bytes: mib << 20,
                enqueued_ns: 1_000_000_000 + 500_000_000 * u64::from(step) + 100_000_000 * u64::from(n),
                ticket: ticket + 1,
                function: Function::AllReduce,
                channels: 16,
                is_timed: true,
                ..Collective::default()
            };
            ring.write(&Record::Collective(did));
            ring.write(&Record::Timed(Timed {
                comm: did.comm,
                start_ns: (1 << 60) + did.enqueued_ns + 3_000_000,
                duration_ns: 10_000_000,
                ticket: did.ticket,
                channels: 16,
            }));
        }
    }
}

/// Each time steps are found, the plugin receives the communicator whose collectives mark the steps.
#[test]
fn another_phase_of_training_is_told_to_the_plugin() {
    let mut bench = Bench::new();
    let ring = bench.ring("1-nccl.ring");
    let path = bench.dir.path().join("1-nccl.ring");
    let told = || {
        let bytes = std::fs::read(&path).unwrap();
        let comm = u64::from_le_bytes(bytes[272..280].try_into().unwrap());
        (comm, u32::from_le_bytes(bytes[328..332].try_into().unwrap()))
    };
    ring.write(&attach(Framework::Nccl));
    train_alone(&ring, 0..200);
    bench.poll();
    assert_eq!(told(), (7, 3));
    for n in 0..6_000u32 {
        ring.write(&Record::Collective(Collective {
            comm: 8,
            sequence: n.into(),
            bytes: (4 + u64::from(n % 2)) << 20,
            enqueued_ns: 200_000_000_000 + 100_000_000 * u64::from(n),
            ticket: 601 + n,
            function: Function::AllReduce,
            channels: 16,
            ..Collective::default()
        }));
    }
    bench.poll();
    assert_eq!(told(), (8, 2));
}

fn steps(events: &[Event]) -> Vec<&paceline_health::event::Step> {
    let mut steps = Vec::new();
    for event in events {
        if let Event::Step(step) = event {
            steps.push(step);
        }
    }
    steps
}

/// Steps are found after a minute, and sent with their sums. A sidecar that takes over continues the count.
#[test]
fn steps_without_a_hook() {
    let mut bench = Bench::new();
    let ring = bench.ring("1-nccl.ring");
    ring.write(&attach(Framework::Nccl));
    ring.write(&Record::Group(Group {
        comm: 7,
        size: 8,
        name: "".into(),
    }));
    train_alone(&ring, 0..100);
    let events = bench.poll();
    assert_eq!(
        steps(&events).len(),
        0,
        "what repeats for less than a minute may be a part of a step"
    );
    train_alone(&ring, 100..200);
    let events = bench.poll();
    let told = steps(&events);
    let (first, last) = (told.first().unwrap().step, told.last().unwrap().step);
    assert!((120..130).contains(&first), "{first}");
    assert_eq!(
        (told.len() as u64, last),
        (last - first + 1, 199),
        "the last goes on"
    );
    assert!(
        told.iter()
            .all(|step| step.dur_ns == 500_000_000 && step.phases.is_none())
    );
    let sums = comms(&events);
    assert!(sums.len() + 1 >= told.len(), "{} {}", sums.len(), told.len());
    let is_whole = |sum: &&paceline_health::event::Comm| {
        (sum.collectives, sum.bytes, sum.dur_ns, sum.exposed_ns)
            == (3, 38 << 20, 30_000_000, Some(30_000_000))
    };
    assert!(sums.iter().all(is_whole), "{:?}", sums.first());

    // Another sidecar takes over. All frames of the first one were acknowledged.
    bench.probe.settled(bench.sent);
    bench.probe = Probe::new(bench.dir.path().to_owned());
    train_alone(&ring, 200..230);
    let events = bench.poll();
    let told: Vec<u64> = steps(&events).iter().map(|step| step.step).collect();
    assert_eq!(told.last(), Some(&229));
    assert!(told.len() >= 26, "{told:?}");
}
