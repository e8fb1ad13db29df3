//! Manual fault injection (`paceline inject`). Frames of sidecars are altered before they are journaled. They are also
//! marked as injected, so that no verdict based on them triggers an action.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use paceline_health::event::{
    Event, FaultSource, GpuFault, GpuReading, GpuSignal, Mark, Missing, Phase, Reading,
};
use paceline_health::fault::KernelLog;
use paceline_health::id::{GpuId, NodeId, Rank};
use paceline_health::{Frame, Provenance};
use serde::{Deserialize, Serialize};

/// Maximum number of simultaneous injections.
const MAX_ACTIVE: usize = 64;
/// The XID that the driver reports when a GPU no longer responds.
const FELL_OFF: u32 = 79;
/// Maximum number of ranks and of GPUs to remember.
const MAX_KNOWN: usize = 1 << 20;
/// Maximum and default duration of an injection.
const MAX_S: f64 = 86_400.0;
const USUAL_S: f64 = 120.0;

/// One fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Injection {
    /// The affected rank, or the rank that trains on the affected GPU.
    pub rank: Rank,
    /// The kind of fault.
    pub fault: Fault,
    /// Duration, seconds.
    pub for_s: f64,
}

/// The kinds of faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The rank's own time is multiplied by this factor.
    Slow(f64),
    /// The rank stops, and its peers wait for it.
    Silent,
    /// The kernel log reports this XID and message for the rank's GPU.
    Xid(u32, String),
    /// The rank's GPU counts an uncorrectable memory error.
    Ecc,
    /// The rank's GPU is throttled by heat.
    Throttle,
    /// The NVLinks of the rank's GPU have to recover, once per reading.
    Link,
}

impl FromStr for Injection {
    type Err = String;

    /// Parses `slow rank=3 factor=1.5 for=60`, `silent rank=3`, `xid rank=3 code=79 [words of the message]`, `ecc
    /// rank=3`, `throttle rank=3` and `link rank=3`.
    fn from_str(text: &str) -> Result<Injection, String> {
        let (kind, rest) = text
            .trim()
            .split_once(char::is_whitespace)
            .unwrap_or((text.trim(), ""));
        let (mut rank, mut for_s, mut factor, mut code) = (None, USUAL_S, 1.5, None);
        let mut words = Vec::new();
        for word in rest.split_whitespace() {
            let bad = |_| format!("{word}: a number is needed");
            match word.split_once('=') {
                Some(("rank", value)) => rank = Some(Rank(value.parse().map_err(|_| bad(()))?)),
                Some(("for", value)) => for_s = value.trim_end_matches('s').parse().map_err(|_| bad(()))?,
                Some(("factor", value)) if kind == "slow" => factor = value.parse().map_err(|_| bad(()))?,
                Some(("code", value)) if kind == "xid" => code = Some(value.parse().map_err(|_| bad(()))?),
                _ if kind == "xid" => words.push(word),
                _ => return Err(format!("{word}: unknown in \"{text}\"")),
            }
        }
        let fault = match kind {
            "slow" if factor > 1.0 && factor <= 100.0 => Fault::Slow(factor),
            "slow" => return Err(format!("factor={factor}: between 1 and 100 is needed")),
            "silent" => Fault::Silent,
            "xid" => Fault::Xid(code.ok_or("xid: code= is missing")?, words.join(" ")),
            "ecc" => Fault::Ecc,
            "throttle" => Fault::Throttle,
            "link" => Fault::Link,
            other => {
                return Err(format!(
                    "{other}: must be slow, silent, xid, ecc, throttle or link"
                ));
            }
        };
        if !(for_s > 0.0 && for_s <= MAX_S) {
            return Err(format!("for={for_s}: between 0 and {MAX_S} seconds is needed"));
        }
        let rank = rank.ok_or_else(|| format!("{kind}: rank= is missing"))?;
        Ok(Injection { rank, fault, for_s })
    }
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, seconds) = (self.rank, self.for_s);
        match &self.fault {
            Fault::Slow(factor) => write!(f, "slow rank={rank} factor={factor} for={seconds}s"),
            Fault::Silent => write!(f, "silent rank={rank} for={seconds}s"),
            Fault::Xid(code, words) => write!(f, "xid rank={rank} code={code} {words}"),
            Fault::Ecc => write!(f, "ecc rank={rank} for={seconds}s"),
            Fault::Throttle => write!(f, "throttle rank={rank} for={seconds}s"),
            Fault::Link => write!(f, "link rank={rank} for={seconds}s"),
        }
    }
}

/// The node and GPU on which a rank runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seat {
    node: NodeId,
    gpu: Option<GpuId>,
}

