//! Parses the responses that an aggregator sends to its live page (docs/page.md). Text from outside is clipped and
//! sanitized before any other use.

use std::time::{Duration, Instant};

use paceline_health::codec::base64;
use paceline_health::text::sanitize::{SENTENCE, clip};
use paceline_health::verdict::Severity;
use paceline_sidecar::sink::page::ranks;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The version of the data that is supported.
const VERSION: u64 = 1;

/// Text from outside, which is clipped and has no control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Text(String);

impl Text {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text(clip(text, SENTENCE))
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text, D::Error> {
        Ok(Text::from(&*String::deserialize(from)?))
    }
}

/// A response: either all data, or an update with newer data.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct News {
    v: u64,
    pub(crate) epoch: Text,
    pub(crate) serial: u64,
    pub(crate) report: Option<Report>,
    pub(crate) places: Option<Places>,
    #[serde(default, deserialize_with = "packed")]
    pub(crate) gpus: Option<Vec<u8>>,
    #[serde(default)]
    pub(crate) ranks: Option<Ranks>,
    #[serde(default)]
    steps: Vec<Vec<Value>>,
    /// Time in seconds since the last step that all ranks finished.
    #[serde(default)]
    still_s: Option<f64>,
}

impl News {
    /// Parses a response.
    ///
    /// # Errors
    /// Returns a description of the invalid data.
    pub(crate) fn read(text: &str) -> Result<News, String> {
        let news: News =
            serde_json::from_str(text).map_err(|error| format!("its answer is invalid: {error}"))?;
        if news.v != VERSION {
            return Err(format!(
                "its data has version {}, this paceline reads {VERSION}: use the same version for both",
                news.v
            ));
        }
        Ok(news)
    }

    /// Returns the time when all ranks had finished the last step.
    pub(crate) fn step_at(&self, now: Instant) -> Option<Instant> {
        let still = Duration::try_from_secs_f64(self.still_s?).ok()?;
        now.checked_sub(still)
    }

    /// Returns the newest step of this response.
    pub(crate) fn last_step(&self) -> Option<StepTimes> {
        StepTimes::of(self.steps.last()?)
    }
}

fn packed<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    let bytes = text.map(|text| base64::decode(&text).ok_or_else(|| serde::de::Error::custom("no base64")));
    bytes.transpose()
}

/// The state of the ranks: the newest step, and the bytes that [`ranks::standing`] decodes.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Ranks(
    pub(crate) Option<u64>,
    #[serde(deserialize_with = "bytes")] pub(crate) Vec<u8>,
);

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    base64::decode(&String::deserialize(from)?).ok_or_else(|| serde::de::Error::custom("no base64"))
}

impl Ranks {
    /// Returns the number of ranks.
    pub(crate) fn len(&self) -> usize {
        self.1.len() / ranks::BYTES
    }

    /// Returns the state of one rank.
    pub(crate) fn standing(&self, rank: usize) -> Option<ranks::Standing> {
        let packed = self.1.chunks_exact(ranks::BYTES).nth(rank)?;
        packed.try_into().ok().map(ranks::standing)
    }
}

/// The times of one step, over its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct StepTimes {
    pub(crate) step: u64,
    pub(crate) at_s: f64,
    pub(crate) p50_s: f64,
    pub(crate) p99_s: f64,
    pub(crate) max_s: f64,
    /// The mean times of data, compute, wait, optimizer and checkpoint.
    #[serde(skip)]
    pub(crate) phases_s: Option<[f64; 5]>,
    /// Number of ranks that were compared.
    pub(crate) ranks: u64,
    /// True if self-times were compared. Otherwise, whole steps were.
    #[serde(skip)]
    pub(crate) is_self: bool,
}

impl StepTimes {
    /// Parses a column of the heat map. Its values have fixed positions, and later versions may append more.
    fn of(column: &[Value]) -> Option<StepTimes> {
        let number = |place: usize| column.get(place)?.as_f64();
        let phases = column.get(7).and_then(Value::as_array).map(|phases| {
            let mut five = [0.0; 5];
            five.iter_mut()
                .zip(phases)
                .for_each(|(to, from)| *to = from.as_f64().unwrap_or(0.0));
            five
        });
        Some(StepTimes {
            step: column.first()?.as_u64()?,
            at_s: number(3)?,
            p50_s: number(4)?,
            p99_s: number(5)?,
            max_s: number(6)?,
            phases_s: phases,
            ranks: column.get(8)?.as_u64()?,
            is_self: column.get(12).and_then(Value::as_bool).unwrap_or(false),
        })
    }
}

