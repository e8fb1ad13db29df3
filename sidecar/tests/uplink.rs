//! The two ends of the uplink over a link that loses, duplicates, reorders and breaks, between a sidecar and an
//! aggregator that crash: acknowledged frames are in the journal, each frame is there once and in order, and missing
//! frames are those that the spool had to drop, and are counted.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use paceline_health::event::{Beat, Event, Exit};
use paceline_health::frame::SCHEMA_VERSION;
use paceline_health::{Frame, Provenance};
use paceline_sidecar::uplink::wire::{Ack, Down, Hello, Up, Welcome, decode_up, encode};
use paceline_sidecar::uplink::{Heard, Intake, Uplink};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Act {
    /// Telemetry, or (every eighth) an event that must be kept.
    Push(u8),
    /// Delivers one of the upstream messages in flight; not the oldest: reordered.
    Up(usize),
    Down(usize),
    DoubleUp(usize),
    LoseUp(usize),
    LoseDown(usize),
    /// The link breaks and is re-established; messages in flight may still arrive.
    Break,
    /// The same, and messages in flight are lost.
    Cut,
    AggregatorDies,
    SidecarDies,
    Wait,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => any::<u8>().prop_map(Act::Push),
        6 => (0usize..4).prop_map(Act::Up),
        6 => (0usize..4).prop_map(Act::Down),
        1 => (0usize..4).prop_map(Act::DoubleUp),
        1 => (0usize..4).prop_map(Act::LoseUp),
        1 => (0usize..4).prop_map(Act::LoseDown),
        1 => Just(Act::Break),
        1 => Just(Act::Cut),
        1 => Just(Act::AggregatorDies),
        1 => Just(Act::SidecarDies),
        1 => Just(Act::Wait),
    ]
}

/// Both ends, the link between them, and the journal, which is the only part that survives an aggregator.
struct World {
    spool_bytes: usize,
    agent: u64,
    uplink: Uplink,
    intake: Intake,
    up: VecDeque<Vec<u8>>,
    down: VecDeque<Vec<u8>>,
    journal: Vec<Frame>,
    pushed: BTreeMap<(u64, u64), Event>,
    dropped: BTreeMap<u64, u64>,
    now_ns: u64,
}

fn sidecar(agent: u64, spool_bytes: usize) -> Uplink {
    let me = Hello {
        v: SCHEMA_VERSION,
        job: "j".into(),
        node: "n".into(),
        agent,
    };
    let mut uplink = Uplink::new(me, spool_bytes);
    uplink.connected(0);
    uplink
}