#[derive(Debug)]
struct Active {
    injection: Injection,
    seat: Seat,
    from_ns: u64,
    until_ns: u64,
    /// The number of readings altered so far.
    readings: u32,
    /// How much a slow rank lengthened every rank's last step.
    delay_ns: u64,
}

/// Alters incoming frames.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Injector {
    seats: BTreeMap<Rank, Seat>,
    /// The PCI address of each GPU, and the provenance of its readings.
    gpus: BTreeMap<GpuId, (Arc<str>, Provenance)>,
    /// The active injections. They are not journaled, so they end with the aggregator that got the request.
    #[serde(skip)]
    active: Vec<Active>,
    /// The step at which all ranks stopped because a rank was silenced.
    #[serde(skip)]
    frozen: Option<u64>,
}

impl Injector {
    /// Starts injections. `force` also allows them in a job on real GPUs. Returns the resulting kernel log entries by
    /// node.
    ///
    /// # Errors
    /// The reason if the injection is refused. In that case nothing is injected.
    pub fn begin(
        &mut self,
        injections: &[Injection],
        force: bool,
        now_ns: u64,
    ) -> Result<Vec<(NodeId, GpuFault)>, String> {
        if !force && self.is_on_real_gpus() {
            return Err(
                "this job trains on real GPUs, and would get findings about them (--yes-really injects anyway)"
                    .to_owned(),
            );
        }
        self.active.retain(|active| now_ns < active.until_ns);
        if self.active.len() + injections.len() > MAX_ACTIVE {
            return Err(format!("at most {MAX_ACTIVE} injections at once"));
        }
        let mut begun = Vec::new();
        let mut lines = Vec::new();
        for injection in injections {
            let rank = injection.rank;
            let seat = self
                .seats
                .get(&rank)
                .ok_or_else(|| format!("rank {rank} has not attached"))?;
            let needs_gpu = !matches!(injection.fault, Fault::Slow(_) | Fault::Silent);
            let Some(gpu) = seat.gpu.as_ref() else {
                if needs_gpu {
                    return Err(format!("rank {rank} trains on no GPU"));
                }
                begun.push(active(injection, seat, now_ns));
                continue;
            };
            if let Fault::Xid(code, words) = &injection.fault {
                let pci = self.gpus.get(gpu).map_or("0000:00:00.0", |(pci, _)| pci);
                lines.extend(said(*code, words, gpu, pci).map(|fault| (seat.node.clone(), fault)));
            }
            if !matches!(injection.fault, Fault::Xid(code, _) if code != FELL_OFF) {
                begun.push(active(injection, seat, now_ns));
            }
        }
        self.active.extend(begun);
        Ok(lines)
    }

    /// Returns true if a driver has read a GPU of this job, or if a rank has a GPU without readings. The GPU of a rank
    /// may be unknown.
    fn is_on_real_gpus(&self) -> bool {
        let is_unread = |seat: &Seat| {
            let gpu = seat.gpu.as_ref();
            gpu.is_some_and(|gpu| !self.gpus.contains_key(gpu))
        };
        self.gpus.values().any(|(_, by)| *by == Provenance::Live) || self.seats.values().any(is_unread)
    }

    /// Records where ranks and GPUs are.
    pub fn learn(&mut self, frame: &Frame) {
        match &frame.event {
            Event::Attach(attach) => {
                let (node, gpu) = (frame.node.clone(), attach.gpu.clone());
                if self.seats.len() < MAX_KNOWN || self.seats.contains_key(&attach.rank) {
                    self.seats.insert(attach.rank, Seat { node, gpu });
                }
            }
            // A reading arrives once a second for each GPU, so only changes are stored.
            Event::Gpu(GpuReading { gpu, pci, .. }) => {
                let known = self.gpus.get(gpu);
                let is_known = known.is_some_and(|known| known.0 == *pci && known.1 == frame.provenance);
                if !is_known && (known.is_some() || self.gpus.len() < MAX_KNOWN) {
                    self.gpus.insert(gpu.clone(), (pci.clone(), frame.provenance));
                }
            }
            _ => {}
        }
    }

    /// Learns where ranks and GPUs are from a frame, and alters the frame if an injection affects it.
    pub fn alter(&mut self, frame: &mut Frame, now_ns: u64) {
        self.learn(frame);
        self.active.retain(|active| now_ns < active.until_ns);
        let mut altered = self.silence(frame, now_ns);
        for active in &mut self.active {
            altered |= active.alter(frame, now_ns);
        }
        if altered {
            frame.provenance = Provenance::Injected;
        }
    }

