//! The aggregator's thread. It has its own runtime, so that nothing else in the process can delay its socket.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use paceline_seal::Key;
use tokio::sync::{mpsc, oneshot};

use super::control::{self, Answer, Ask, Door, What};
use super::journal::JournalError;
use super::{Aggregator, Plan};
use crate::guard::den::Den;
use crate::guard::gate::{Gate, STRANGERS, Turned};
use crate::host::{self, monotonic_ns};
use crate::sink::doors::{self, Doors};
use crate::sink::http::{OpenPage, Page, Scrape};
use crate::sink::metrics::Ways;
use crate::sink::status::StatusStream;
use crate::uplink::bundle::{Bundle, Carried, MAX_HOPS};
use crate::uplink::link::{Hub, Router};
use crate::uplink::wire::{Down, Hello, Later, Refused, Up, decode_up, encode};
use crate::warn;

/// How long to wait at the end for nodes that have not sent a goodbye.
pub const END_GRACE: Duration = Duration::from_millis(2500);
/// How long to wait at the end after SIGTERM. It is shorter because a kubelet may send SIGKILL after 2 s, and
/// everything must be written by then.
pub const TERMINATED_GRACE: Duration = Duration::from_secs(1);
/// How long to wait at the end for the last answers to be sent.
const LINGER: Duration = Duration::from_millis(50);

/// An aggregator that runs in this process.
#[derive(Debug)]
pub struct Hosted {
    finish: Option<oneshot::Sender<Duration>>,
    hangup: mpsc::Sender<()>,
    done: oneshot::Receiver<()>,
    /// The address of its metrics page.
    pub http: Option<SocketAddr>,
    /// Why the metrics page is not at the requested address. `None` if it is.
    pub http_elsewhere: Option<String>,
    /// The socket on which sidecars of this process connect.
    pub inside: PathBuf,
}

impl Hosted {
    /// Starts an aggregator. Connections through `listener` must authenticate with the key.
    ///
    /// # Errors
    /// If a socket or the thread cannot be created.
    pub fn start(
        listener: TcpListener,
        key: &Key,
        den: &Den,
        http: Option<Page>,
        plan: Plan,
        status: StatusStream,
    ) -> std::io::Result<Hosted> {
        let page = http.and_then(Page::open);
        let address = page.as_ref().and_then(OpenPage::address);
        let http_elsewhere = page.as_ref().and_then(OpenPage::elsewhere);
        // Every node needs a file descriptor.
        host::raise_descriptors();
        let (socket, inside) = den.listen()?;
        let key = key.clone();
        let (finish, finish_asked) = oneshot::channel();
        let (ended, done) = oneshot::channel();
        let (hangup, hangups) = mpsc::channel(1);
        thread::Builder::new().name("aggregator".into()).spawn(move || {
            run(
                (key, listener),
                socket,
                page,
                plan,
                status,
                Told {
                    finish: finish_asked,
                    hangups,
                },
            );
            let _ = ended.send(());
        })?;
        Ok(Hosted {
            finish: Some(finish),
            hangup,
            done,
            http: address,
            http_elsewhere,
            inside,
        })
    }

    /// Handles SIGHUP: rereads the configuration files.
    pub fn hang_up(&self) {
        // If a reload is already pending, it will read the same files.
        let _ = self.hangup.try_send(());
    }

    /// Returns true if the aggregator's thread has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.done.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    /// Ends the aggregator. Waits for at most `grace` until every node has sent a goodbye, then until the report is
    /// complete.
    pub async fn finish(mut self, grace: Duration) {
        if let Some(finish) = self.finish.take() {
            let _ = finish.send(grace);
        }
        let _ = self.done.await;
    }
}

/// Commands to the running thread.
#[derive(Debug)]
pub struct Told {
    /// Finish the job. The value is how long to wait for nodes. Dropping the sender also ends it.
    pub finish: oneshot::Receiver<Duration>,
    /// Reload the configuration files.
    pub hangups: mpsc::Receiver<()>,
}

