//! Parses and formats the text form of a fault, for example `slow rank=3 factor=1.25 from=100 until=400`.

use std::fmt;
use std::str::FromStr;

use super::Fault;
use crate::sim::spec::shape::{Target, When};
use crate::sim::text::{ScriptError, Word, words};
use crate::verdict::Cause;

const KNOWN: &str = "slow, spikes, silent, heat, warm, link, checkpoint-slow, warm-up-slow, regress, birth, skew, \
                     gap, hold, late, loss, reorder, repeat";
const CAUSES: &str = "none, thermal, power, clock-stuck, ecc, pcie, nvlink, network, data-loading, \
                      cpu-contention or gc";

/// Returns the keys that each fault accepts.
fn keys_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "slow" => "rank, node, rack, factor, from, until, every, for, moves, cause, micro",
        "spikes" => "rank, share, factor",
        "silent" => "rank, from, for",
        "heat" | "warm" => "gpu, from, until",
        "link" => "node, peer, factor, from, until, every, for",
        "checkpoint-slow" => "rank, factor, from, until",
        "warm-up-slow" => "rank, factor",
        "regress" => "factor, from",
        "birth" => "factor",
        "skew" => "node",
        "gap" => "node, from, for, steps",
        "hold" => "node, from, for",
        "late" => "rank, by",
        "loss" | "reorder" | "repeat" => "share",
        _ => return None,
    })
}

/// All keys of all faults, as parsed. Which of them a fault allows has been checked before.
#[derive(Default)]
struct Keys {
    rank: Option<Option<u32>>,
    gpu: Option<u32>,
    node: Option<u32>,
    peer: Option<u32>,
    rack: Option<u32>,
    factor: Option<f64>,
    share: Option<f64>,
    from: Option<u64>,
    until: Option<u64>,
    every: Option<u64>,
    lasts: Option<u64>,
    moves: Option<u64>,
    cause: Option<Cause>,
    micro: Option<u32>,
    from_s: Option<f64>,
    until_s: Option<f64>,
    for_s: Option<f64>,
    by_s: Option<f64>,
    kept: Option<bool>,
}

/// The units of a fault's `from`, `until` and `for`.
#[derive(Clone, Copy)]
struct Units {
    timed: bool,
    for_steps: bool,
}

fn set<T>(slot: &mut Option<T>, word: &Word, value: T) -> Result<(), ScriptError> {
    if slot.replace(value).is_none() {
        return Ok(());
    }
    Err(ScriptError::Twice {
        column: word.column,
        key: word.key.clone(),
    })
}

impl Keys {
    fn read(&mut self, word: &Word, units: Units) -> Result<(), ScriptError> {
        let positive = || {
            word.read("a whole number from 1", |text| {
                text.parse().ok().filter(|number| *number > 0)
            })
        };
        match word.key.as_str() {
            "rank" => {
                let rank = word.read("a rank or all", |text| match text {
                    "all" => Some(None),
                    number => number.parse().ok().map(Some),
                })?;
                set(&mut self.rank, word, rank)
            }
            "gpu" => set(&mut self.gpu, word, word.number()?),
            "node" => set(&mut self.node, word, word.number()?),
            "peer" => set(&mut self.peer, word, word.number()?),
            "rack" => set(&mut self.rack, word, word.number()?),
            "factor" => set(
                &mut self.factor,
                word,
                word.decimal("a factor, 1 to 1000", 1.0..=1000.0)?,
            ),
            "share" => set(&mut self.share, word, word.decimal("a share, 0 to 1", 0.0..=1.0)?),
            "from" if units.timed => set(&mut self.from_s, word, word.seconds()?),
            "until" if units.timed => set(&mut self.until_s, word, word.seconds()?),
            "from" => set(&mut self.from, word, word.number()?),
            "until" => set(&mut self.until, word, word.number()?),
            "for" if units.for_steps => set(&mut self.lasts, word, positive()?),
            "for" => set(&mut self.for_s, word, word.seconds()?),
            "every" => set(&mut self.every, word, positive()?),
            "moves" => set(&mut self.moves, word, positive()?),
            "by" => set(&mut self.by_s, word, word.seconds()?),
            "micro" => set(&mut self.micro, word, word.number()?),
            "cause" => set(&mut self.cause, word, word.read(CAUSES, cause)?),
            _ => {
                let kept = word.read("kept or lost", |text| match text {
                    "kept" => Some(true),
                    "lost" => Some(false),
                    _ => None,
                })?;
                set(&mut self.kept, word, kept)
            }
        }
    }

    fn when(&self) -> Result<When, ScriptError> {
        let missing = |key, expected| Err(ScriptError::Missing { key, expected });
        match (self.every, self.lasts) {
            (Some(_), None) => missing("for", "of every so many steps, for how many"),
            (None, Some(_)) => missing("every", "after how many steps it comes back"),
            _ => Ok(When {
                from: self.from.unwrap_or(1),
                until: self.until,
                every: self.every,
                lasts: self.lasts,
                moves: self.moves,
            }),
        }
    }

