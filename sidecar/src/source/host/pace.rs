//! Reads values at a steady pace in a separate thread, which may hang without blocking anything else.

use std::sync::Arc;
use std::thread::Builder;

use super::board::Board;
use crate::host::monotonic_ns;
use crate::source::halt::Halt;
use crate::warn;

/// One in this many rounds is slow.
const SLOW_EVERY: u64 = 10;
/// Stack size of a thread.
const STACK: usize = 256 << 10;

/// Kinds of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Reads the values that change every second.
    Fast,
    /// Also reads values that change slowly or are expensive to read.
    Slow,
}

/// A source of readings.
pub trait Meter: Send + 'static {
    /// Readable name of what the meter reads. It is also the name of the thread.
    const NAME: &'static str;

    /// Reads one round and publishes it on the board.
    fn read(&mut self, pace: Pace, board: &Board);
}

/// Starts a thread that reads `meter` until `halt`.
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
