//! Takes all readings of one GPU. Remembers what the first round learned about the GPU.

use std::collections::BTreeMap;

use paceline_health::event::{GpuProcess, GpuSignal, Missing, Reading};

use super::super::code::Code;
use super::super::library::Gpu;
use super::super::pace::Pace;
use super::calls::Calls;
use super::fields::Fields;
use super::gpm::Gpm;
use super::holders;
use super::mig;
use super::throttle::Throttle;
use crate::host::monotonic_ns;

/// Readings by signal.
pub type Readings = BTreeMap<GpuSignal, Reading>;

/// The reader; see the module. It is valid for one GPU and one driver. After a restart of either, create a new reader.
pub struct Reader {
    gpu: Gpu,
    fields: Fields,
    calls: Calls,
    gpm: Result<Gpm, Code>,
    throttle: Throttle,
    /// Signals that the first round found to be unsupported; `None` before the first round.
    unsupported: Option<Readings>,
}

/// Results of one round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The GPU's readings.
    pub readings: Readings,
    /// Processes that use the GPU, if they were queried.
    pub holders: Option<Vec<GpuProcess>>,
    /// The GPU's MIG instances, if they were queried.
    pub instances: Vec<mig::Instance>,
}

impl Reader {
    /// Creates the reader of a GPU that was just found.
    pub fn new(gpu: Gpu) -> Reader {
        Reader {
            fields: Fields::new(&gpu),
            calls: Calls::new(),
            gpm: Gpm::new(&gpu),
            throttle: Throttle::default(),
            unsupported: None,
            gpu,
        }
    }

    /// Records the cost of each call and field from now on.
    pub fn tell_apart(&mut self) {
        self.gpu.desk.tell_apart();
        self.fields.latency_us = Some(BTreeMap::new());
    }

    /// Returns the time spent in the driver by call since [`Reader::tell_apart`], in nanoseconds.
    pub fn spent(&self) -> BTreeMap<&'static str, u64> {
        self.gpu.desk.by_call()
    }

    /// Returns the latency of each field since [`Reader::tell_apart`], as the driver reports it, in microseconds.
    pub fn latency_us(&self) -> BTreeMap<GpuSignal, u64> {
        self.fields.latency_us.clone().unwrap_or_default()
    }

    /// Reads what is due at `pace`. The first round reads everything once, to learn what is supported.
    ///
    /// # Errors
    /// If the GPU does not respond. There is one code for the whole round.
    pub fn read(&mut self, pace: Pace) -> Result<Round, Code> {
        let probe = self.unsupported.is_none();
        let pace = if probe { Pace::Slow } else { pace };
        let mut readings = Readings::new();
        self.fields.read(&self.gpu, pace, probe, &mut readings)?;
        self.calls.read(&self.gpu, pace, probe, &mut readings)?;
        self.throttle.complete(monotonic_ns(), &mut readings);
        if pace == Pace::Slow {
            self.read_gpm(&mut readings)?;
        }
        if probe {
            nothing_at_all(&readings)?;
            let lacks = readings.iter().filter(|(_, reading)| is_unsupported(reading));
            self.unsupported = Some(
                lacks
                    .map(|(signal, reading)| (*signal, reading.clone()))
                    .collect(),
            );
        }
        let (mut held, mut instances) = (None, Vec::new());
        if pace == Pace::Slow {
            held = holders::of(&self.gpu).ok();
            instances = mig::instances(&self.gpu, &readings);
            for (signal, lack) in self.unsupported.iter().flatten() {
                readings.entry(*signal).or_insert_with(|| lack.clone());
            }
            let spent = self.gpu.desk.spent_ns() as f64;
            readings.insert(GpuSignal::ReadNs, Reading::Value(spent));
        }
        Ok(Round {
            readings,
            holders: held,
            instances,
        })
    }

    fn read_gpm(&mut self, readings: &mut Readings) -> Result<(), Code> {
        let result = match &mut self.gpm {
            Ok(gpm) => gpm.read(readings),
            Err(code) => Err(*code),
        };
        match result {
            Err(code) if code.is_fatal() => Err(code),
            Err(code) => {
                Gpm::missing(code, readings);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

fn is_unsupported(reading: &Reading) -> bool {
    *reading == Reading::Missing(Missing::Unsupported)
}

/// Returns an error if not a single signal has a value, because such a GPU counts as not responding, whatever its
/// return codes.
fn nothing_at_all(readings: &Readings) -> Result<(), Code> {
    if readings.values().any(|reading| reading.value().is_some()) {
        return Ok(());
    }
    let denied = Reading::Missing(Code::NO_PERMISSION.missing());
    let code = if readings.values().any(|reading| *reading == denied) {
        Code::NO_PERMISSION
    } else if readings.values().all(is_unsupported) {
        Code::NOT_SUPPORTED
    } else {
        Code::UNKNOWN
    };
    Err(code)
}
