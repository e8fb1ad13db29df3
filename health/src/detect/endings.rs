//! Why the job ended: what came first of what processes and nodes said of their end, with what is only a consequence left
//! out.
//!
//! Order is that of the journal. Two nodes' words may be swapped by a second, so kinds that others cause (a peer that went
//! away, a collective that waited in vain) count only when nothing else was said.

use std::sync::Arc;

use crate::event::{Beat, Event, Trouble, TroubleKind};
use crate::frame::Frame;
use crate::id::{NodeId, Rank};
use crate::report::{Ending, Reason};

/// Words that are kept. A job of thousands of ranks says the same thousands of times.
const MOST: usize = 64;

/// What was heard of ends.
#[derive(Debug, Default)]
pub struct Endings {
    troubles: Vec<(NodeId, Trouble)>,
    exits: Vec<(NodeId, i32)>,
    /// The first rank whose process was gone without a goodbye.
    died: Option<(NodeId, Rank)>,
}

impl Endings {
    /// Takes note of a frame.
    pub fn take(&mut self, frame: &Frame) {
        match &frame.event {
            Event::Trouble(trouble) if self.troubles.len() < MOST => {
                self.troubles.push((frame.node.clone(), trouble.clone()));
            }
            Event::Exit(exit) if !self.exits.iter().any(|(node, _)| *node == frame.node) => {
                self.exits.push((frame.node.clone(), exit.code));
            }
            Event::Beat(beat) => self.beat(&frame.node, beat),
            // A new beginning: whoever died was replaced.
            Event::Attach(attach) if self.died.as_ref().is_some_and(|(_, rank)| *rank == attach.rank) => {
                self.died = None;
            }
            _ => {}
        }
    }

    fn beat(&mut self, node: &NodeId, beat: &Beat) {
        if self.died.is_none() {
            let gone = beat.ranks.iter().find(|pulse| !pulse.alive);
            self.died = gone.map(|pulse| (node.clone(), pulse.rank));
        }
    }

    /// Why it ended; `None`: some node goes on. `open`: nodes whose command has not ended, as far as is known, and
    /// whether nothing is heard of them any more.
    pub fn judge(&self, open: &[(NodeId, bool)]) -> Option<Ending> {
        if open.iter().any(|(_, is_lost)| !is_lost) || self.exits.is_empty() && open.is_empty() {
            return None;
        }
        let found = self
            .memory()
            .or_else(|| self.of_words(|kind| matches!(kind, TroubleKind::Signal | TroubleKind::Error)))
            .or_else(|| open.first().map(|(node, _)| lost(node)))
            .or_else(|| self.of_words(|kind| kind == TroubleKind::CollectiveTimeout))
            .or_else(|| self.of_words(|_| true));
        let failed = self.exits.iter().find(|(_, code)| *code != 0);
        match (failed, found) {
            // Whatever was said, the commands ended as they should; some of them because they were asked to.
            (None, Some(found)) if open.is_empty() && found.reason == Reason::Stopped => Some(Ending {
                code: Some(0),
                ..found
            }),
            (None, _) if open.is_empty() => Some(Ending::success()),
            (_, Some(mut found)) => {
                let own = self
                    .exits
                    .iter()
                    .find(|(node, _)| Some(node) == found.node.as_ref());
                found.code = own.or(failed).map(|(_, code)| *code);
                Some(found)
            }
            (Some((node, code)), None) => Some(self.by_code(node, *code)),
            (None, None) => None,
        }
    }

    /// What is short of memory tells nothing, or only after those that it takes along.
    fn memory(&self) -> Option<Ending> {
        [
            TroubleKind::OomKill,
            TroubleKind::GpuMemory,
            TroubleKind::HostMemory,
        ]
        .into_iter()
        .find_map(|wanted| self.of_words(|kind| kind == wanted))
    }

    /// The first of these kinds that was said.
    fn of_words(&self, is_meant: impl Fn(TroubleKind) -> bool) -> Option<Ending> {
        let (node, trouble) = self.troubles.iter().find(|(_, trouble)| is_meant(trouble.kind))?;
        let reason = match trouble.kind {
            TroubleKind::Signal => Reason::Stopped,
            TroubleKind::OomKill | TroubleKind::GpuMemory | TroubleKind::HostMemory => Reason::OutOfMemory,
            TroubleKind::CollectiveTimeout => Reason::CollectiveTimeout,
            TroubleKind::PeerLost | TroubleKind::Error => Reason::Error,
        };
        Some(Ending {
            reason,
            node: Some(node.clone()),
            rank: trouble.rank,
            code: None,
            kind: Some(trouble.kind),
            says: trouble.says.clone(),
        })
    }

