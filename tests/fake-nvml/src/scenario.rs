//! The scenario file, which describes the GPUs, their readings and the faults. It is reloaded when it changes.
//!
//! ```toml
//! driver = "580.82.07"        # uses the column of tables/nvml.tsv for the newest driver up to it
//! profile = "h100"            # a100, h100, h200, b200
//! gpus = 8
//! init = "driver_not_loaded"  # the result of nvmlInit_v2; default: success
//! restarts = 1                # the driver was reloaded: clients must initialize again
//!
//! [gpu.3]                     # GPU 3 differs from its profile
//! temperature = 91
//! ecc_corrected = { at = 100, per_s = 17700 }
//! margin = "not_supported"
//! fail = "gpu_is_lost"        # the result of every call
//! hang = true                 # calls do not return while this is set
//! delay_ms = 20               # every call takes this long
//! mig = 2                     # two instances
//! processes = [4711]
//! calls = { nvmlDeviceGetUtilizationRates = "no_permission" }
//!
//! [[event]]                   # delivered once each; more may be appended while running
//! gpu = 3
//! xid = 48
//! count = 2000
//! gpu_instance = 1            # without it: the whole GPU
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;

/// NVML's names for its return codes, without their prefix.
pub const CODES: [(&str, u32); 16] = [
    ("uninitialized", 1),
    ("invalid_argument", 2),
    ("not_supported", 3),
    ("no_permission", 4),
    ("not_found", 6),
    ("insufficient_size", 7),
    ("driver_not_loaded", 9),
    ("timeout", 10),
    ("function_not_found", 13),
    ("gpu_is_lost", 15),
    ("reset_required", 16),
    ("lib_rm_version_mismatch", 18),
    ("argument_version_mismatch", 25),
    ("deprecated", 26),
    ("gpu_not_found", 28),
    ("unknown", 999),
];

/// A return code by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Failure(pub u32);

impl TryFrom<String> for Failure {
    type Error = String;

    fn try_from(name: String) -> Result<Failure, String> {
        let code = CODES.iter().find(|(known, _)| *known == name);
        code.map(|(_, code)| Failure(*code))
            .ok_or_else(|| format!("{name} is no return code"))
    }
}

/// A reading.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Item {
    /// A number.
    Number(f64),
    /// A running counter.
    Counter {
        /// The counter's value when the library was first initialized.
        at: f64,
        /// The counter's increase per second.
        per_s: f64,
    },
    /// An error instead of a number.
    Failure(Failure),
}

/// The faults and readings of one GPU.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Gpu {
    /// The result of every call.
    pub fail: Option<Failure>,
    /// True if calls do not return.
    #[serde(default)]
    pub hang: bool,
    /// How long each call takes, in milliseconds.
    #[serde(default)]
    pub delay_ms: u64,
    /// Number of MIG instances; zero if MIG is off.
    #[serde(default)]
    pub mig: u32,
    /// Processes that use the GPU, each with a gigabyte of its memory.
    #[serde(default)]
    pub processes: Vec<u32>,
    /// Functions that fail, with their return codes.
    #[serde(default)]
    pub calls: BTreeMap<String, Failure>,
    /// Readings that differ from the profile, by name.
    #[serde(flatten)]
    pub items: BTreeMap<String, Item>,
}

/// An event, delivered through an event set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Index of the GPU.
    pub gpu: u32,
    /// The XID, if it is an XID event.
    pub xid: Option<u64>,
    /// The bit of the event's type, if it is not an XID event.
    #[serde(default)]
    pub kind: u64,
    /// The GPU instance of the event, if any.
    pub gpu_instance: Option<u32>,
    /// The number of identical events.
    #[serde(default = "once")]
    pub count: u32,
}

fn once() -> u32 {
    1
}

/// The content of the file; see the module documentation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The driver's version.
    #[serde(default = "driver")]
    pub driver: String,
    /// The result of nvmlInit_v2.
    pub init: Option<Failure>,
    /// How often the driver was reloaded.
    #[serde(default)]
    pub restarts: u32,
    /// The GPU profile.
    #[serde(default = "profile")]
    pub profile: String,
    /// The reported model name, instead of the profile's.
    pub model: Option<String>,
    /// The number of GPUs, up to 16.
    #[serde(default)]
    pub gpus: u32,
    /// Differences from the profile, by the GPU's index.
    #[serde(default)]
    pub gpu: BTreeMap<String, Gpu>,
    /// The events, in order.
    #[serde(default)]
    pub event: Vec<Event>,
}

fn driver() -> String {
    "580.82.07".into()
}

fn profile() -> String {
    "h100".into()
}

impl Scenario {
    /// Parses a scenario. A mistake is an error, because the test would not test what it is meant to test.
    pub fn parse(text: &str) -> Result<Scenario, String> {
        let scenario: Scenario = toml::from_str(text).map_err(|error| error.to_string())?;
        let profile = crate::profile::items(&scenario.profile)
            .ok_or_else(|| format!("{} is no profile", scenario.profile))?;
        if scenario.gpus > 16 {
            return Err(format!("{} GPUs are more than 16", scenario.gpus));
        }
        for (index, gpu) in &scenario.gpu {
            let known = index.parse::<u32>().is_ok_and(|index| index < scenario.gpus);
            if !known {
                return Err(format!("there is no GPU {index}"));
            }
            if let Some(name) = gpu.items.keys().find(|name| !profile.contains_key(name.as_str())) {
                return Err(format!("GPU {index} has no {name}"));
            }
        }
        Ok(scenario)
    }
}