    /// Returns the target, which is given by one of the keys `rank`, `node` and `rack`.
    fn target(&self) -> Result<Target, ScriptError> {
        match (self.rank, self.node, self.rack) {
            (Some(rank), None, None) => Ok(rank.map_or(Target::All, Target::Rank)),
            (None, Some(node), None) => Ok(Target::Node(node)),
            (None, None, Some(rack)) => Ok(Target::Rack(rack)),
            _ => Err(ScriptError::Missing {
                key: "rank",
                expected: "one of rank=, node= and rack=",
            }),
        }
    }

    /// Builds the fault of this name from its keys.
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
        let (until_s, when) = (self.until_s, self.when()?);
        Ok(match name {
            "slow" => Fault::Slow {
                on: self.target()?,
                factor: factor?,
                when,
                cause: self.cause.unwrap_or_default(),
                micro: self.micro,
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
                until_s,
            },
            "warm" => Fault::Warm {
                gpu: gpu?,
                from_s: from_s?,
                until_s,
            },
            "link" => Fault::Link {
                node: node?,
                peer: self.peer,
                factor: factor?,
                when,
            },
            "checkpoint-slow" => Fault::CheckpointSlow {
                rank: one?,
                factor: factor?,
                when,
            },
            "warm-up-slow" => Fault::WarmUpSlow {
                rank: rank?,
                factor: factor?,
            },
            "regress" => Fault::Regress {
                factor: factor?,
                from: from?,
            },
            "birth" => Fault::Birth { factor: factor? },
            "skew" => Fault::Skew { node: node? },
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

/// Returns the cause of this name. `none` and `gc` are abbreviations.
fn cause(name: &str) -> Option<Cause> {
    match name {
        "none" => Some(Cause::Unknown),
        "gc" => Some(Cause::GcPause),
        "imbalance" => None,
        _ => Cause::ALL.iter().find(|cause| cause.name() == name).copied(),
    }
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
        let units = Units {
            timed: matches!(name.key.as_str(), "heat" | "warm" | "gap" | "hold"),
            for_steps: matches!(name.key.as_str(), "slow" | "link"),
        };
        let mut keys = Keys::default();
        for pair in pairs {
            if !known.split(", ").any(|key| key == pair.key) {
                return Err(pair.unknown(known));
            }
            keys.read(pair, units)?;
        }
        keys.fault(&name.key)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whom = |rank: Option<u32>| rank.map_or("all".to_owned(), |rank| rank.to_string());
        let after =
            |key: &str, value: Option<f64>| value.map_or(String::new(), |value| format!(" {key}={value}s"));
        match *self {
            Fault::Slow {
                on,
                factor,
                when,
                cause,
                micro,
            } => {
                write!(f, "slow {on} factor={factor} {when}")?;
                if let Some(micro) = micro {
                    write!(f, " micro={micro}")?;
                }
                match cause {
                    Cause::Unknown => Ok(()),
                    Cause::GcPause => f.write_str(" cause=gc"),
                    cause => write!(f, " cause={}", cause.name()),
                }
            }
            Fault::Spikes { rank, share, factor } => {
                write!(f, "spikes rank={} share={share} factor={factor}", whom(rank))
            }
            Fault::Silent { rank, from, for_s } => {
                write!(f, "silent rank={} from={from}{}", whom(rank), after("for", for_s))
            }
            Fault::Heat { gpu, from_s, until_s } => {
                write!(f, "heat gpu={gpu} from={from_s}s{}", after("until", until_s))
            }
            Fault::Warm { gpu, from_s, until_s } => {
                write!(f, "warm gpu={gpu} from={from_s}s{}", after("until", until_s))
            }
            Fault::Link {
                node,
                peer,
                factor,
                when,
            } => {
                let peer = peer.map_or(String::new(), |peer| format!(" peer={peer}"));
                write!(f, "link node={node}{peer} factor={factor} {when}")
            }
            Fault::CheckpointSlow { rank, factor, when } => {
                write!(f, "checkpoint-slow rank={rank} factor={factor} {when}")
            }
            Fault::WarmUpSlow { rank, factor } => {
                write!(f, "warm-up-slow rank={} factor={factor}", whom(rank))
            }
            Fault::Regress { factor, from } => write!(f, "regress factor={factor} from={from}"),
            Fault::Birth { factor } => write!(f, "birth factor={factor}"),
            Fault::Skew { node } => write!(f, "skew node={node}"),
            Fault::Gap {
                node,
                from_s,
                for_s,
                kept,
            } => {
                let steps = if kept { " steps=kept" } else { "" };
                write!(f, "gap node={node} from={from_s}s{}{steps}", after("for", for_s))
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
