//! The messages between a sidecar and the aggregator, as MessagePack arrays.
//!
//! Each event is a separate byte string in the batch. An event that this version cannot read therefore does not affect
//! the others, and the spool can measure its size. A reader accepts its own schema version and older ones, because
//! appended fields have defaults. Arrays of a newer version would not decode, so the handshake refuses a newer sender.

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

/// Maximum size of a message that is decoded, bytes.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Maximum size of the events in one batch, bytes. A single larger event is sent alone.
pub const BATCH_BYTES: usize = 128 << 10;
/// Maximum number of events in one batch.
pub const BATCH_EVENTS: usize = 1024;
/// Maximum size of an event that is sent or decoded, bytes.
pub const MAX_EVENT_BYTES: usize = 512 << 10;
/// Maximum length of the name of a job or a node, bytes.
pub const MAX_NAME_BYTES: usize = 512;

/// Why a message is invalid.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The message is larger than the limit.
    #[error("{bytes} bytes, at most {MAX_MESSAGE_BYTES} are read")]
    TooLarge {
        /// Size of the message.
        bytes: usize,
    },
    /// A name exceeds the limit.
    #[error("a name is longer than {MAX_NAME_BYTES} bytes")]
    Name,
    /// The message is packed with an unknown dictionary.
    #[error("packed with dictionary {version}, which this version does not have")]
    Dictionary {
        /// Number of the dictionary.
        version: u8,
    },
    /// The message is packed, but damaged.
    #[error("not what was packed")]
    Packed,
    /// The message is not MessagePack, or has another structure.
    #[error("{0}")]
    Malformed(#[from] msgpack::Error),
}

/// A message from a sidecar to the aggregator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Up {
    /// The first message on every link.
    Hello(Hello),
    /// A batch of frames.
    Batch(Batch),
    /// Messages that a relay forwards for its nodes, each with its route.
    Carried(Carried),
}

/// A message from the aggregator to a sidecar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Down {
    /// The link is accepted.
    Welcome(Welcome),
    /// This is the job's aggregator, but it is still reading its journal. The sidecar should try again.
    Later(Later),
    /// The link is refused, with the reason.
    Refused(Refused),
    /// Every frame up to this one is safe.
    Ack(Ack),
    /// A request for each collective of some communicators, in place of sums.
    Wanted(Wanted),
    /// An action for the node.
    Order(Order),
    /// Packed messages are accepted.
    Reads(Reads),
    /// Answers to messages that a relay forwarded, by route.
    Carried(Carried),
}

/// Identifies the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Schema version of the sender.
    pub v: u16,
    /// The sender's job. It is needed because two jobs may use one port.
    pub job: JobId,
    /// The sender's node.
    pub node: NodeId,
    /// The sender's incarnation.
    pub agent: u64,
}

/// See [`Down::Welcome`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Schema version of the aggregator.
    pub v: u16,
    /// The aggregator's job.
    pub job: JobId,
    /// The accepted incarnation. An answer to another one is ignored.
    pub agent: u64,
    /// The number of the aggregator's journal. A different journal does not contain earlier introductions.
    pub journal: u64,
    /// The last frame of this incarnation that the aggregator has.
    pub upto: u64,
}

/// See [`Down::Later`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Later {
    /// The aggregator's job.
    pub job: JobId,
}

/// See [`Down::Refused`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Reason, for users.
    pub why: String,
}

/// See [`Down::Ack`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Schema version of the aggregator.
    pub v: u16,
    /// The aggregator's job.
    pub job: JobId,
    /// The incarnation that sent the frames.
    pub agent: u64,
    /// The last safe frame. All earlier ones are safe, too.
    pub upto: u64,
}

/// The message [`Down::Reads`], which follows a welcome. A sidecar that does not support it ignores it and packs
/// nothing. A sidecar that never receives it also packs nothing. Different versions thus use plain messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reads {
    /// The aggregator's job.
    pub job: JobId,
    /// The accepted incarnation.
    pub agent: u64,
    /// The newest supported dictionary ([`pack::DICTIONARY`]). Older ones are supported, too.
    pub dictionary: u8,
}

/// Frames of consecutive sequence numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Schema version of every event in it.
    pub v: u16,
    /// The job.
    pub job: JobId,
    /// The node whose sidecar sent the events.
    pub node: NodeId,
    /// The incarnation of the sidecar.
    pub agent: u64,
    /// The frame before the first one that the sender still has, or zero if there is none. Frames between `after` and
    /// `first_seq` are permanently lost. A receiver that has `after` may therefore take the batch and count the gap as
    /// lost.
    pub after: u64,
    /// Sequence number of the first event.
    pub first_seq: u64,
    /// The events, encoded by [`encode_event`].
    pub events: Vec<Blob>,
}

/// Encodes an event and its provenance.
pub fn encode_event(provenance: Provenance, event: &Event) -> Vec<u8> {
    // Serializing plain data into memory does not fail. If it did, the empty blob would be counted as unreadable.
    rmp_serde::to_vec(&(provenance, event)).unwrap_or_default()
}

/// Decodes the frame of an event.
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

/// Encodes any of the messages.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    rmp_serde::to_vec(message).unwrap_or_default()
}

/// Decodes a message of a sidecar, which may be packed. The size is checked before anything is allocated.
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
        // Each contained message is checked later, when it is decoded.
        Up::Carried(_) => return Ok(up),
    };
    let fits = job.as_str().len() <= MAX_NAME_BYTES && node.as_str().len() <= MAX_NAME_BYTES;
    if fits { Ok(up) } else { Err(WireError::Name) }
}

/// Decodes a message of the aggregator.
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
    /// Returns why this job's aggregator refuses the sender, or `None` if it does not.
    pub fn refusal(&self, job: &JobId) -> Option<String> {
        if self.job != *job {
            Some(format!("this is the aggregator of job {job}"))
        } else if self.v > SCHEMA_VERSION {
            Some(format!(
                "schema version {} is newer than {SCHEMA_VERSION}: update paceline here",
                self.v
            ))
        } else if self.agent == AGGREGATOR {
            // A sender with this number could claim that the job has ended.
            Some(format!("incarnation {AGGREGATOR} does not belong to a sidecar"))
        } else {
            None
        }
    }
}

impl Welcome {
    /// Returns true if this message answers that greeting.
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

    /// If an older writer did not write an appended field, its default is filled in, as the schema promises.
    #[test]
    fn an_older_writer_is_read() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct New(u32, #[serde(default)] u64);
        assert_eq!(msgpack::from_slice::<New>(&encode(&(3u32,))).unwrap(), New(3, 0));
        // The reverse does not decode. That is why the handshake refuses a newer sender.
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
        // The first bytes claim an array of four billion events. The second claim a byte string of four gigabytes.
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

        /// A message that is damaged in one place is rejected or decoded as another message, without a panic.
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
