//! A relay, which forwards the sealed links of many nodes over one link (docs/adr/0011). Messages between a node and
//! the aggregator are numbered and acknowledged end to end. A relay does not decode or store them, so it may die at any
//! moment. It accepts no more than it can forward; the rest waits in the nodes' spools.
//!
//! - [`parent`]: the link to the aggregator, or to another relay.

pub mod parent;

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use paceline_health::frame::SCHEMA_VERSION;
use paceline_health::id::{JobId, NodeId};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use crate::aggregator::place::{self, PlaceError};
use crate::guard::gate::{Gate, STRANGERS, Turned};
use crate::guard::hall::{Entrance, Hall};
use crate::guard::{JobKey, Key};
use crate::sink::http::{OpenPage, Scrape};
use crate::sink::metrics::RelayFacts;
use crate::sink::status::{Status, StatusStream};
use crate::uplink::bundle::{Bundle, MAX_CARRIED_BYTES};
use crate::uplink::wire::{Down, Hello, Later, Refused, Up, decode_down, decode_up, encode};
use crate::{SidecarOptions, chain, host, warn};
use parent::{Miss, Parent};

/// How long a message may wait to be bundled with others.
const HOLD: Duration = Duration::from_millis(20);
/// Maximum number of unsent bytes. While more is unsent, no messages are taken from nodes.
const UNSENT: usize = 64 << 10;
/// Pause before checking again for room at the parent.
const BREATH: Duration = Duration::from_millis(2);
/// How long a parent may be silent before it is considered lost. Every bundle is answered.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// How long nodes are asked to wait while there is no parent. After that they are disconnected, so that they try their
/// next address.
const PATIENCE: Duration = Duration::from_secs(20);
/// The error for a relay that has connected to itself.
const ITSELF: &str = "this is the relay itself: its --aggregator must be another relay, or the aggregator";
/// Pause between two attempts to reach a parent.
const AGAIN: Duration = Duration::from_millis(200);

/// Resolves the current addresses of the parents.
pub type Lookup = Arc<dyn Fn() -> Vec<SocketAddr> + Send + Sync>;

/// A relay's configuration.
#[derive(Clone)]
pub struct Relay {
    /// The greeting that the relay sends to its parent.
    pub me: Hello,
    /// The key that seals all streams.
    pub key: Key,
    /// Resolves the aggregator or the next relay. The first reachable address is used. It is called again later,
    /// because a name may then resolve to another host.
    pub parents: Lookup,
    /// Counts rejected connections.
    pub turned: Arc<Turned>,
}

