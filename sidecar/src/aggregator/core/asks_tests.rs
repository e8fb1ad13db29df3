use paceline_health::Provenance;
use paceline_health::event::{Attach, Comm, Event, Group, Signal, Step, StepKind, Want};
use paceline_health::frame::SCHEMA_VERSION;
use paceline_health::id::Rank;

use paceline_health::verdict::Finding;
use paceline_ring::{Collective, Framework, Function, Record, Timed, Writer};

use super::*;
use crate::aggregator::Plan;
use crate::sink::status::StatusStream;
use crate::source::Source;
use crate::source::probe::Probe;
use crate::uplink::wire::{Blob, encode, encode_event};
use crate::uplink::{Heard, Uplink};

const AGENT: u64 = 9;
const COMM: u64 = 7;
const RANKS: u32 = 4;

fn open(dir: &std::path::Path) -> Aggregator {
    let plan = Plan {
        job: "j".into(),
        node: "n".into(),
        run_dir: dir.to_owned(),
        policy: Vec::new(),
        remedy: Default::default(),
        reload: None,
        reported: None,
        journal: Default::default(),
        doors: Default::default(),
    };
    Aggregator::open(plan, StatusStream::to(std::io::sink()).0, 1_000).unwrap()
}

fn me(node: &str) -> Hello {
    Hello {
        v: SCHEMA_VERSION,
        job: "j".into(),
        node: node.into(),
        agent: AGENT,
    }
}

fn batch(node: &str, first_seq: u64, events: &[Event]) -> Batch {
    let blob = |event: &Event| Blob(encode_event(Provenance::Live, event));
    let Hello { v, job, node, agent } = me(node);
    Batch {
        v,
        job,
        node,
        agent,
        after: 0,
        first_seq,
        events: events.iter().map(blob).collect(),
    }
}

fn comers() -> Vec<Event> {
    let attach = |rank| {
        Event::Attach(Attach {
            rank: Rank(rank),
            local_rank: rank,
            world_size: RANKS,
            restart: 0,
            pid: 100 + rank,
            gpu: None,
            role: "".into(),
            framework: "nccl".into(),
        })
    };
    let group = |rank| {
        Event::Group(Group {
            rank: Rank(rank),
            restart: 0,
            comm: COMM,
            size: RANKS,
            name: "dp".into(),
        })
    };
    (0..RANKS).map(attach).chain((0..RANKS).map(group)).collect()
}

/// Returns a step of all ranks, with this many milliseconds in the communicator.
fn row(step: u64, in_comm_ms: u64) -> Vec<Event> {
    let dur_ns = (100 + in_comm_ms) * 1_000_000;
    let of = |rank| {
        let did = Comm {
            rank: Rank(rank),
            restart: 0,
            step,
            comm: COMM,
            collectives: 8,
            bytes: 8 << 20,
            // Durations differ slightly between ranks, but are deterministic.
            dur_ns: in_comm_ms * 1_000_000 + (u64::from(rank) * 7 + step * 13) % 29 * 1_000,
            exposed_ns: None,
            unfit: 0,
            gpu: true,
            functions: Vec::new(),
        };
        let step = Step {
            rank: Rank(rank),
            restart: 0,
            step,
            kind: StepKind::Train,
            dur_ns,
            phases: None,
            micro_batches: 1,
            tokens: 0,
            signal: Signal::S0,
            sum_sq: 0,
            expert_tokens: 0,
        };
        [Event::Comm(did), Event::Step(step)]
    };
    (0..RANKS).flat_map(of).collect()
}

/// Transfers become longer. Single collectives are requested from the node whose ranks are in the communicator, once
/// for each link, and again by a restarted aggregator.
#[test]
fn a_node_is_asked_once_for_what_is_worth_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut aggregator = open(dir.path());
    let mut now_ns = 1_000_000;
    let mut seq = 1;
    let mut asked: Vec<(u64, Down)> = Vec::new();
    for step in 0..80 {
        let events = if step == 0 {
            comers()
        } else {
            row(step, if step > 50 { 20 } else { 10 })
        };
        now_ns += 120_000_000;
        let batch = batch("n", seq, &events);
        seq += events.len() as u64;
        assert!(matches!(aggregator.take(&batch, now_ns), Down::Ack(_)));
        asked.extend(aggregator.asks(&batch).map(|down| (step, down)));
    }
    let [(step, down)] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    assert!((60..75).contains(step), "half of what makes a link slow: {step}");
    let mut uplink = Uplink::new(me("n"), 1 << 20);
    uplink.connected(now_ns);
    let Heard::Wanted(wants) = uplink.received(&encode(down), now_ns) else {
        panic!("{down:?}")
    };
    let is_it = |want: &Want| (want.comm, want.restart) == (COMM, 0) && want.until > *step;
    assert!(wants.len() == 1 && wants.iter().all(is_it), "{wants:?}");
    let mut another = Uplink::new(Hello { agent: 10, ..me("n") }, 1 << 20);
    assert_eq!(another.received(&encode(down), now_ns), Heard::Noise);

    // The other node has no rank in the communicator. A new link gets the request again, but only once.
    let stranger = batch("m", 1, &[Event::Exit(paceline_health::event::Exit { code: 0 })]);
    aggregator.take(&stranger, now_ns);
    assert_eq!(aggregator.asks(&stranger), None);
    let empty = batch("n", seq, &[]);
    assert_eq!(aggregator.asks(&empty), None);
    aggregator.asks_again(&me("n"));
    assert_eq!(aggregator.asks(&empty).as_ref(), Some(down));
    assert_eq!(aggregator.asks(&empty), None);
    drop(aggregator);
    assert_eq!(
        open(dir.path()).asks(&empty).as_ref(),
        Some(down),
        "it follows from the journal"
    );
}

