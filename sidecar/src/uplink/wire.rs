//! What travels between a sidecar and the aggregator, as MessagePack arrays.
//!
//! Each event is a byte string of its own inside the batch: one that this version cannot read costs itself and not
//! its neighbours, and the spool knows its size. A reader takes its own schema version and older ones (appended
//! fields have defaults); arrays of a newer one would not decode, so the handshake refuses a newer sender.

use paceline_health::codec::msgpack;
use paceline_health::event::Event;
use paceline_health::frame::{AGGREGATOR, SCHEMA_VERSION};
use paceline_health::id::{JobId, NodeId};
use paceline_health::{Frame, Provenance};
use serde::{Deserialize, Serialize};

pub use super::blob::Blob;
use super::bundle::Carried;
use super::pack;
use super::wanted::Wanted;
use crate::remedy::order::Order;

/// Largest message that is decoded, bytes.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Most bytes of events in one batch; a single larger event travels alone.
pub const BATCH_BYTES: usize = 128 << 10;
/// Most events in one batch.
pub const BATCH_EVENTS: usize = 1024;
/// Largest event that is sent or decoded, bytes.
pub const MAX_EVENT_BYTES: usize = 512 << 10;
/// Longest name of a job or a node, bytes.
pub const MAX_NAME_BYTES: usize = 512;

/// Why a message is not one.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Larger than is decoded.
    #[error("{bytes} bytes, at most {MAX_MESSAGE_BYTES} are read")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// A name in it is longer than is kept.
    #[error("a name is longer than {MAX_NAME_BYTES} bytes")]
    Name,
    /// Packed with a dictionary of another version.
    #[error("packed with dictionary {version}, which this version does not have")]
    Dictionary {
        /// Its number.
        version: u8,
    },
    /// Packed, and damaged.
    #[error("not what was packed")]
    Packed,
    /// Not MessagePack, or of another shape.
    #[error("{0}")]
    Malformed(#[from] msgpack::Error),
}

/// From a sidecar to the aggregator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Up {
    /// First message on every link.
    Hello(Hello),
    /// Frames.
    Batch(Batch),
    /// What a relay carries: messages of its nodes, each with its route.
    Carried(Carried),
}

/// From the aggregator to a sidecar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Down {
    /// The link is good.
    Welcome(Welcome),
    /// This is your job's aggregator, but it still reads its journal: ask again.
    Later(Later),
    /// It is not, and why.
    Refused(Refused),
    /// Everything up to here is safe.
    Ack(Ack),
    /// More than sums is asked for.
    Wanted(Wanted),
    /// Something is to be done on the node.
    Order(Order),
    /// Messages may come packed.
    Reads(Reads),
    /// Answers to what a relay carried, by route.
    Carried(Carried),
}

/// Who is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Schema version of the sender.
    pub v: u16,
    /// Its job: two jobs on one port must not meet.
    pub job: JobId,
    /// Its node.
    pub node: NodeId,
    /// Its incarnation.
    pub agent: u64,
}

/// See [`Down::Welcome`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Schema version of the aggregator.
    pub v: u16,
    /// Its job.
    pub job: JobId,
    /// The incarnation that is welcome: an answer to another one's question is none.
    pub agent: u64,
    /// Number of its journal: another one knows nobody who attached before.
    pub journal: u64,
    /// What it has of this incarnation.
    pub upto: u64,
}

/// See [`Down::Later`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Later {
    /// Its job.
    pub job: JobId,
}

/// See [`Down::Refused`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// For people.
    pub why: String,
}

/// See [`Down::Ack`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Schema version of the aggregator.
    pub v: u16,
    /// Its job.
    pub job: JobId,
    /// The incarnation whose frames these are.
    pub agent: u64,
    /// The last of its frames that is safe, and all before it.
    pub upto: u64,
}

