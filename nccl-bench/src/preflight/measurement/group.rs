//! Measures a group of nodes or a single node. Over NCCL there is one rank per GPU ([`rank_supervisor`]), and over TCP
//! there is one rank per node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use paceline_health::id::NodeId;
use paceline_health::preflight::{Fact, Metric, Place, Sample};
use paceline_seal::Key;

use super::all_reduce::{Busbw, Effort, all_reduce};
use super::probe::{Probed, Unfinished, probe};
use super::rank_process::{Broke, Go, key_text};
use super::rank_supervisor::{self, Launch, Outcome, Rank};
use crate::net::{Meeting, Seat, loopback, meet, sealed};
use crate::preflight::message::{DATA, Failed, Found, Group, Opened};
use crate::preflight::mode::Limits;
use crate::preflight::transport_choice::{Team, TransportChoice};
use crate::transport::tcp::{Tcp, TcpOptions};
use crate::transport::{Deadline, Transport, TransportError};

/// What a node needs to take part in a group.
pub(in crate::preflight) struct Hand<'a> {
    pub(in crate::preflight) key: &'a Key,
    /// The listener for the other nodes, used if this node leads the group.
    pub(in crate::preflight) listener: TcpListener,
    pub(in crate::preflight) launch: &'a Launch,
    /// The first NCCL rank, if this node leads the group.
    pub(in crate::preflight) first: Option<Rank>,
}

/// Takes part in a group. Only the leader returns the results.
pub(in crate::preflight) fn run(
    group: &Group,
    hand: Hand<'_>,
    limits: &Limits,
    deadline: &Deadline,
) -> Result<Found, Failed> {
    let Hand {
        key,
        listener,
        launch,
        first,
    } = hand;
    let blamed = |error: TransportError| blame(&group.nodes, None, &error.to_string(), error.peer());
    let metric = match group.pair_round {
        Some(_) => Metric::PairBusbw,
        None => Metric::AllBusbw,
    };
    let place = match (&group.pair_round, &group.nodes[..]) {
        (Some(_), [a, b]) => Place::pair(a, b),
        _ => Place::Job,
    };
    let round = group.pair_round.unwrap_or(0);
    let mut found = Found::default();
    let mut seat = None;
    // With NCCL, nodes connect directly only to measure delay and loss between two nodes.
    if group.pair_round.is_some() || group.over == TransportChoice::Tcp {
        let meeting = Meeting {
            rank: group.rank,
            ranks: group.nodes.len(),
            master: group.leader,
            listener: (group.rank == 0).then_some(listener),
            group: group.id,
            handshake: Some(sealed(key.clone(), DATA)),
        };
        seat = Some(meet(meeting, deadline).map_err(blamed)?);
    }
    if let (Some(seat), Some(_)) = (&mut seat, group.pair_round) {
        let (seen, error) = match probe(seat, 1 - group.rank.min(1), limits.pass / 2, deadline) {
            Ok(seen) => (seen, None),
            Err(Unfinished { error, seen }) => (seen, Some(error)),
        };
        if group.rank == 0 {
            found.samples.extend(of_probe(&seen, &place, round));
        }
        if let Some(error) = error {
            let samples = found.samples;
            return Err(Failed {
                samples,
                ..blamed(error)
            });
        }
    }
    let busbw = match (&group.over, seat) {
        (TransportChoice::Nccl(team), _) => {
            let go = Wanted {
                key,
                limits,
                nodes: &group.nodes,
                me: group.rank,
            };
            let opened = group.opened.as_ref().ok_or_else(|| lacks_ids(deadline))?;
            let master = SocketAddr::new(group.leader.ip(), opened.port);
            let outcome = go.over_nccl(launch, first, team, (group.id, master, opened), deadline);
            found
                .facts
                .extend(network_fact(&group.nodes[group.rank], &outcome));
            outcome.busbw.map_err(|broke| go.blame(team, broke))
        }
        (TransportChoice::Tcp, Some(seat)) => over_tcp(seat, limits, deadline).map_err(blamed),
        (TransportChoice::Tcp, None) => Ok(Vec::new()),
    };
    let busbw = match busbw {
        Ok(busbw) if group.rank == 0 => busbw,
        Ok(_) => return Ok(found),
        Err(failed) => {
            let samples = found.samples;
            return Err(Failed { samples, ..failed });
        }
    };
    found.samples.extend(
        busbw
            .into_iter()
            .map(|busbw| busbw.sample(place.clone(), metric, round)),
    );
    Ok(found)
}