    /// Stops all ranks while any rank is silenced. The silenced ranks compute, and their peers wait for them. Returns
    /// true if it altered the frame.
    fn silence(&mut self, frame: &mut Frame, now_ns: u64) -> bool {
        let silenced = || {
            let active = self.active.iter();
            active.filter(|active| active.injection.fault == Fault::Silent)
        };
        let Some(from_ns) = silenced().map(|active| active.from_ns).min() else {
            self.frozen = None;
            return false;
        };
        match &mut frame.event {
            Event::Step(step) => {
                // No rank finishes a step any more. A mark replaces the step, so that the frame keeps its place in the
                // sequence.
                self.frozen.get_or_insert(step.step);
                frame.event = Event::Mark(Mark {
                    rank: step.rank,
                    step: step.step,
                    kind: "injected-silence".into(),
                    value: 0,
                });
                true
            }
            Event::Beat(beat) => {
                let Some(at) = self.frozen else { return false };
                for pulse in &mut beat.ranks {
                    let is_silenced = silenced().any(|active| active.injection.rank == pulse.rank);
                    pulse.step = at;
                    pulse.phase = if is_silenced { Phase::Compute } else { Phase::Wait };
                    pulse.idle_ns = now_ns.saturating_sub(from_ns);
                }
                true
            }
            _ => false,
        }
    }
}

fn active(injection: &Injection, seat: &Seat, now_ns: u64) -> Active {
    Active {
        injection: injection.clone(),
        seat: seat.clone(),
        from_ns: now_ns,
        until_ns: now_ns.saturating_add((injection.for_s * 1e9) as u64),
        readings: 0,
        delay_ns: 0,
    }
}

/// Returns the fault that a kernel log line with this XID describes, parsed like a line of the real log.
fn said(code: u32, words: &str, gpu: &GpuId, pci: &str) -> Option<GpuFault> {
    let line = format!("NVRM: Xid (PCI:{pci}): {code}, {words}");
    let mut fault = None;
    KernelLog::default().read(&line, |said| {
        fault = said.fault(Some(gpu.clone()), 1, FaultSource::Kernel);
    });
    fault
}

impl Active {
    /// Alters a frame if the injection affects it. Returns true if it did.
    fn alter(&mut self, frame: &mut Frame, now_ns: u64) -> bool {
        let rank = self.injection.rank;
        match (&self.injection.fault, &mut frame.event) {
            (Fault::Slow(factor), Event::Step(step)) if step.rank == rank => {
                let own = step.phases.map_or(step.dur_ns, |phases| phases.compute_ns);
                let extra = (own as f64 * (factor - 1.0)) as u64;
                // The delay first uses up time that this rank would have spent waiting for its peers. Only the
                // remainder lengthens the step, and it does so for every rank.
                let waited = extra.min(step.phases.map_or(0, |phases| phases.wait_ns));
                if let Some(phases) = &mut step.phases {
                    phases.compute_ns = phases.compute_ns.saturating_add(extra);
                    phases.wait_ns -= waited;
                }
                self.delay_ns = extra - waited;
                step.dur_ns = step.dur_ns.saturating_add(self.delay_ns);
                true
            }
            (Fault::Slow(_), Event::Step(step)) => {
                if let Some(phases) = &mut step.phases {
                    phases.wait_ns = phases.wait_ns.saturating_add(self.delay_ns);
                }
                step.dur_ns = step.dur_ns.saturating_add(self.delay_ns);
                self.delay_ns > 0
            }
            (fault, Event::Gpu(reading)) if self.seat.gpu.as_ref() == Some(&reading.gpu) => {
                let since = now_ns.saturating_sub(self.from_ns) as f64;
                self.readings += 1;
                let risen = f64::from(self.readings);
                let added: &[(GpuSignal, f64)] = match fault {
                    // A GPU that is lost returns no readings.
                    Fault::Xid(..) => {
                        let lost = || Reading::Missing(Missing::Error("GPU is lost".into()));
                        reading
                            .readings
                            .values_mut()
                            .for_each(|reading| *reading = lost());
                        return true;
                    }
                    Fault::Ecc => &[(GpuSignal::EccUncorrected, 1.0)],
                    Fault::Throttle => &[(GpuSignal::ThrottleThermalSwNs, since)],
                    Fault::Link => &[(GpuSignal::NvlinkRecoveries, risen)],
                    _ => return false,
                };
                for (signal, more) in added {
                    let before = reading.readings.get(signal).and_then(Reading::value);
                    // A counter that had no reading before starts at zero.
                    let first = self.readings == 1 && before.is_none();
                    let more = if first { 0.0 } else { *more };
                    reading
                        .readings
                        .insert(*signal, Reading::Value(before.unwrap_or(0.0) + more));
                }
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
#[path = "inject_tests.rs"]
mod tests;
