//! Scripted GPU and kernel log events.

use std::collections::BTreeMap;
use std::time::Duration;

use datadriven::TestCase;
use paceline_health::event::{
    Access, Event, FaultSource, GpuAccess, GpuFault, GpuFaultKind, GpuHolders, GpuProcess, GpuReading,
    GpuSignal, KernelAccess, KernelWatch, Reading,
};
use paceline_health::fault::KernelLog;
use paceline_health::{Frame, Time};
use serde::de::DeserializeOwned;

use super::script::{Script, gpu, pci, take};

impl Script {
    /// Handles the command `kmsg [times=2000] [before=yes]`, followed by kernel log lines.
    pub fn kmsg(&mut self, case: &mut TestCase, node: &str) -> Result<Vec<(Time, Frame)>, String> {
        let count: u32 = take(case, "times")?.unwrap_or(1);
        let seen_by = match take::<String>(case, "before")? {
            Some(_) => FaultSource::KernelBefore,
            None => FaultSource::Kernel,
        };
        let mut log = KernelLog::default();
        let mut said = Vec::new();
        for line in case.input.lines() {
            log.read(line, |line| said.extend(line.fault(None, count, seen_by)));
        }
        let at = self.at;
        Ok(said
            .into_iter()
            .map(|fault| (at, self.frame(node, Event::GpuFault(fault))))
            .collect())
    }

    /// Handles the command `signals gpu=0 [for=60] ecc_uncorrected=1 throttle_thermal_sw_ns=1e8_each`. It creates
    /// readings once a second. Values with `_each` rise by that amount each time.
    pub fn signals(&mut self, case: &mut TestCase, node: &str) -> Result<Vec<(Time, Frame)>, String> {
        let gpus: Vec<u32> = case.take_args("gpu").map_err(|error| error.to_string())?;
        let seconds: u32 = take(case, "for")?.unwrap_or(1);
        let model: String = take(case, "model")?.unwrap_or_else(|| "test".to_owned());
        let mut wanted = Vec::new();
        for (key, values) in std::mem::take(&mut case.args) {
            let signal: GpuSignal = named(&key)?;
            let text = values.first().cloned().unwrap_or_default();
            let (rises, number) = text
                .strip_suffix("_each")
                .map_or((false, &*text), |rest| (true, rest));
            let number: f64 = number
                .parse()
                .map_err(|_| format!("{key}={text}: a number is needed"))?;
            wanted.push((signal, rises, number));
        }
        wanted.sort_by_key(|(signal, ..)| *signal);
        let mut frames = Vec::new();
        for _ in 0..seconds {
            self.at = self.at + Duration::from_secs(1);
            for rank in &gpus {
                let readings = wanted.iter().map(|(signal, rises, number)| {
                    let kept = self.counters.entry((*rank, *signal)).or_insert(0.0);
                    *kept = if *rises { *kept + number } else { *number };
                    (*signal, Reading::Value(*kept))
                });
                let reading = GpuReading {
                    gpu: gpu(*rank),
                    pci: pci(*rank),
                    model: model.as_str().into(),
                    readings: readings.collect(),
                };
                frames.push((self.at, self.frame(node, Event::Gpu(reading))));
            }
        }
        Ok(frames)
    }
}

/// Handles the command `nvml gpu=0 xid=79 [times=3]` or `nvml gpu=0 kind=ecc_uncorrected`.
pub fn nvml(case: &mut TestCase) -> Result<Event, String> {
    let rank: u32 = take(case, "gpu")?.ok_or("gpu= is missing")?;
    if let Some(name) = take::<String>(case, "holder")? {
        let processes = vec![GpuProcess {
            pid: 4711,
            name: name.as_str().into(),
            used_bytes: None,
        }];
        let (gpu, pci) = (gpu(rank), pci(rank));
        return Ok(Event::GpuHolders(GpuHolders { gpu, pci, processes }));
    }
    let kind = take::<String>(case, "kind")?.map_or(Ok(GpuFaultKind::Xid), |kind| named(&kind))?;
    Ok(Event::GpuFault(GpuFault {
        gpu: Some(gpu(rank)),
        pci: pci(rank),
        kind,
        xid: take(case, "xid")?.unwrap_or(0),
        count: take(case, "times")?.unwrap_or(1),
        seen_by: FaultSource::Nvml,
        text: "".into(),
    }))
}

/// Handles the command `access [gpu=0] state=silent [lasted=4.6]`, followed by a line with the error.
pub fn access(case: &mut TestCase) -> Result<Event, String> {
    let rank: Option<u32> = take(case, "gpu")?;
    let state: String = take(case, "state")?.ok_or("state= is missing")?;
    let lasted: f64 = take(case, "lasted")?.unwrap_or(0.0);
    let state: Access = named(&state)?;
    Ok(Event::GpuAccess(GpuAccess {
        gpu: rank.map(gpu),
        pci: rank.map_or_else(|| "".into(), pci),
        state,
        text: case.input.trim().into(),
        for_ns: (lasted * 1e9) as u64,
    }))
}

/// Handles the command `kernel boot=a [state=denied] [lost=7]`.
pub fn kernel(case: &mut TestCase) -> Result<Event, String> {
    let state = take::<String>(case, "state")?.map_or(Ok(KernelAccess::Readable), |state| named(&state))?;
    Ok(Event::Kernel(KernelWatch {
        path: "/dev/kmsg".into(),
        boot: take::<String>(case, "boot")?.unwrap_or_default().as_str().into(),
        state,
        lost: take(case, "lost")?.unwrap_or(0),
        text: "".into(),
    }))
}

fn named<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::String(name.to_owned())).map_err(|error| error.to_string())
}

/// The current value of each counter, by rank and signal.
pub type Kept = BTreeMap<(u32, GpuSignal), f64>;
