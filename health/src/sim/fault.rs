//! What goes wrong in a world, and its text form: `slow rank=3 factor=1.25 from=100 until=400`.
//!
//! Plain numbers for `from` and `until` are steps, numbers with a unit are times since the first frame.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::text::{ScriptError, Word, words};

const KNOWN: &str = "slow, spikes, silent, heat, warm, gap, hold, late, loss, reorder, repeat";

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// A rank computes slower: `slow rank=3 factor=1.25 from=100 until=400`, `rank=all` for every rank.
    Slow {
        /// The rank; `None`: all.
        rank: Option<u32>,
        /// Its self-time is multiplied by this.
        factor: f64,
        /// First slow step.
        from: u64,
        /// First step that is not slow any more.
        until: Option<u64>,
    },
    /// A rank has slow steps now and then: `spikes rank=2 share=0.05 factor=3`.
    Spikes {
        /// The rank; `None`: all.
        rank: Option<u32>,
        /// Share of its steps.
        share: f64,
        /// How much slower those are.
        factor: f64,
    },
    /// A rank stops in the middle of its compute: `silent rank=2 from=50`, for ever or `for=10s`. With `rank=all`
    /// the collective itself never ends, and nobody is behind.
    Silent {
        /// The rank; `None`: all.
        rank: Option<u32>,
        /// The step that it does not finish.
        from: u64,
        /// How long it stands still, seconds.
        for_s: Option<f64>,
    },
    /// A GPU heats up, protects itself and slows its rank: `heat gpu=3 from=60s until=300s`.
    Heat {
        /// The GPU, counted over all nodes.
        gpu: u32,
        /// When it begins to heat up.
        from_s: f64,
        /// When it begins to cool down.
        until_s: Option<f64>,
    },
    /// A GPU runs hot and is not slow for it: `warm gpu=3 from=60s`.
    Warm {
        /// The GPU, counted over all nodes.
        gpu: u32,
        /// When it begins to warm up.
        from_s: f64,
        /// When it begins to cool down.
        until_s: Option<f64>,
    },
    /// A node's sidecar is gone and comes back as a new one: `gap node=1 from=20s for=10s`. The steps of that time
    /// are lost, or wait in their rings (`steps=kept`).
    Gap {
        /// The node.
        node: u32,
        /// When it goes.
        from_s: f64,
        /// How long it is gone, seconds; `None`: it never comes back.
        for_s: Option<f64>,
        /// The steps waited in their rings.
        kept: bool,
    },
    /// A node's link stalls; what it sent comes in one burst afterwards: `hold node=1 from=20s for=10s`.
    Hold {
        /// The node.
        node: u32,
        /// When the link stalls.
        from_s: f64,
        /// How long, seconds.
        for_s: f64,
    },
    /// Everything that a rank says comes late: `late rank=3 by=5s`.
    Late {
        /// The rank.
        rank: u32,
        /// How late, seconds.
        by_s: f64,
    },
    /// Steps, readings and beats are lost on the way: `loss share=0.1`.
    Loss {
        /// Share of the frames.
        share: f64,
    },
    /// Frames overtake each other, by up to a second: `reorder share=0.1`.
    Reorder {
        /// Share of the frames.
        share: f64,
    },
    /// Frames arrive a second time: `repeat share=0.1`.
    Repeat {
        /// Share of the frames.
        share: f64,
    },
}

impl Fault {
    /// Whether the rank's own speed suffers from it.
    pub(super) fn slows(&self, rank: u32) -> bool {
        match self {
            Fault::Slow { rank: whom, .. }
            | Fault::Spikes { rank: whom, .. }
            | Fault::Silent { rank: whom, .. } => whom.is_none_or(|whom| whom == rank),
            // Ranks and GPUs are counted alike: rank 3 trains on GPU 3 of the world.
            Fault::Heat { gpu, .. } => *gpu == rank,
            _ => false,
        }
    }

