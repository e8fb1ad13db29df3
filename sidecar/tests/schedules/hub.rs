//! The aggregator's machine: the real [`Aggregator`] on its run directory, killed, cut off from power, restarted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use paceline_health::Entry;
use paceline_health::codec::line;
use paceline_health::event::Event;
use paceline_sidecar::aggregator::journal::lines::{Line, Lines};
use paceline_sidecar::aggregator::journal::segments::{self, Limits};
use paceline_sidecar::aggregator::{Aggregator, Plan, journal::snapshot};
use paceline_sidecar::sink::status::StatusStream;
use paceline_sidecar::uplink::wire::{Down, Later, Refused, Up, decode_up};

use super::chance::Chance;
use super::disk::{Health, SimDisk};

enum State {
    Down {
        until_ns: u64,
    },
    /// Reading its journal.
    Opening {
        until_ns: u64,
    },
    Up(Box<Aggregator>),
}

/// Thinned lines; of all of them, frames of sidecars.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gone {
    pub telemetry: u64,
    pub others: u64,
    pub frames: u64,
}

pub struct Hub {
    root: tempfile::TempDir,
    /// Limits of the journal: segment size, and total size.
    limits: Limits,
    /// Journal losses that the aggregator had counted before its last restart, and that were in a snapshot.
    pub lost_before: u64,
    generation: u32,
    state: State,
    status: StatusStream,
    pub disk: Arc<Mutex<Health>>,
    /// Reads nothing until then.
    pub stalled_until_ns: u64,
    pub last_stall_ns: u64,
    /// Frames that are not in a journal although they were acknowledged, and that are counted.
    pub excused: u64,
    /// The disk failed at some time, or the power did.
    pub was_hurt: bool,
}

/// In memory, if there is a file system for it: thousands of directories are created.
fn temporary() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    made.unwrap()
}

impl Hub {
    pub fn new(status: StatusStream, limits: Limits) -> Hub {
        let mut hub = Hub {
            root: temporary(),
            limits,
            lost_before: 0,
            generation: 1,
            state: State::Down { until_ns: 0 },
            status,
            disk: Arc::default(),
            stalled_until_ns: 0,
            last_stall_ns: 0,
            excused: 0,
            was_hurt: false,
        };
        hub.open(0);
        hub
    }

    pub fn dir(&self, generation: u32) -> PathBuf {
        self.root.path().join(format!("run-{generation}"))
    }

    fn open(&mut self, now_ns: u64) {
        let plan = Plan {
            job: "j".into(),
            node: "n0".into(),
            run_dir: self.dir(self.generation),
            policy: Vec::new(),
            remedy: Default::default(),
            reload: None,
            reported: None,
            journal: self.limits,
            doors: Default::default(),
        };
        let disk = self.disk.clone();
        let mut medium = |file: File| Box::new(SimDisk::new(file, disk.clone())) as _;
        let opened = Aggregator::open_on(plan, self.status.clone(), now_ns, &mut medium);
        let aggregator = opened.unwrap();
        assert_eq!(
            aggregator.dir(),
            self.dir(self.generation),
            "nobody else holds it"
        );
        self.lost_before = aggregator.report().coverage.journal_lost;
        self.state = State::Up(Box::new(aggregator));
    }

    pub fn aggregator(&self) -> Option<&Aggregator> {
        match &self.state {
            State::Up(aggregator) => Some(aggregator),
            _ => None,
        }
    }

    pub fn into_aggregator(self) -> (Option<Aggregator>, tempfile::TempDir) {
        match self.state {
            State::Up(aggregator) => (Some(*aggregator), self.root),
            _ => (None, self.root),
        }
    }

    pub fn is_listening(&self) -> bool {
        !matches!(self.state, State::Down { .. })
    }

    pub fn tick(&mut self, now_ns: u64, chance: &mut Chance) {
        match &mut self.state {
            State::Down { until_ns } if now_ns >= *until_ns => {
                let until_ns = now_ns + chance.between(0, 400_000_000);
                self.state = State::Opening { until_ns };
            }
            State::Opening { until_ns } if now_ns >= *until_ns => self.open(now_ns),
            State::Up(aggregator) if now_ns >= self.stalled_until_ns => aggregator.tick(now_ns),
            State::Up(_) => self.last_stall_ns = now_ns,
            _ => {}
        }
    }

