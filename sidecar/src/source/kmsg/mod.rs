//! The kernel log, from `/dev/kmsg` or a file in its format. It reports XIDs and GPUs that fell off the bus.
//!
//! Records from before the start of monitoring are marked as such, because they may inform but must not trigger an
//! action. An unreadable log is reported once; from then on only NVML's events are available.

mod log;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_health::Provenance;
use paceline_health::event::{Event, FaultSource, KernelAccess, KernelWatch};
use paceline_health::fault::{KernelLine, KernelLog};
use paceline_health::id::GpuId;

use self::log::{Age, Log, OpenError};
use super::bursts::Bursts;
use super::{Send, Source};
use crate::host;

/// Path of the kernel log's device.
pub const DEVICE: &str = "/dev/kmsg";
/// Retry interval if the log cannot be read.
const RETRY: Duration = Duration::from_secs(60);
/// Retry interval if the file does not exist yet.
const RETRY_FILE: Duration = Duration::from_millis(500);
/// Maximum number of PCI addresses whose UUID is stored.
const MAX_UUIDS: usize = 1024;
/// Minimum interval between reports of lost records.
const TELL_LOST: Duration = Duration::from_secs(10);

/// The source; see the module.
#[derive(Debug)]
pub struct Kmsg {
    path: PathBuf,
    log: Option<Log>,
    /// Set if the file did not exist at the start, so that all of its later content is new.
    was_missing: bool,
    /// ID of this boot; empty if unknown.
    boot: String,
    retry_at_ns: u64,
    /// The access state and the number of lost records that were last sent.
    told: Option<(KernelAccess, u64)>,
    told_at_ns: u64,
    lines: KernelLog,
    uuids: BTreeMap<String, GpuId>,
    bursts: Bursts,
    /// Faults from before the start of monitoring. `is_before_read` is set once all of them were read.
    before: Bursts,
    is_before_read: bool,
}

impl Kmsg {
    /// Reads `path` from now on. Its existing content counts as written before monitoring started.
    pub fn new(path: PathBuf) -> Kmsg {
        let opened = Log::open(&path, Age::Old);
        Kmsg {
            was_missing: matches!(opened, Err(OpenError::Missing)),
            log: opened.ok(),
            path,
            boot: host::boot_id().unwrap_or_default(),
            retry_at_ns: 0,
            told: None,
            told_at_ns: 0,
            lines: KernelLog::default(),
            uuids: BTreeMap::new(),
            bursts: Bursts::default(),
            before: Bursts::default(),
            is_before_read: false,
        }
    }

    /// Returns true if NVIDIA's driver is loaded. Without it, no line of the log concerns our GPUs.
    pub fn is_of_use() -> bool {
        ["/proc/driver/nvidia", "/dev/nvidiactl", "/dev/nvidia0"]
            .iter()
            .any(|path| Path::new(path).exists())
    }

    fn tell(&mut self, now_ns: u64, state: KernelAccess, text: &str, send: &mut Send<'_>) {
        let lost = self.log.as_ref().map_or(0, Log::lost) + self.bursts.lost() + self.before.lost();
        let changed = self.told.is_none_or(|(told, _)| told != state);
        let soon = now_ns.saturating_sub(self.told_at_ns) < TELL_LOST.as_nanos() as u64;
        if !changed && (soon || self.told == Some((state, lost))) {
            return;
        }
        self.told = Some((state, lost));
        self.told_at_ns = now_ns;
        let watch = KernelWatch {
            path: self.path.display().to_string().into(),
            boot: self.boot.as_str().into(),
            state,
            lost,
            text: text.into(),
        };
        send(Provenance::Live, Event::Kernel(watch));
    }

    fn open(&mut self, now_ns: u64, send: &mut Send<'_>) {
        if now_ns < self.retry_at_ns {
            return;
        }
        let existing = if self.was_missing { Age::New } else { Age::Old };
        let opened = match &mut self.log {
            Some(log) => log.reopen(),
            None => Log::open(&self.path, existing).map(|log| self.log = Some(log)),
        };
        let Err(error) = opened else { return };
        self.was_missing |= matches!(error, OpenError::Missing);
        let (state, retry) = match &error {
            OpenError::Missing => (KernelAccess::Missing, RETRY_FILE),
            OpenError::Denied(_) => (KernelAccess::Denied, RETRY),
            OpenError::Failed(_) => (KernelAccess::Failing, RETRY),
        };
        self.retry_at_ns = now_ns + retry.as_nanos() as u64;
        self.tell(now_ns, state, &error.to_string(), send);
    }

    /// Reads available records.
    fn read(&mut self, now_ns: u64, send: &mut Send<'_>) -> Result<(), std::io::Error> {
        let Kmsg {
            log: Some(log),
            lines,
            uuids,
            bursts,
            before,
            is_before_read,
            ..
        } = self
        else {
            return Ok(());
        };
        log.read(|record, age| {
            let is_old = age == Age::Old;
            *is_before_read |= !is_old;
            lines.read(record, |line| match line {
                KernelLine::Boot if is_old => {
                    // A boot line shows that all earlier lines are from another boot.
                    uuids.clear();
                    *before = Bursts::default();
                }
                KernelLine::Boot => {}
                KernelLine::Uuid { pci, uuid } => {
                    if uuids.len() < MAX_UUIDS {
                        uuids.insert(pci, GpuId::from(uuid.as_str()));
                    }
                }
                _ => {
                    let seen_by = if is_old {
                        FaultSource::KernelBefore
                    } else {
                        FaultSource::Kernel
                    };
                    let gpu = line.pci().and_then(|pci| uuids.get(pci)).cloned();
                    let Some(fault) = line.fault(gpu, 1, seen_by) else {
                        return;
                    };
                    if is_old { &mut *before } else { &mut *bursts }.add(fault);
                }
            });
        })?;
        *is_before_read |= log.has_caught_up();
        let mut tell = |fault| {
            send(Provenance::Live, Event::GpuFault(fault));
        };
        bursts.send(now_ns, &mut tell);
        if *is_before_read {
            before.send(now_ns, &mut tell);
        }
        Ok(())
    }
}

impl Source for Kmsg {
    fn name(&self) -> &'static str {
        "kmsg"
    }

    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>) {
        let is_open = |log: &Option<Log>| log.as_ref().is_some_and(Log::is_open);
        if !is_open(&self.log) {
            self.open(now_ns, send);
        }
        if !is_open(&self.log) {
            return;
        }
        if let Err(error) = self.read(now_ns, send) {
            self.retry_at_ns = now_ns + RETRY.as_nanos() as u64;
            return self.tell(now_ns, KernelAccess::Failing, &error.to_string(), send);
        }
        self.tell(now_ns, KernelAccess::Readable, "", send);
    }

    fn introduce(&mut self, _send: &mut Send<'_>) {
        // Send everything again, because the new journal has nothing of what was sent to the old one.
        self.told = None;
        self.bursts.tell_again();
        self.before.tell_again();
    }
}

#[cfg(test)]
#[path = "kmsg_tests.rs"]
mod tests;
