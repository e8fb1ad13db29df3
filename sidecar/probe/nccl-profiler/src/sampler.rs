//! When the GPU's times are asked for. All ranks must ask for the same collectives, so windows are cut by what they count
//! alike (the step, else the collectives of the largest communicator), and those of a rank that samples less are
//! among those of one that samples more.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Steps of a window.
pub const WINDOW: u64 = 8;
/// Collectives of the largest communicator that stand for a step where none is known.
pub const LED: u64 = 512;
/// One of so many windows, by default: where others measured 1.1 % at most with all of them (NCCL 2.29.7, 8 A100), 9 of
/// 32 steps are 0.3 %.
pub const EVERY: u32 = 4;
/// Said of a window that never comes.
pub const NEVER: u32 = u32::MAX;
/// Rarer than one of so many is off.
const RAREST: u32 = 64;

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
    pub fn wants(&self, asked: u32, step: Option<u64>, led: u64) -> bool {
        let every = match asked {
            0 => self.every.load(Relaxed),
            asked => asked,
        };
        if every == NEVER {
            return false;
        }
        let windows = u64::from(every) << self.halved.load(Relaxed).min(31);
        let unit = step.unwrap_or(led / LED);
        let is_in = |unit: u64| (unit / WINDOW).is_multiple_of(windows.max(1));
        is_in(unit) || is_in(unit + 1)
    }

    /// It costs too much: half as often. False when that is too rare to be of use.
    pub fn halve(&self) -> bool {
        let halved = self.halved.fetch_add(1, Relaxed) + 1;
        let every = self.every.load(Relaxed);
        every != NEVER && u64::from(every) << halved.min(31) <= u64::from(RAREST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(sampler: &Sampler, asked: u32) -> Vec<u64> {
        (0..300)
            .filter(|step| sampler.wants(asked, Some(*step), 0))
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
        assert!(rare.halve());
        let often = steps(&often, 0);
        let rare = steps(&rare, 0);
        assert!(rare.len() < often.len() && rare.iter().all(|step| often.contains(step)));
    }

    #[test]
    fn too_rare_is_off() {
        let sampler = Sampler::new();
        assert_eq!((0..9).take_while(|_| sampler.halve()).count(), 4, "4 to 64");
    }

    #[test]
    fn without_steps_the_largest_communicator_counts() {
        let sampler = Sampler::new();
        assert!(sampler.wants(0, None, 0));
        assert!(!sampler.wants(0, None, LED * WINDOW));
        assert!(sampler.wants(0, None, LED * WINDOW * u64::from(EVERY)));
    }
}
