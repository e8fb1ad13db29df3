//! One node of the load. It uses the real session protocol over one connection.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use paceline_health::Provenance;
use paceline_health::event::Event;
use paceline_health::frame::SCHEMA_VERSION;
use paceline_health::id::NodeId;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, timeout};

use super::{LoadOptions, Tally};
use crate::agent::join::{ANSWER_DEADLINE, backoff};
use crate::guard::conduit::{self, Inlet, Outlet};
use crate::guard::tunnel;
use crate::host::monotonic_ns;
use crate::uplink::link::{CALL_DEADLINE, CONNECT_DEADLINE, patience};
use crate::uplink::wire::{Down, Hello, Up, Welcome, decode_down, encode};
use crate::uplink::{Heard, Uplink};

/// The same as in a real sidecar.
const SPOOL_BYTES: usize = 4 << 20;
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// A node with at most this many unacknowledged frames is up to date.
const NEAR: u64 = 64;

/// One node of the load (see the module documentation).
pub(super) struct Node {
    me: Hello,
    state: RefCell<State>,
    /// Notifies the node that its link is to be given up.
    kick: Notify,
}

struct State {
    uplink: Uplink,
    out: Option<Arc<Outlet>>,
    /// Unacknowledged frames: up to which number, when they were created, and when they were sent.
    open: VecDeque<Open>,
    /// The time of the next scheduled turn for this node, or `u64::MAX` if there is none.
    held_ns: u64,
    /// The last acknowledged frame that was reported.
    told: u64,
    /// The events that introduce this node. They are repeated to an aggregator with a new journal.
    introduction: Vec<Event>,
}

struct Open {
    upto: u64,
    said_ns: u64,
    sent_ns: Option<u64>,
}

impl Node {
    pub fn new(name: NodeId, agent: u64, options: &LoadOptions) -> Node {
        let me = Hello {
            v: SCHEMA_VERSION,
            job: options.job.clone(),
            node: name,
            agent,
        };
        Node {
            state: RefCell::new(State {
                uplink: Uplink::new(me.clone(), SPOOL_BYTES),
                out: None,
                open: VecDeque::new(),
                held_ns: u64::MAX,
                told: 0,
                introduction: Vec::new(),
            }),
            me,
            kick: Notify::new(),
        }
    }

    /// Joins, and rejoins after each failure, forever. A permanent failure is sent to `failures` and ends this loop.
    pub async fn live(
        self: Rc<Node>,
        options: LoadOptions,
        tally: Rc<Tally>,
        failures: UnboundedSender<String>,
    ) {
        let mut attempt = 0;
        loop {
            let began_ns = monotonic_ns();
            match self.join(&options, attempt).await {
                Ok(Joined {
                    inlet,
                    out,
                    welcome,
                    more,
                }) => {
                    attempt = 0;
                    tally.join(monotonic_ns() - began_ns);
                    self.welcomed(&out, &welcome, &tally);
                    more.iter().for_each(|message| self.hear(message, &tally));
                    self.read(inlet, &tally).await;
                    let mut state = self.state.borrow_mut();
                    state.out = None;
                    state.uplink.broken();
                    tally.leave(out.traffic(), monotonic_ns());
                }
                Err(Miss::Refused(why)) => {
                    // Only the first failure ends the load. Later ones have no receiver.
                    let _ = failures.send(why);
                    return;
                }
                Err(Miss::Failed(why)) => tally.missed(why),
            }
            sleep(backoff(attempt, self.me.agent)).await;
            attempt += 1;
        }
    }

    async fn join(&self, options: &LoadOptions, attempt: u32) -> Result<Joined, Miss> {
        let address = options.way(self.me.agent, attempt);
        let reach = patience(CONNECT_DEADLINE, attempt);
        let connecting = timeout(reach, TcpStream::connect(address)).await;
        let mut stream = connecting
            .map_err(|_| Miss::silent("connect"))?
            .map_err(Miss::of)?;
        tunnel::tune(&stream);
        let called = timeout(
            patience(CALL_DEADLINE, attempt),
            tunnel::call(&mut stream, &options.key),
        )
        .await;
        let pair = called.map_err(|_| Miss::silent("handshake"))?.map_err(Miss::of)?;
        let (mut inlet, out) = conduit::sealed(stream, pair, "DEALER");
        loop {
            out.send(&encode(&Up::Hello(self.me.clone())));
            let answer = timeout(patience(ANSWER_DEADLINE, attempt), first(&mut inlet)).await;
            let (down, more) = answer.map_err(|_| Miss::silent("hello"))??;
            match down {
                Down::Welcome(welcome) if welcome.is_for(&self.me) => {
                    return Ok(Joined {
                        inlet,
                        out,
                        welcome,
                        more,
                    });
                }
                Down::Refused(refused) => return Err(Miss::Refused(refused.why)),
                Down::Later(_) => sleep(ASK_AGAIN).await,
                _ => return Err(Miss::silent("hello")),
            }
        }
    }

    fn welcomed(&self, out: &Arc<Outlet>, welcome: &Welcome, tally: &Tally) {
        let now_ns = monotonic_ns();
        let mut state = self.state.borrow_mut();
        state.out = Some(Arc::clone(out));
        let heard = state.uplink.welcomed(welcome, now_ns);
        if heard == (Heard::Welcome { new_journal: true }) {
            for event in state.introduction.clone() {
                state.push(&event, now_ns);
            }
        }
        state.acked(welcome.upto, now_ns, tally);
        state.send(now_ns);
    }