fn run(
    (key, door): (Key, TcpListener),
    socket: UnixListener,
    page: Option<OpenPage>,
    plan: Plan,
    status: StatusStream,
    told: Told,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return warn::once("aggregator", format_args!("aggregator: {error}")),
    };
    runtime.block_on(async {
        let turned = Arc::<Turned>::default();
        match Router::listen(socket) {
            Ok(router) => {
                let gate = Gate {
                    key,
                    entrance: router.entrance(),
                    turned: Arc::clone(&turned),
                    room: STRANGERS,
                };
                tokio::spawn(gate.keep(door));
                serve(router, page, turned, plan, status, told).await;
            }
            Err(error) => warn::once("aggregator", format_args!("aggregator: {error}")),
        }
    });
}

/// Serves a hub until it is asked to finish and all nodes have left.
pub async fn serve(
    mut hub: impl Hub,
    page: Option<OpenPage>,
    turned: Arc<Turned>,
    plan: Plan,
    status: StatusStream,
    told: Told,
) {
    let Told { mut finish, hangups } = told;
    let (scrapes, mut asked) = mpsc::channel::<Scrape>(4);
    let address = page.as_ref().and_then(OpenPage::address);
    let shown = page.as_ref().map(OpenPage::shown).unwrap_or_default();
    let (job, node, reload) = (plan.job.clone(), plan.node.clone(), plan.reload.clone());
    let reported = plan.reported.clone();
    let door_plan = plan.doors.clone();
    // A long journal takes seconds to fold. Sidecars that connect meanwhile are asked to retry, here.
    let mut opening = tokio::task::spawn_blocking(move || Aggregator::open(plan, status, monotonic_ns()));
    let opened: Result<Aggregator, JournalError> = loop {
        tokio::select! {
            opened = &mut opening => match opened {
                Ok(opened) => break opened,
                Err(error) => return warn::once("aggregator", format_args!("aggregator: {error}")),
            },
            message = hub.recv() => {
                let Ok((peer, bytes)) = message else { return };
                if let Ok(Up::Hello(hello)) = decode_up(&bytes) {
                    hub.send(&peer, encode(&not_yet(&hello, &job))).await;
                }
            }
        }
    };
    let mut aggregator = match opened {
        Ok(aggregator) => aggregator,
        Err(error) => return warn::once("aggregator", format_args!("aggregator: {error}")),
    };
    if let (Some(page), Some(address)) = (page, address) {
        aggregator.metrics_address(&address.to_string());
        page.serve_aside(scrapes, Some(aggregator.live()));
    }
    let (asks, mut asked_of_policy) = mpsc::channel::<Ask>(1);
    let door = Door::open(aggregator.dir());
    let control = tokio::spawn(control::serve(
        door,
        reload,
        aggregator.known_of_files(),
        hangups,
        asks,
    ));
    let mut doors = Doors::open(door_plan, &job, &node, monotonic_ns());
    let mut finish_by: Option<u64> = None;
    loop {
        let now_ns = monotonic_ns();
        aggregator.tick(now_ns);
        if finish_by.is_some_and(|by| now_ns >= by || aggregator.present().is_empty()) {
            break;
        }
        let passed = ways(&turned, &doors);
        doors.tick(now_ns, || aggregator.facts(passed, shown));
        let until_ns = doors.wakes_at().saturating_sub(now_ns);
        let mut idle = aggregator.idle_for(now_ns).min(Duration::from_nanos(until_ns));
        if let Some(by) = finish_by {
            idle = idle.min(Duration::from_nanos(by.saturating_sub(now_ns)));
        }
        tokio::select! {
            message = hub.recv() => match message {
                Ok((peer, bytes)) => {
                    for down in answers(&mut aggregator, &bytes, 0) {
                        hub.send(&peer, encode(&down)).await;
                    }
                }
                Err(error) => {
                    warn::once("aggregator", format_args!("aggregator: {error}"));
                    break;
                }
            },
            Some(scrape) = asked.recv() => {
                // The client may have disconnected.
                let _ = scrape.send(aggregator.facts(ways(&turned, &doors), shown));
            }
            Some(ask) = asked_of_policy.recv() => change(&mut aggregator, ask),
            grace = &mut finish, if finish_by.is_none() => {
                finish_by = Some(monotonic_ns() + grace.unwrap_or(END_GRACE).as_nanos() as u64);
            }
            () = tokio::time::sleep(idle) => {}
        }
    }
    // Close the control socket before another aggregator can take the directory.
    control.abort();
    let _ = control.await;
    aggregator.end(monotonic_ns());
    let by = Instant::now() + doors::LAST;
    let passed = ways(&turned, &doors);
    doors.end(|| aggregator.facts(passed, shown), by);
    if let Some(reported) = reported {
        (reported.0)(aggregator.dir());
    }
    aggregator.leave();
    doors.close(by);
    tokio::time::sleep(LINGER).await;
}