fn lacks_ids(deadline: &Deadline) -> Failed {
    Failed {
        what: format!("{}: the first node sent no ids for NCCL", deadline.phase()),
        ..Failed::default()
    }
}

/// Starts the first rank of an NCCL group, and returns what the others need to join.
pub(in crate::preflight) fn open(
    launch: &Launch,
    team: &Team,
    listen: IpAddr,
    deadline: &Deadline,
) -> Result<(Rank, Opened), Failed> {
    // There is one id for all ranks, and one per rail.
    let ids = 1 + team.rails().unwrap_or(0) as usize;
    Rank::open(launch, listen, ids, deadline).map_err(|broke| Failed {
        what: broke.what,
        ..Failed::default()
    })
}

/// Options for all NCCL ranks of a node.
struct Wanted<'a> {
    key: &'a Key,
    limits: &'a Limits,
    nodes: &'a [NodeId],
    me: usize,
}

impl Wanted<'_> {
    fn over_nccl(
        &self,
        launch: &Launch,
        first: Option<Rank>,
        team: &Team,
        (group, master, opened): (u64, SocketAddr, &Opened),
        deadline: &Deadline,
    ) -> Outcome {
        let go = Go {
            rank: 0,
            team: team.clone(),
            master,
            group,
            key: key_text(self.key),
            ids: opened.ids.clone(),
            nccl_lib: launch.nccl_lib.clone(),
            cuda_lib: launch.cuda_lib.clone(),
            effort: Effort {
                bytes: self.limits.nccl_bytes,
                pass: self.limits.pass,
            },
            phase: deadline.phase().to_owned(),
            limit: deadline.remaining().unwrap_or_default(),
        };
        rank_supervisor::run(launch, first, self.me, &go, deadline)
    }

    /// Maps the rank at fault to its node and GPU.
    fn blame(&self, team: &Team, broke: Broke) -> Failed {
        let place = broke.peer.and_then(|rank| Some((rank, team.place_of(rank)?)));
        let Some((rank, (node, gpu))) = place else {
            return blame(self.nodes, Some(team), &broke.what, None);
        };
        let peer = self.nodes.get(node).cloned();
        let name = peer.as_ref().map_or("a node", NodeId::as_str);
        Failed {
            what: format!("{} (rank {rank} is GPU {gpu} of {name})", broke.what),
            peer: peer.filter(|_| node != self.me),
            ..Failed::default()
        }
    }
}

/// Returns the network that NCCL reports.
fn network_fact(node: &NodeId, outcome: &Outcome) -> Option<Fact> {
    let network = outcome.network.as_deref()?;
    Some(Fact {
        node: node.clone(),
        gpu: None,
        port: None,
        name: "nccl_network".into(),
        value: Some(network.into()),
    })
}

fn of_probe(probed: &Probed, place: &Place, round: u32) -> Vec<Sample> {
    let sample = |metric, value, passes| Sample {
        place: place.clone(),
        metric,
        conditions: "tcp".into(),
        rail: None,
        round,
        value,
        spread: 0.0,
        passes,
        bytes: 0,
    };
    let sent = u32::try_from(probed.segments.sent).unwrap_or(u32::MAX);
    let loss = probed.segments.again as f64 / probed.segments.sent.max(1) as f64;
    let latency = sample(Metric::PairLatency, probed.round_trip, probed.pings);
    let loss = sample(Metric::PairLoss, loss, sent);
    // If the probe did not finish, the delay or the loss may be unknown.
    [latency, loss]
        .into_iter()
        .filter(|sample| sample.passes > 0)
        .collect()
}

