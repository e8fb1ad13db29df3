//! The thread of one GPU. Only it waits when the GPU does not answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paceline_health::event::Access;
use paceline_health::id::GpuId;

use super::board::{Board, SILENT_NS};
use super::code::Code;
use super::halt::Halt;
use super::library::Gpu;
use super::mig::{self, Instance};
use super::pace::{FAST_NS, Pace, SLOW_EVERY, Told};
use super::reader::{Reader, Round};
use crate::host::monotonic_ns;

/// A GPU that fails is asked again after this, then after twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// See the module.
pub struct Worker {
    gpu: Gpu,
    board: Arc<Board>,
    reader: Option<Reader>,
    instances: Vec<Instance>,
    told: BTreeMap<GpuId, Told>,
    rounds: u64,
    epoch: u64,
    pause: Duration,
}

impl Worker {
    /// For a GPU that was just found.
    pub fn new(gpu: Gpu, board: Arc<Board>) -> Worker {
        Worker {
            gpu,
            board,
            reader: None,
            instances: Vec::new(),
            told: BTreeMap::new(),
            rounds: 0,
            epoch: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// Reads the GPU until `halt`, or until the driver itself is gone.
    pub fn run(mut self, halt: &Halt) {
        let mut next_ns = monotonic_ns();
        loop {
            match self.round() {
                Ok(()) => self.pause = FIRST_PAUSE,
                Err(code) => {
                    self.reader = None;
                    let text = format!("{}: {code}", self.gpu.model);
                    self.board.gpu(&self.gpu.uuid, code.access(), text);
                    if is_the_driver(code) || halt.sleep(self.pause) {
                        return;
                    }
                    self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                }
            }
            let now_ns = monotonic_ns();
            next_ns = (next_ns + FAST_NS).max(now_ns);
            if halt.sleep(Duration::from_nanos(next_ns - now_ns)) {
                return;
            }
        }
    }

    fn round(&mut self) -> Result<(), Code> {
        let epoch = self.board.epoch();
        let all = epoch != self.epoch || self.rounds.is_multiple_of(SLOW_EVERY) || self.reader.is_none();
        let began_ns = monotonic_ns();
        let round = {
            let desk = Arc::clone(&self.gpu.desk);
            let _round = desk.begin("nvmlDeviceGetHandleByUUID");
            self.read(if all { Pace::Slow } else { Pace::Fast })?
        };
        let took_ns = monotonic_ns().saturating_sub(began_ns);
        if took_ns < SILENT_NS {
            self.board.gpu(&self.gpu.uuid, Access::Readable, "");
        } else {
            let text = format!("a round of readings took {:.1} s", took_ns as f64 / 1e9);
            self.board.gpu(&self.gpu.uuid, Access::Silent, text);
        }
        (self.rounds, self.epoch) = (self.rounds + 1, epoch);
        self.put_up(round, all);
        Ok(())
    }

    fn read(&mut self, pace: Pace) -> Result<Round, Code> {
        if self.reader.is_none() {
            if self.rounds > 0 || self.pause > FIRST_PAUSE {
                self.gpu = self.gpu.library.again(&self.gpu)?;
            }
            self.reader = Some(Reader::new(self.gpu.clone()));
        }
        match &mut self.reader {
            Some(reader) => reader.read(pace),
            None => Err(Code::UNINITIALIZED),
        }
    }

    fn put_up(&mut self, round: Round, all: bool) {
        if all {
            self.instances = round.instances;
        }
        let shared = mig::shared(&round.readings);
        for instance in &mut self.instances {
            instance.own.extend(shared.clone());
            let told = self.told.entry(instance.gpu.uuid.clone()).or_default();
            let news = told.news(instance.own.clone(), all);
            self.board.readings(&instance.gpu, news);
        }
        let told = self.told.entry(self.gpu.uuid.clone()).or_default();
        let news = told.news(round.readings, all);
        self.board.readings(&self.gpu, news);
        if let Some(processes) = round.holders {
            self.board.holders(&self.gpu.uuid, processes);
        }
    }
}

/// It is not this GPU: the driver went away, or came back as another.
fn is_the_driver(code: Code) -> bool {
    [
        Code::UNINITIALIZED,
        Code::DRIVER_NOT_LOADED,
        Code::VERSION_MISMATCH,
    ]
    .contains(&code)
}
