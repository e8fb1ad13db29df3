//! A detector, and optionally a second one that is repeatedly saved and restored. Both must report the same.

use std::ops::Deref;

use paceline_health::codec::msgpack;
use paceline_health::verdict::Verdict;
use paceline_health::{Detector, Frame, Policy, Time};

/// Number of frames between the first restores. Later restores are less frequent, because worlds are long.
const FIRST: u64 = 7;

/// Takes the place of the detector in a test.
pub struct Watched {
    detector: Detector,
    second: Option<Detector>,
    taken: u64,
    cut_at: u64,
}

impl Default for Watched {
    fn default() -> Watched {
        Watched::new(false)
    }
}

impl Watched {
    /// Creates new detectors.
    pub fn new(with_second: bool) -> Watched {
        let new = || Detector::new(Policy::default());
        Watched {
            detector: new(),
            second: with_second.then(new),
            taken: 0,
            cut_at: FIRST,
        }
    }

    /// Creates the same kind of object with new detectors.
    pub fn anew(&self) -> Watched {
        Watched::new(self.second.is_some())
    }

    /// See [`Detector::observe`].
    pub fn observe(&mut self, at: Time, frame: &Frame) {
        self.detector.observe(at, frame);
        self.taken += 1;
        if let Some(second) = &mut self.second {
            second.observe(at, frame);
            if self.taken == self.cut_at {
                self.cut_at += self.cut_at / 4 + FIRST;
                *second = cut(second);
            }
        }
    }

    /// See [`Detector::advance`].
    pub fn advance(&mut self, at: Time) {
        self.detector.advance(at);
        if let Some(second) = &mut self.second {
            second.advance(at);
        }
    }

    /// See [`Detector::poll`].
    pub fn poll(&mut self) -> Option<Verdict> {
        let said = self.detector.poll();
        if let Some(second) = &mut self.second {
            assert_eq!(json(&second.poll()), json(&said), "after {} frames", self.taken);
        }
        said
    }

    /// Checks that both are in the same state and report the same.
    pub fn compare(&mut self) {
        let Some(second) = &mut self.second else { return };
        *second = cut(second);
        let [first, again] = [&self.detector, second].map(|detector| json(&detector.report()));
        assert_eq!(again, first, "the report after {} frames", self.taken);
        assert!(
            written(second) == written(&self.detector),
            "the state after {} frames",
            self.taken
        );
    }
}

impl Deref for Watched {
    type Target = Detector;

    fn deref(&self) -> &Detector {
        &self.detector
    }
}

fn cut(detector: &Detector) -> Detector {
    msgpack::from_slice(&written(detector)).expect("what was written")
}

fn written(detector: &Detector) -> Vec<u8> {
    rmp_serde::to_vec(detector).expect("a state that can be written")
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("JSON")
}
