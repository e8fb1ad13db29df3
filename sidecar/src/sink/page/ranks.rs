//! The state of each rank, in ten bytes per rank: its comparison with its peers, its progress, the duration of its last
//! step and the shares of its phases. The heat map has the history of as many ranks as fit; this is the current state
//! of all ranks.

use std::collections::VecDeque;

use paceline_health::codec::base64;
use paceline_health::event::StepKind;
use paceline_health::report::step_snapshot::{ABSENT, StepSnapshot};
use serde_json::json;

use crate::sink::metrics::Metrics;
use crate::sink::metrics::seats::LastStep;

/// Number of steps over which a rank is compared. A single step may be an outlier.
const STEPS: usize = 16;
/// Number of bytes per rank.
pub const BYTES: usize = 10;
/// Number of units per step in which shares are expressed.
const PARTS: f64 = 250.0;
/// The value for an unknown share.
const UNTOLD: u8 = u8::MAX;
/// The value for an unknown number.
const UNKNOWN: u16 = u16::MAX;

/// The latest compared steps.
#[derive(Debug, Default)]
pub(super) struct Lately {
    /// The cells by step, then by rank.
    steps: VecDeque<Vec<u8>>,
}

impl Lately {
    /// Adds a step, unless it is not an ordinary training step.
    pub fn step(&mut self, seen: &StepSnapshot) {
        if seen.kind != StepKind::Train {
            return;
        }
        if self
            .steps
            .back()
            .is_some_and(|last| last.len() != seen.cells.len())
        {
            self.steps.clear();
        }
        // Reuse the oldest step's memory for the newest.
        let mut cells = if self.steps.len() < STEPS {
            Vec::new()
        } else {
            self.steps.pop_front().unwrap_or_default()
        };
        cells.clone_from(&seen.cells);
        self.steps.push_back(cells);
    }

    /// Returns the median of a rank's cells, or [`ABSENT`] if it has no data in the newest step.
    fn middle(&self, rank: usize) -> u8 {
        let of = |step: &Vec<u8>| step.get(rank).copied().unwrap_or(ABSENT);
        if self.steps.back().is_none_or(|step| of(step) == ABSENT) {
            return ABSENT;
        }
        let mut known = [0; STEPS];
        let mut count = 0;
        for cell in self.steps.iter().map(of).filter(|cell| *cell != ABSENT) {
            known[count] = cell;
            count += 1;
        }
        *known[..count].select_nth_unstable(count / 2).1
    }
}

/// Returns JSON with the newest step finished by any rank, and with data for each rank, by its number, in base64. The
/// data is its cell (the median of the last [`STEPS`] steps), the shares of data, compute, wait, optimizer and
/// checkpoint in its last step (250ths, or 255 if unknown), how many steps it is behind the newest, and the natural
/// logarithm of the last step's microseconds, in thousandths. The last two have 16 bits, low byte first, or 65535 if
/// unknown.
pub(super) fn ranks(metrics: &Metrics, lately: &Lately) -> String {
    let newest = metrics.ranks().filter_map(|seat| Some(seat.last?.step)).max();
    let mut bytes = Vec::new();
    for seat in metrics.ranks() {
        let rank = seat.rank.0 as usize;
        // The position is the rank. Ranks that were never seen get an empty entry.
        while bytes.len() < rank * BYTES {
            bytes.extend(packed(ABSENT, None, 0));
        }
        bytes.extend(packed(lately.middle(rank), seat.last, newest.unwrap_or(0)));
    }
    json!([newest, base64::encode(&bytes)]).to_string()
}

fn packed(cell: u8, last: Option<&LastStep>, newest: u64) -> [u8; BYTES] {
    let phases = last.and_then(|last| Some((last.phases?, last.dur_ns)));
    let shares = phases.filter(|(_, dur_ns)| *dur_ns > 0).map(|(phases, dur_ns)| {
        let parts = [
            phases.data_ns,
            phases.compute_ns,
            phases.wait_ns,
            phases.optimizer_ns,
            phases.checkpoint_ns,
        ];
        parts.map(|ns| (ns as f64 / dur_ns as f64 * PARTS).round().min(PARTS) as u8)
    });
    let [data, compute, wait, optimizer, checkpoint] = shares.unwrap_or([UNTOLD; 5]);
    let behind = last.map_or(UNKNOWN, |last| {
        newest.saturating_sub(last.step).min(u64::from(UNKNOWN - 1)) as u16
    });
    let took = last.map_or(UNKNOWN, |last| {
        let micros = (last.dur_ns as f64 / 1e3).max(1.0);
        (micros.ln() * 1e3).round().min(f64::from(UNKNOWN - 1)) as u16
    });
    let ([b0, b1], [t0, t1]) = (behind.to_le_bytes(), took.to_le_bytes());
    [cell, data, compute, wait, optimizer, checkpoint, b0, b1, t0, t1]
}