    /// The answers to a message.
    pub fn answer(&mut self, bytes: &[u8], now_ns: u64) -> Vec<Down> {
        let up = decode_up(bytes).unwrap();
        let State::Up(aggregator) = &mut self.state else {
            return match up {
                Up::Hello(hello) => vec![match hello.refusal(&"j".into()) {
                    Some(why) => Down::Refused(Refused { why }),
                    None => Down::Later(Later { job: "j".into() }),
                }],
                Up::Batch(_) | Up::Carried(_) => Vec::new(),
            };
        };
        match up {
            Up::Hello(hello) => {
                aggregator.asks_again(&hello);
                vec![aggregator.hello(&hello), aggregator.reads(&hello)]
            }
            Up::Batch(batch) => {
                let taken = aggregator.take(&batch, now_ns);
                [Some(taken), aggregator.asks(&batch)]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Up::Carried(_) => unreachable!("there is no relay here"),
        }
    }

    /// The process is killed.
    pub fn kill(&mut self, until_ns: u64) {
        if let Some(aggregator) = self.aggregator() {
            let lost = aggregator.report().coverage.journal_lost;
            self.excused += lost - self.lost_before;
        }
        self.state = State::Down { until_ns };
    }

    /// Faults recorded at least a second ago survive a power loss, if neither the aggregator nor its disk was delayed
    /// since.
    fn what_lasts_is_synced(&self, path: &Path, synced: u64, now_ns: u64) {
        if self.generation > 1 || self.was_hurt || self.last_stall_ns + 1_000_000_000 > now_ns {
            return;
        }
        let text = fs::read(path).unwrap();
        let behind = std::str::from_utf8(&text[synced as usize..]).unwrap();
        for line in behind.lines().filter(|line| line.contains("\"gpu_fault\"")) {
            let entry = line::decode(line).unwrap();
            assert!(entry.at_ns.0 + 1_000_000_000 > now_ns, "not on the disk: {line}");
        }
    }

    /// The machine loses power: data that was not synced is lost, from some byte on.
    pub fn cut_power(&mut self, now_ns: u64, until_ns: u64, chance: &mut Chance) {
        let was_up = self.aggregator().is_some();
        self.kill(until_ns);
        let path = self.dir(self.generation).join("journal.ndjson");
        // It may not have been created yet.
        let Ok(length) = fs::metadata(&path).map(|file| file.len()) else {
            return;
        };
        let before = entries(&path).len();
        let synced = self.disk.lock().unwrap().synced.min(length);
        if was_up {
            self.what_lasts_is_synced(&path, synced, now_ns);
        }
        let kept = chance.between(synced, length);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(kept)
            .unwrap();
        self.excused += (before - entries(&path).len()) as u64;
        self.was_hurt = true;
    }

    /// Flips one bit of the journal. The first line is spared: without a name for the journal, a new one is begun.
    pub fn damage(&mut self, chance: &mut Chance) {
        self.was_hurt = true;
        let path = self.dir(self.generation).join("journal.ndjson");
        if let Some((_, path)) = snapshot::list(&path).ok().and_then(|mut all| all.pop())
            && chance.hits(500_000)
        {
            let mut bytes = fs::read(&path).unwrap();
            let at = chance.below(bytes.len());
            bytes[at] ^= 1 << chance.below(7);
            return fs::write(&path, bytes).unwrap();
        }
        let mut bytes = fs::read(&path).unwrap_or_default();
        let first = bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .unwrap_or(bytes.len());
        if first + 1 < bytes.len() {
            let before = entries(&path).len();
            let at = first + 1 + chance.below(bytes.len() - first - 1);
            bytes[at] ^= 1 << chance.below(7);
            fs::write(&path, bytes).unwrap();
            let now = entries(&path).len();
            assert!(
                now + 2 >= before,
                "a bit costs its line, and the next if it was the end of one"
            );
            self.excused += (before - now) as u64;
        }
    }

    /// Its node is permanently lost: another one takes over without its files.
    pub fn move_away(&mut self, until_ns: u64) {
        self.kill(until_ns);
        self.generation += 1;
        *self.disk.lock().unwrap() = Health::default();
    }

    /// All journals, the latest last.
    pub fn journals(&self) -> Vec<Vec<Entry>> {
        (1..=self.generation)
            .map(|generation| whole(&self.dir(generation)))
            .collect()
    }

    /// Records of thinning in a journal, which keep it within its bound.
    pub fn thinned(journal: &[Entry]) -> Gone {
        let records = journal.iter().filter_map(|entry| match &entry.frame.event {
            Event::Thinned(thinned) if thinned.here => Some(thinned),
            _ => None,
        });
        records.fold(Gone::default(), |gone, record| {
            let (telemetry, others) = record.lines();
            Gone {
                telemetry: gone.telemetry + telemetry,
                others: gone.others + others,
                frames: gone.frames + record.frames,
            }
        })
    }

    /// Frame numbers in a journal, by node and incarnation.
    pub fn numbers(journal: &[Entry]) -> BTreeMap<(String, u64), Vec<u64>> {
        let mut numbers: BTreeMap<(String, u64), Vec<u64>> = BTreeMap::new();
        for entry in journal {
            let lane = (entry.frame.node.to_string(), entry.frame.agent);
            numbers.entry(lane).or_default().push(entry.frame.seq);
        }
        numbers
    }
}

/// All entries of a run directory, in all segments.
pub fn whole(dir: &Path) -> Vec<Entry> {
    let files = segments::files(&dir.join("journal.ndjson")).unwrap_or_default();
    files.iter().flat_map(|file| entries(file)).collect()
}

pub fn entries(path: &Path) -> Vec<Entry> {
    let Ok(file) = File::open(path) else {
        return Vec::new();
    };
    let lines = Lines::new(BufReader::new(file)).map(|line| line.unwrap());
    let entry = |line| match line {
        Line::Entry(entry) => Some(*entry),
        _ => None,
    };
    lines.filter_map(entry).collect()
}
