//! A communicator: a rank's connection to its peers, and its faults from the scenario.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::hub::{LOOK, Line, Wish};
use crate::scenario::{Rank, scenario};

/// ncclResult_t.
pub const SYSTEM_ERROR: i32 = 2;
/// See [`SYSTEM_ERROR`].
pub const REMOTE_ERROR: i32 = 6;
/// See [`SYSTEM_ERROR`].
pub const IN_PROGRESS: i32 = 7;

/// The faults of a rank, by its number and by the GPU of this thread.
fn fault(rank: u32) -> Rank {
    let of_rank = scenario().rank.get(&rank.to_string()).cloned();
    let of_gpu = crate::cuda::current().map(|gpu| crate::scenario::gpu(gpu).comm);
    of_rank.unwrap_or_default().and(of_gpu.unwrap_or_default())
}

/// See the module.
pub struct Comm {
    /// The number of ranks.
    pub ranks: u32,
    /// This rank.
    pub rank: u32,
    /// Whether calls return only when the operation is done or queued.
    pub blocks: bool,
    line: OnceLock<Line>,
    state: AtomicI32,
    is_aborted: AtomicBool,
    fault: Rank,
    /// One collective at a time, as on a stream.
    turn: Mutex<()>,
}

impl Comm {
    /// A communicator that is not ready yet.
    pub fn new((ranks, rank): (u32, u32), blocks: bool) -> Comm {
        Comm {
            ranks,
            rank,
            blocks,
            line: OnceLock::new(),
            state: AtomicI32::new(IN_PROGRESS),
            is_aborted: AtomicBool::new(false),
            fault: fault(rank),
            turn: Mutex::default(),
        }
    }

    /// Connects to the peers; returns when all have joined, or on an abort.
    pub fn join(&self, port: u16) {
        if self.fault.init_hang {
            return self.wait_for_abort();
        }
        let is_aborted = || self.is_aborted.load(Ordering::Acquire);
        let state = match Line::join(port, self.ranks, self.rank, is_aborted) {
            Ok(line) => {
                let line = self.line.get_or_init(|| line);
                if self.is_aborted.load(Ordering::Acquire) {
                    line.cut();
                }
                0
            }
            Err(_) if is_aborted() => return,
            Err(_) => SYSTEM_ERROR,
        };
        self.state.store(state, Ordering::Release);
    }

    /// The result of ncclCommGetAsyncError.
    pub fn state(&self) -> i32 {
        self.state.load(Ordering::Acquire)
    }

    /// An operation was requested and is not queued yet.
    pub fn begin(&self) {
        self.state.store(IN_PROGRESS, Ordering::Release);
    }

    /// It is queued. An error in the meantime stays.
    pub fn done(&self) {
        let _ = self
            .state
            .compare_exchange(IN_PROGRESS, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Connects to its peers before the first operation is queued, as NCCL does at a first collective. `false`: it was
    /// aborted.
    pub fn connects(&self) -> bool {
        if self.fault.call_hang {
            self.wait_for_abort();
        }
        !self.is_aborted.load(Ordering::Acquire)
    }

    /// Aborts it: all of its collectives end.
    pub fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
        if let Some(line) = self.line.get() {
            line.cut();
        }
    }

    fn wait_for_abort(&self) {
        while !self.is_aborted.load(Ordering::Acquire) {
            std::thread::sleep(LOOK);
        }
    }

    /// Runs one collective in the thread of a stream and returns its result. If another rank is gone, it ends only when
    /// this one is aborted, like a kernel on a GPU.
    pub fn run(&self, wish: &Wish) -> Option<Vec<u8>> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_aborted.load(Ordering::Acquire) {
            return None;
        }
        if self.fault.die {
            std::process::abort();
        }
        if self.fault.hang {
            self.wait_for_abort();
        }
        let is_net = self.line.get().is_some_and(|line| line.spans_nodes);
        let net = if is_net { self.fault.net_delay_ms } else { 0 };
        std::thread::sleep(Duration::from_millis(self.fault.delay_ms + net));
        let answer = self.line.get().and_then(|line| line.ask(wish).ok());
        if answer.is_none() {
            self.state.store(REMOTE_ERROR, Ordering::Release);
            self.wait_for_abort();
        } else if self.fault.async_error != 0 {
            self.state.store(self.fault.async_error, Ordering::Release);
        }
        let mut answer = answer?;
        if self.fault.wrong
            && let Some(byte) = answer.last_mut()
        {
            *byte ^= 0x10;
        }
        Some(answer)
    }
}