/// Runs an all-reduce over the GPUs of one node.
pub(in crate::preflight) fn inside_nccl(
    node: &NodeId,
    round: u32,
    team: &Team,
    launch: &Launch,
    limits: &Limits,
    deadline: &Deadline,
) -> Result<Found, Failed> {
    let own = |what: String| Failed {
        what,
        ..Failed::default()
    };
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let (first, opened) = open(launch, team, here, deadline)?;
    // A random key is sufficient, because no other node needs it.
    let key = Key::of_chance().map_err(|error| own(format!("{}: {error}", deadline.phase())))?;
    let wanted = Wanted {
        key: &key,
        limits,
        nodes: std::slice::from_ref(node),
        me: 0,
    };
    let master = SocketAddr::new(here, opened.port);
    let outcome = wanted.over_nccl(launch, Some(first), team, (0, master, &opened), deadline);
    let facts = network_fact(node, &outcome).into_iter().collect();
    let busbw = outcome.busbw.map_err(|broke| wanted.blame(team, broke))?;
    let place = Place::Node { node: node.clone() };
    let sample = |busbw: Busbw| busbw.sample(place.clone(), Metric::LocalBusbw, round);
    Ok(Found {
        samples: busbw.into_iter().map(sample).collect(),
        facts,
        ..Found::default()
    })
}

/// Runs an all-reduce among threads of this node, for a node without GPUs.
pub fn inside(node: &NodeId, round: u32, limits: &Limits, deadline: &Deadline) -> Result<Found, Failed> {
    let failed = |what: String| Failed {
        what,
        ..Failed::default()
    };
    let places = loopback(2, None).map_err(|error| failed(error.to_string()))?;
    let results: Vec<Result<Vec<Busbw>, TransportError>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = places
            .into_iter()
            .map(|place| {
                scope.spawn(move || {
                    let seat = Seat::take(place).map_err(|error| deadline.local("the listener", error))?;
                    over_tcp(seat, limits, deadline)
                })
            })
            .collect();
        let ended = |_| Err(deadline.passed(None));
        ranks
            .into_iter()
            .map(|rank| rank.join().unwrap_or_else(ended))
            .collect()
    });
    let mut found = Found::default();
    for result in results {
        for busbw in result.map_err(|error| failed(error.to_string()))? {
            let place = Place::Node { node: node.clone() };
            let sample = busbw.sample(place, Metric::LocalBusbwHost, round);
            found.samples.push(sample);
        }
    }
    Ok(found)
}

fn over_tcp(seat: Seat, limits: &Limits, deadline: &Deadline) -> Result<Vec<Busbw>, TransportError> {
    let mut tcp = Tcp::join(seat, TcpOptions::default(), deadline)?;
    let effort = Effort {
        bytes: limits.bytes,
        pass: limits.pass,
    };
    let ranks = tcp.ranks();
    let measured = all_reduce(&mut tcp, ranks, effort, deadline);
    if measured.is_err() {
        tcp.abort();
    }
    Ok(measured?.iter().map(|gathered| gathered.of_all()).collect())
}

/// Maps the rank in a transport's error to a node.
fn blame(nodes: &[NodeId], team: Option<&Team>, what: &str, rank: Option<usize>) -> Failed {
    let first = |node: usize| team.map_or(node, |team| team.first_of(node));
    let names: Vec<String> = nodes
        .iter()
        .enumerate()
        .map(|(at, node)| match team {
            Some(_) => format!("from rank {} on {node}", first(at)),
            None => format!("rank {at} is {node}"),
        })
        .take(8)
        .collect();
    Failed {
        what: format!("{what} ({})", names.join(", ")),
        peer: rank.and_then(|rank| nodes.get(rank)).cloned(),
        ..Failed::default()
    }
}
