//! The GPUs of a scenario, and the source's events about them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use paceline_fake_nvml::drivers::Driver;
use paceline_fake_nvml::scenario::Scenario;
use paceline_health::event::{
    Access, Event, GpuAccess, GpuFault, GpuHolders, GpuReading, GpuSignal, Missing, Reading,
};
use paceline_health::id::GpuId;
use paceline_sidecar::host::monotonic_ns;
use paceline_sidecar::source::Source;
use paceline_sidecar::source::nvml::NvmlSource;
use tempfile::TempDir;

/// The fake library, which cargo builds beside the tests because they depend on it.
pub fn fake_nvml() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.parent().unwrap().join("libpaceline_fake_nvml.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

/// A scenario, the library that plays it, and the events so far.
pub struct Stage {
    pub source: NvmlSource,
    pub seen: Vec<(Duration, Event)>,
    /// Expected events that were found are before this index.
    pub next: usize,
    began: Instant,
    dir: TempDir,
}

/// A separate copy of the library, with the functions of the scenario's driver: each copy has its own state.
pub fn install(dir: &Path, scenario: &str) -> PathBuf {
    let library = dir.join("libnvidia-ml.so.1");
    let driver = Driver::of(&Scenario::parse(scenario).unwrap().driver);
    fs::write(&library, driver.library(fs::read(fake_nvml()).unwrap())).unwrap();
    play(&library, scenario);
    library
}

/// Changes the scenario atomically.
pub fn play(library: &Path, scenario: &str) {
    let name = format!("{}.toml", library.display());
    fs::write(format!("{name}.new"), scenario).unwrap();
    fs::rename(format!("{name}.new"), name).unwrap();
}

impl Stage {
    pub fn new(scenario: &str) -> Stage {
        let dir = TempDir::new().unwrap();
        let library = install(dir.path(), scenario);
        Stage {
            dir,
            source: NvmlSource::new(Some(library)),
            seen: Vec::new(),
            next: 0,
            began: Instant::now(),
        }
    }

    /// The next expected event comes after this.
    pub fn play(&mut self, scenario: &str) {
        self.next = self.seen.len();
        play(&self.dir.path().join("libnvidia-ml.so.1"), scenario);
    }

    /// Polls like the agent, ten times a second, for this time.
    pub fn wait(&mut self, time: Duration) {
        self.until(time, |_| false);
        self.next = self.seen.len();
    }

    /// Polls until a wanted event occurs after the last expected one; returns it and the time it took.
    pub fn expect(&mut self, limit: Duration, wanted: impl Fn(&Event) -> bool) -> (Duration, Event) {
        let began = Instant::now();
        let found = self.until(limit, wanted);
        let found = found.unwrap_or_else(|| panic!("not within {limit:?}: {:#?}", self.seen));
        (began.elapsed(), found)
    }

    fn until(&mut self, limit: Duration, wanted: impl Fn(&Event) -> bool) -> Option<Event> {
        let began = Instant::now();
        loop {
            let found = self
                .seen
                .iter()
                .skip(self.next)
                .position(|(_, event)| wanted(event));
            if let Some(found) = found {
                self.next += found + 1;
                return Some(self.seen[self.next - 1].1.clone());
            }
            if began.elapsed() >= limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
            let (seen, at) = (&mut self.seen, self.began.elapsed());
            self.source.poll(monotonic_ns(), &mut |_, event| {
                seen.push((at, event));
                0
            });
        }
    }

    /// Readings of one GPU, in order.
    pub fn readings(&self, gpu: &GpuId) -> Vec<(Duration, &GpuReading)> {
        let readings = self.seen.iter().filter_map(|(at, event)| match event {
            Event::Gpu(reading) if reading.gpu == *gpu => Some((*at, reading)),
            _ => None,
        });
        readings.collect()
    }

    /// Events about access to GPUs.
    pub fn accesses(&self) -> Vec<&GpuAccess> {
        let accesses = self.seen.iter().filter_map(|(_, event)| match event {
            Event::GpuAccess(access) => Some(access),
            _ => None,
        });
        accesses.collect()
    }
}

/// GPU `index` of the fake.
pub fn gpu(index: u32) -> GpuId {
    format!("GPU-fa4e0000-0000-4000-8000-{index:012x}")
        .as_str()
        .into()
}

pub fn is_access(event: &Event, of: Option<&GpuId>, wanted: Access) -> bool {
    matches!(event, Event::GpuAccess(access) if access.gpu.as_ref() == of && access.state == wanted)
}

pub fn is_reading(event: &Event, of: &GpuId, signal: GpuSignal, wanted: &Reading) -> bool {
    matches!(event, Event::Gpu(reading)
        if reading.gpu == *of && reading.readings.get(&signal) == Some(wanted))
}

pub fn fault(event: &Event) -> Option<&GpuFault> {
    match event {
        Event::GpuFault(fault) => Some(fault),
        _ => None,
    }
}

pub fn holders(event: &Event) -> Option<&GpuHolders> {
    match event {
        Event::GpuHolders(holders) => Some(holders),
        _ => None,
    }
}

pub fn unsupported() -> Reading {
    Reading::Missing(Missing::Unsupported)
}
