//! The first node's connections to the others. It accepts them, sends them tasks, and never waits longer than a phase's
//! time limit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use paceline_health::id::NodeId;
use paceline_health::preflight::{Problem, Report};
use paceline_seal::{Key, SealError, Sealed, Sender};

use super::admission::{Arrival, Stranger, admit, greet, missing, refuse};
use super::fleet::{Fault, Fleet, Task};
use crate::preflight::Expected;
use crate::preflight::message::{Answer, Ask, Found, Group, MOST_BYTES, Opened, Order, Welcome};
use crate::preflight::mode::Mode;
use crate::preflight::participant::{decode, encode};
use crate::preflight::transport_choice::TransportChoice;

/// Limit of connections handled at a time.
const GREETED: usize = 256;
/// Limit of rejected connections that are remembered. The latest ones are kept.
const STRANGERS: usize = 1000;
/// Time limit for sending a task to a node, and for its answer to arrive after the node's own deadline.
pub(super) const SLACK: Duration = Duration::from_secs(1);

struct Member {
    sender: Sender,
    address: IpAddr,
    port: u16,
}

/// The connected nodes.
pub struct RemoteFleet {
    members: BTreeMap<NodeId, Member>,
    order: Vec<NodeId>,
    inbox: mpsc::Receiver<(NodeId, Result<Answer, SealError>)>,
    /// Nodes that disconnected without a pending task.
    ended: BTreeMap<NodeId, Fault>,
    asked: u32,
    groups: u64,
}

/// Waits until all nodes are connected, or until the deadline. Missing nodes and rejected connections are reported as
/// problems.
pub fn gather(
    listener: TcpListener,
    key: &Key,
    job: &str,
    expected: &Expected,
    mode: Mode,
    deadline: Instant,
) -> io::Result<(RemoteFleet, Vec<Problem>)> {
    listener.set_nonblocking(true)?;
    let (sender, arrivals) = mpsc::channel();
    let busy = Arc::new(AtomicUsize::new(0));
    let mut guests: BTreeMap<NodeId, (Sealed, SocketAddr, IpAddr, u16)> = BTreeMap::new();
    let mut strangers: VecDeque<Stranger> = VecDeque::new();
    while guests.len() < expected.count && Instant::now() < deadline {
        while busy.load(Ordering::Acquire) < GREETED {
            let Ok((stream, from)) = listener.accept() else {
                break;
            };
            // A dual-stack listener reports IPv4 addresses as IPv6, so convert them back.
            let from = SocketAddr::new(from.ip().to_canonical(), from.port());
            greet(stream, from, key.clone(), sender.clone(), Arc::clone(&busy));
        }
        match arrivals.recv_timeout(Duration::from_millis(10)) {
            Ok(Arrival::Hello(guest)) => {
                let (hello, sealed, from, here) = *guest;
                match admit(&hello, job, &guests, expected) {
                    Ok(()) => drop(guests.insert(hello.node, (sealed, from, here, hello.port))),
                    Err(why) => {
                        refuse(sealed, &why);
                        let (from, node) = (from.ip(), Some(hello.node));
                        strangers.push_back(Stranger { from, node, why });
                    }
                }
            }
            Ok(Arrival::Stranger(stranger)) => strangers.push_back(stranger),
            Err(_) => {}
        }
        if strangers.len() > STRANGERS {
            strangers.pop_front();
        }
    }
    let problems = missing(expected, &guests, strangers.make_contiguous());
    Ok((RemoteFleet::of(guests, expected, mode), problems))
}

impl RemoteFleet {
    fn of(
        guests: BTreeMap<NodeId, (Sealed, SocketAddr, IpAddr, u16)>,
        expected: &Expected,
        mode: Mode,
    ) -> RemoteFleet {
        let (sender, inbox) = mpsc::channel();
        // Determine this host's address for other nodes. It is the address that the first remote node used.
        let outside = guests
            .values()
            .find(|(_, from, ..)| !from.ip().is_loopback())
            .map(|(_, _, here, _)| *here);
        let mut members = BTreeMap::new();
        for (node, (mut sealed, from, _, port)) in guests {
            // If the reply fails, the node's answer is missing later, which is reported then.
            let _ = sealed.send(&encode(&Welcome::Come { mode }), Instant::now() + SLACK);
            let address = match from.ip() {
                ip if ip.is_loopback() => outside.unwrap_or(ip),
                ip => ip,
            };
            let (to, mut receiver) = (sealed.sender, sealed.receiver);
            let (inbox, name) = (sender.clone(), node.clone());
            let far = Instant::now() + mode.limits().total * 4;
            let listen = move || {
                loop {
                    let answer = receiver.receive(MOST_BYTES, far).and_then(|bytes| decode(&bytes));
                    let over = answer.is_err();
                    if inbox.send((name.clone(), answer)).is_err() || over {
                        return;
                    }
                }
            };
            let listens = thread::Builder::new().name("member".to_owned()).spawn(listen);
            if let Err(source) = listens {
                // Without the thread, the node counts as lost, and the first phase reports it.
                let what = "a thread of the first node";
                let _ = sender.send((node.clone(), Err(SealError::Io { what, source })));
            }
            let member = Member {
                sender: to,
                address,
                port,
            };
            members.insert(node, member);
        }
        let mut order: Vec<NodeId> = members.keys().cloned().collect();
        order.sort_by_key(|node| expected.position(node).unwrap_or(usize::MAX));
        RemoteFleet {
            members,
            order,
            inbox,
            ended: BTreeMap::new(),
            asked: 0,
            groups: 0,
        }
    }