/// Runs `paceline sidecar --relay` until it is killed.
pub fn main(options: &SidecarOptions, at: SocketAddr) -> ExitCode {
    match start(options, at) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            warn::once("fatal", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn start(options: &SidecarOptions, at: SocketAddr) -> anyhow::Result<()> {
    let job = JobId::from(options.job.as_str());
    let Some(asked) = options.aggregator() else {
        anyhow::bail!("a relay needs the address of the aggregator: --aggregator HOST:PORT");
    };
    place::check(asked).map_err(|why| anyhow::anyhow!("--aggregator {asked}: {why}"))?;
    let node = options.node.clone().unwrap_or_else(host::hostname);
    let node = NodeId::from(format!("relay on {node}").as_str());
    let parents = lookup(asked.to_owned(), job.clone(), node.clone())?;
    let key = JobKey::of(&job, options.key_file.as_deref())?;
    if let Some(why) = key.nobody_else {
        anyhow::bail!("a relay needs the job's key: {why}");
    }
    host::raise_descriptors();
    let listener = TcpListener::bind(at).map_err(|error| anyhow::anyhow!("{at}: {error}"))?;
    let at = listener.local_addr()?;
    let relay = Relay {
        me: Hello {
            v: SCHEMA_VERSION,
            job,
            node,
            agent: host::incarnation(),
        },
        key: key.key,
        parents,
        turned: Arc::default(),
    };
    let page = options.http.read()?.open();
    let (status, _end) = StatusStream::to(std::io::stdout());
    status.say(&Status::Ready {
        aggregator: at.to_string(),
        http: page.as_ref().and_then(OpenPage::address).map(|at| at.to_string()),
        http_elsewhere: page.as_ref().and_then(OpenPage::elsewhere),
        run_dir: None,
        alone: None,
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(keep(relay, listener, page));
    Ok(())
}

/// Returns a function that resolves the parents. The address must resolve now. If it does not resolve later, the first
/// result remains valid.
fn lookup(asked: String, job: JobId, node: NodeId) -> Result<Lookup, PlaceError> {
    let look = move || {
        let found = place::candidates(Some(&asked), &job, &node)?;
        Ok(found.iter().map(|parent| parent.at).collect())
    };
    let first: Vec<SocketAddr> = look()?;
    Ok(Arc::new(move || {
        look().unwrap_or_else(|_: PlaceError| first.clone())
    }))
}

/// Forwards messages from peers of `listener` until the runtime ends. `page` exposes the relay's own counters.
pub async fn keep(relay: Relay, listener: TcpListener, page: Option<OpenPage>) {
    let mut hall = Hall::build();
    if let Some(page) = page {
        tokio::spawn(show(page, Arc::clone(&relay.turned), hall.entrance()));
    }
    let gate = Gate {
        key: relay.key.clone(),
        entrance: hall.entrance(),
        turned: Arc::clone(&relay.turned),
        room: STRANGERS,
    };
    tokio::spawn(gate.keep(listener));
    loop {
        let mut parent = seek(&relay, &mut hall).await;
        let over = carry(&mut hall, &mut parent).await;
        warn::once("parent", format_args!("relay: {}: {over}", parent.address));
        // Messages in flight may be lost. Disconnect all nodes, so that each one negotiates again with the aggregator
        // which frames are safe.
        hall.end_all();
    }
}

/// Answers scrapes of the relay's page.
async fn show(page: OpenPage, turned: Arc<Turned>, peers: Entrance) {
    let (scrapes, mut asked) = mpsc::channel::<Scrape>(4);
    tokio::spawn(page.serve(scrapes, None));
    while let Some(scrape) = asked.recv().await {
        // The client may have disconnected.
        let _ = scrape.send(Arc::new(RelayFacts {
            turned: turned.counts(),
            links: peers.peers(),
        }));
    }
}

/// Looks for a parent. Nodes that connect meanwhile are asked to wait for a limited time.
async fn seek(relay: &Relay, hall: &mut Hall) -> Parent {
    let patient_until = Instant::now() + PATIENCE;
    let attempts = async {
        loop {
            let look = Arc::clone(&relay.parents);
            // Use another thread, because the system's name lookup may block.
            for address in spawn_blocking(move || look()).await.unwrap_or_default() {
                match Parent::join(address, &relay.key, &relay.me).await {
                    Ok(parent) => return parent,
                    Err(Miss::Old) => warn::once("old", format_args!("relay: {address}: {}", Miss::Old)),
                    Err(Miss::Refused(why)) => {
                        warn::once("refused", format_args!("relay: {address} refuses: {why}"))
                    }
                    Err(miss) => warn::once("seek", format_args!("relay: {address}: {miss}")),
                }
            }
            sleep(AGAIN).await;
        }
    };
    tokio::pin!(attempts);
    loop {
        tokio::select! {
            parent = &mut attempts => return parent,
            said = hall.recv() => {
                let Some((peer, message)) = said else { continue };
                match decode_up(&message) {
                    Ok(Up::Hello(hello)) if hello == relay.me => {
                        let why = ITSELF.to_owned();
                        hall.send(peer, &encode(&Down::Refused(Refused { why })));
                    }
                    Ok(Up::Hello(hello)) if Instant::now() < patient_until && hello.job == relay.me.job => {
                        hall.send(peer, &encode(&Down::Later(Later { job: hello.job })));
                    }
                    _ => hall.end(peer),
                }
            }
        }
    }
}

/// Forwards messages in both directions until the parent is lost. Returns the reason.
async fn carry(hall: &mut Hall, parent: &mut Parent) -> Miss {
    let mut bundle = Bundle::default();
    let mut leaves_at: Option<Instant> = None;
    let mut unanswered_since: Option<Instant> = None;
    let mut answers = Vec::new();
    loop {
        let has_room = parent.unsent() <= UNSENT;
        let answer_by = unanswered_since.map_or_else(
            || Instant::now() + ANSWER_DEADLINE,
            |since| since + ANSWER_DEADLINE,
        );
        tokio::select! {
            read = parent.recv(&mut answers) => {
                for answer in answers.drain(..) {
                    hand_out(hall, &answer);
                }
                unanswered_since = None;
                if let Err(miss) = read {
                    return miss;
                }
            }
            said = hall.recv(), if has_room => {
                let Some((peer, message)) = said else { continue };
                if message.len() > MAX_CARRIED_BYTES {
                    hall.end(peer);
                    continue;
                }
                if let Some(full) = bundle.add(peer, message) {
                    parent.send(full);
                    unanswered_since.get_or_insert_with(Instant::now);
                }
                leaves_at.get_or_insert_with(|| Instant::now() + HOLD);
            }
            () = sleep_until(leaves_at.unwrap_or_else(Instant::now)), if has_room && leaves_at.is_some() => {
                leaves_at = None;
                parent.send(bundle.take());
                unanswered_since.get_or_insert_with(Instant::now);
            }
            () = sleep(BREATH), if !has_room => {}
            () = sleep_until(answer_by), if unanswered_since.is_some() => return Miss::Silent,
        }
    }
}

/// Sends each node its answers. A node that has left meanwhile will ask again.
fn hand_out(hall: &Hall, answer: &[u8]) {
    if let Ok(Down::Carried(carried)) = decode_down(answer) {
        for (route, message) in carried {
            hall.send(route, &message.0);
        }
    }
}
