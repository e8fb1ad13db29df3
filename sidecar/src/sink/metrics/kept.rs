//! A cache for results that are expensive and requested often. The lifetime of a result depends on how long it took to
//! make.

/// Lifetime of a result as a multiple of the time to make it. At most a twentieth of the time is thus spent on making
/// results, regardless of the number of requests.
const REST: u64 = 19;
/// Upper limit of the lifetime. It is needed because a result seems to take longer if the process was stopped
/// meanwhile.
const LONGEST_NS: u64 = 10_000_000_000;

/// The latest result.
#[derive(Clone, Debug)]
pub struct Kept<T> {
    made: Option<T>,
    fresh_until_ns: u64,
}

impl<T> Default for Kept<T> {
    fn default() -> Kept<T> {
        Kept {
            made: None,
            fresh_until_ns: 0,
        }
    }
}

impl<T: Clone> Kept<T> {
    /// Returns the cached result if it is still fresh.
    pub fn fresh(&self, now_ns: u64) -> Option<T> {
        self.made.clone().filter(|_| now_ns < self.fresh_until_ns)
    }

    /// Stores a result that was started and finished at these times.
    pub fn keep(&mut self, made: T, began_ns: u64, now_ns: u64) {
        let rest_ns = now_ns.saturating_sub(began_ns).saturating_mul(REST);
        self.fresh_until_ns = now_ns.saturating_add(rest_ns.min(LONGEST_NS));
        self.made = Some(made);
    }

    /// Returns the cached result if it is fresh. Otherwise makes a new one.
    pub fn get(&mut self, clock_ns: impl Fn() -> u64, make: impl FnOnce() -> T) -> T {
        let began_ns = clock_ns();
        if let Some(fresh) = self.fresh(began_ns) {
            return fresh;
        }
        let made = make();
        self.keep(made.clone(), began_ns, clock_ns());
        made
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn whoever_asks_without_end_gets_a_twentieth() {
        let (now, made) = (Cell::new(0), Cell::new(0));
        let mut kept = Kept::default();
        while now.get() < 1_000 {
            let page = kept.get(
                || now.get(),
                || {
                    made.set(made.get() + 1);
                    now.set(now.get() + 5);
                    made.get().to_string()
                },
            );
            assert_eq!(page, made.get().to_string());
            now.set(now.get() + 1);
        }
        assert_eq!(made.get(), 10);
    }
}
