//! The response as JSON (NCCL 2.28.7 and later). It is parsed as a stream, so that only one communicator is in memory
//! at a time.
//!
//! See <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html>.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;

use paceline_health::event::{RasReport, RasState};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::mend::Mend;
use super::tally::{Communicator, Member, Tally, Who};

/// Maximum number of ranks of one communicator.
const MAX_RANKS: usize = 1 << 16;
/// Maximum number of kinds of collectives per rank.
const MAX_KINDS: usize = 32;
/// Names of known kinds. They are constants so that storing a name takes no memory (src/include/nccl_common.h of NCCL).
const KINDS: [&str; 11] = [
    "Broadcast",
    "Reduce",
    "AllGather",
    "ReduceScatter",
    "AllReduce",
    "SendRecv",
    "Send",
    "Recv",
    "AlltoAll",
    "Gather",
    "Scatter",
];

/// Reads a response to its end.
///
/// # Errors
/// The error and its position.
pub fn read(input: impl Read) -> Result<RasReport, serde_json::Error> {
    let mut tally = Tally::default();
    let input = std::io::BufReader::new(Mend::new(input));
    let mut json = serde_json::Deserializer::from_reader(input);
    Answer(&mut tally).deserialize(&mut json)?;
    Ok(tally.finish())
}

struct Answer<'a>(&'a mut Tally);

impl<'de> DeserializeSeed<'de> for Answer<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Answer<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer of NCCL's RAS service")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let mut has_comms = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "nccl_version" => self.0.nccl = map.next_value()?,
                "communicators" => {
                    has_comms = true;
                    map.next_value_seed(Comms(self.0))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if has_comms {
            Ok(())
        } else {
            Err(M::Error::missing_field("communicators"))
        }
    }
}

struct Comms<'a>(&'a mut Tally);

impl<'de> DeserializeSeed<'de> for Comms<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Comms<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("communicators")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<(), S::Error> {
        while let Some(comm) = seq.next_element::<RawComm>()? {
            self.0.communicator(comm.checked());
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct RawComm {
    hash: String,
    size: u32,
    #[serde(default)]
    ranks: Listed<RawRank>,
    #[serde(default)]
    missing_ranks: Listed<RawMissing>,
}

#[derive(Deserialize)]
struct RawRank {
    rank: u32,
    #[serde(default)]
    host: String,
    #[serde(default)]
    pid: i64,
    #[serde(default)]
    cuda_dev: i64,
    #[serde(default)]
    status: RawStatus,
    #[serde(default)]
    collective_counts: Counts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatus {
    init_state: i64,
    async_error: i64,
    abort_flag: bool,
}

#[derive(Deserialize)]
struct RawMissing {
    rank: u32,
    #[serde(default)]
    host: String,
    #[serde(default)]
    pid: i64,
    #[serde(default)]
    cuda_dev: i64,
    #[serde(default)]
    status: RawAbsence,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawAbsence {
    considered_dead: bool,
}

/// The code `ncclInProgress`, which is no error (src/nccl.h.in of NCCL).
const IN_PROGRESS: i64 = 7;

impl RawComm {
    fn checked(self) -> Communicator {
        let member = |raw: RawRank| {
            let is_error = |code: i64| code != 0 && code != IN_PROGRESS;
            let trouble = if is_error(raw.status.async_error) || is_error(raw.status.init_state) {
                Some(RasState::Failed)
            } else {
                raw.status.abort_flag.then_some(RasState::Aborted)
            };
            Member {
                who: who(&raw.host, raw.pid, raw.cuda_dev),
                rank: raw.rank,
                trouble,
                counts: raw.collective_counts.0,
            }
        };
        let missing = |raw: RawMissing| {
            let state = if raw.status.considered_dead {
                RasState::Dead
            } else {
                RasState::Unresponsive
            };
            (who(&raw.host, raw.pid, raw.cuda_dev), raw.rank, state)
        };
        Communicator {
            hash: number(&self.hash).unwrap_or(0),
            size: self.size,
            members: self.ranks.0.into_iter().map(member).collect(),
            missing: self.missing_ranks.0.into_iter().map(missing).collect(),
        }
    }
}

/// Converts the identity of a process. NCCL uses negative numbers for unknown values.
fn who(host: &str, pid: i64, device: i64) -> Who {
    let host = if host == "unknown" { "" } else { host };
    Who {
        host: host.into(),
        pid: u32::try_from(pid).unwrap_or(0),
        device: u32::try_from(device).unwrap_or(0),
    }
}

/// Parses a number such as `0xae94423cfbb2ef4a`, with or without the prefix.
pub fn number(hex: &str) -> Option<u64> {
    u64::from_str_radix(hex.trim_start_matches("0x"), 16).ok()
}

/// A list of bounded length.
struct Listed<T>(Vec<T>);

impl<T> Default for Listed<T> {
    fn default() -> Listed<T> {
        Listed(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Listed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Listed<T>, D::Error> {
        struct List<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = Listed<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of ranks")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Listed<T>, S::Error> {
                let mut list = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if list.len() >= MAX_RANKS {
                        return Err(S::Error::custom("a communicator of more ranks than there can be"));
                    }
                    list.push(item);
                }
                Ok(Listed(list))
            }
        }
        deserializer.deserialize_seq(List(PhantomData))
    }
}

#[derive(Default)]
struct Counts(Vec<(Cow<'static, str>, u64)>);

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Counts, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Counts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("counts by collective")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Counts, M::Error> {
                let mut counts = Vec::new();
                while let Some((name, count)) = map.next_entry::<String, u64>()? {
                    let known = KINDS.iter().find(|kind| **kind == name);
                    if counts.len() < MAX_KINDS {
                        counts.push((known.map_or(Cow::Owned(name), |kind| Cow::Borrowed(*kind)), count));
                    }
                }
                Ok(Counts(counts))
            }
        }
        deserializer.deserialize_map(Map)
    }
}
