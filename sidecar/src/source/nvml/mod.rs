//! GPUs, read through NVIDIA's management library (NVML).
//!
//! The agent's thread never calls the library, because a failing GPU may block a caller for minutes. One thread opens
//! the library (`keeper`), one per GPU reads it (`worker`), and one waits for events (`events`). They publish on the
//! `board`, from which the source sends. A missing library, an unloaded driver, and a lost or unresponsive GPU are
//! reported as such and retried with growing pauses. They are never treated as healthy.

mod board;
mod code;
mod desk;
mod events;
mod keeper;
mod library;
mod pace;
mod readings;
mod survey;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;

pub use library::Refusal;
pub use survey::{Survey, SurveyedGpu, survey};

use self::board::Board;
use super::halt::{self, Halt};
use super::{Losses, Send, Source};
use crate::warn;

/// The source; see the module.
#[derive(Debug)]
pub struct NvmlSource {
    board: Arc<Board>,
    halt: Arc<Halt>,
}

impl NvmlSource {
    /// Starts reading the GPUs of this node through the library at `path`, or through the system's library.
    pub fn new(path: Option<PathBuf>) -> NvmlSource {
        let source = NvmlSource {
            board: Arc::default(),
            halt: Arc::default(),
        };
        let (board, halt) = (Arc::clone(&source.board), Arc::clone(&source.halt));
        let thread = std::thread::Builder::new()
            .name("gpus".into())
            .stack_size(1 << 20)
            .spawn(move || keeper::run(path, &board, &halt));
        if let Err(error) = thread {
            warn::once("gpus", format_args!("the GPUs are not read: {error}"));
            let access = paceline_health::event::Access::Failing;
            source.board.node(access, &format!("no thread: {error}"));
        }
        source
    }
}

impl Source for NvmlSource {
    fn name(&self) -> &'static str {
        "nvml"
    }

    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>) {
        self.board.poll(now_ns, send);
    }

    fn introduce(&mut self, _send: &mut Send<'_>) {
        self.board.tell_again();
    }

    fn busy_ns(&self) -> u64 {
        self.board.busy_ns()
    }

    fn losses(&self) -> Losses {
        Losses {
            torn: self.board.lost(),
            ..Losses::default()
        }
    }
}

impl Drop for NvmlSource {
    fn drop(&mut self) {
        // Do not wait for the threads, because one of them may hang in the driver.
        self.halt.set();
    }
}