    /// The rank, GPU or node that it names, as the key that names it.
    pub(super) fn names(&self) -> Option<(&'static str, u32)> {
        match *self {
            Fault::Slow { rank, .. } | Fault::Spikes { rank, .. } | Fault::Silent { rank, .. } => {
                rank.map(|rank| ("rank", rank))
            }
            Fault::Late { rank, .. } => Some(("rank", rank)),
            Fault::Heat { gpu, .. } | Fault::Warm { gpu, .. } => Some(("gpu", gpu)),
            Fault::Gap { node, .. } | Fault::Hold { node, .. } => Some(("node", node)),
            Fault::Loss { .. } | Fault::Reorder { .. } | Fault::Repeat { .. } => None,
        }
    }
}

/// Every key that any fault has, as read; which of them a fault may have is decided afterwards.
#[derive(Default)]
struct Keys {
    rank: Option<Option<u32>>,
    gpu: Option<u32>,
    node: Option<u32>,
    factor: Option<f64>,
    share: Option<f64>,
    from: Option<u64>,
    until: Option<u64>,
    from_s: Option<f64>,
    until_s: Option<f64>,
    for_s: Option<f64>,
    by_s: Option<f64>,
    kept: Option<bool>,
}

impl Keys {
    fn read(&mut self, word: &Word, timed: bool) -> Result<(), ScriptError> {
        let twice = match word.key.as_str() {
            "rank" => {
                let rank = word.read("a rank or all", |text| match text {
                    "all" => Some(None),
                    number => number.parse().ok().map(Some),
                })?;
                self.rank.replace(rank).is_some()
            }
            "gpu" => self.gpu.replace(word.number()?).is_some(),
            "node" => self.node.replace(word.number()?).is_some(),
            "factor" => self
                .factor
                .replace(word.decimal("a factor, 1 to 1000", 1.0..=1000.0)?)
                .is_some(),
            "share" => self
                .share
                .replace(word.decimal("a share, 0 to 1", 0.0..=1.0)?)
                .is_some(),
            "from" if timed => self.from_s.replace(word.seconds()?).is_some(),
            "until" if timed => self.until_s.replace(word.seconds()?).is_some(),
            "from" => self.from.replace(word.number()?).is_some(),
            "until" => self.until.replace(word.number()?).is_some(),
            "for" => self.for_s.replace(word.seconds()?).is_some(),
            "by" => self.by_s.replace(word.seconds()?).is_some(),
            "steps" => {
                let kept = word.read("kept or lost", |text| match text {
                    "kept" => Some(true),
                    "lost" => Some(false),
                    _ => None,
                })?;
                self.kept.replace(kept).is_some()
            }
            _ => return Err(word.unknown("rank, gpu, node, factor, share, from, until, for, by, steps")),
        };
        if twice {
            return Err(ScriptError::Twice {
                column: word.column,
                key: word.key.clone(),
            });
        }
        Ok(())
    }

    /// The fault of this name, made of the keys that it takes.
    fn fault(self, name: &str) -> Result<Fault, ScriptError> {
        let need = |key, expected| ScriptError::Missing { key, expected };
        let rank = self.rank.ok_or_else(|| need("rank", "a rank or all"));
        let one = self.rank.flatten().ok_or_else(|| need("rank", "a rank"));
        let gpu = self.gpu.ok_or_else(|| need("gpu", "a GPU's number"));
        let node = self.node.ok_or_else(|| need("node", "a node's number"));
        let factor = self.factor.ok_or_else(|| need("factor", "a factor such as 1.25"));
        let share = self.share.ok_or_else(|| need("share", "a share such as 0.1"));
        let from = self.from.ok_or_else(|| need("from", "a step"));
        let from_s = self.from_s.ok_or_else(|| need("from", "a time such as 60s"));
        let for_s = self.for_s.ok_or_else(|| need("for", "a time such as 10s"));
        let by_s = self.by_s.ok_or_else(|| need("by", "a time such as 5s"));
        Ok(match name {
            "slow" => Fault::Slow {
                rank: rank?,
                factor: factor?,
                from: self.from.unwrap_or(1),
                until: self.until,
            },
            "spikes" => Fault::Spikes {
                rank: rank?,
                share: share?,
                factor: factor?,
            },
            "silent" => Fault::Silent {
                rank: rank?,
                from: from?,
                for_s: self.for_s,
            },
            "heat" => Fault::Heat {
                gpu: gpu?,
                from_s: from_s?,
                until_s: self.until_s,
            },
            "warm" => Fault::Warm {
                gpu: gpu?,
                from_s: from_s?,
                until_s: self.until_s,
            },
            "gap" => Fault::Gap {
                node: node?,
                from_s: from_s?,
                for_s: self.for_s,
                kept: self.kept.unwrap_or(false),
            },
            "hold" => Fault::Hold {
                node: node?,
                from_s: from_s?,
                for_s: for_s?,
            },
            "late" => Fault::Late {
                rank: one?,
                by_s: by_s?,
            },
            "loss" => Fault::Loss { share: share? },
            "reorder" => Fault::Reorder { share: share? },
            _ => Fault::Repeat { share: share? },
        })
    }
}

