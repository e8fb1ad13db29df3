//! How far the ranks have got, and who is past whom: the question that a hang asks of every rank about all others.

use crate::event::{Phase, Pulse};
use crate::time::Time;

/// How far a rank has got: its step, and whether it waits there. One that waits has got further than one that works
/// in the same step.
pub type Place = (u64, bool);

/// The place that a pulse tells of.
pub fn place(pulse: &Pulse) -> Place {
    (pulse.step, pulse.phase == Phase::Wait)
}

/// Where ranks are, the least far first; with each, the earliest time at which one as far as that or further had got
/// to where it is. Asking about every one of n ranks costs n log n.
#[derive(Debug)]
pub struct Front(Vec<(Place, Time)>);

impl Front {
    /// Takes where each rank is, and since when.
    pub fn of(ranks: impl Iterator<Item = (Place, Time)>) -> Front {
        let mut reached: Vec<(Place, Time)> = ranks.collect();
        reached.sort_unstable();
        let mut earliest = Time(u64::MAX);
        for (_, since) in reached.iter_mut().rev() {
            earliest = earliest.min(*since);
            *since = earliest;
        }
        Front(reached)
    }

    /// Whether somebody had got further than `place` by the time `at`.
    pub fn is_past(&self, place: Place, at: Time) -> bool {
        let further = self.0.partition_point(|(other, _)| *other <= place);
        self.0.get(further).is_some_and(|(_, since)| *since <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_further_was_there_in_time_or_not() {
        let front = Front::of(
            [
                ((5, false), Time(10)),
                ((7, true), Time(30)),
                ((6, true), Time(20)),
            ]
            .into_iter(),
        );
        for (place, at, past) in [
            ((5, false), 19, false),
            ((5, false), 20, true),
            ((4, true), 10, true),
            ((6, true), 29, false),
            ((7, false), 30, true),
            ((7, true), 99, false),
        ] {
            assert_eq!(front.is_past(place, Time(at)), past, "{place:?} at {at}");
        }
        assert!(!Front::of(std::iter::empty()).is_past((0, false), Time(9)));
    }

    /// Against the definition: some other rank is further, and had got there by then.
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
            let ranks: Vec<(Place, Time)> = (0..below(12))
                .map(|_| ((below(4), below(2) == 1), Time(below(6))))
                .collect();
            let front = Front::of(ranks.iter().copied());
            for (place, at) in (0..4).flat_map(|step| (0..6).map(move |at| ((step, at % 2 == 1), Time(at)))) {
                let everyone = ranks.iter().any(|(other, since)| *other > place && *since <= at);
                assert_eq!(front.is_past(place, at), everyone, "{place:?} {at:?} {ranks:?}");
            }
        }
    }
}
