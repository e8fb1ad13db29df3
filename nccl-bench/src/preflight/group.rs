//! Measuring in a group of nodes, or of threads of one: a pair, all nodes, the inside of a node without GPUs.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_health::id::NodeId;
use paceline_health::preflight::{Metric, Place, Sample};
use paceline_seal::{Key, SealError};

use super::message::{DATA, Failed, Found, Group};
use super::mode::Limits;
use super::probe::{Probed, probe};
use crate::collective::{Collective, Plan};
use crate::dtype::Dtype;
use crate::measure::{RankTimes, Timing};
use crate::net::{Handshake, Meeting, Role, Seat, loopback, meet};
use crate::transport::tcp::{Tcp, TcpOptions};
use crate::transport::{Deadline, Transport, TransportError};

/// Passes of an all-reduce: their spread says how sure a figure is.
const PASSES: u32 = 5;
/// The first size tried: what a slow way carries in time.
const FIRST_BYTES: u64 = 256 << 10;

/// Proves the job's key on every connection over which is measured.
pub fn handshake(key: &Key) -> Handshake {
    let key = key.clone();
    Arc::new(move |stream: TcpStream, role, deadline: &Deadline| {
        let until = Instant::now() + deadline.remaining().unwrap_or_default();
        let sealed = match role {
            Role::Dialled => paceline_seal::dial(stream, &key, DATA, until),
            Role::Accepted => paceline_seal::accept(stream, &key, DATA, until),
        };
        let sealed = sealed.map_err(|error| match error {
            SealError::Io { source, .. } => source,
            SealError::Deadline { .. } => io::Error::new(io::ErrorKind::TimedOut, error.to_string()),
            other => io::Error::new(io::ErrorKind::PermissionDenied, other.to_string()),
        })?;
        Ok(sealed.into_bare())
    })
}

/// Takes part in a group, over `listener` if this node leads it. What was found is the leader's to tell.
pub fn run(
    group: &Group,
    key: &Key,
    listener: TcpListener,
    limits: &Limits,
    deadline: &Deadline,
) -> Result<Found, Failed> {
    measure_group(group, key, listener, limits, deadline).map_err(|error| blame(group, &error))
}

fn measure_group(
    group: &Group,
    key: &Key,
    listener: TcpListener,
    limits: &Limits,
    deadline: &Deadline,
) -> Result<Found, TransportError> {
    let meeting = Meeting {
        rank: group.rank,
        ranks: group.nodes.len(),
        master: group.leader,
        listener: (group.rank == 0).then_some(listener),
        group: group.id,
        handshake: Some(handshake(key)),
    };
    let mut seat = meet(meeting, deadline)?;
    let mut found = Found::default();
    let place = match (&group.pair_round, &group.nodes[..]) {
        (Some(_), [a, b]) => Place::pair(a, b),
        _ => Place::Job,
    };
    let round = group.pair_round.unwrap_or(0);
    if group.pair_round.is_some() {
        let probed = probe(&mut seat, 1 - group.rank.min(1), limits.pass / 2, deadline)?;
        found.samples.extend(of_probe(&probed, &place, round));
    }
    let metric = if group.pair_round.is_some() {
        Metric::PairBusbw
    } else {
        Metric::AllBusbw
    };
    let busbw = over_tcp(seat, limits, deadline)?;
    found
        .samples
        .extend(busbw.map(|busbw| busbw.sample(place, metric, round)));
    if group.rank > 0 {
        found.samples.clear();
    }
    Ok(found)
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
    vec![
        sample(Metric::PairLatency, probed.round_trip, probed.pings),
        sample(Metric::PairLoss, loss, sent),
    ]
}

