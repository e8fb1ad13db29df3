//! The thread that reads the ranks' processes and their node.

use std::collections::BTreeMap;
use std::path::Path;

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

/// See the module.
#[derive(Debug)]
pub struct Processes {
    files: Files,
    trainers: Trainers,
    ranks: BTreeMap<Rank, Trainer>,
    node: Node,
}

impl Processes {
    /// Those of `trainers`, under `root`.
    pub fn new(root: &Path, trainers: Trainers) -> Processes {
        Processes {
            files: Files::new(root),
            trainers,
            ranks: BTreeMap::new(),
            node: Node::default(),
        }
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
        } = self;
        let now = trainers.now();
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
            board.host(Some(rank), readings);
        }
        let mut readings = Readings::new();
        if pace == Pace::Slow {
            let of_ranks = ranks.values().map(Trainer::groups).cloned();
            let common = of_ranks.reduce(|one, other: Groups| one.common(&other));
            node.look(files, common, &mut readings);
        }
        node.read(files, &mut round, &mut readings);
        board.host(None, readings);
    }
}