/// See [`Down::Reads`]: follows a welcome. Who does not know it goes over it and packs nothing, and who never hears it packs
/// nothing, so that versions meet plainly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reads {
    /// Its job.
    pub job: JobId,
    /// The incarnation that was welcome.
    pub agent: u64,
    /// The newest dictionary ([`pack::DICTIONARY`]) that is known there, and all before it.
    pub dictionary: u8,
}

/// Frames of consecutive sequence numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Schema version of every event in it.
    pub v: u16,
    /// The job.
    pub job: JobId,
    /// The node that saw them.
    pub node: NodeId,
    /// Incarnation of its sidecar.
    pub agent: u64,
    /// The frame before the first one that the sender still has; zero: it has none. What lies between the two is
    /// gone for good, so a receiver that holds `after` may take the batch and count the hole as lost.
    pub after: u64,
    /// Sequence number of the first event.
    pub first_seq: u64,
    /// The events: [`encode_event`].
    pub events: Vec<Blob>,
}

/// An event and where it came from, encoded.
pub fn encode_event(provenance: Provenance, event: &Event) -> Vec<u8> {
    // Serialising plain data into memory does not fail; an empty blob would be counted as unreadable.
    rmp_serde::to_vec(&(provenance, event)).unwrap_or_default()
}

/// The frame of an encoded event.
///
/// # Errors
/// [`WireError`]
pub fn decode_event(batch: &Batch, seq: u64, blob: &Blob) -> Result<Frame, WireError> {
    if blob.0.len() > MAX_EVENT_BYTES {
        return Err(WireError::TooLarge { bytes: blob.0.len() });
    }
    let (provenance, event): (Provenance, Event) = msgpack::from_slice(&blob.0)?;
    Ok(Frame {
        v: batch.v,
        node: batch.node.clone(),
        agent: batch.agent,
        seq,
        provenance,
        event,
    })
}

/// Any of the messages as bytes.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    rmp_serde::to_vec(message).unwrap_or_default()
}

/// Reads a message of a sidecar, packed or not. The size is checked before anything is allocated.
///
/// # Errors
/// [`WireError`]
pub fn decode_up(bytes: &[u8]) -> Result<Up, WireError> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(WireError::TooLarge { bytes: bytes.len() });
    }
    let up: Up = decode(&pack::unpack(bytes)?)?;
    let (job, node) = match &up {
        Up::Hello(hello) => (&hello.job, &hello.node),
        Up::Batch(batch) => (&batch.job, &batch.node),
        // Each message in it is checked when it is read.
        Up::Carried(_) => return Ok(up),
    };
    let fits = job.as_str().len() <= MAX_NAME_BYTES && node.as_str().len() <= MAX_NAME_BYTES;
    if fits { Ok(up) } else { Err(WireError::Name) }
}

/// Reads a message of the aggregator.
///
/// # Errors
/// [`WireError`]
pub fn decode_down(bytes: &[u8]) -> Result<Down, WireError> {
    decode(bytes)
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, WireError> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(WireError::TooLarge { bytes: bytes.len() });
    }
    Ok(msgpack::from_slice(bytes)?)
}

impl Hello {
    /// Why this job's aggregator cannot take the sender, if it cannot.
    pub fn refusal(&self, job: &JobId) -> Option<String> {
        if self.job != *job {
            Some(format!("this is the aggregator of job {job}"))
        } else if self.v > SCHEMA_VERSION {
            Some(format!(
                "schema version {} is newer than {SCHEMA_VERSION}: update paceline here",
                self.v
            ))
        } else if self.agent == AGGREGATOR {
            // Who spoke as it could say that the job has ended.
            Some(format!("incarnation {AGGREGATOR} does not belong to a sidecar"))
        } else {
            None
        }
    }
}