impl World {
    fn new(spool_bytes: usize) -> World {
        World {
            spool_bytes,
            agent: 1,
            uplink: sidecar(1, spool_bytes),
            intake: Intake::default(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            journal: Vec::new(),
            pushed: BTreeMap::new(),
            dropped: BTreeMap::new(),
            now_ns: 0,
        }
    }

    fn act(&mut self, act: Act) {
        self.now_ns += 50_000_000;
        match act {
            Act::Push(n) => self.push(n),
            Act::Up(at) => {
                if let Some(bytes) = remove(&mut self.up, at) {
                    self.aggregate(&bytes);
                }
            }
            Act::Down(at) => {
                if let Some(bytes) = remove(&mut self.down, at) {
                    let heard = self.uplink.received(&bytes, self.now_ns);
                    assert!(!matches!(heard, Heard::Refused(_)));
                }
            }
            Act::DoubleUp(at) => self.up.extend(self.up.get(at).cloned()),
            Act::LoseUp(at) => drop(remove(&mut self.up, at)),
            Act::LoseDown(at) => drop(remove(&mut self.down, at)),
            Act::Break => self.reconnect(),
            Act::Cut => {
                self.up.clear();
                self.down.clear();
                self.reconnect();
            }
            Act::AggregatorDies => {
                self.intake = Intake::default();
                self.journal.iter().for_each(|frame| self.intake.restore(frame));
                self.reconnect();
            }
            Act::SidecarDies => {
                self.dropped.insert(self.agent, u64::MAX);
                self.agent += 1;
                self.uplink = sidecar(self.agent, self.spool_bytes);
            }
            Act::Wait => self.now_ns += 3_000_000_000,
        }
        if self.uplink.is_stuck(self.now_ns) {
            self.reconnect();
        }
        self.up
            .extend(std::iter::from_fn(|| self.uplink.poll_send(self.now_ns)));
        self.check();
    }

    fn push(&mut self, n: u8) {
        let event = if n.is_multiple_of(8) {
            Event::Exit(Exit { code: i32::from(n) })
        } else {
            Event::Beat(Beat {
                cpu_ns: u64::from(n),
                ..Beat::default()
            })
        };
        let seq = self.uplink.push(Provenance::Live, &event, self.now_ns);
        self.pushed.insert((self.agent, seq), event);
        self.dropped.insert(self.agent, self.uplink.dropped());
    }

    fn reconnect(&mut self) {
        self.uplink.broken();
        self.uplink.connected(self.now_ns);
    }

    fn aggregate(&mut self, bytes: &[u8]) {
        let job = "j".into();
        let answer = match decode_up(bytes).unwrap() {
            Up::Hello(hello) => {
                let upto = self.intake.upto(&hello.node, hello.agent);
                Down::Welcome(Welcome {
                    v: SCHEMA_VERSION,
                    job,
                    agent: hello.agent,
                    journal: 1,
                    upto,
                })
            }
            Up::Batch(batch) => {
                let taken = self.intake.offer(&batch);
                self.journal.extend(taken.frames);
                Down::Ack(Ack {
                    v: SCHEMA_VERSION,
                    job,
                    agent: batch.agent,
                    upto: taken.upto,
                })
            }
            Up::Carried(_) => unreachable!("there is no relay here"),
        };
        self.down.push_back(encode(&answer));
    }

    fn seen(&self, agent: u64) -> BTreeSet<u64> {
        self.journal
            .iter()
            .filter(|frame| frame.agent == agent)
            .map(|frame| frame.seq)
            .collect()
    }

    /// Invariants at every moment.
    fn check(&self) {
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for frame in &self.journal {
            let before = last.insert(frame.agent, frame.seq).unwrap_or(0);
            assert!(frame.seq > before, "once and in order");
            assert_eq!(
                self.pushed[&(frame.agent, frame.seq)],
                frame.event,
                "as it was sent"
            );
        }
        let seen = self.seen(self.agent);
        let unsafe_ones = (1..=self.uplink.settled())
            .filter(|seq| !seen.contains(seq))
            .count() as u64;
        assert!(
            unsafe_ones <= self.uplink.dropped(),
            "let go of without being safe"
        );
    }

    /// The link finally works: everything arrives.
    fn calm(&mut self) {
        for _ in 0..20_000 {
            if self.uplink.is_up() && self.uplink.settled() == self.uplink.last_seq() {
                return;
            }
            self.now_ns += 1_000_000;
            self.act(Act::Up(0));
            self.act(Act::Down(0));
        }
        panic!(
            "never settles: {} of {}",
            self.uplink.settled(),
            self.uplink.last_seq()
        );
    }
}

fn remove(queue: &mut VecDeque<Vec<u8>>, at: usize) -> Option<Vec<u8>> {
    if queue.is_empty() {
        None
    } else {
        queue.remove(at % queue.len())
    }
}

fn check_world(acts: &[Act], spool_bytes: usize) {
    let mut world = World::new(spool_bytes);
    acts.iter().for_each(|act| world.act(*act));
    world.calm();
    let last = world.uplink.last_seq();
    let seen = world.seen(world.agent);
    let missing: Vec<u64> = (1..=last).filter(|seq| !seen.contains(seq)).collect();
    assert!(
        missing.len() as u64 <= world.uplink.dropped(),
        "missing {missing:?}"
    );
    let crashed = acts
        .iter()
        .any(|act| matches!(act, Act::AggregatorDies | Act::SidecarDies));
    if !crashed {
        assert!(world.intake.lost() <= missing.len() as u64 && world.intake.unreadable() == 0);
        // A gap after the last received frame is only visible when a later one arrives.
        let tail = missing
            .iter()
            .rev()
            .zip((1..=last).rev())
            .take_while(|(a, b)| *a == b)
            .count();
        assert_eq!(
            world.intake.lost() + tail as u64,
            missing.len() as u64,
            "every loss is counted"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn nothing_is_lost_that_fits_the_spool(acts in proptest::collection::vec(act(), 0..300)) {
        check_world(&acts, 1 << 20);
    }

    #[test]
    fn a_small_spool_loses_what_it_counts(acts in proptest::collection::vec(act(), 0..300)) {
        check_world(&acts, 1_500);
    }
}

/// A long outage: the spool fills, telemetry is dropped first, other events arrive.
#[test]
fn kept_events_outlive_telemetry() {
    let mut world = World::new(4_000);
    world.act(Act::Cut);
    (0..200u16).for_each(|n| world.push(if n == 100 { 8 } else { 1 }));
    assert!(world.uplink.dropped() > 100);
    world.calm();
    let kept = world
        .journal
        .iter()
        .filter(|frame| matches!(frame.event, Event::Exit(_)))
        .count();
    assert_eq!(kept, 1);
}

/// A new journal lacks frames acknowledged by an earlier aggregator: later frames are accepted.
#[test]
fn a_new_journal_takes_over() {
    let mut world = World::new(1 << 20);
    (0..5).for_each(|_| world.act(Act::Push(1)));
    world.calm();
    world.intake = Intake::default();
    world.act(Act::Cut);
    (0..5).for_each(|_| world.act(Act::Push(1)));
    world.calm();
    assert_eq!(world.seen(1), (1..=10).collect());
    assert_eq!(world.intake.lost(), 5, "and says what it does not have");
}

/// A batch is lost on a working link: acknowledgements of earlier frames do not hide that.
#[test]
fn saying_the_same_again_is_no_progress() {
    let mut world = World::new(1 << 20);
    world.push(8);
    world.calm();
    world.push(8);
    assert!(world.uplink.poll_send(world.now_ns).is_some(), "sent, and lost");
    for _ in 0..30 {
        world.now_ns += 100_000_000;
        world.push(8);
        world.up.extend(world.uplink.poll_send(world.now_ns));
        let bytes = world.up.pop_front().unwrap();
        world.aggregate(&bytes);
        let bytes = world.down.pop_front().unwrap();
        assert_eq!(world.uplink.received(&bytes, world.now_ns), Heard::Acked);
    }
    assert!(world.uplink.is_stuck(world.now_ns));
}

#[test]
fn a_greeting_waits_since_it_was_said() {
    let mut uplink = sidecar(1, 1 << 20);
    for now_ns in (0..3_000_000_000).step_by(100_000_000) {
        uplink.push(Provenance::Live, &Event::Exit(Exit { code: 0 }), now_ns);
    }
    assert!(uplink.is_stuck(3_000_000_000));
}

/// Links without acknowledgements get longer timeouts, up to a limit, until one acknowledges in time.
#[test]
fn links_that_were_made_in_vain_are_given_longer() {
    let mut world = World::new(1 << 20);
    world.push(8);
    let mut given_s = Vec::new();
    for _ in 0..5 {
        world.reconnect();
        let hello = world.uplink.poll_send(world.now_ns).unwrap();
        world.aggregate(&hello);
        world.act(Act::Down(0));
        world.up.clear();
        let begun_ns = world.now_ns;
        while !world.uplink.is_stuck(world.now_ns) {
            world.now_ns += 500_000_000;
        }
        given_s.push((world.now_ns - begun_ns) / 1_000_000_000);
    }
    assert_eq!(given_s, [4, 8, 16, 16, 16]);
    world.reconnect();
    world.calm();
    world.push(8);
    assert!(world.uplink.poll_send(world.now_ns).is_some());
    assert!(world.uplink.is_stuck(world.now_ns + 2_000_000_000));
}

/// An aggregator that lost acknowledged frames (full disk, power loss) gets the introductions again.
#[test]
fn what_was_forgotten_is_introduced_again() {
    let mut world = World::new(1 << 20);
    (0..5).for_each(|_| world.push(8));
    world.calm();
    let welcome = |upto| Welcome {
        v: SCHEMA_VERSION,
        job: "j".into(),
        agent: 1,
        journal: 1,
        upto,
    };
    let again = |new_journal| Heard::Welcome { new_journal };
    assert_eq!(world.uplink.welcomed(&welcome(5), 0), again(false));
    assert_eq!(world.uplink.welcomed(&welcome(3), 0), again(true));
}

/// An event that every aggregator would reject is dropped and counted at once, and delays nothing.
#[test]
fn an_event_past_all_bounds_is_dropped() {
    let mut world = World::new(4 << 20);
    let reason = "x".repeat(600 << 10).into();
    let huge = Event::Bye(paceline_health::event::Bye { reason });
    world.push(8);
    world.uplink.push(Provenance::Live, &huge, world.now_ns);
    world.push(8);
    world.calm();
    assert_eq!((world.uplink.dropped(), world.intake.lost()), (1, 1));
    assert_eq!(world.seen(1), [1, 3].into());
}
