//! A communicator: a rank's connection to its peers, and its faults from the scenario.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::hub::{LOOK, Line, Wish};
use crate::scenario::{Rank, scenario};

/// Result code of ncclResult_t.
pub const SYSTEM_ERROR: i32 = 2;
/// Result code, like [`SYSTEM_ERROR`].
pub const REMOTE_ERROR: i32 = 6;
/// Result code, like [`SYSTEM_ERROR`].
pub const IN_PROGRESS: i32 = 7;

/// Returns the faults of a rank, combined from those of its number and those of this thread's GPU.
fn fault(rank: u32) -> Rank {
    let of_rank = scenario().rank.get(&rank.to_string()).cloned();
    let of_gpu = crate::cuda::current().map(|gpu| crate::scenario::gpu(gpu).comm);
    of_rank.unwrap_or_default().and(of_gpu.unwrap_or_default())
}

/// A communicator; see the module documentation.
pub struct Comm {
    /// The number of ranks.
    pub ranks: u32,
    /// The number of this rank.
    pub rank: u32,
    /// True if calls return only when the operation is done or queued.
    pub blocks: bool,
    line: OnceLock<Line>,
    state: AtomicI32,
    is_aborted: AtomicBool,
    fault: Rank,
    /// Held during a collective, because only one runs at a time, as on a stream.
    turn: Mutex<()>,
}

impl Comm {
    /// Returns a communicator that is not ready yet.
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

    /// Connects to the peers. Returns when all have joined, or on an abort.
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

    /// Returns the result of ncclCommGetAsyncError.
    pub fn state(&self) -> i32 {
        self.state.load(Ordering::Acquire)
    }

    /// Records that an operation was requested and is not queued yet.
    pub fn begin(&self) {
        self.state.store(IN_PROGRESS, Ordering::Release);
    }

    /// Records that the operation is queued. If there was an error in the meantime, the error is kept.
    pub fn done(&self) {
        let _ = self
            .state
            .compare_exchange(IN_PROGRESS, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Connects to the peers before the first operation is queued, as NCCL does at a first collective. Returns false if
    /// the communicator was aborted.
    pub fn connects(&self) -> bool {
        if self.fault.call_hang {
            self.wait_for_abort();
        }
        !self.is_aborted.load(Ordering::Acquire)
    }

    /// Aborts the communicator, which ends all of its collectives.
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

    /// Runs one collective in the thread of a stream and returns its result. If another rank is gone, the collective
    /// ends only when this communicator is aborted, like a kernel on a GPU.
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