/// The part of the report that is in a response.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub(crate) job: Text,
    pub(crate) dir: Text,
    pub(crate) world: u64,
    pub(crate) steps: u64,
    pub(crate) median_s: Option<f64>,
    pub(crate) duration_s: f64,
    pub(crate) findings: u64,
    pub(crate) raised: u64,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) coverage: Coverage,
    pub(crate) cost: Cost,
    pub(crate) end: Option<Ending>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Coverage {
    pub(crate) ranks_seen: u64,
    pub(crate) ranks_expected: u64,
    pub(crate) steps_ratio: Option<f64>,
    pub(crate) signals: Vec<Text>,
    pub(crate) gaps: u64,
    pub(crate) notes: Vec<Text>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Cost {
    pub(crate) gpu_hours: f64,
    pub(crate) lost_gpu_hours: f64,
    pub(crate) goodput: Option<f64>,
    pub(crate) lost_cost: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Ending {
    pub(crate) reason: Text,
    pub(crate) node: Option<Text>,
    pub(crate) rank: Option<u32>,
    pub(crate) code: Option<i32>,
    pub(crate) says: Text,
}

/// One finding.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Verdict {
    pub(crate) id: u64,
    pub(crate) finding: Text,
    pub(crate) title: Text,
    pub(crate) means: Text,
    pub(crate) whom: Text,
    pub(crate) subject: Subject,
    pub(crate) severity: Text,
    pub(crate) raised: bool,
    pub(crate) since_s: f64,
    pub(crate) since_step: Option<u64>,
    pub(crate) raised_s: f64,
    pub(crate) raised_step: Option<u64>,
    pub(crate) cleared_s: Option<f64>,
    pub(crate) provenance: Text,
    pub(crate) slowdown: Option<f64>,
    /// What the values are compared with, in words such as `its peers` or `before`. `reference` is the same for
    /// evidence. Both are empty from an older version.
    pub(crate) beside: Text,
    pub(crate) reference: Text,
    pub(crate) cause: Text,
    /// The cause as text.
    pub(crate) why: Text,
    /// The evidence: its name, the subject's value, and its peers' value.
    pub(crate) evidence: Vec<[Text; 3]>,
    pub(crate) impact: Option<f64>,
    pub(crate) lost_gpu_hours: f64,
    pub(crate) lost_cost: Option<f64>,
    pub(crate) action: Text,
    pub(crate) observe_only: bool,
}

impl Verdict {
    /// Returns the severity. An unknown word counts as a warning.
    pub(crate) fn severity(&self) -> Severity {
        match self.severity.as_str() {
            "critical" => Severity::Critical,
            "info" => Severity::Info,
            _ => Severity::Warning,
        }
    }
}

/// The subject of a finding.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Subject {
    pub(crate) kind: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rank: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gpu: Option<Text>,
    /// The GPUs, if the finding is about several GPUs of a node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) gpus: Vec<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rack: Option<Text>,
}

/// Names and locations. Indices refer to the lists here, and -1 means none.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Places {
    /// The name and rack of each node.
    pub(crate) nodes: Vec<(Text, Text)>,
    /// For each rank: its node, its GPU, and true if its process is running.
    pub(crate) ranks: Vec<(i64, i64, bool)>,
    /// For each GPU: its UUID, node, bus and model.
    pub(crate) gpus: Vec<(Text, i64, u32, u32)>,
    pub(crate) models: Vec<Text>,
    pub(crate) buses: Vec<Text>,
}

/// The last readings of a GPU. `None` if a value cannot be read, or was not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct GpuNow {
    pub(crate) temperature_c: Option<u16>,
    /// Number of degrees until the hardware throttles.
    pub(crate) margin_c: Option<i32>,
    pub(crate) sm_clock_mhz: Option<u16>,
    pub(crate) sm_clock_max_mhz: Option<u16>,
    pub(crate) power_w: Option<u16>,
    pub(crate) power_limit_w: Option<u16>,
    pub(crate) utilization_ratio: Option<f64>,
    /// Number of errors since monitoring started.
    pub(crate) ecc_uncorrected: Option<u16>,
    pub(crate) ecc_corrected: Option<u16>,
    #[serde(skip)]
    bits: u16,
}

/// The possible problems, by bit. The live page uses the same words.
const TROUBLES: [&str; 8] = [
    "slowed by heat",
    "at its power cap",
    "power brake",
    "rows wait to be remapped",
    "a row could not be remapped",
    "cannot be read",
    "PCIe lanes are missing",
    "an NVLink is down",
];
/// This bit is not shown as a problem, because a busy GPU is normally at its power cap.
const POWER_CAP: u16 = 1 << 1;
const FIELDS: usize = 10;
const UNKNOWN: u16 = u16::MAX;

impl GpuNow {
    /// Returns the readings of the GPU at this index.
    pub(crate) fn of(packed: &[u8], place: usize) -> GpuNow {
        let fields = packed.chunks_exact(FIELDS * 2).nth(place);
        let number = |field: usize| {
            let at = fields?.get(field * 2..field * 2 + 2)?;
            let number = u16::from_le_bytes(at.try_into().ok()?);
            (number != UNKNOWN).then_some(number)
        };
        GpuNow {
            temperature_c: number(0),
            margin_c: number(1).map(|margin| i32::from(margin) - 1000),
            sm_clock_mhz: number(2),
            sm_clock_max_mhz: number(3),
            power_w: number(4),
            power_limit_w: number(5),
            utilization_ratio: number(6).map(|busy| f64::from(busy) / 1000.0),
            ecc_uncorrected: number(7),
            ecc_corrected: number(8),
            bits: number(9).unwrap_or(0),
        }
    }

    /// Returns the current problems of the GPU.
    pub(crate) fn troubles(&self) -> impl Iterator<Item = &'static str> {
        let bits = self.bits & !POWER_CAP;
        let named = TROUBLES.into_iter().zip(0..);
        named
            .filter(move |(_, bit)| bits >> bit & 1 == 1)
            .map(|(name, _)| name)
    }
}