/// The state of a rank, unpacked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// The cell ([`paceline_health::report::step_snapshot::cell`]).
    pub cell: u8,
    /// The shares of data, compute, wait, optimizer and checkpoint in the rank's last step; `None` if unknown.
    pub shares: Option<[f64; 5]>,
    /// The number of steps that the rank is behind the newest.
    pub behind: Option<u16>,
    /// The duration of the rank's last step, seconds.
    pub took_s: Option<f64>,
}

/// Unpacks the state of a rank.
pub fn standing(packed: &[u8; BYTES]) -> Standing {
    let [cell, shares @ .., b0, b1, t0, t1] = *packed;
    let number = |low, high| Some(u16::from_le_bytes([low, high])).filter(|number| *number != UNKNOWN);
    Standing {
        cell,
        shares: (!shares.contains(&UNTOLD)).then(|| shares.map(|share| f64::from(share) / PARTS)),
        behind: number(b0, b1),
        took_s: number(t0, t1).map(|took| (f64::from(took) / 1e3).exp() / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use paceline_health::event::{Phases, Signal};
    use paceline_health::report::step_snapshot::LEVEL;

    use super::*;

    fn seen(kind: StepKind, cells: Vec<u8>) -> StepSnapshot {
        StepSnapshot {
            step: 1,
            restart: 0,
            kind,
            signal: Signal::S2,
            at_s: 0.0,
            p50_s: 0.1,
            p99_s: 0.1,
            max_s: 0.1,
            phases_s: None,
            cells,
        }
    }

    #[test]
    fn a_rank_is_told_by_the_middle_of_its_last_steps() {
        let mut lately = Lately::default();
        assert_eq!(lately.middle(0), ABSENT, "nothing was compared");
        for step in 0..40 {
            // Rank 1 is slow, except in one step of five. Rank 2 has no data in the last step.
            let second = if step % 5 == 0 { LEVEL } else { 150 };
            let third = if step == 39 { ABSENT } else { LEVEL };
            lately.step(&seen(StepKind::Train, vec![LEVEL, second, third]));
            lately.step(&seen(StepKind::Checkpoint, vec![255; 3]));
        }
        assert_eq!(
            [0, 1, 2, 3].map(|rank| lately.middle(rank)),
            [LEVEL, 150, ABSENT, ABSENT]
        );
        assert_eq!(lately.steps.len(), STEPS);
        lately.step(&seen(StepKind::Train, vec![140; 5]));
        assert_eq!(
            (lately.middle(4), lately.steps.len()),
            (140, 1),
            "another number of ranks"
        );
    }

    #[test]
    fn what_is_packed_is_unpacked_and_what_is_unknown_is_not_zero() {
        let unknown = standing(&packed(ABSENT, None, 70));
        assert_eq!(
            (unknown.shares, unknown.behind, unknown.took_s),
            (None, None, None)
        );
        let phases = Phases {
            data_ns: 1_000_000,
            compute_ns: 36_500_000,
            wait_ns: 10_000_000,
            optimizer_ns: 2_000_000,
            checkpoint_ns: 0,
            gc_ns: 0,
        };
        let last = LastStep {
            step: 68,
            dur_ns: 50_000_000,
            phases: Some(phases),
        };
        let told = standing(&packed(150, Some(&last), 70));
        assert_eq!((told.cell, told.behind), (150, Some(2)));
        assert_eq!(told.shares.unwrap(), [0.02, 0.732, 0.2, 0.04, 0.0]);
        assert!((told.took_s.unwrap() / 0.05 - 1.0).abs() < 1e-3, "{told:?}");
        for dur_ns in [0, 900, 3_000_000, 86_400_000_000_000] {
            let last = LastStep {
                dur_ns,
                phases: None,
                ..last
            };
            let told = standing(&packed(LEVEL, Some(&last), u64::MAX));
            let micros = (dur_ns as f64 / 1e3).max(1.0);
            assert!(
                (told.took_s.unwrap() * 1e6 / micros - 1.0).abs() < 1e-3,
                "{dur_ns}: {told:?}"
            );
            assert_eq!((told.shares, told.behind), (None, Some(UNKNOWN - 1)));
        }
    }
}
