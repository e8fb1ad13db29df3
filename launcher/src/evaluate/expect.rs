//! Parses the verdicts that are expected for a world, such as `straggler rank=3 cause=thermal` or `stage-imbalance
//! job`.
//!
//! A leading `?` makes an expectation optional. `of=1` gives the index, from 0, of the fault that it belongs to. By
//! default the first expectation belongs to the first fault, the second to the second, and so on.

use paceline_health::event::Event;
use paceline_health::id::Rank;
use paceline_health::verdict::{Cause, Finding, Subject};

/// The subject of a verdict, numbered as in the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// The job.
    Job,
    /// A rank or its GPU. Rank 3 trains on GPU 3 of the world.
    Rank(u32),
    /// A node.
    Node(u32),
    /// A rack.
    Rack(u32),
    /// A node's link to another, or to all.
    Link(u32, Option<u32>),
    /// Any rank that the fault affects.
    AnyRank,
    /// Any rank of a node.
    RankOn(u32),
    /// A subject that the world does not have.
    Stranger,
}

/// An expected or permitted verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expectation {
    /// The finding.
    pub(super) finding: Finding,
    /// Its subject.
    pub(super) who: Who,
    /// Its cause. `None` accepts any cause.
    pub(super) cause: Option<Cause>,
    /// True if the verdict must be raised. Otherwise it is only permitted.
    pub(super) required: bool,
    /// The index of the fault that causes it, from 0.
    pub(super) fault: Option<usize>,
}

impl Expectation {
    /// Parses one expectation; `index` is its position in the list.
    ///
    /// # Errors
    /// A message about the mistake.
    pub(super) fn parse(text: &str, index: usize) -> Result<Expectation, String> {
        let mut words = text.split_whitespace();
        let first = words
            .next()
            .ok_or_else(|| "an expectation without a finding".to_owned())?;
        let name = first.trim_start_matches('?');
        let mut expected = Expectation {
            finding: named(Finding::ALL, Finding::name, name)
                .ok_or_else(|| format!("no finding {name:?}"))?,
            who: Who::Job,
            cause: None,
            required: !first.starts_with('?'),
            fault: Some(index),
        };
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || value.parse::<u32>().map_err(|_| format!("no number in {word:?}"));
            match key {
                "job" => expected.who = Who::Job,
                "any-rank" => expected.who = Who::AnyRank,
                "rank" => expected.who = Who::Rank(number()?),
                "rank-on" => expected.who = Who::RankOn(number()?),
                "node" => expected.who = Who::Node(number()?),
                "rack" => expected.who = Who::Rack(number()?),
                "link" => expected.who = Who::link(value).ok_or_else(|| format!("no link in {word:?}"))?,
                "of" => expected.fault = Some(number()? as usize),
                "cause" => {
                    let cause = named(Cause::ALL, Cause::name, value);
                    expected.cause = Some(cause.ok_or_else(|| format!("no cause in {word:?}"))?);
                }
                _ => return Err(format!("unknown word {word:?}")),
            }
        }
        Ok(expected)
    }
}

fn named<T: Copy>(all: &[T], name: fn(T) -> &'static str, wanted: &str) -> Option<T> {
    all.iter().copied().find(|one| name(*one) == wanted)
}

impl Who {
    /// Parses the link of a node (`1`), or the link between two nodes (`1-2`).
    fn link(text: &str) -> Option<Who> {
        match text.split_once('-') {
            Some((one, other)) => Some(Who::Link(one.parse().ok()?, Some(other.parse().ok()?))),
            None => Some(Who::Link(text.parse().ok()?, None)),
        }
    }

    /// Converts the subject of a verdict.
    pub(super) fn of(subject: &Subject, gpus: &Gpus) -> Who {
        let number = |prefix: &str, name: &str| name.strip_prefix(prefix).and_then(|rest| rest.parse().ok());
        let node = |name: &str| number("node", name);
        let found = match subject {
            Subject::Job { .. } => Some(Who::Job),
            Subject::Rank { rank, .. } => Some(Who::Rank(rank.0)),
            Subject::Node { node: name } => node(&name.0).map(Who::Node),
            Subject::Gpu { gpu_uuid, .. } => gpus.rank_of(&gpu_uuid.0).map(|rank| Who::Rank(rank.0)),
            Subject::Rack { rack } => number("rack", rack).map(Who::Rack),
            Subject::Link { node: name, peer } => match (node(&name.0), peer) {
                (Some(one), None) => Some(Who::Link(one, None)),
                (Some(one), Some(peer)) => node(&peer.0).map(|other| Who::Link(one, Some(other))),
                (None, _) => None,
            },
        };
        found.unwrap_or(Who::Stranger)
    }

    /// Returns true if a verdict on `self` satisfies an expectation of `other`. The direction of a link does not
    /// matter.
    pub(super) fn answers(self, other: Who) -> bool {
        match (self, other) {
            // Accept any rank here. The world decides which ranks are correct.
            (Who::Rank(_), Who::AnyRank | Who::RankOn(_)) => true,
            (Who::Link(a, Some(b)), Who::Link(c, Some(d))) => (a, b) == (c, d) || (a, b) == (d, c),
            (one, other) => one == other,
        }
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Job => f.write_str("job"),
            Who::Rank(rank) => write!(f, "rank {rank}"),
            Who::Node(node) => write!(f, "node {node}"),
            Who::Rack(rack) => write!(f, "rack {rack}"),
            Who::Link(node, None) => write!(f, "link {node}"),
            Who::Link(node, Some(peer)) => write!(f, "link {node}-{peer}"),
            Who::AnyRank => f.write_str("any rank"),
            Who::RankOn(node) => write!(f, "any rank of node {node}"),
            Who::Stranger => f.write_str("stranger"),
        }
    }
}

/// The GPU of each rank, as declared by the ranks.
#[derive(Debug, Default)]
pub(super) struct Gpus {
    ranks: std::collections::BTreeMap<std::sync::Arc<str>, Rank>,
}

impl Gpus {
    /// Records a rank's declaration.
    pub(super) fn observe(&mut self, event: &Event) {
        if let Event::Attach(attach) = event
            && let Some(gpu) = &attach.gpu
        {
            self.ranks.insert(gpu.0.clone(), attach.rank);
        }
    }

    fn rank_of(&self, uuid: &str) -> Option<Rank> {
        self.ranks.get(uuid).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_are_read() {
        let read = Expectation::parse("straggler rank=3 cause=thermal", 1).unwrap();
        assert_eq!(
            (read.finding, read.who, read.cause, read.required, read.fault),
            (
                Finding::Straggler,
                Who::Rank(3),
                Some(Cause::Thermal),
                true,
                Some(1)
            )
        );
        let read = Expectation::parse("?slow-link link=1-2 of=0", 4).unwrap();
        assert_eq!(
            (read.who, read.required, read.fault),
            (Who::Link(1, Some(2)), false, Some(0))
        );
        for wrong in [
            "",
            "strangler job",
            "straggler rank=x",
            "straggler cause=bad",
            "straggler on=3",
        ] {
            assert!(Expectation::parse(wrong, 0).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_link_has_no_direction_and_a_rank_is_not_another() {
        assert!(Who::Link(1, Some(2)).answers(Who::Link(2, Some(1))));
        assert!(!Who::Link(1, None).answers(Who::Link(1, Some(2))));
        assert!(Who::Rank(3).answers(Who::AnyRank) && !Who::Job.answers(Who::AnyRank));
        assert!(!Who::Rank(3).answers(Who::Rank(4)));
    }
}