    async fn read(&self, mut inlet: Inlet, tally: &Tally) {
        loop {
            let take = |message: &[u8]| self.hear(message, tally);
            tokio::select! {
                read = inlet.recv(take) => if read.is_err() { return },
                () = self.kick.notified() => return,
            }
        }
    }

    fn hear(&self, message: &[u8], tally: &Tally) {
        let now_ns = monotonic_ns();
        let mut state = self.state.borrow_mut();
        let heard = state.uplink.received(message, now_ns);
        if let (Heard::Acked, Ok(Down::Ack(ack))) = (heard, decode_down(message)) {
            state.acked(ack.upto, now_ns, tally);
            state.send(now_ns);
        }
    }

    /// Sends an event. If held-back data is due earlier than the scheduled turn, returns when.
    pub fn say(&self, event: Event, now_ns: u64, tally: &Tally) -> Option<u64> {
        let mut state = self.state.borrow_mut();
        tally.said(&event, now_ns);
        state.push(&event, now_ns);
        if matches!(
            event,
            Event::Agent(_) | Event::Attach(_) | Event::Layout(_) | Event::Group(_)
        ) {
            state.introduction.push(event);
        }
        state.send(now_ns);
        let due_ns = state.uplink.due_ns();
        let is_sooner = due_ns < state.held_ns;
        state.held_ns = state.held_ns.min(due_ns);
        is_sooner.then_some(due_ns)
    }

    /// Sends held-back data.
    pub fn release(&self, now_ns: u64) {
        let mut state = self.state.borrow_mut();
        state.held_ns = u64::MAX;
        state.send(now_ns);
    }

    /// Gives up the link if it is unresponsive.
    pub fn check(&self, now_ns: u64) {
        let state = self.state.borrow();
        if state.out.is_some() && state.uplink.is_stuck(now_ns) {
            self.kick.notify_one();
        }
    }

    /// Returns true if all events are acknowledged as safe.
    pub fn is_settled(&self) -> bool {
        let state = self.state.borrow();
        state.uplink.settled() == state.uplink.last_seq()
    }

    /// Returns true if the node is linked and all but its latest events are safe.
    pub fn is_near(&self) -> bool {
        let state = self.state.borrow();
        state.out.is_some() && state.uplink.last_seq() - state.uplink.settled() <= NEAR
    }

    /// Returns the new acknowledgements since the last call: the node, the incarnation, and its last acknowledged
    /// frame.
    pub fn acked(&self) -> Option<(&NodeId, u64, u64)> {
        let mut state = self.state.borrow_mut();
        let acked = state.uplink.acked();
        let is_new = acked > state.told;
        state.told = acked;
        is_new.then_some((&self.me.node, self.me.agent, acked))
    }

    /// Returns the number of frames dropped by the node's spool.
    pub fn dropped(&self) -> u64 {
        self.state.borrow().uplink.dropped()
    }

    /// Returns the bytes up and down on the current link.
    pub fn traffic(&self) -> (u64, u64) {
        let state = self.state.borrow();
        state.out.as_ref().map_or((0, 0), |out| out.traffic().both())
    }
}

impl State {
    fn push(&mut self, event: &Event, now_ns: u64) {
        let upto = self.uplink.push(Provenance::Sim, event, now_ns);
        match self.open.back_mut() {
            // Events of the same moment that are not sent yet share one entry.
            Some(open) if open.sent_ns.is_none() && open.said_ns == now_ns => open.upto = upto,
            _ => self.open.push_back(Open {
                upto,
                said_ns: now_ns,
                sent_ns: None,
            }),
        }
    }

    fn send(&mut self, now_ns: u64) {
        let Some(out) = &self.out else { return };
        while let Some(message) = self.uplink.poll_send(now_ns) {
            for open in self.open.iter_mut().rev() {
                if open.sent_ns.is_some() {
                    break;
                }
                open.sent_ns = Some(now_ns);
            }
            // If the buffer is full, the message is dropped. Its acknowledgement then does not arrive, and a new link
            // replaces this one.
            out.send(&message);
        }
    }

    fn acked(&mut self, upto: u64, now_ns: u64, tally: &Tally) {
        while let Some(open) = self.open.front().filter(|open| open.upto <= upto) {
            tally.acked(open.said_ns, open.sent_ns.unwrap_or(now_ns), now_ns);
            self.open.pop_front();
        }
    }
}

/// A link after its handshake.
struct Joined {
    inlet: Inlet,
    out: Arc<Outlet>,
    welcome: Welcome,
    /// Messages that arrived together with the answer.
    more: Vec<Vec<u8>>,
}

/// Why joining failed.
enum Miss {
    /// The node was refused permanently.
    Refused(String),
    /// The attempt failed temporarily.
    Failed(String),
}

impl Miss {
    fn silent(what: &str) -> Miss {
        Miss::Failed(format!("{what}: no answer in time"))
    }

    fn of(error: impl std::fmt::Display) -> Miss {
        Miss::Failed(error.to_string())
    }
}

/// Waits for the first message. Returns it, and the messages that arrived together with it.
async fn first(inlet: &mut Inlet) -> Result<(Down, Vec<Vec<u8>>), Miss> {
    let mut answers: Vec<Vec<u8>> = Vec::new();
    while answers.is_empty() {
        let take = |message: &[u8]| answers.push(message.to_vec());
        inlet.recv(take).await.map_err(Miss::of)?;
    }
    let more = answers.split_off(1);
    match decode_down(&answers[0]) {
        Ok(down) => Ok((down, more)),
        Err(_) => Err(Miss::Failed("taken by another program".to_owned())),
    }
}
