//! The thread that opens the library and starts a thread for each GPU. It starts over when the driver is gone.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use paceline_health::event::Access;

use super::board::Board;
use super::desk::Desk;
use super::events;
use super::halt::Halt;
use super::library::Library;
use super::worker::Worker;

/// Delay before the library is opened again after a failure. It doubles up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// If no GPU could be read for this long, the library and the driver are opened again.
const BEGIN_ANEW: Duration = Duration::from_secs(20);
/// Stack size of a thread. The driver's library needs more than a minimum.
const STACK: usize = 1 << 20;

/// Main function of the thread; see the module. Returns after `halt`.
pub fn run(path: Option<PathBuf>, board: &Arc<Board>, halt: &Halt) {
    let desk = Arc::new(Desk::default());
    board.seat_keeper(Arc::clone(&desk));
    let mut pause = FIRST_PAUSE;
    loop {
        let opened = {
            let _round = desk.begin("nvmlInit_v2");
            desk.time("nvmlInit_v2", || Library::open(path.as_deref()))
        };
        match opened {
            Ok(library) => {
                let worked =
                    Generation::new(Arc::new(library), Arc::clone(board), Arc::clone(&desk)).live(halt);
                if worked {
                    pause = FIRST_PAUSE;
                }
            }
            Err(refusal) => board.node(refusal.access, &refusal.text),
        }
        if halt.sleep(pause) {
            return;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Everything that lives as long as the library stays open.
struct Generation {
    library: Arc<Library>,
    board: Arc<Board>,
    desk: Arc<Desk>,
    halt: Arc<Halt>,
    /// The threads of the GPUs. A worker ends by itself only when the driver is gone.
    workers: Vec<JoinHandle<()>>,
    events: Option<JoinHandle<()>>,
}

impl Generation {
    fn new(library: Arc<Library>, board: Arc<Board>, desk: Arc<Desk>) -> Generation {
        Generation {
            library,
            board,
            desk,
            halt: Arc::default(),
            workers: Vec::new(),
            events: None,
        }
    }

    /// Runs until the driver is gone, nothing could be read for long, or `halt` is set. Returns true if any GPU could
    /// be read.
    fn live(mut self, halt: &Halt) -> bool {
        let worked = match self.begin() {
            Ok(()) => self.watch(halt),
            Err((access, text)) => {
                self.board.node(access, &text);
                false
            }
        };
        // The library may be shut down only after the last call has returned. Unless the sidecar stops, wait even for a
        // thread in a hung call, because a new start next to it would only hang as well.
        self.halt.set();
        for thread in self.workers.into_iter().chain(self.events) {
            while !thread.is_finished() && !halt.sleep(Duration::from_millis(100)) {}
            if thread.is_finished() {
                // Ignore the result: a thread that panicked has ended too.
                let _ = thread.join();
            }
        }
        worked
    }

    fn begin(&mut self) -> Result<(), (Access, String)> {
        let desk = Arc::clone(&self.desk);
        let _round = desk.begin("nvmlDeviceGetCount_v2");
        let count = self.library.count();
        let count = count.map_err(|code| (code.access(), format!("nvmlDeviceGetCount_v2: {code}")))?;
        if count == 0 {
            return Err((Access::NoDevice, "the driver shows no GPU to this process".into()));
        }
        self.board.forget_strangers();
        self.board.node(Access::Readable, "");
        let (found, gpus) = channel();
        for index in 0..count {
            let (library, board) = (Arc::clone(&self.library), Arc::clone(&self.board));
            let worker = Worker::new(index, library, board, found.clone());
            let halt = Arc::clone(&self.halt);
            let thread = self.spawn(format!("gpu {index}"), move || worker.run(&halt));
            self.workers.extend(thread);
        }
        let (library, board) = (Arc::clone(&self.library), Arc::clone(&self.board));
        let halt = Arc::clone(&self.halt);
        self.events = self.spawn("gpu events".into(), move || {
            events::run(&library, &gpus, &board, &halt);
        });
        Ok(())
    }

    fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
        let spawned = Builder::new().name(name).stack_size(STACK).spawn(run);
        let failed = |error| self.board.node(Access::Failing, &format!("no thread: {error}"));
        spawned.map_err(failed).ok()
    }

    /// Watches the GPUs until the driver is gone or none could be read for long.
    fn watch(&mut self, halt: &Halt) -> bool {
        let mut readable = Instant::now();
        let mut worked = false;
        while !halt.sleep(Duration::from_millis(500)) {
            if self.board.any_readable() {
                readable = Instant::now();
                worked = true;
            }
            let gave_up = self.workers.iter().any(JoinHandle::is_finished);
            if gave_up || readable.elapsed() >= BEGIN_ANEW {
                return worked;
            }
        }
        worked
    }
}