fn ways(turned: &Turned, doors: &Doors) -> Ways {
    Ways {
        turned: turned.counts(),
        pushes: doors.pushes(),
    }
}

fn change(aggregator: &mut Aggregator, ask: Ask) {
    let now_ns = monotonic_ns();
    let answer = match &ask.what {
        What::Change { changes, by } => aggregator
            .change(changes, by, now_ns)
            .map(Answer::Changed)
            .map_err(|error| error.to_string()),
        What::Inject { faults, force } => aggregator
            .inject(faults, *force, now_ns)
            .map(|()| Answer::Injected(faults.len())),
    };
    // The client may have disconnected.
    let _ = ask.answer.send(answer.unwrap_or_else(Answer::Refused));
}

fn not_yet(hello: &Hello, job: &paceline_health::id::JobId) -> Down {
    match hello.refusal(job) {
        Some(why) => Down::Refused(Refused { why }),
        None => Down::Later(Later { job: job.clone() }),
    }
}

/// Returns the answers to a message that passed through this many relays.
fn answers(aggregator: &mut Aggregator, bytes: &[u8], hops: u8) -> Vec<Down> {
    match decode_up(bytes) {
        Ok(Up::Hello(hello)) => {
            aggregator.asks_again(&hello);
            aggregator.orders_again(&hello);
            let down = aggregator.hello(&hello);
            let reads = matches!(down, Down::Welcome(_)).then(|| aggregator.reads(&hello));
            std::iter::once(down).chain(reads).collect()
        }
        Ok(Up::Batch(batch)) => {
            let taken = aggregator.take(&batch, monotonic_ns());
            if !matches!(taken, Down::Ack(_)) {
                return vec![taken];
            }
            let more = [aggregator.asks(&batch), aggregator.orders(&batch)];
            std::iter::once(taken).chain(more.into_iter().flatten()).collect()
        }
        Ok(Up::Carried(carried)) if hops < MAX_HOPS => carried_back(aggregator, carried, hops),
        Ok(Up::Carried(_)) => {
            warn::once(
                "hops",
                format_args!("more than {MAX_HOPS} relays above each other"),
            );
            Vec::new()
        }
        Err(error) => {
            aggregator.note_unreadable();
            warn::once("message", format_args!("unreadable message: {error}"));
            Vec::new()
        }
    }
}

/// Returns the answers by route. An empty bundle is answered by an empty one, so that a relay can tell that bundles are
/// supported.
fn carried_back(aggregator: &mut Aggregator, carried: Carried, hops: u8) -> Vec<Down> {
    let mut back = Vec::new();
    let mut bundle = Bundle::default();
    for (route, message) in carried {
        for down in answers(aggregator, &message.0, hops + 1) {
            back.extend(bundle.add(route, encode(&down)).map(Down::Carried));
        }
    }
    back.push(Down::Carried(bundle.take()));
    back
}
