//! The metrics page between two scrapes. It is made of a whole report, and frames wait while it is made.

/// A page is kept for so many times as long as it took: a twentieth of the thread's time at most goes into pages, however
/// often somebody asks.
const REST: u64 = 19;
/// But not for longer: who was stopped while it made one has not taken that long.
const LONGEST_NS: u64 = 10_000_000_000;

/// The page as it was made last.
#[derive(Debug, Default)]
pub struct Scraped {
    page: String,
    fresh_until_ns: u64,
}

impl Scraped {
    /// The page, made anew by `make` if it is time.
    pub fn page(&mut self, clock_ns: impl Fn() -> u64, make: impl FnOnce() -> String) -> &str {
        let began_ns = clock_ns();
        if began_ns >= self.fresh_until_ns {
            self.page = make();
            let took_ns = clock_ns().saturating_sub(began_ns);
            let rest_ns = took_ns.saturating_mul(REST).min(LONGEST_NS);
            self.fresh_until_ns = clock_ns().saturating_add(rest_ns);
        }
        &self.page
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn whoever_asks_without_end_gets_a_twentieth() {
        let (now, made) = (Cell::new(0), Cell::new(0));
        let mut scraped = Scraped::default();
        while now.get() < 1_000 {
            let page = scraped.page(
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
