//! A communicator: a rank's line to the others, and what the scenario has in store for it.

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

/// What is particular about a rank, by its number and by the GPU that this thread is on.
fn fault(rank: u32) -> Rank {
    let of_rank = scenario().rank.get(&rank.to_string()).cloned();
    let of_gpu = crate::cuda::current().map(|gpu| crate::scenario::gpu(gpu).comm);
    of_rank.unwrap_or_default().and(of_gpu.unwrap_or_default())
}

/// See the module.
pub struct Comm {
    /// Ranks in it.
    pub ranks: u32,
    /// Which of them this is.
    pub rank: u32,
    /// Its calls return when what they ask for is done, or queued.
    pub blocks: bool,
    line: OnceLock<Line>,
    state: AtomicI32,
    is_aborted: AtomicBool,
    fault: Rank,
    /// One collective at a time, as on a stream.
    turn: Mutex<()>,
}

impl Comm {
    /// One that is not ready yet.
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

    /// Meets the others; returns when all have come, or when it is aborted.
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

    /// What ncclCommGetAsyncError answers.
    pub fn state(&self) -> i32 {
        self.state.load(Ordering::Acquire)
    }

    /// Something was asked for and is not queued yet.
    pub fn begin(&self) {
        self.state.store(IN_PROGRESS, Ordering::Release);
    }

    /// It is queued. What went wrong meanwhile stays.
    pub fn done(&self) {
        let _ = self
            .state
            .compare_exchange(IN_PROGRESS, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Reaches its peers before something is queued, as NCCL does at a first collective. `false`: it was aborted.
    pub fn connects(&self) -> bool {
        if self.fault.call_hang {
            self.wait_for_abort();
        }
        !self.is_aborted.load(Ordering::Acquire)
    }

    /// Ends it: no collective of it goes on.
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

    /// One collective, in the thread of a stream: what comes of it. When another rank is gone it ends only when this one
    /// is aborted, as a kernel on a GPU does.
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
