//! Times in which a node was not monitored. They are recorded because missing data must never count as health.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::id::NodeId;
use crate::time::Time;

/// Maximum number of gaps kept. Later ones are only counted.
const MAX_GAPS: usize = 256;

/// A time in which a node was not monitored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unwatched {
    pub node: NodeId,
    pub from: Time,
    pub to: Time,
    pub why: Cow<'static, str>,
}

/// All such times, in the order in which they ended.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Gaps {
    kept: Vec<Unwatched>,
    left_out: u64,
}

impl Gaps {
    /// Adds a gap. If it touches the node's last gap, that gap is extended instead.
    pub fn add(&mut self, node: &NodeId, from: Time, to: Time, why: &'static str) {
        let is_full = self.kept.len() >= MAX_GAPS;
        let last = self.kept.iter_mut().rev().find(|gap| gap.node == *node);
        match last {
            Some(last) if last.to >= from => last.to = last.to.max(to),
            _ if is_full => self.left_out += 1,
            _ => self.kept.push(Unwatched {
                node: node.clone(),
                from,
                to,
                why: Cow::Borrowed(why),
            }),
        }
    }

    /// Returns the gaps that were kept.
    pub fn iter(&self) -> std::slice::Iter<'_, Unwatched> {
        self.kept.iter()
    }

    /// Returns the number of gaps that were not kept.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_gaps_each_is_its_own_nodes() {
        let mut gaps = Gaps::default();
        let second = Time::from_secs_f64;
        for number in 0..300 {
            let node = NodeId::from(format!("n{number}").as_str());
            gaps.add(&node, second(1.0), second(2.0), "it did not report");
        }
        assert_eq!((gaps.iter().count(), gaps.left_out()), (256, 44));
        assert!(gaps.iter().all(|gap| gap.to == second(2.0)));
        gaps.add(&"n7".into(), second(2.0), second(5.0), "it did not report");
        gaps.add(&"n299".into(), second(2.0), second(5.0), "it did not report");
        let longer: Vec<&NodeId> = gaps
            .iter()
            .filter(|gap| gap.to == second(5.0))
            .map(|gap| &gap.node)
            .collect();
        assert_eq!((longer, gaps.left_out()), (vec![&NodeId::from("n7")], 45));
    }
}