    fn lose(&mut self, node: &NodeId) {
        if let Some(member) = self.members.remove(node) {
            member.sender.close();
        }
        self.order.retain(|known| known != node);
    }

    fn order(
        &self,
        task: &Task,
        groups: &BTreeMap<Vec<NodeId>, (u64, SocketAddr)>,
        opened: &BTreeMap<NodeId, Opened>,
    ) -> Option<Order> {
        Some(match task {
            Task::Snapshot => Order::Snapshot,
            Task::Work { round } => Order::Work { round: *round },
            Task::Local { round, over } => Order::Local {
                round: *round,
                over: over.clone(),
            },
            Task::Open { over } => Order::Open { over: over.clone() },
            Task::Group {
                nodes,
                rank,
                pair_round,
                over,
            } => {
                let (id, leader) = *groups.get(nodes)?;
                Order::Group(Group {
                    id,
                    leader,
                    nodes: nodes.clone(),
                    rank: *rank,
                    pair_round: *pair_round,
                    over: over.clone(),
                    opened: nodes.first().and_then(|first| opened.get(first)).cloned(),
                })
            }
        })
    }

    /// Returns the meeting address of each group.
    fn places(&mut self, tasks: &[(NodeId, Task)]) -> BTreeMap<Vec<NodeId>, (u64, SocketAddr)> {
        let mut places = BTreeMap::new();
        for (_, task) in tasks {
            if let Task::Group { nodes, .. } = task
                && !places.contains_key(nodes)
                && let Some(leader) = nodes.first().and_then(|node| self.members.get(node))
            {
                self.groups += 1;
                let place = (self.groups, SocketAddr::new(leader.address, leader.port));
                places.insert(nodes.clone(), place);
            }
        }
        places
    }

    fn send_all(
        &mut self,
        phase: &str,
        tasks: &[(NodeId, Task)],
        opened: &BTreeMap<NodeId, Opened>,
        limit: Duration,
    ) -> BTreeMap<NodeId, Fault> {
        let places = self.places(tasks);
        let mut failed = BTreeMap::new();
        for (node, task) in tasks {
            let Some(order) = self.order(task, &places, opened) else {
                let what = format!("{phase}: its group has no leader any more");
                failed.insert(node.clone(), Fault::of(what, None, false));
                continue;
            };
            let ask = Ask {
                id: self.asked,
                phase: phase.into(),
                limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
                order,
            };
            let Some(member) = self.members.get_mut(node) else {
                continue;
            };
            if let Err(error) = member.sender.send(&encode(&ask), Instant::now() + SLACK) {
                let what = format!("{phase}: request failed: {error}");
                failed.insert(node.clone(), Fault::of(what, None, true));
            }
        }
        failed
    }

    /// Removes a node that has disconnected after its answer. Its measurements count, but it gets no more tasks.
    fn end(&mut self, phase: &str, node: NodeId, error: &SealError) {
        // A node that is not a member any more was lost before.
        if self.members.contains_key(&node) {
            self.ended.insert(node, ended(phase, error));
        }
    }

    /// Processes nodes that disconnected since the last call.
    fn listen(&mut self, phase: &str) {
        while let Ok((node, said)) = self.inbox.try_recv() {
            if let Err(error) = said {
                self.end(phase, node, &error);
            }
        }
    }

