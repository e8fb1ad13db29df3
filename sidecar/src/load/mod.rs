//! Runs any number of sidecars of a simulated job against a real aggregator. Each node has its own connection, sealed
//! and numbered like a real sidecar's ([`crate::uplink`]), and sends the simulator's events in real time.
//!
//! - [`feed`]: runs the simulator in its own thread, ahead of time.
//! - `node`: one node, which joins, sends, receives acknowledgements, and rejoins.
//! - [`tally`]: the results in numbers.

pub mod feed;
mod node;
pub mod tally;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use paceline_health::id::{JobId, NodeId};
use paceline_health::sim::World;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::sleep;

use crate::guard::Key;
use crate::host::{self, monotonic_ns};
use feed::{Chunk, Feed};
use node::Node;
pub use tally::{LoadReport, Spans, Tally};

/// The number of descriptors that are needed besides those of connections.
const OWN_DESCRIPTORS: u64 = 64;
/// Interval between checks for unresponsive links.
const SWEEP: Duration = Duration::from_millis(250);
/// How long to wait for the first node to join. If none has joined by then, none will.
const NOBODY: Duration = Duration::from_secs(60);
/// How long to wait for acknowledgements at the end.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Interval between checks for due events.
const TURN: Duration = Duration::from_millis(2);

/// Options of the load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Address of the aggregator's gate.
    pub address: SocketAddr,
    /// Relays in front of the aggregator, among which the nodes are distributed.
    pub relays: Vec<SocketAddr>,
    /// The key that seals streams.
    pub key: Key,
    /// The job's id at the aggregator.
    pub job: JobId,
    /// Simulated seconds per real second.
    pub speed: f64,
    /// A remainder, and the number of processes. This process runs the nodes whose number has this remainder.
    pub part: (u32, u32),
    /// Interval at which GPUs and hosts are read, seconds.
    pub slow_every: u32,
    /// How long all nodes may take to join before training begins.
    pub join: Duration,
    /// A file to which acknowledged frames are appended.
    pub acked: Option<PathBuf>,
}

impl LoadOptions {
    /// Returns the address for a node's attempt to connect: first its relay, then the next relay if that fails, finally
    /// the aggregator itself.
    fn way(&self, agent: u64, attempt: u32) -> SocketAddr {
        let relays = self.relays.len() as u64;
        match u64::from(attempt) % (relays + 1) {
            tries if tries < relays => self.relays[((agent + tries) % relays) as usize],
            _ => self.address,
        }
    }
}

/// Why the load cannot run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There are too few file descriptors, because every connection uses one.
    #[error(
        "{nodes} connections need {needed} file descriptors and this process may have {limit}: raise the hard limit \
         (ulimit -Hn, LimitNOFILE=), or spread them with --processes {processes}"
    )]
    Descriptors {
        /// The number of connections of this process.
        nodes: u64,
        /// The number of descriptors needed.
        needed: u64,
        /// The number of descriptors available.
        limit: u64,
        /// The number of processes that would suffice.
        processes: u64,
    },
    /// No node can join.
    #[error("{address}: {why}")]
    Unreachable {
        /// The address.
        address: SocketAddr,
        /// The error of the last attempt.
        why: String,
    },
    /// The aggregator refuses the load.
    #[error("the aggregator refuses: {0}")]
    Refused(String),
    /// The system cannot create a thread or a runtime.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Progress of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nodes are joining.
    Joining {
        /// The number of nodes that have joined.
        joined: usize,
        /// The number of all nodes.
        nodes: usize,
        /// The last failure. Empty if there was none.
        failure: String,
    },
    /// Training has begun. The value is the number of rank steps sent.
    Training(u64),
}

/// Plays a world to an aggregator, in real time, and waits until all of it is acknowledged. Calls `watch` with the
/// progress several times a second.
///
/// # Errors
/// [`LoadError`]
pub fn run(
    world: World,
    options: &LoadOptions,
    watch: &mut dyn FnMut(Stage),
) -> Result<LoadReport, LoadError> {
    let (rest, parts) = options.part;
    let nodes: Vec<u32> = (0..world.spec().nodes)
        .filter(|node| node % parts == rest)
        .collect();
    enough_descriptors(nodes.len() as u64, u64::from(world.spec().nodes))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let feed = Feed::start(world, options)?;
    let acked = options.acked.as_ref().map(File::create).transpose()?;
    runtime.block_on(LocalSet::new().run_until(play(feed, nodes, options, acked, watch)))
}

/// Raises the descriptor limit as far as possible. Fails if that is not enough.
fn enough_descriptors(nodes: u64, all: u64) -> Result<(), LoadError> {
    let (needed, limit) = (nodes + OWN_DESCRIPTORS, host::raise_descriptors());
    if needed <= limit {
        return Ok(());
    }
    Err(LoadError::Descriptors {
        nodes,
        needed,
        limit,
        processes: all.div_ceil(limit.saturating_sub(OWN_DESCRIPTORS).max(1)),
    })
}

