//! Reading at a steady pace on a thread of its own, which may hang without holding up anybody.

use std::sync::Arc;
use std::thread::Builder;

use super::board::Board;
use crate::host::monotonic_ns;
use crate::source::halt::Halt;
use crate::warn;

/// Every so many rounds is a slow one.
const SLOW_EVERY: u64 = 10;
/// Address space of a thread.
const STACK: usize = 256 << 10;

/// What is read in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// What changes from second to second.
    Fast,
    /// That, and what trends or costs more.
    Slow,
}

/// Something that is read.
pub trait Meter: Send + 'static {
    /// What it reads, for people; the name of its thread.
    const NAME: &'static str;

    /// One round, told on the board.
    fn read(&mut self, pace: Pace, board: &Board);
}

/// Reads `meter` until `halt`.
pub fn start<M: Meter>(mut meter: M, board: Arc<Board>, halt: Arc<Halt>) {
    let run = move || {
        for round in 0_u64.. {
            let began = monotonic_ns();
            {
                let _round = board.begin(M::NAME, began);
                let slow = round.is_multiple_of(SLOW_EVERY);
                meter.read(if slow { Pace::Slow } else { Pace::Fast }, &board);
            }
            if halt.sleep_to_next_second() {
                return;
            }
        }
    };
    let thread = Builder::new().name(M::NAME.into()).stack_size(STACK).spawn(run);
    if let Err(error) = thread {
        warn::once(M::NAME, format_args!("{} are not read: {error}", M::NAME));
    }
}