impl Welcome {
    /// Whether this answers that question.
    pub fn is_for(&self, hello: &Hello) -> bool {
        self.job == hello.job && self.agent == hello.agent
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use paceline_health::event::{Exit, GpuReading, GpuSignal, Missing, Reading};
    use proptest::prelude::*;

    use super::*;

    fn batch(events: Vec<Blob>) -> Batch {
        Batch {
            v: SCHEMA_VERSION,
            job: "j".into(),
            node: "n".into(),
            agent: 7,
            after: 0,
            first_seq: 5,
            events,
        }
    }

    #[test]
    fn every_shape_of_reading_survives() {
        let event = Event::Gpu(GpuReading {
            gpu: "GPU-1".into(),
            pci: "0000:b3:00.0".into(),
            model: "Simulated H100".into(),
            readings: [
                (GpuSignal::TemperatureC, Reading::Value(61.0)),
                (GpuSignal::MarginC, Reading::Missing(Missing::Unsupported)),
                (
                    GpuSignal::PowerW,
                    Reading::Missing(Missing::Error(Arc::from("lost"))),
                ),
            ]
            .into(),
        });
        let batch = batch(vec![Blob(encode_event(Provenance::Sim, &event))]);
        let Up::Batch(back) = decode_up(&encode(&Up::Batch(batch.clone()))).unwrap() else {
            panic!("no batch")
        };
        assert_eq!(back, batch);
        let frame = decode_event(&back, 5, &back.events[0]).unwrap();
        assert_eq!(
            (frame.seq, frame.provenance, frame.event),
            (5, Provenance::Sim, event)
        );
    }

    /// Fields appended with a default are filled in for an older writer: what the schema promises.
    #[test]
    fn an_older_writer_is_read() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct New(u32, #[serde(default)] u64);
        assert_eq!(msgpack::from_slice::<New>(&encode(&(3u32,))).unwrap(), New(3, 0));
        // The other way round does not decode, which is why a newer sender is refused in the handshake.
        assert!(msgpack::from_slice::<(u32,)>(&encode(&New(3, 9))).is_err());
    }

    #[test]
    fn sizes_are_checked_first() {
        assert!(matches!(
            decode_up(&vec![0; MAX_MESSAGE_BYTES + 1]),
            Err(WireError::TooLarge { .. })
        ));
        let long = Hello {
            v: 1,
            job: "j".into(),
            node: "n".repeat(513).as_str().into(),
            agent: 1,
        };
        assert!(matches!(
            decode_up(&encode(&Up::Hello(long))),
            Err(WireError::Name)
        ));
        // An array header that claims four billion events, and a byte string that claims four gigabytes.
        for claim in [[0xdd, 0xff, 0xff, 0xff, 0xff], [0xc6, 0xff, 0xff, 0xff, 0xff]] {
            let mut bytes = encode(&Up::Batch(batch(Vec::new())));
            bytes.pop();
            bytes.extend(claim);
            assert!(decode_up(&bytes).is_err());
        }
    }

    #[test]
    fn refusals() {
        let why = |v, job: &str, agent| {
            let (job, node) = (job.into(), "n".into());
            Hello { v, job, node, agent }.refusal(&"a".into())
        };
        assert_eq!(why(SCHEMA_VERSION, "a", 1), None);
        for (refusal, says) in [
            (why(SCHEMA_VERSION, "b", 1), "job a"),
            (why(SCHEMA_VERSION + 1, "a", 1), "newer"),
            (why(SCHEMA_VERSION, "a", 0), "incarnation 0"),
        ] {
            assert!(refusal.unwrap().contains(says), "{says}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode_up(&bytes);
            let _ = decode_down(&bytes);
            let _ = decode_event(&batch(Vec::new()), 1, &Blob(bytes));
        }

        /// A message damaged in one place is refused or read as another, never a panic.
        #[test]
        fn damaged_bytes_never_panic(at in 0usize..60, value in any::<u8>()) {
            let events = vec![Blob(encode_event(Provenance::Live, &Event::Exit(Exit { code: 3 })))];
            let mut bytes = encode(&Up::Batch(batch(events)));
            let at = at % bytes.len();
            bytes[at] = value;
            if let Ok(Up::Batch(batch)) = decode_up(&bytes) {
                for (i, blob) in batch.events.iter().enumerate() {
                    let _ = decode_event(&batch, i as u64, blob);
                }
            }
        }
    }
}
