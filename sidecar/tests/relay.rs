//! Relays between real sessions and a real aggregator, over real sockets: all frames arrive once, through one relay and
//! through two, even if a relay is killed; foreign peers and aggregators of another version are detected.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use paceline_health::Entry;
use paceline_health::frame::SCHEMA_VERSION;
use paceline_health::sim::{World, WorldSpec};
use paceline_seal::Key;
use paceline_sidecar::aggregator::Plan;
use paceline_sidecar::aggregator::server::{END_GRACE, Hosted};
use paceline_sidecar::guard::den::Den;
use paceline_sidecar::guard::gate::{Gate, STRANGERS, Turned};
use paceline_sidecar::guard::hall::Hall;
use paceline_sidecar::load::{LoadOptions, LoadReport, run};
use paceline_sidecar::relay::parent::{Miss, Parent};
use paceline_sidecar::relay::{Relay, keep};
use paceline_sidecar::sink::status::StatusStream;
use paceline_sidecar::uplink::link::{Dealer, Hub, Link, Router};
use paceline_sidecar::uplink::wire::{Down, Hello, Later, Up, Welcome, decode_down, decode_up, encode};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_secs(60);

fn key() -> Key {
    Key::from_bytes([1; 32])
}

fn hello(node: &str) -> Hello {
    Hello {
        v: SCHEMA_VERSION,
        job: "j".into(),
        node: node.into(),
        agent: 7,
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

fn listener(at: Option<SocketAddr>) -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(at.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap())) {
            Ok(listener) => return listener,
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// A relay in its own thread, until it is killed.
struct Running {
    address: SocketAddr,
    turned: Arc<Turned>,
    kill: tokio::sync::oneshot::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Running {
    fn start(at: Option<SocketAddr>, parents: Vec<SocketAddr>) -> Running {
        Running::looking(at, move || parents.clone())
    }

    fn looking(
        at: Option<SocketAddr>,
        parents: impl Fn() -> Vec<SocketAddr> + Send + Sync + 'static,
    ) -> Running {
        let listener = listener(at);
        let address = listener.local_addr().unwrap();
        let turned = Arc::<Turned>::default();
        let relay = Relay {
            me: hello("relay"),
            key: key(),
            parents: Arc::new(parents),
            turned: Arc::clone(&turned),
        };
        let (kill, killed) = tokio::sync::oneshot::channel();
        let thread = thread::spawn(move || {
            runtime().block_on(async {
                tokio::select! {
                    () = keep(relay, listener, None) => {}
                    _ = killed => {}
                }
            });
        });
        Running {
            address,
            turned,
            kill,
            thread,
        }
    }

    /// All its sockets are closed as by the kernel when a process is killed.
    fn kill(self) -> SocketAddr {
        let _ = self.kill.send(());
        self.thread.join().unwrap();
        self.address
    }
}

struct Job {
    dir: tempfile::TempDir,
    _den: Den,
    address: SocketAddr,
    hosted: Hosted,
}

impl Job {
    fn start() -> Job {
        let dir = tempfile::tempdir().unwrap();
        let den = Den::dig(None).unwrap();
        let listener = listener(None);
        let address = listener.local_addr().unwrap();
        let plan = Plan {
            job: "j".into(),
            node: "head".into(),
            run_dir: dir.path().to_owned(),
            policy: Vec::new(),
            remedy: Default::default(),
            reload: None,
            reported: None,
            journal: Default::default(),
            doors: Default::default(),
        };
        let (status, _end) = StatusStream::to(std::io::sink());
        let hosted = Hosted::start(listener, &key(), &den, None, plan, status).unwrap();
        Job {
            dir,
            _den: den,
            address,
            hosted,
        }
    }

    /// Ends it, and checks its journal: for each node every frame once, in order, from the first on.
    fn frames(self) -> BTreeMap<String, u64> {
        runtime().block_on(self.hosted.finish(END_GRACE));
        let mut last: BTreeMap<String, u64> = BTreeMap::new();
        for entry in entries(self.dir.path()) {
            let frame = entry.frame;
            if frame.node.as_str() == "head" {
                continue;
            }
            let before = last.insert(frame.node.to_string(), frame.seq).unwrap_or(0);
            assert_eq!(frame.seq, before + 1, "{}", frame.node);
        }
        last
    }
}

fn entries(dir: &Path) -> Vec<Entry> {
    let text = std::fs::read_to_string(dir.join("journal.ndjson")).unwrap();
    let entries = text
        .lines()
        .filter_map(|line| paceline_health::codec::line::decode(line).ok());
    entries.collect()
}

fn play(address: SocketAddr, relays: Vec<SocketAddr>, steps: u32) -> LoadReport {
    let spec = WorldSpec::parse(&format!("nodes=8 gpus=2 steps={steps} self=990ms job=j")).unwrap();
    let options = LoadOptions {
        address,
        relays,
        key: key(),
        job: "j".into(),
        speed: 20.0,
        part: (0, 1),
        slow_every: 10,
        join: LONG,
        acked: None,
    };
    run(World::new(spec).unwrap(), &options, &mut |_| ()).unwrap()
}

/// There is no listener: without a relay, frames do not arrive.
fn nowhere() -> SocketAddr {
    listener(None).local_addr().unwrap()
}

#[test]
fn a_job_is_heard_through_a_relay_and_through_two() {
    let job = Job::start();
    let upper = Running::start(None, vec![nowhere(), job.address]);
    let lower = Running::start(None, vec![upper.address]);
    let told = play(nowhere(), vec![upper.address, lower.address], 40);
    assert_eq!(
        (told.nodes, told.rank_steps, told.dropped),
        (8, 16 * 40, 0),
        "{told:?}"
    );
    assert_eq!(told.steps.len(), 40);
    let frames = job.frames();
    assert_eq!(frames.len(), 8, "{frames:?}");
    lower.kill();
    upper.kill();
}

#[test]
fn a_relay_that_dies_loses_nothing() {
    let job = Job::start();
    let parents = vec![job.address];
    let (mut one, two) = (
        Running::start(None, parents.clone()),
        Running::start(None, parents.clone()),
    );
    let relays = vec![one.address, two.address];
    let aggregator = job.address;
    let load = thread::spawn(move || play(aggregator, relays, 100));
    // Killed while forwarding, three times; each time it returns at the same address.
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(700));
        let address = one.kill();
        one = Running::start(Some(address), parents.clone());
    }
    let told = load.join().unwrap();
    assert_eq!((told.rank_steps, told.dropped), (16 * 100, 0), "{told:?}");
    let frames = job.frames();
    assert_eq!(frames.len(), 8, "{frames:?}");
    one.kill();
    two.kill();
}

#[test]
fn a_name_that_comes_to_mean_another_host_is_followed() {
    let job = Job::start();
    let (aggregator, looked) = (job.address, AtomicU32::new(0));
    let nobody = nowhere();
    let relay = Running::looking(None, move || {
        let is_first = looked.fetch_add(1, Ordering::Relaxed) == 0;
        vec![if is_first { nobody } else { aggregator }]
    });
    let told = play(nowhere(), vec![relay.address], 5);
    assert_eq!(told.rank_steps, 16 * 5);
    assert_eq!(job.frames().len(), 8);
    relay.kill();
}

#[test]
fn a_stranger_is_turned_away_and_another_job_refused() {
    let job = Job::start();
    let relay = Running::start(None, vec![job.address]);
    runtime().block_on(async {
        let den = Den::dig(None).unwrap();
        let wrong = Key::from_bytes([2; 32]);
        assert!(Dealer::through(relay.address, &wrong, &den, 0).await.is_err());
        let begun = Instant::now();
        while relay.turned.counts().iter().all(|(_, count)| *count == 0) {
            assert!(begun.elapsed() < LONG);
            sleep(Duration::from_millis(10)).await;
        }
        let mut link = Dealer::through(relay.address, &key(), &den, 0).await.unwrap();
        for (asked, is_welcome) in [("j", true), ("other", false)] {
            let hello = Hello {
                job: asked.into(),
                ..hello("n")
            };
            // "Later", while the relay has no link itself: ask again.
            loop {
                link.send(encode(&Up::Hello(hello.clone()))).await.unwrap();
                let answer = timeout(LONG, link.recv()).await.unwrap().unwrap();
                match decode_down(&answer).unwrap() {
                    Down::Welcome(_) => assert!(is_welcome),
                    Down::Refused(refused) => assert!(!is_welcome, "{}", refused.why),
                    _ => {
                        sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                }
                break;
            }
        }
    });
    relay.kill();
}

/// A relay configured as its own parent, and one below a relay that finds no aggregator.
#[test]
fn a_way_that_leads_in_a_circle_is_told() {
    let address = nowhere();
    let circle = Running::start(Some(address), vec![address]);
    runtime().block_on(async {
        let joined = Parent::join(circle.address, &key(), &hello("relay")).await;
        let Err(Miss::Refused(why)) = joined else {
            panic!("not refused")
        };
        assert!(why.contains("the relay itself"), "{why}");
    });
    circle.kill();
    // A relay without a parent lets new peers wait, and disconnects them later.
    runtime().block_on(async {
        let mut hall = Hall::build();
        let door = listener(None);
        let address = door.local_addr().unwrap();
        let gate = Gate {
            key: key(),
            entrance: hall.entrance(),
            turned: Arc::default(),
            room: STRANGERS,
        };
        tokio::spawn(gate.keep(door));
        tokio::spawn(async move {
            let mut times = 0;
            while let Some((peer, _)) = hall.recv().await {
                times += 1;
                if times < 3 {
                    let later = Later { job: "j".into() };
                    hall.send(peer, &encode(&Down::Later(later)));
                } else {
                    hall.end(peer);
                }
            }
        });
        let miss = Parent::join(address, &key(), &hello("relay"))
            .await
            .err()
            .unwrap();
        assert!(matches!(miss, Miss::NoWay), "{miss}");
    });
}

/// An aggregator that only answers the greeting, like an older version.
#[test]
fn a_parent_that_knows_no_relays_is_told_apart() {
    runtime().block_on(async {
        let den = Den::dig(None).unwrap();
        let (socket, _) = den.listen().unwrap();
        let mut router = Router::listen(socket).unwrap();
        let door = listener(None);
        let address = door.local_addr().unwrap();
        let gate = Gate {
            key: key(),
            entrance: router.entrance(),
            turned: Arc::default(),
            room: STRANGERS,
        };
        tokio::spawn(gate.keep(door));
        tokio::spawn(async move {
            while let Ok((peer, message)) = router.recv().await {
                if let Ok(Up::Hello(hello)) = decode_up(&message) {
                    let welcome = Welcome {
                        v: SCHEMA_VERSION,
                        job: hello.job,
                        agent: hello.agent,
                        journal: 1,
                        upto: 0,
                    };
                    router.send(&peer, encode(&Down::Welcome(welcome))).await;
                }
            }
        });
        let joined = Parent::join(address, &key(), &hello("relay")).await;
        let Err(miss) = joined else { panic!("joined") };
        assert!(matches!(miss, Miss::Old), "{miss}");
        assert!(miss.to_string().contains("update paceline there"));
    });
}