    /// Nobody said anything: what the code tells, and who was gone first.
    fn by_code(&self, node: &NodeId, code: i32) -> Ending {
        let mut ending = Ending::of_code(node, code);
        if let Some((node, rank)) = &self.died {
            (ending.node, ending.rank) = (Some(node.clone()), Some(*rank));
        }
        ending
    }
}

fn lost(node: &NodeId) -> Ending {
    Ending {
        reason: Reason::NodeLost,
        node: Some(node.clone()),
        rank: None,
        code: None,
        kind: None,
        says: Arc::from("nothing is heard of it any more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Exit;
    use crate::frame::{Provenance, SCHEMA_VERSION};

    /// `node kind [rank]` for a trouble, `node CODE` for an end, in their order; `lost` are nodes that fell silent.
    fn ending(said: &str, lost: &[&str]) -> Option<(Reason, Option<String>, Option<u32>)> {
        let mut endings = Endings::default();
        for words in said.split(", ").filter(|words| !words.is_empty()) {
            let mut words = words.split(' ');
            let (node, what) = (words.next().unwrap(), words.next().unwrap());
            let rank = words.next().map(|rank| Rank(rank.parse().unwrap()));
            let event = match what.parse() {
                Ok(code) => Event::Exit(Exit { code }),
                Err(_) => Event::Trouble(Trouble {
                    rank,
                    kind: serde_json::from_value(what.into()).unwrap(),
                    says: "words".into(),
                }),
            };
            endings.take(&Frame {
                v: SCHEMA_VERSION,
                node: node.into(),
                agent: 1,
                seq: 1,
                provenance: Provenance::Live,
                event,
            });
        }
        let open: Vec<_> = lost.iter().map(|node| (NodeId::from(*node), true)).collect();
        let found = endings.judge(&open)?;
        Some((
            found.reason,
            found.node.map(|node| node.as_str().to_owned()),
            found.rank.map(|rank| rank.0),
        ))
    }

    #[test]
    fn what_came_first_and_is_no_consequence() {
        let check = |said: &str, lost: &[&str], reason, node: &str, rank| {
            let node = (!node.is_empty()).then(|| node.to_owned());
            assert_eq!(ending(said, lost), Some((reason, node, rank)), "{said}");
        };
        check("a 0, b 0", &[], Reason::Success, "", None);
        // It was asked to end, and did in order.
        check("a signal, a 0", &[], Reason::Stopped, "a", None);
        check("a error 3, a 0", &[], Reason::Success, "", None);
        check(
            "a peer_lost 0, b error 3, a 1, b 1",
            &[],
            Reason::Error,
            "b",
            Some(3),
        );
        check(
            "a peer_lost 0, b collective_timeout 3, a 1, b 1",
            &[],
            Reason::CollectiveTimeout,
            "b",
            Some(3),
        );
        check(
            "a error 0, b gpu_memory 3, a 1, b 1",
            &[],
            Reason::OutOfMemory,
            "b",
            Some(3),
        );
        check(
            "b error 3, b 137, a oom_kill, a 137",
            &[],
            Reason::OutOfMemory,
            "a",
            None,
        );
        check(
            "a signal, b signal, b error 3, a 143, b 1",
            &[],
            Reason::Stopped,
            "a",
            None,
        );
        check("a peer_lost 0, a 1", &["b"], Reason::NodeLost, "b", None);
        check("a 143", &[], Reason::Stopped, "a", None);
        check("a 137", &[], Reason::Killed, "a", None);
        check("a 139", &[], Reason::Crashed, "a", None);
        check("a 7", &[], Reason::Error, "a", None);
    }

    #[test]
    fn what_goes_on_has_not_ended() {
        assert_eq!(ending("", &[]), None);
        assert_eq!(ending("a error 1", &[]), None);
        let endings = Endings {
            exits: vec![("a".into(), 1)],
            ..Endings::default()
        };
        assert_eq!(endings.judge(&[("b".into(), false)]), None);
    }
}