    /// Sends tasks once, and waits for all answers.
    fn exchange(
        &mut self,
        phase: &str,
        tasks: Vec<(NodeId, Task)>,
        opened: &BTreeMap<NodeId, Opened>,
        limit: Duration,
    ) -> BTreeMap<NodeId, Result<Found, Fault>> {
        self.asked += 1;
        self.listen(phase);
        let (gone, tasks): (Vec<_>, Vec<_>) = tasks
            .into_iter()
            .partition(|(node, _)| self.ended.contains_key(node));
        let mut failed = self.send_all(phase, &tasks, opened, limit);
        let mut waiting: BTreeSet<NodeId> = tasks.into_iter().map(|(node, _)| node).collect();
        waiting.retain(|node| !failed.contains_key(node));
        failed.extend(gone.iter().filter_map(|(node, _)| self.ended.remove_entry(node)));
        let mut answers: BTreeMap<NodeId, Result<Found, Fault>> = failed
            .into_iter()
            .map(|(node, fault)| (node, Err(fault)))
            .collect();
        let deadline = Instant::now() + limit + SLACK;
        while !waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(left) {
                Ok((node, Ok(answer))) if answer.id == self.asked && waiting.remove(&node) => {
                    if let Some(member) = self.members.get_mut(&node) {
                        member.port = answer.port;
                    }
                    let result = answer.result.map_err(|failed| Fault {
                        samples: failed.samples,
                        ..Fault::of(failed.what, failed.peer, false)
                    });
                    answers.insert(node, result);
                }
                // This is a late answer to an earlier task.
                Ok((_, Ok(_))) => {}
                Ok((node, Err(error))) if waiting.remove(&node) => {
                    answers.insert(node, Err(ended(phase, &error)));
                }
                Ok((node, Err(error))) => self.end(phase, node, &error),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        for node in waiting {
            let what = format!("{phase}: no answer within {:.0} s", limit.as_secs_f64());
            answers.insert(node, Err(Fault::of(what, None, true)));
        }
        let lost: Vec<NodeId> = answers
            .iter()
            .filter(|(_, answer)| answer.as_ref().is_err_and(|fault| fault.lost))
            .map(|(node, _)| node.clone())
            .collect();
        lost.iter().for_each(|node| self.lose(node));
        answers
    }
}

fn ended(phase: &str, error: &SealError) -> Fault {
    Fault::of(format!("{phase}: connection lost: {error}"), None, true)
}

/// Returns the task that must precede this one, if any. Over NCCL, a group's first node must prepare data for the
/// others.
fn opens((node, task): &(NodeId, Task)) -> Option<(NodeId, Task)> {
    match task {
        Task::Group {
            rank: 0,
            over: over @ TransportChoice::Nccl(_),
            ..
        } => Some((node.clone(), Task::Open { over: over.clone() })),
        _ => None,
    }
}

fn is_led_by(task: &Task, leader: &NodeId) -> bool {
    matches!(task, Task::Group { nodes, .. } if nodes.first() == Some(leader))
}

impl Fleet for RemoteFleet {
    fn nodes(&self) -> Vec<NodeId> {
        self.order.clone()
    }

    fn address(&self, node: &NodeId) -> Option<String> {
        Some(self.members.get(node)?.address.to_string())
    }

    fn ask(
        &mut self,
        phase: &str,
        mut tasks: Vec<(NodeId, Task)>,
        limit: Duration,
    ) -> BTreeMap<NodeId, Result<Found, Fault>> {
        let begin = Instant::now();
        let mut opened = BTreeMap::new();
        let mut answers = BTreeMap::new();
        let opening: Vec<(NodeId, Task)> = tasks.iter().filter_map(opens).collect();
        if !opening.is_empty() {
            for (leader, answer) in self.exchange(phase, opening, &BTreeMap::new(), limit / 2) {
                match answer {
                    Ok(found) => opened.extend(found.opened.map(|made| (leader, made))),
                    Err(fault) => {
                        // The other nodes of its group have nothing to do and nothing to report.
                        tasks.retain(|(_, task)| !is_led_by(task, &leader));
                        answers.insert(leader, Err(fault));
                    }
                }
            }
        }
        let left = limit.saturating_sub(begin.elapsed());
        answers.extend(self.exchange(phase, tasks, &opened, left));
        answers
    }

    fn ended(&mut self, phase: &str) -> BTreeMap<NodeId, Fault> {
        self.listen(phase);
        let ended = std::mem::take(&mut self.ended);
        ended.keys().for_each(|node| self.lose(node));
        ended
    }

    fn done(&mut self, report: &Report) {
        let ask = Ask {
            id: u32::MAX,
            phase: "report".into(),
            limit_ms: 0,
            order: Order::Done(Box::new(report.clone())),
        };
        let bytes = encode(&ask);
        for member in self.members.values_mut() {
            // If the report does not arrive, the node itself reports that.
            let _ = member.sender.send(&bytes, Instant::now() + SLACK * 3);
        }
    }
}