/// Rings of four trainers, their node's probe, and its aggregator.
struct Node {
    dir: tempfile::TempDir,
    rings: Vec<Writer>,
    probe: Probe,
    uplink: Uplink,
    aggregator: Aggregator,
    now_ns: u64,
    seq: u64,
}

impl Node {
    fn new() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let rings_dir = dir.path().join("rings");
        std::fs::create_dir(&rings_dir).unwrap();
        let ring = |rank: u32| {
            let ring = Writer::create_named(&rings_dir, &format!("{rank}-nccl.ring"), 1 << 12).unwrap();
            ring.write(&Record::Attach(paceline_ring::Attach {
                rank,
                world_size: RANKS,
                framework: Framework::Nccl,
                ..paceline_ring::Attach::default()
            }));
            ring.write(&Record::Group(paceline_ring::Group {
                comm: COMM,
                size: RANKS,
                name: "dp".into(),
            }));
            ring
        };
        let mut uplink = Uplink::new(me("n"), 1 << 20);
        uplink.connected(0);
        Node {
            rings: (0..RANKS).map(ring).collect(),
            probe: Probe::new(rings_dir),
            uplink,
            aggregator: open(&dir.path().join("run")),
            dir,
            now_ns: paceline_ring::monotonic_ns(),
            seq: 1,
        }
    }

    /// Simulates a step of eight collectives. Rank 1 is late for the first and rank 2 for the fifth, by this many
    /// milliseconds.
    fn train(&self, step: u32, late_ms: u64) {
        const MS: u64 = 1_000_000;
        for (rank, ring) in (0..).zip(&self.rings) {
            for n in 0..8 {
                let is_waited_for = [(0, 1), (4, 2)]
                    .iter()
                    .any(|(at, late)| n == *at && rank != *late);
                let wait_ns = if is_waited_for { late_ms * MS } else { 0 };
                let did = Collective {
                    comm: COMM,
                    sequence: u64::from(step * 8 + n),
                    bytes: 1 << 20,
                    ticket: step * 8 + n,
                    step,
                    function: Function::AllReduce,
                    channels: 8,
                    is_timed: true,
                    ..Collective::default()
                };
                ring.write(&Record::Collective(did));
                ring.write(&Record::Timed(Timed {
                    comm: COMM,
                    start_ns: (u64::from(step) * 1000 + u64::from(n) * 100) * MS,
                    duration_ns: MS + u64::from((step * 7 + n * 3 + rank * 5) % 11) * 1_000 + wait_ns,
                    ticket: did.ticket,
                    channels: 8,
                }));
            }
        }
    }

    /// Sends the probe's events and the step of each rank, because NCCL does not report steps. Returns the resulting
    /// request.
    fn tell(&mut self, step: u32, late_ms: u64) -> Option<Down> {
        self.now_ns += 200_000_000;
        let mut events = Vec::new();
        let mut seq = self.seq;
        self.probe.poll(self.now_ns, &mut |_, event| {
            events.push(event);
            seq += 1;
            seq - 1
        });
        let steps = row(step.into(), 8 + 2 * late_ms).into_iter();
        // The sums of a step are sent when the next one has begun.
        events.extend(steps.filter(|event| matches!(event, Event::Step(step) if step.step > 0)));
        let batch = batch("n", self.seq, &events);
        self.seq += events.len() as u64;
        self.aggregator.take(&batch, self.now_ns);
        self.probe.settled(self.seq - 1);
        self.aggregator.asks(&batch)
    }

    fn hear(&mut self, down: &Down) {
        let Heard::Wanted(wants) = self.uplink.received(&encode(down), self.now_ns) else {
            panic!("{down:?}")
        };
        self.probe.wanted(&wants);
    }
}

/// Tests the whole chain: the plugin's records, sums, requests, single collectives, and their use.
#[test]
fn two_late_ranks_make_no_slow_link_where_single_collectives_are_told() {
    for is_heard in [true, false] {
        let mut node = Node::new();
        let late_ms = |step: u32| if step > 40 { 20 } else { 0 };
        for step in 1..160 {
            node.train(step, late_ms(step));
            let asked = node.tell(step - 1, late_ms(step - 1));
            if let Some(down) = asked.filter(|_| is_heard) {
                node.hear(&down);
            }
        }
        let report = node.aggregator.report();
        let links = report
            .verdicts
            .iter()
            .filter(|verdict| verdict.finding == Finding::SlowLink);
        assert_eq!(links.count(), usize::from(!is_heard), "{:?}", report.verdicts);
        drop(node.aggregator);
        let journal = std::fs::read_to_string(node.dir.path().join("run/journal.ndjson")).unwrap();
        let told = journal.matches("\"collectives\":{").count();
        let most = 100 * RANKS as usize;
        assert!(
            if is_heard {
                (80..=most).contains(&told)
            } else {
                told == 0
            },
            "{told}"
        );
        assert_eq!(journal.matches("\"left_out\":0}").count(), told);
    }
}
