//! The meter of the ranks' processes and of their node. It runs in its own thread.

use std::collections::BTreeMap;
use std::path::Path;

use paceline_health::event::Reading;
use paceline_health::id::Rank;

use super::board::Board;
use super::cgroup::Groups;
use super::files::Files;
use super::node::Node;
use super::pace::Pace;
use super::stopped::Round;
use super::trainer::Trainer;
use super::{Readings, pace};
use crate::source::trainers::Trainers;

/// A rank that waits for less than this per second is sent only once in `CALM_ROUNDS` rounds, so that a healthy rank
/// costs its job little.
const CALM_NS: f64 = 5e6;
const CALM_ROUNDS: u32 = 5;

/// The meter; see the module.
#[derive(Debug)]
pub struct Processes {
    files: Files,
    trainers: Trainers,
    ranks: BTreeMap<Rank, Trainer>,
    node: Node,
    told: BTreeMap<Option<Rank>, Told>,
}

/// The last readings sent, and the number of rounds since then.
#[derive(Debug, Default)]
struct Told {
    readings: Readings,
    rounds: u32,
}

impl Processes {
    /// Creates the meter for the processes of `trainers`. `/proc` is under `root`.
    pub fn new(root: &Path, trainers: Trainers) -> Processes {
        Processes {
            files: Files::new(root),
            trainers,
            ranks: BTreeMap::new(),
            node: Node::default(),
            told: BTreeMap::new(),
        }
    }
}

impl Told {
    /// Returns true if `now` must be sent: after a wait at once, otherwise from time to time. Slow rounds send
    /// everything in any case.
    fn is_news(&mut self, now: &Readings) -> bool {
        self.rounds += 1;
        let waited = now.iter().any(|(signal, now)| {
            let before = self.readings.get(signal);
            match (before.and_then(Reading::value), now.value()) {
                (Some(before), Some(now)) => now - before > CALM_NS * f64::from(self.rounds),
                _ => before != Some(now),
            }
        });
        let tells = waited || self.rounds >= CALM_ROUNDS;
        if tells {
            self.readings.clone_from(now);
            self.rounds = 0;
        }
        tells
    }
}

impl pace::Meter for Processes {
    const NAME: &'static str = "host processes";

    fn read(&mut self, pace: Pace, board: &Board) {
        let Processes {
            files,
            trainers,
            ranks,
            node,
            told,
        } = self;
        let now = trainers.now();
        told.retain(|rank, _| rank.is_none_or(|rank| now.contains_key(&rank)));
        ranks.retain(|rank, trainer| now.get(rank) == Some(&trainer.pid()));
        let mut round = Round::new();
        for (rank, pid) in now {
            let mut readings = Readings::new();
            let is_new = !ranks.contains_key(&rank);
            let trainer = ranks.entry(rank).or_insert_with(|| Trainer::new(pid));
            if is_new || pace == Pace::Slow {
                trainer.look(files, &mut readings);
            }
            trainer.read(files, &mut round, &mut readings);
            if pace == Pace::Slow || told.entry(Some(rank)).or_default().is_news(&readings) {
                board.host(Some(rank), readings);
            }
        }
        let mut readings = Readings::new();
        if pace == Pace::Slow {
            let of_ranks = ranks.values().map(Trainer::groups).cloned();
            let common = of_ranks.reduce(|one, other: Groups| one.common(&other));
            node.look(files, common, &mut readings);
        }
        node.read(files, &mut round, &mut readings);
        if pace == Pace::Slow || told.entry(None).or_default().is_news(&readings) {
            board.host(None, readings);
        }
    }
}