/// The keys of each fault: what it may be given.
fn keys_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "slow" => "rank, factor, from, until",
        "spikes" => "rank, share, factor",
        "silent" => "rank, from, for",
        "heat" | "warm" => "gpu, from, until",
        "gap" => "node, from, for, steps",
        "hold" => "node, from, for",
        "late" => "rank, by",
        "loss" | "reorder" | "repeat" => "share",
        _ => return None,
    })
}

impl FromStr for Fault {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Fault, ScriptError> {
        let found = words(text)?;
        let Some((name, pairs)) = found.split_first() else {
            return Err(ScriptError::Missing {
                key: "fault",
                expected: KNOWN,
            });
        };
        let known = keys_of(&name.key)
            .filter(|_| name.value.is_none())
            .ok_or_else(|| name.unknown(KNOWN))?;
        let timed = matches!(name.key.as_str(), "heat" | "warm" | "gap" | "hold");
        let mut keys = Keys::default();
        for pair in pairs {
            if !known.split(", ").any(|key| key == pair.key) {
                return Err(pair.unknown(known));
            }
            keys.read(pair, timed)?;
        }
        keys.fault(&name.key)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whom = |rank: Option<u32>| rank.map_or("all".to_owned(), |rank| rank.to_string());
        let after = |key: &str, unit: &str, value: Option<f64>| {
            value.map_or(String::new(), |value| format!(" {key}={value}{unit}"))
        };
        match *self {
            Fault::Slow {
                rank,
                factor,
                from,
                until,
            } => {
                let until = until.map_or(String::new(), |until| format!(" until={until}"));
                write!(f, "slow rank={} factor={factor} from={from}{until}", whom(rank))
            }
            Fault::Spikes { rank, share, factor } => {
                write!(f, "spikes rank={} share={share} factor={factor}", whom(rank))
            }
            Fault::Silent { rank, from, for_s } => {
                write!(
                    f,
                    "silent rank={} from={from}{}",
                    whom(rank),
                    after("for", "s", for_s)
                )
            }
            Fault::Heat { gpu, from_s, until_s } => {
                write!(f, "heat gpu={gpu} from={from_s}s{}", after("until", "s", until_s))
            }
            Fault::Warm { gpu, from_s, until_s } => {
                write!(f, "warm gpu={gpu} from={from_s}s{}", after("until", "s", until_s))
            }
            Fault::Gap {
                node,
                from_s,
                for_s,
                kept,
            } => {
                let steps = if kept { " steps=kept" } else { "" };
                write!(
                    f,
                    "gap node={node} from={from_s}s{}{steps}",
                    after("for", "s", for_s)
                )
            }
            Fault::Hold { node, from_s, for_s } => write!(f, "hold node={node} from={from_s}s for={for_s}s"),
            Fault::Late { rank, by_s } => write!(f, "late rank={rank} by={by_s}s"),
            Fault::Loss { share } => write!(f, "loss share={share}"),
            Fault::Reorder { share } => write!(f, "reorder share={share}"),
            Fault::Repeat { share } => write!(f, "repeat share={share}"),
        }
    }
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
