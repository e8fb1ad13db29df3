//! Sums the growth of counters since each was first read. The sum never falls and never jumps, although counters come
//! and go: a process that ends, a port that is removed, a driver that is reloaded and a counter that wraps add nothing.

use std::collections::BTreeMap;

use paceline_health::event::{Missing, Reading};

/// The sum of growth; see the module.
#[derive(Debug)]
pub struct Grown<K> {
    last: BTreeMap<K, f64>,
    sum: f64,
    known: bool,
}

impl<K> Default for Grown<K> {
    fn default() -> Grown<K> {
        Grown {
            last: BTreeMap::new(),
            sum: 0.0,
            known: false,
        }
    }
}

impl<K: Ord> Grown<K> {
    /// Adds the value of a counter.
    pub fn take(&mut self, counter: K, now: f64) {
        let before = self.last.insert(counter, now).unwrap_or(now);
        self.add((now - before).max(0.0));
    }

    /// Adds an increment that the caller has counted.
    pub fn add(&mut self, more: f64) {
        self.sum += more;
        self.known = true;
    }

    /// Forgets counters that are no longer wanted. The sum keeps their growth.
    pub fn keep(&mut self, wanted: impl Fn(&K) -> bool) {
        self.last.retain(|counter, _| wanted(counter));
    }

    /// Returns the sum, or unsupported if no counter was read yet.
    pub fn reading(&self) -> Reading {
        if self.known {
            Reading::Value(self.sum)
        } else {
            Reading::Missing(Missing::Unsupported)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_growth_counts() {
        let mut grown = Grown::default();
        assert_eq!(grown.reading(), Reading::Missing(Missing::Unsupported));
        for (counter, now, sum) in [
            ("a", 100.0, 0.0),
            ("a", 130.0, 30.0),
            ("b", 9e9, 30.0),
            ("b", 9e9 + 5.0, 35.0),
            ("a", 4.0, 35.0),
            ("a", 6.0, 37.0),
        ] {
            grown.take(counter, now);
            assert_eq!(grown.reading(), Reading::Value(sum), "{counter} {now}");
        }
        grown.keep(|counter| *counter == "a");
        grown.take("b", 1e12);
        assert_eq!(grown.reading(), Reading::Value(37.0), "it came again");
    }
}
