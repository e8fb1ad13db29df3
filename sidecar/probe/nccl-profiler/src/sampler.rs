//! When the GPU's times are asked for. All ranks must ask for the same collectives, so windows are cut by what they count
//! alike (the step, else the collectives of the communicator that leads), and those of a rank that samples less are
//! among those of one that samples more.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Steps of a window.
pub const WINDOW: u64 = 8;
/// Collectives of the leading communicator that stand for a step where none is known.
pub const LED: u64 = 512;
/// One of so many windows, by default: where others measured 1.1 % at most with all of them (NCCL 2.29.7, 8 A100), 9 of
/// 32 steps are 0.3 %.
pub const EVERY: u32 = 4;
/// Said of a window that never comes.
pub const NEVER: u32 = u32::MAX;
/// Rarer than one of so many is off.
const RAREST: u32 = 64;

/// Where the job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// By a hook.
    Said(u64),
    /// By the collectives of the leading communicator, of which `of_step` make a step; 0: nobody knows yet.
    Led {
        /// So far.
        led: u64,
        /// In a step.
        of_step: u32,
    },
}

/// See the module.
pub struct Sampler {
    /// By the environment.
    every: AtomicU32,
    /// How often it was halved because it cost too much.
    halved: AtomicU32,
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler::new()
    }
}

impl Sampler {
    /// As by default.
    pub const fn new() -> Sampler {
        Sampler {
            every: AtomicU32::new(EVERY),
            halved: AtomicU32::new(0),
        }
    }

    /// One of so many windows; [`NEVER`] is none.
    pub fn every(&self, windows: u32) {
        self.every.store(windows.max(1), Relaxed);
    }

    /// Whether collectives from now on shall be timed. `asked` is the reader's wish, 0 none. One unit ahead of a window
    /// it begins, because NCCL takes a new mask with the next group only.
    pub fn wants(&self, asked: u32, step: Step) -> bool {
        let windows = self.windows(asked);
        if windows == NEVER {
            return false;
        }
        let windows = u64::from(windows);
        let unit = match step {
            Step::Said(step) => step,
            Step::Led { led, of_step: 0 } => led / LED,
            Step::Led { led, of_step } => led / u64::from(of_step),
        };
        let is_in = |unit: u64| (unit / WINDOW).is_multiple_of(windows.max(1));
        is_in(unit) || (unit % WINDOW == WINDOW - 1 && is_in(unit + 1))
    }

    /// It costs too much: half as often. False when that is too rare to be of use.
    pub fn halve(&self, asked: u32) -> bool {
        self.halved.fetch_add(1, Relaxed);
        self.windows(asked) <= RAREST
    }

    /// GPU times are taken in one of so many windows; [`NEVER`].
    pub fn windows(&self, asked: u32) -> u32 {
        let every = match asked {
            0 => self.every.load(Relaxed),
            asked => asked,
        };
        let windows = u64::from(every) << self.halved.load(Relaxed).min(31);
        if every == NEVER {
            NEVER
        } else {
            // What is neither never nor that the plugin took itself out.
            windows.min(u64::from(NEVER) / 2) as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(sampler: &Sampler, asked: u32) -> Vec<u64> {
        (0..300)
            .filter(|step| sampler.wants(asked, Step::Said(*step)))
            .collect()
    }

    #[test]
    fn a_window_and_the_step_before_it() {
        let sampler = Sampler::new();
        let wanted = steps(&sampler, 0);
        assert_eq!(wanted[..10], [0, 1, 2, 3, 4, 5, 6, 7, 31, 32]);
        assert_eq!(steps(&sampler, 1).len(), 300);
        assert_eq!(steps(&sampler, NEVER), []);
        sampler.every(NEVER);
        assert_eq!(steps(&sampler, 0), []);
        assert!(!steps(&sampler, 8).is_empty(), "the reader may ask for it");
    }

    #[test]
    fn rarer_windows_are_among_the_others() {
        let (often, rare) = (Sampler::new(), Sampler::new());
        assert!(rare.halve(0));
        let often = steps(&often, 0);
        let rare = steps(&rare, 0);
        assert!(rare.len() < often.len() && rare.iter().all(|step| often.contains(step)));
    }

    #[test]
    fn too_rare_is_off() {
        let sampler = Sampler::new();
        assert_eq!((0..9).take_while(|_| sampler.halve(0)).count(), 4, "4 to 64");
        sampler.every(NEVER);
        assert!(!sampler.halve(0), "nothing is sampled, and that is too much");
        let asked = Sampler::new();
        asked.every(NEVER);
        assert!(asked.halve(4), "what the reader asked for may be halved");
        assert_eq!((asked.windows(0), asked.windows(4)), (NEVER, 8));
    }

    #[test]
    fn without_steps_the_largest_communicator_counts() {
        let sampler = Sampler::new();
        let wants = |led, of_step| sampler.wants(0, Step::Led { led, of_step });
        assert!(wants(0, 0));
        assert!(!wants(LED * WINDOW, 0));
        assert!(wants(LED * WINDOW * u64::from(EVERY), 0));
        let five: Vec<u64> = (0..300).filter(|step| wants(step * 5 + 3, 5)).collect();
        assert_eq!(five, steps(&sampler, 0), "as with a hook");
    }
}
