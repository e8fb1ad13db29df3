//! Decides when GPU times are requested. All ranks must time the same collectives. Therefore windows are cut by a count
//! that all ranks share: the step if it is known, and otherwise the collectives of the leading communicator. The
//! windows of a rank that samples less are a subset of those of a rank that samples more.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Number of steps in a window.
pub const WINDOW: u64 = 8;
/// Number of collectives of the leading communicator that count as one step if steps are unknown.
pub const LED: u64 = 512;
/// By default one in this many windows is timed. With the step before the window, these are 9 of 32 steps. Published
/// measurements show a cost of at most 1.1 % if all steps are timed (NCCL 2.29.7, 8 A100), so these cost 0.3 %.
pub const EVERY: u32 = 4;
/// The rate that turns timing off.
pub const NEVER: u32 = u32::MAX;
/// Largest useful rate. Sampling less than one in this many windows is turned off.
const RAREST: u32 = 64;

/// Number of first steps of a process that are not timed, because frameworks capture their CUDA graphs in them, after a
/// warm-up of 3 (`torch.cuda.make_graphed_callables`) to 11 steps
/// (<https://docs.pytorch.org/docs/stable/notes/cuda.html>).
pub const AFTER: u32 = 32;
/// Value of `first` until a step was reported.
const NO_STEP: u64 = u64::MAX;

/// The job's current position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The step number that a hook reported.
    Said(u64),
    /// The position counted in collectives of the leading communicator. `of_step` of them make a step; 0 if that is not
    /// known yet.
    Led {
        /// Number of collectives so far.
        led: u64,
        /// Number of collectives in a step.
        of_step: u32,
    },
}

/// See the module documentation.
pub struct Sampler {
    /// The rate from the environment.
    every: AtomicU32,
    /// How often the rate was halved because of its cost.
    halved: AtomicU32,
    /// The number of first steps that are not timed.
    after: AtomicU32,
    /// The first step that a hook reported.
    first: AtomicU64,
    /// True if timing is either on or off for the whole process.
    is_fixed: AtomicBool,
    is_stopped: AtomicBool,
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler::new()
    }
}