/// The all-reduce among threads of this node, for a node without GPUs.
pub fn inside(node: &NodeId, round: u32, limits: &Limits, deadline: &Deadline) -> Result<Found, Failed> {
    let failed = |what: String| Failed { what, peer: None };
    let places = loopback(2, None).map_err(|error| failed(error.to_string()))?;
    let results: Vec<Result<Option<Busbw>, TransportError>> = std::thread::scope(|scope| {
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
        if let Some(busbw) = result.map_err(|error| failed(error.to_string()))? {
            let place = Place::Node { node: node.clone() };
            found
                .samples
                .push(busbw.sample(place, Metric::LocalBusbwHost, round));
        }
    }
    Ok(found)
}

/// Bus bandwidth as rank 0 knows it.
struct Busbw {
    conditions: String,
    value: f64,
    spread: f64,
    passes: u32,
    bytes: u64,
}

impl Busbw {
    fn sample(self, place: Place, metric: Metric, round: u32) -> Sample {
        Sample {
            place,
            metric,
            conditions: self.conditions.into(),
            rail: None,
            round,
            value: self.value,
            spread: self.spread,
            passes: self.passes,
            bytes: self.bytes,
        }
    }
}

fn over_tcp(seat: Seat, limits: &Limits, deadline: &Deadline) -> Result<Option<Busbw>, TransportError> {
    let mut tcp = Tcp::join(seat, TcpOptions::default(), deadline)?;
    let measured = all_reduce(&mut tcp, limits, deadline);
    if measured.is_err() {
        tcp.abort();
    }
    measured
}

/// All-reduce in several passes; the size is one that this way carries in time.
fn all_reduce(
    transport: &mut dyn Transport,
    limits: &Limits,
    deadline: &Deadline,
) -> Result<Option<Busbw>, TransportError> {
    let plan = |bytes| {
        let ranks = transport_ranks(transport);
        Plan::new(Collective::AllReduce, Dtype::F32, bytes, ranks).map_err(|error| {
            TransportError::Unsupported {
                transport: "all-reduce",
                what: error.to_string(),
            }
        })
    };
    let first = plan(FIRST_BYTES)?;
    let large = plan(limits.bytes)?;
    transport.prepare(&first, deadline)?;
    transport.run(1, deadline)?;
    let taken = slowest(transport, deadline)?;
    // A pass of several messages, and each pass no longer than its share.
    let pass = limits.pass / PASSES;
    let room = pass.as_secs_f64() / 2.0 / taken.as_secs_f64().max(1e-9);
    let mut plan = first;
    while plan.count < large.count && (plan.count as f64) * 2.0 <= first.count as f64 * room {
        plan.count = (plan.count * 2).min(large.count);
    }
    transport.prepare(&plan, deadline)?;
    let wrong = transport.verify(deadline)?;
    let wrong = transport.agree(wrong, deadline)?;
    if wrong > 0 {
        return Err(TransportError::Garbage {
            phase: deadline.phase().to_owned(),
            peer: transport.rank(),
            what: format!("sums of which {wrong} are wrong"),
        });
    }
    let taken = slowest(transport, deadline)?;
    let iterations = (pass.as_secs_f64() / taken.as_secs_f64().max(1e-6)).clamp(1.0, 2000.0) as u32;
    let mut passes: Vec<Vec<f64>> = Vec::new();
    let share = deadline.remaining().unwrap_or_default() / 2;
    for pass in 0..PASSES {
        // A machine that turns out to be busier than it seemed makes fewer passes; all ranks agree on it.
        let is_late = deadline.remaining().is_none_or(|left| left < share);
        if transport.agree(u64::from(is_late && pass > 0), deadline)? > 0 {
            break;
        }
        let times = transport.run(iterations, deadline)?;
        passes.push(times.iter().map(|time| time.as_secs_f64() * 1e6).collect());
    }
    conclude(transport, &plan, &passes, deadline)
}

fn transport_ranks(transport: &dyn Transport) -> usize {
    transport.ranks()
}

/// How long one iteration takes on the slowest rank.
fn slowest(transport: &mut dyn Transport, deadline: &Deadline) -> Result<Duration, TransportError> {
    transport.barrier(deadline)?;
    let mine = transport.run(2, deadline)?.into_iter().max().unwrap_or_default();
    let nanoseconds = u64::try_from(mine.as_nanos()).unwrap_or(u64::MAX);
    Ok(Duration::from_nanos(transport.agree(nanoseconds, deadline)?))
}

fn conclude(
    transport: &mut dyn Transport,
    plan: &Plan,
    passes: &[Vec<f64>],
    deadline: &Deadline,
) -> Result<Option<Busbw>, TransportError> {
    let mine = RankTimes {
        rank: transport.rank(),
        times: passes.concat(),
        nwrong: Some(0),
    };
    let Some(ranks) = transport.gather(mine, deadline)? else {
        return Ok(None);
    };
    // Of each pass by itself: how much passes differ is how sure the whole is.
    let of_pass = |pass: usize| {
        let (from, to) = (
            passes[..pass].iter().map(Vec::len).sum(),
            passes[..=pass].iter().map(Vec::len).sum(),
        );
        let part = |rank: &RankTimes| RankTimes {
            times: rank.times.get(from..to).unwrap_or_default().to_vec(),
            ..rank.clone()
        };
        Timing::new(plan, ranks.iter().map(part).collect()).bus_bw
    };
    let mut values: Vec<f64> = (0..passes.len()).map(of_pass).collect();
    let value = paceline_health::stats::median(&mut values).unwrap_or(0.0);
    let sigma = paceline_health::stats::robust_sigma(&mut values).unwrap_or(0.0);
    let about = transport.about();
    let details: Vec<String> = about
        .details
        .iter()
        .filter(|(name, _)| *name == "nccl")
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let mut conditions = format!("{} {} {} ranks", about.transport, plan.dtype, plan.ranks);
    for detail in details {
        conditions += ", ";
        conditions += &detail;
    }
    Ok(Some(Busbw {
        conditions,
        value,
        spread: if value > 0.0 { sigma / value } else { 0.0 },
        passes: u32::try_from(passes.len()).unwrap_or(PASSES),
        bytes: plan.bytes(),
    }))
}

/// An error of a transport names ranks; people know nodes.
fn blame(group: &Group, error: &TransportError) -> Failed {
    let rank = match error {
        TransportError::Deadline { peer, .. } => peer.0,
        TransportError::Lost { peer, .. }
        | TransportError::Garbage { peer, .. }
        | TransportError::Aborted { peer, .. }
        | TransportError::Unreached { peer, .. }
        | TransportError::Refused { peer, .. } => Some(*peer),
        _ => None,
    };
    let peer = rank.and_then(|rank| group.nodes.get(rank)).cloned();
    let names: Vec<String> = group
        .nodes
        .iter()
        .enumerate()
        .map(|(rank, node)| format!("rank {rank} is {node}"))
        .take(8)
        .collect();
    Failed {
        what: format!("{error} ({})", names.join(", ")),
        peer,
    }
}
