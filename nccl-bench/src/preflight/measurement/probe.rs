//! Measures delay and loss of the link between two nodes, separately from its bandwidth.
//!
//! Messages are small and few are in flight, so that no queue fills. Retransmissions therefore mean real loss, not the
//! losses that TCP itself causes when it probes for a link's rate.

use std::time::{Duration, Instant};

use super::tcp_info::{Segments, segments};
use crate::net::{Purpose, Seat, Wire};
use crate::transport::{Deadline, TransportError};

/// Number of parallel connections. A lost message blocks one of them for 200 ms, which is the kernel's minimum timeout.
const LANES: u16 = 4;
/// First lane number of a probe. It keeps a probe's lanes separate from those of transports.
const FIRST_LANE: u16 = 0x7000;
/// Size of a message, which is about six Ethernet frames.
const MESSAGE: usize = 8 << 10;
/// Limit of messages per lane. Over all lanes these are 2,000 messages, so that a loss of 1 % is 20 messages.
const MESSAGES: u32 = 500;
const PINGS: u32 = 200;

const ECHO: u8 = 1;
const END: u8 = 0;

/// The result of a probe. Both ends get the same result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Probed {
    /// Round trip of a small message, in seconds. It is the tenth percentile, which is insensitive to a busy CPU.
    pub round_trip: f64,
    /// Number of round trips.
    pub pings: u32,
    /// Segments sent in both directions.
    pub segments: Segments,
}

/// A probe that did not finish.
#[derive(Debug)]
pub struct Unfinished {
    /// The error.
    pub error: TransportError,
    /// The results so far, with only this end's segments.
    pub seen: Probed,
}

/// Probes the link to `peer`. Both ends call this function at the same time, and the lower rank leads.
pub fn probe(
    seat: &mut Seat,
    peer: usize,
    time: Duration,
    deadline: &Deadline,
) -> Result<Probed, Unfinished> {
    let mut seen = Probed::default();
    let lanes: Result<Vec<Wire>, _> = (0..LANES)
        .map(|lane| seat.connect(peer, Purpose::Data(FIRST_LANE + lane), deadline))
        .collect();
    let lanes = match lanes {
        Ok(lanes) => lanes,
        Err(error) => return Err(Unfinished { error, seen }),
    };
    match converse(&lanes, seat.rank < peer, peer, time, deadline, &mut seen) {
        Ok(()) => Ok(seen),
        Err(error) => {
            // With very high loss no message gets through in time, but the kernel has still counted the segments.
            seen.segments = counted(&lanes, deadline).unwrap_or_default();
            Err(Unfinished { error, seen })
        }
    }
}

fn converse(
    lanes: &[Wire],
    leads: bool,
    peer: usize,
    time: Duration,
    deadline: &Deadline,
    seen: &mut Probed,
) -> Result<(), TransportError> {
    let mut trips = ping(&lanes[0], leads, time / 2, deadline)?;
    trips.sort_by(f64::total_cmp);
    seen.round_trip = trips.get(trips.len() / 10).copied().unwrap_or(0.0);
    seen.pings = u32::try_from(trips.len()).unwrap_or(u32::MAX);
    let until = Instant::now() + time;
    std::thread::scope(|scope| {
        let workers: Vec<_> = lanes
            .iter()
            .map(|lane| {
                scope.spawn(move || exchange(lane, leads, MESSAGE, MESSAGES, until, deadline).map(|_| ()))
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(deadline.passed(Some(peer)))))
            .collect::<Result<Vec<()>, _>>()
    })?;
    let own = counted(lanes, deadline)?;
    let theirs = swap(&lanes[0], own, deadline)?;
    seen.segments = Segments {
        sent: own.sent + theirs.sent,
        again: own.again + theirs.again,
    };
    Ok(())
}

fn ping(lane: &Wire, leads: bool, time: Duration, deadline: &Deadline) -> Result<Vec<f64>, TransportError> {
    exchange(lane, leads, 8, PINGS, Instant::now() + time, deadline)
}

/// Sends messages and receives them back on the leading end, up to a count or time limit. Returns the seconds that each
/// one took. The other end echoes the messages.
fn exchange(
    lane: &Wire,
    leads: bool,
    bytes: usize,
    count: u32,
    until: Instant,
    deadline: &Deadline,
) -> Result<Vec<f64>, TransportError> {
    let mut message = vec![ECHO; bytes];
    let mut trips = Vec::new();
    if leads {
        // Exchange at least a few messages, regardless of the time.
        for sent in 0..count {
            if sent >= 5 && Instant::now() > until {
                break;
            }
            let begin = Instant::now();
            lane.write(&message, deadline)?;
            lane.read(&mut message, deadline)?;
            trips.push(begin.elapsed().as_secs_f64());
        }
        message.fill(END);
        lane.write(&message, deadline)?;
    } else {
        loop {
            lane.read(&mut message, deadline)?;
            if message[0] == END {
                break;
            }
            lane.write(&message, deadline)?;
        }
    }
    Ok(trips)
}

fn counted(lanes: &[Wire], deadline: &Deadline) -> Result<Segments, TransportError> {
    let mut all = Segments::default();
    for lane in lanes {
        let counted = segments(lane.stream()).map_err(|error| lane.lost(error, deadline))?;
        all.sent += counted.sent;
        all.again += counted.again;
    }
    Ok(all)
}

fn swap(lane: &Wire, own: Segments, deadline: &Deadline) -> Result<Segments, TransportError> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&own.sent.to_le_bytes());
    bytes[8..].copy_from_slice(&own.again.to_le_bytes());
    lane.write(&bytes, deadline)?;
    lane.read(&mut bytes, deadline)?;
    let number = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    Ok(Segments {
        sent: number(0),
        again: number(8),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::loopback;

    #[test]
    fn what_was_sent_is_counted_though_nobody_answers() {
        let deadline = |ms| Deadline::new("pairs", Duration::from_millis(ms));
        let mut places = loopback(2, None).unwrap().into_iter();
        let (mine, theirs) = (places.next().unwrap(), places.next().unwrap());
        let (end, over) = std::sync::mpsc::channel::<()>();
        let silent = std::thread::spawn(move || {
            let mut seat = Seat::take(theirs).unwrap();
            let lane = |lane| {
                seat.connect(0, Purpose::Data(FIRST_LANE + lane), &deadline(10_000))
                    .unwrap()
            };
            let lanes: Vec<Wire> = (0..LANES).map(lane).collect();
            let _ = over.recv();
            drop(lanes);
        });
        let mut seat = Seat::take(mine).unwrap();
        let ended = probe(&mut seat, 1, Duration::from_millis(50), &deadline(1000));
        let Err(Unfinished { error, seen }) = ended else {
            panic!("nobody answered: {ended:?}")
        };
        assert!(matches!(error, TransportError::Deadline { .. }), "{error}");
        assert!(seen.segments.sent > 0 && seen.pings == 0, "{seen:?}");
        drop(end);
        silent.join().unwrap();
    }
}
