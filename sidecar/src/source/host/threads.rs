//! How long threads were runnable without a free CPU.
//!
//! A trainer has hundreds of threads, of which few are active. All are checked from time to time. Those that ran or
//! waited most since the last check are followed, with their files kept open; sleeping threads are not.

use std::collections::BTreeMap;

use paceline_health::event::Reading;

use super::files::{Files, Kept};
use super::grown::Grown;

/// Maximum number of threads checked: in the rank's own process, and in each child (its main thread and the next one).
const OWN: usize = 64;
const OF_CHILD: usize = 2;
/// Maximum number of threads followed.
const FOLLOWED: usize = 8;

/// The threads of one rank's processes.
#[derive(Debug, Default)]
pub struct Threads {
    /// All checked threads, by process and thread ID: time on a CPU plus time waiting for one, in nanoseconds.
    seen: BTreeMap<(u32, u32), u64>,
    followed: BTreeMap<(u32, u32), Kept>,
    waited: Grown<(u32, u32)>,
}

impl Threads {
    /// Checks all threads of `processes`, which starts with the rank's own process, and chooses those to follow.
    pub fn choose(&mut self, files: &mut Files, processes: &[u32]) {
        let mut busy = Vec::new();
        let mut seen = BTreeMap::new();
        for (index, pid) in processes.iter().enumerate() {
            let most = if index == 0 { OWN } else { OF_CHILD };
            let mut threads: Vec<u32> = files
                .names(format!("proc/{pid}/task"))
                .iter()
                .filter_map(|name| name.parse().ok())
                .collect();
            threads.sort_unstable();
            for thread in threads.into_iter().take(most) {
                let text = files.text(format!("proc/{pid}/task/{thread}/schedstat"));
                let Some((ran, waited)) = text.ok().and_then(parse) else {
                    continue;
                };
                let key = (*pid, thread);
                let total = ran + waited;
                let before = self.seen.get(&key).copied().unwrap_or(0);
                // The main thread of the rank itself is always followed.
                let is_main = index == 0 && thread == *pid;
                let did = total.saturating_sub(before);
                if is_main || did > 0 {
                    busy.push((is_main, did, key, waited));
                }
                seen.insert(key, total);
            }
        }
        self.seen = seen;
        busy.sort_unstable_by(|one, other| other.cmp(one));
        busy.truncate(FOLLOWED);
        let is_busy = |key: &(u32, u32)| busy.iter().any(|(_, _, busy, _)| busy == key);
        self.followed.retain(|key, _| is_busy(key));
        self.waited.keep(is_busy);
        for (_, _, key, waited) in busy {
            if !self.followed.contains_key(&key)
                && let Ok(file) = files.keep(format!("proc/{}/task/{}/schedstat", key.0, key.1))
            {
                self.followed.insert(key, file);
                self.waited.take(key, waited as f64);
            }
        }
    }

    /// Returns the time that followed threads have waited since each was first followed, in nanoseconds.
    pub fn waited_ns(&mut self) -> Reading {
        self.followed.retain(|key, file| {
            let Some((_, waited)) = file.read(parse) else {
                // The thread has ended.
                return false;
            };
            self.waited.take(*key, waited as f64);
            true
        });
        self.waited.reading()
    }
}

/// Parses `/proc/PID/task/TID/schedstat`: time on a CPU, time waiting for one, number of timeslices. A kernel without
/// accounting reports only zeros. See <https://docs.kernel.org/scheduler/sched-stats.html>.
fn parse(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let (ran, waited, turns) = (
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
    );
    (turns > 0_u64).then_some((ran, waited))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        for (text, wanted) in [
            ("80392306 21584332 271\n", Some((80_392_306, 21_584_332))),
            ("0 0 0\n", None),
            ("17 4", None),
            ("", None),
        ] {
            assert_eq!(parse(text), wanted, "{text}");
        }
    }
}