impl Sampler {
    /// Returns the default configuration.
    pub const fn new() -> Sampler {
        Sampler {
            every: AtomicU32::new(EVERY),
            halved: AtomicU32::new(0),
            after: AtomicU32::new(AFTER),
            first: AtomicU64::new(NO_STEP),
            is_fixed: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Times one in this many windows; [`NEVER`] times none.
    pub fn every(&self, windows: u32) {
        self.every.store(windows.max(1), Relaxed);
    }

    /// Sets the number of first steps of the process that are not timed.
    pub fn after(&self, steps: u32) {
        self.after.store(steps, Relaxed);
    }

    /// Times the whole process from its first collective on, or nothing.
    pub fn fix(&self) {
        self.is_fixed.store(true, Relaxed);
    }

    /// Stops timing in this process. Returns true the first time.
    pub fn stop(&self) -> bool {
        !self.is_stopped.swap(true, Relaxed)
    }

    /// Returns true if collectives are to be timed from now on. `asked` is the rate that the reader requested, 0 if
    /// none. Timing starts one unit before a window, because NCCL applies a new mask only to the next group.
    pub fn wants(&self, asked: u32, step: Step) -> bool {
        let windows = self.windows(asked);
        if windows == NEVER {
            if self.is_fixed.load(Relaxed) {
                self.stop();
            }
            return false;
        }
        if self.is_fixed.load(Relaxed) {
            return true;
        }
        let windows = u64::from(windows);
        let unit = match step {
            Step::Said(step) => step,
            Step::Led { led, of_step: 0 } => led / LED,
            Step::Led { led, of_step } => led / u64::from(of_step),
        };
        if unit < self.begins(step) {
            return false;
        }
        let is_in = |unit: u64| (unit / WINDOW).is_multiple_of(windows.max(1));
        is_in(unit) || (unit % WINDOW == WINDOW - 1 && is_in(unit + 1))
    }

    /// Returns the first step in which anything may be timed.
    fn begins(&self, step: Step) -> u64 {
        let first = match step {
            Step::Said(step) => match self.first.load(Relaxed) {
                NO_STEP => {
                    self.first.store(step, Relaxed);
                    step
                }
                first => first,
            },
            Step::Led { .. } => 0,
        };
        first.saturating_add(u64::from(self.after.load(Relaxed)))
    }

    /// Halves the rate because of its cost. Returns false if the new rate is too low to be useful.
    pub fn halve(&self, asked: u32) -> bool {
        self.halved.fetch_add(1, Relaxed);
        self.windows(asked) <= RAREST
    }

    /// Returns the current rate: GPU times are taken in one of this many windows. It may be [`NEVER`].
    pub fn windows(&self, asked: u32) -> u32 {
        let own = self.every.load(Relaxed);
        let every = match asked {
            0 => own,
            asked => asked,
        };
        let is_fixed = self.is_fixed.load(Relaxed);
        let is_always = own == 1 && every == 1 && self.halved.load(Relaxed) == 0;
        if self.is_stopped.load(Relaxed) || (is_fixed && !is_always) {
            return NEVER;
        }
        let windows = u64::from(every) << self.halved.load(Relaxed).min(31);
        if every == NEVER {
            NEVER
        } else {
            // The result must be neither NEVER nor the value for a plugin that switched itself off.
            windows.min(u64::from(NEVER) / 2) as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(sampler: &Sampler, asked: u32) -> Vec<u64> {
        sampler.after(0);
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
        sampler.after(0);
        let wants = |led, of_step| sampler.wants(0, Step::Led { led, of_step });
        assert!(wants(0, 0));
        assert!(!wants(LED * WINDOW, 0));
        assert!(wants(LED * WINDOW * u64::from(EVERY), 0));
        let five: Vec<u64> = (0..300).filter(|step| wants(step * 5 + 3, 5)).collect();
        assert_eq!(five, steps(&sampler, 0), "as with a hook");
    }

    /// Calls captured in the first steps would keep a host node in the graph for each requested kernel event.
    #[test]
    fn nothing_is_timed_in_the_first_steps() {
        for first in [1, 5000] {
            let sampler = Sampler::new();
            sampler.every(1);
            let timed = (first..first + 300).find(|step| sampler.wants(0, Step::Said(*step)));
            assert_eq!(timed, Some(first + 32));
        }
        let sampler = Sampler::new();
        let timed = (0..300).find(|step| {
            sampler.wants(
                0,
                Step::Led {
                    led: step * 5,
                    of_step: 5,
                },
            )
        });
        assert_eq!(timed, Some(32));
    }

    #[test]
    fn once_captured_never_again() {
        let sampler = Sampler::new();
        assert!(sampler.stop() && !sampler.stop(), "told once");
        assert_eq!(steps(&sampler, 1), []);
        assert_eq!(sampler.windows(4), NEVER);
    }

    /// With version 7 the host counts only what is timed, but the device counts everything.
    #[test]
    fn always_or_never_where_windows_would_be_others_times() {
        let of = |every| {
            let sampler = Sampler::new();
            sampler.every(every);
            sampler.fix();
            sampler
        };
        assert_eq!(steps(&of(1), 0).len(), 300, "the first steps too");
        for (every, asked) in [(4, 0), (NEVER, 0), (NEVER, 1), (1, 4), (1, NEVER)] {
            assert_eq!(steps(&of(every), asked), [], "{every} {asked}");
        }
        let sampler = of(1);
        assert!(sampler.wants(0, Step::Said(1)) && !sampler.wants(NEVER, Step::Said(2)));
        assert!(!sampler.wants(1, Step::Said(3)), "and not again");
        assert!(!of(1).halve(0), "half of it is nothing");
    }
}
