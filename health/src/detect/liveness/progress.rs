//! Progress of the ranks. To find a hang, each rank is compared with all ranks that are ahead of it.

use crate::event::{Phase, Pulse};
use crate::time::Time;

/// How far a rank has got: its step, and whether it waits there. A waiting rank is ahead of one that works in the same
/// step.
pub type Position = (u64, bool);

/// Returns the position in a pulse.
pub fn place(pulse: &Pulse) -> Position {
    (pulse.step, pulse.phase == Phase::Wait)
}

/// Positions of ranks, the least advanced first, each with the earliest time at which a rank this far or further
/// reached its position. Queries for all of n ranks cost n log n.
#[derive(Debug)]
pub struct RankProgress(Vec<(Position, Time)>);

impl RankProgress {
    /// Creates it from the position of each rank and the time at which the rank reached it.
    pub fn of(ranks: impl Iterator<Item = (Position, Time)>) -> RankProgress {
        let mut reached: Vec<(Position, Time)> = ranks.collect();
        reached.sort_unstable();
        let mut earliest = Time(u64::MAX);
        for (_, since) in reached.iter_mut().rev() {
            earliest = earliest.min(*since);
            *since = earliest;
        }
        RankProgress(reached)
    }

    /// Returns when the first of the ranks beyond `place` reached its position.
    pub fn passed_at(&self, place: Position) -> Option<Time> {
        let further = self.0.partition_point(|(other, _)| *other <= place);
        self.0.get(further).map(|(_, since)| *since)
    }
}

/// Returns the name of a phase in evidence.
pub(crate) fn doing(phase: Phase) -> &'static str {
    match phase {
        Phase::Other => "between phases",
        Phase::Data => "loading data",
        Phase::Compute => "computing",
        Phase::Wait => "waiting",
        Phase::Optimizer => "in the optimizer",
        Phase::Checkpoint => "writing a checkpoint",
        Phase::Evaluation => "evaluating",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_those_who_are_further_counts() {
        let front = RankProgress::of(
            [
                ((5, false), Time(10)),
                ((7, true), Time(30)),
                ((6, true), Time(20)),
            ]
            .into_iter(),
        );
        for (place, passed) in [
            ((4, true), Some(10)),
            ((5, false), Some(20)),
            ((6, true), Some(30)),
            ((7, false), Some(30)),
            ((7, true), None),
        ] {
            assert_eq!(front.passed_at(place), passed.map(Time), "{place:?}");
        }
        assert_eq!(RankProgress::of(std::iter::empty()).passed_at((0, false)), None);
    }

    /// Compares the result with its definition, the earliest time over all ranks that are ahead.
    #[test]
    fn it_answers_as_looking_at_everyone_would() {
        let mut chance = 1_u64;
        let mut below = |most: u64| {
            chance = chance
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % most
        };
        for _ in 0..200 {
            let ranks: Vec<(Position, Time)> = (0..below(12))
                .map(|_| ((below(4), below(2) == 1), Time(below(6))))
                .collect();
            let front = RankProgress::of(ranks.iter().copied());
            for place in (0..4).flat_map(|step| [(step, false), (step, true)]) {
                let further = ranks.iter().filter(|(other, _)| *other > place);
                let earliest = further.map(|(_, since)| *since).min();
                assert_eq!(front.passed_at(place), earliest, "{place:?} {ranks:?}");
            }
        }
    }
}