async fn play(
    mut feed: Feed,
    numbers: Vec<u32>,
    options: &LoadOptions,
    acked: Option<File>,
    watch: &mut dyn FnMut(Stage),
) -> Result<LoadReport, LoadError> {
    let tally = Rc::new(Tally::new(numbers.len()));
    let (failures, mut failed) = mpsc::unbounded_channel();
    let first_agent = host::incarnation();
    let nodes: Vec<Rc<Node>> = numbers
        .iter()
        .map(|number| {
            let name = NodeId::from(format!("node{number}").as_str());
            let node = Node::new(name, first_agent.wrapping_add(u64::from(*number)).max(1), options);
            let node = Rc::new(node);
            tokio::task::spawn_local(Rc::clone(&node).live(
                options.clone(),
                Rc::clone(&tally),
                failures.clone(),
            ));
            node
        })
        .collect();
    tokio::select! {
        all_or_some = joining(&tally, nodes.len(), options, watch) => all_or_some?,
        Some(why) = failed.recv() => return Err(LoadError::Refused(why)),
    }
    tally.begin(traffic(&nodes, &tally));
    let mut pace = Pace {
        nodes: &nodes,
        parts: options.part.1,
        speed: options.speed,
        tally: &tally,
        began_ns: monotonic_ns(),
        held: BinaryHeap::new(),
        sweep_ns: 0,
        acked,
        watch,
    };
    tokio::select! {
        played = pace.play(&mut feed) => played?,
        Some(why) = failed.recv() => return Err(LoadError::Refused(why)),
    }
    let dropped = nodes.iter().map(|node| node.dropped()).sum();
    Ok(tally.report(dropped, traffic(&nodes, &tally)))
}

/// Waits until all nodes have joined, or until the time is over and at least some have joined.
async fn joining(
    tally: &Tally,
    nodes: usize,
    options: &LoadOptions,
    watch: &mut dyn FnMut(Stage),
) -> Result<(), LoadError> {
    let begun = Instant::now();
    while !tally.all_joined() {
        let (joined, failure) = (tally.joined(), tally.last_failure());
        let waited = begun.elapsed();
        // If no node can join at all, waiting longer is pointless.
        if joined == 0 && waited > NOBODY.min(options.join) {
            let (address, why) = (options.address, failure);
            return Err(LoadError::Unreachable { address, why });
        }
        if waited > options.join {
            return Ok(());
        }
        watch(Stage::Joining {
            joined,
            nodes,
            failure,
        });
        sleep(SWEEP).await;
    }
    Ok(())
}

/// Returns the bytes up and down so far, on ended and current links.
fn traffic(nodes: &[Rc<Node>], tally: &Tally) -> (u64, u64) {
    nodes.iter().fold(tally.bytes(), |(up, down), node| {
        let (more_up, more_down) = node.traffic();
        (up + more_up, down + more_down)
    })
}

/// Sends events when they are due.
struct Pace<'a> {
    nodes: &'a [Rc<Node>],
    parts: u32,
    speed: f64,
    tally: &'a Tally,
    began_ns: u64,
    /// Nodes with held-back data, ordered by due time with the next one first.
    held: BinaryHeap<Reverse<(u64, usize)>>,
    sweep_ns: u64,
    acked: Option<File>,
    watch: &'a mut dyn FnMut(Stage),
}

impl Pace<'_> {
    async fn play(&mut self, feed: &mut Feed) -> io::Result<()> {
        while let Some(chunk) = feed.next().await {
            let due_ns = self.began_ns + (chunk.at.0 as f64 / self.speed) as u64;
            while monotonic_ns() < due_ns {
                self.turn()?;
                let left_ns = due_ns.saturating_sub(monotonic_ns());
                sleep(TURN.min(Duration::from_nanos(left_ns))).await;
            }
            self.tally.late(monotonic_ns() - due_ns);
            self.say(chunk)?;
            // Let the nodes read answers between two chunks, even if we are late.
            tokio::task::yield_now().await;
        }
        let until_ns = monotonic_ns() + LAST_WORDS.as_nanos() as u64;
        while monotonic_ns() < until_ns && !self.nodes.iter().all(|node| node.is_settled()) {
            self.turn()?;
            sleep(TURN).await;
        }
        self.write_acked()
    }

    fn say(&mut self, chunk: Chunk) -> io::Result<()> {
        let now_ns = monotonic_ns();
        for (number, event) in chunk.events {
            let at = (number / self.parts) as usize;
            let Some(node) = self.nodes.get(at) else { continue };
            if let Some(due_ns) = node.say(event, now_ns, self.tally) {
                self.held.push(Reverse((due_ns, at)));
            }
        }
        self.turn()
    }

    fn turn(&mut self) -> io::Result<()> {
        let now_ns = monotonic_ns();
        while let Some(Reverse((due_ns, at))) = self.held.pop() {
            if due_ns > now_ns {
                self.held.push(Reverse((due_ns, at)));
                break;
            }
            if let Some(node) = self.nodes.get(at) {
                node.release(now_ns);
            }
        }
        if now_ns >= self.sweep_ns {
            self.sweep_ns = now_ns + SWEEP.as_nanos() as u64;
            self.nodes.iter().for_each(|node| node.check(now_ns));
            self.tally
                .settled(self.nodes.iter().all(|node| node.is_near()), now_ns);
            self.write_acked()?;
            (self.watch)(Stage::Training(self.tally.rank_steps()));
        }
        Ok(())
    }

    /// Appends a line for each node with new acknowledgements: its name, its incarnation, and the last frame. All lines
    /// go into one write, so that the file is correct however this process ends.
    fn write_acked(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.acked else {
            return Ok(());
        };
        let mut lines = Vec::new();
        for (node, agent, upto) in self.nodes.iter().filter_map(|node| node.acked()) {
            writeln!(lines, "{node} {agent} {upto}")?;
        }
        file.write_all(&lines)
    }
}
