//! The thread of one GPU. If the GPU does not respond, only this thread blocks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use paceline_health::event::Access;
use paceline_health::id::GpuId;

use super::board::{Board, SILENT_NS};
use super::code::Code;
use super::desk::Desk;
use super::halt::Halt;
use super::library::{Gpu, Library};
use super::pace::{Pace, SLOW_EVERY, Told};
use super::readings::mig::{self, Instance};
use super::readings::reader::{Reader, Round};
use crate::host::monotonic_ns;

/// Delay before a failing GPU is retried. It doubles up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The worker; see the module.
pub struct Worker {
    index: u32,
    library: Arc<Library>,
    desk: Arc<Desk>,
    board: Arc<Board>,
    /// Sends the GPU to the thread that waits for its events.
    found: Sender<Gpu>,
    gpu: Option<Gpu>,
    reader: Option<Reader>,
    instances: Vec<Instance>,
    told: BTreeMap<GpuId, Told>,
    rounds: u64,
    epoch: u64,
}

impl Worker {
    /// Creates the worker for the GPU with this index. The GPU is not looked up yet, because that may take long, too.
    pub fn new(index: u32, library: Arc<Library>, board: Arc<Board>, found: Sender<Gpu>) -> Worker {
        let desk = Arc::default();
        board.stranger(index, &desk, None);
        Worker {
            index,
            library,
            desk,
            board,
            found,
            gpu: None,
            reader: None,
            instances: Vec::new(),
            told: BTreeMap::new(),
            rounds: 0,
            epoch: 0,
        }
    }

    /// Reads the GPU until `halt`, or until the driver itself is gone.
    pub fn run(mut self, halt: &Halt) {
        let mut pause = FIRST_PAUSE;
        loop {
            let began_ns = monotonic_ns();
            let done = self.round();
            self.board.took(monotonic_ns().saturating_sub(began_ns));
            match done {
                Ok(()) => pause = FIRST_PAUSE,
                Err(code) => {
                    self.reader = None;
                    self.refused(code);
                    if is_the_driver(code) || halt.sleep(pause) {
                        return;
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
            if halt.sleep_to_next_second() {
                return;
            }
        }
    }

    fn refused(&self, code: Code) {
        match &self.gpu {
            Some(gpu) => self.board.gpu(&gpu.uuid, code.access(), code.to_string()),
            None => {
                let trouble = Some((code.access(), code.to_string()));
                self.board.stranger(self.index, &self.desk, trouble);
            }
        }
    }

    fn round(&mut self) -> Result<(), Code> {
        let epoch = self.board.epoch();
        let all = epoch != self.epoch || self.rounds.is_multiple_of(SLOW_EVERY) || self.reader.is_none();
        let began_ns = monotonic_ns();
        let desk = Arc::clone(&self.desk);
        let (gpu, round) = {
            let _round = desk.begin("nvmlDeviceGetHandleByIndex_v2");
            let gpu = self.find()?;
            let reader = self.reader.get_or_insert_with(|| Reader::new(gpu.clone()));
            (gpu, reader.read(if all { Pace::Slow } else { Pace::Fast })?)
        };
        let took_ns = monotonic_ns().saturating_sub(began_ns);
        if took_ns < SILENT_NS {
            self.board.gpu(&gpu.uuid, Access::Readable, "");
        } else {
            let text = format!("a round of readings took {:.1} s", took_ns as f64 / 1e9);
            self.board.gpu(&gpu.uuid, Access::Silent, text);
        }
        (self.rounds, self.epoch) = (self.rounds + 1, epoch);
        self.put_up(&gpu, round, all);
        Ok(())
    }

    /// Returns the GPU. Looks it up again after a failure, because it may have another handle by then.
    fn find(&mut self) -> Result<Gpu, Code> {
        let found = match (&self.gpu, &self.reader) {
            (Some(gpu), Some(_)) => return Ok(gpu.clone()),
            (Some(gpu), None) => self.library.again(gpu)?,
            (None, _) => self.library.gpu(self.index, Arc::clone(&self.desk))?,
        };
        self.board.seat(self.index, &found);
        // There may be no receiver, because events are not available everywhere.
        let _ = self.found.send(found.clone());
        self.gpu = Some(found.clone());
        Ok(found)
    }

    fn put_up(&mut self, gpu: &Gpu, round: Round, all: bool) {
        if all {
            self.instances = round.instances;
            for instance in &mut self.instances {
                instance.gpu.uuid = mig::alias(&instance.gpu.uuid);
            }
        }
        let shared = mig::shared(&round.readings);
        for instance in &mut self.instances {
            instance.own.extend(shared.clone());
            let told = self.told.entry(instance.gpu.uuid.clone()).or_default();
            let news = told.news(instance.own.clone(), all);
            self.board.readings(&instance.gpu, news);
        }
        let told = self.told.entry(gpu.uuid.clone()).or_default();
        let news = told.news(round.readings, all);
        self.board.readings(gpu, news);
        if let Some(processes) = round.holders {
            self.board.holders(&gpu.uuid, processes);
        }
    }
}

/// Returns true if the code is not caused by this GPU, but by a driver that was unloaded or replaced by another
/// version.
fn is_the_driver(code: Code) -> bool {
    [
        Code::UNINITIALIZED,
        Code::DRIVER_NOT_LOADED,
        Code::VERSION_MISMATCH,
    ]
    .contains(&code)
}
