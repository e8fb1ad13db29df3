//! How late ranks are in collectives that run concurrently with their work, and what that costs of a step.
//!
//! A rank's time in a collective beyond the shortest time of any member is how far that member lags behind it there. If
//! work continues meanwhile, the sum of these lags is many times what the step lost, because a lag that occurs once
//! shows in every later collective. All ranks begin a step together, so a step has lost at least its largest lag. It
//! may have lost more: once a rank has run out of work, it waits and begins its next collective late itself, so the lag
//! stops growing. The growth until then shows how large the lag would have become.

use crate::event::{ALL_GATHER, ALL_REDUCE, FunctionSum, OrderPart, part_sizes};

/// A lag is scaled up only if it shows at least this share of the whole lag. With a smaller share it would be the
/// host's jitter.
const LEAST_SHARE: f64 = 1.0 / 64.0;

/// Returns how many seconds each member of one communicator stood still in a step of `step_s`, in the order of
/// `members`. Returns `None` if they report different collectives.
pub(super) fn stood_s(members: &[&[FunctionSum]], step_s: f64) -> Option<Vec<f64>> {
    let first = members.first().filter(|functions| !functions.is_empty())?;
    let is_same = |functions: &&[FunctionSum]| {
        functions.len() == first.len()
            && functions.iter().zip(*first).all(|(one, other)| {
                one.function == other.function
                    && one.collectives == other.collectives
                    && !one.parts.is_empty()
                    && one.parts.len() == part_sizes(one.collectives).count()
            })
    };
    if !members.iter().all(is_same) {
        return None;
    }
    let mut all = vec![0.0; members.len()];
    for place in 0..first.len() {
        let lags = Lags::of(members.iter().map(|functions| &functions[place]).collect());
        let lost = match first[place].function {
            ALL_GATHER => lags.of_gate(members),
            ALL_REDUCE => lags.of_buckets(step_s * 1e6),
            // The other functions scatter gradients, for which no next layer waits.
            _ => lags.largest(),
        };
        for (all, lost_us) in all.iter_mut().zip(lost) {
            *all = f64::max(*all, lost_us / 1e6);
        }
    }
    Some(all)
}

/// One function of a communicator: by member and part, how far the last member lags behind that member, in
/// microseconds.
struct Lags<'a> {
    sums: Vec<&'a FunctionSum>,
    by_member: Vec<Vec<f64>>,
}

impl<'a> Lags<'a> {
    fn of(sums: Vec<&'a FunctionSum>) -> Lags<'a> {
        let sizes: Vec<u32> = part_sizes(sums[0].collectives).collect();
        let shortest = |part: usize| sums.iter().map(|sum| sum.parts[part].dur_us).min().unwrap_or(0);
        let shortest: Vec<u64> = (0..sizes.len()).map(shortest).collect();
        let lag = |sum: &&FunctionSum| {
            let parts = sum.parts.iter().zip(&shortest).zip(&sizes);
            let of = |((part, shortest), size): ((&OrderPart, &u64), &u32)| {
                (part.dur_us - shortest) as f64 / f64::from(*size)
            };
            parts.map(of).collect()
        };
        let by_member = sums.iter().map(lag).collect();
        Lags { sums, by_member }
    }

    /// Returns the largest lag in the step by member.
    fn largest(&self) -> Vec<f64> {
        let largest = |lags: &Vec<f64>| lags.iter().copied().fold(0.0, f64::max);
        self.by_member.iter().map(largest).collect()
    }

    /// Returns the lags for gathered weights. No rank computes a layer before all have called its collective. After the
    /// first collective all ranks therefore begin together, whatever they did before it, and from there on the lag
    /// grows with the work.
    fn of_gate(&self, members: &[&[FunctionSum]]) -> Vec<f64> {
        let end = |sum: &FunctionSum| sum.parts.last().map_or(0, OrderPart::end_us);
        let first_end = |sum: &FunctionSum| sum.parts.first().map_or(0, OrderPart::end_us);
        let of_comm = members.iter().flat_map(|functions| functions.iter());
        let latest = of_comm.map(end).max().unwrap_or(0);
        let together = self.sums.iter().map(|sum| first_end(sum)).min().unwrap_or(0);
        let left_us = latest.saturating_sub(together) as f64;
        let mut lost = self.largest();
        for part in 1..self.sums[0].parts.len() {
            let worked = |sum: &&FunctionSum| sum.parts[part].begin_us.saturating_sub(first_end(sum));
            let worked_us = self.sums.iter().map(worked).max().unwrap_or(0) as f64;
            if worked_us < LEAST_SHARE * left_us {
                continue;
            }
            for (lost, lags) in lost.iter_mut().zip(&self.by_member) {
                *lost = lost.max(lags[0] + lags[part] * left_us / worked_us);
            }
        }
        lost
    }

    /// Returns the lags for gradients that are reduced while others are computed. No rank waits for them before the
    /// last one. During the first one all ranks still work, so the part of the step before it shows what share of the
    /// whole lag its lag is. Later ones show as much, unless the waiting ranks are in a collective all the time.
    fn of_buckets(&self, step_us: f64) -> Vec<f64> {
        let span = |sum: &FunctionSum| {
            let last = sum.parts.last().map_or(0, OrderPart::end_us);
            last.saturating_sub(sum.parts[0].begin_us) as f64
        };
        let shortest_us = self
            .sums
            .iter()
            .map(|sum| span(sum))
            .fold(f64::INFINITY, f64::min);
        let before_us = step_us - shortest_us;
        let mut lost = self.largest();
        if self.sums[0].collectives < 2 || before_us < LEAST_SHARE * step_us {
            return lost;
        }
        for ((lost, lags), sum) in lost.iter_mut().zip(&self.by_member).zip(&self.sums) {
            let in_them = sum.parts.iter().map(|part| part.dur_us as f64).sum::<f64>();
            let waits = (2.0 * in_them / span(sum).max(1.0) - 1.0).clamp(0.0, 1.0);
            *lost += waits * (lags[0] * step_us / before_us - *lost).max(0.0);
        }
        lost
    }
}

#[cfg(test)]
#[path = "lateness_tests.rs"]
mod tests;
