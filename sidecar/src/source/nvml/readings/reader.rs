//! Everything that is read of one GPU, with what was learnt about it when it was first asked.

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

/// See the module. It belongs to one GPU and one driver: after a restart of either a new one is made.
pub struct Reader {
    gpu: Gpu,
    fields: Fields,
    calls: Calls,
    gpm: Result<Gpm, Code>,
    throttle: Throttle,
    /// What the first round found that the GPU does not have; `None` before it.
    unsupported: Option<Readings>,
}

/// What one round read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// Of the GPU.
    pub readings: Readings,
    /// Who holds it, if it was asked.
    pub holders: Option<Vec<GpuProcess>>,
    /// Its MIG instances, if it was asked.
    pub instances: Vec<mig::Instance>,
}

impl Reader {
    /// For a GPU that was just found.
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

    /// From now on notes what each call and each field costs.
    pub fn tell_apart(&mut self) {
        self.gpu.desk.tell_apart();
        self.fields.latency_us = Some(BTreeMap::new());
    }

    /// Time in the driver since then by call, nanoseconds.
    pub fn spent(&self) -> BTreeMap<&'static str, u64> {
        self.gpu.desk.by_call()
    }

    /// The latency of each field since then as the driver reported it, microseconds.
    pub fn latency_us(&self) -> BTreeMap<GpuSignal, u64> {
        self.fields.latency_us.clone().unwrap_or_default()
    }

    /// Reads what is due at `pace`. The first round asks everything once, and learns what there is.
    ///
    /// # Errors
    /// When the GPU does not answer: one code for all of it.
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

/// A GPU that gives no value of anything does not answer, whatever it says.
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
