//! What world to make: size, how its steps behave, what goes wrong.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fault::Fault;
use super::text::{ScriptError, words};

/// Most ranks that a world may have.
pub const MOST_RANKS: u32 = 1 << 17;

const KNOWN: &str = "job, nodes, gpus, steps, seed, self, transfer, sigma, tail, autocorrelation, offset, \
                     warm-up, checkpoint-every, checkpoint, undeclared, hang, role, readings";

/// Everything that a [`World`](super::World) is made of: the same spec gives the same frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorldSpec {
    /// The job's name.
    pub job: Arc<str>,
    /// Where chance begins.
    pub seed: u64,
    /// Nodes, each with a sidecar of its own.
    pub nodes: u32,
    /// GPUs, and so ranks, on each node.
    pub gpus_per_node: u32,
    /// How the ranks share the work.
    pub layout: Layout,
    /// The role that ranks declare; empty: none.
    pub role: Arc<str>,
    /// Optimizer steps until training ends.
    pub steps: u64,
    /// How long a step takes and how much that varies.
    pub step: StepModel,
    /// Whether GPUs are read.
    pub readings: bool,
    /// For how long a job that hangs goes on hanging until somebody kills it, seconds.
    pub hang_s: f64,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// How the ranks share the work: what each waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Layout {
    /// Every rank does the same work, and all meet once a step.
    #[default]
    DataParallel,
}

/// The time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepModel {
    /// Median self-time of a rank, seconds.
    pub self_s: f64,
    /// The collective once all have arrived, seconds.
    pub transfer_s: f64,
    /// Standard deviation of log self-time from step to step: 0.005 homogeneous, [`PACKED_SIGMA`] packed sequences.
    pub sigma: f64,
    /// Share of steps that take longer by an exponential tail in the logarithm.
    pub tail_share: f64,
    /// Mean of that tail, in the logarithm.
    pub tail_scale: f64,
    /// Correlation of a step's noise with that of the step before (AR(1)), 0 to below 1.
    pub autocorrelation: f64,
    /// Standard deviation of the lasting difference between identical GPUs, in the logarithm.
    pub offset: f64,
    /// First steps that take up to three times as long.
    pub warm_up_steps: u64,
    /// Checkpoints.
    pub checkpoint: Checkpoint,
}

/// Log self-time of honest steps varies by this much with packed sequences (1.4826 × MAD of a real job).
pub const PACKED_SIGMA: f64 = 0.11;

/// Steps that are slow on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Every so many steps; zero: never.
    pub every: u64,
    /// Such a step takes this many times as long as others.
    pub factor: f64,
    /// The probe knows: the time is in the checkpoint phase and the step's kind says so. Otherwise it is self-time.
    pub declared: bool,
    /// Only rank 0 writes.
    pub first_rank_only: bool,
}

impl Default for WorldSpec {
    fn default() -> WorldSpec {
        WorldSpec {
            job: Arc::from("simulated"),
            seed: 1,
            nodes: 1,
            gpus_per_node: 8,
            layout: Layout::DataParallel,
            role: Arc::from(""),
            steps: 1000,
            step: StepModel::default(),
            readings: true,
            hang_s: 180.0,
            faults: Vec::new(),
        }
    }
}

impl Default for StepModel {
    fn default() -> StepModel {
        StepModel {
            self_s: 0.2,
            transfer_s: 0.01,
            sigma: 0.005,
            tail_share: 0.0,
            tail_scale: 0.3,
            autocorrelation: 0.0,
            offset: 0.003,
            warm_up_steps: 3,
            checkpoint: Checkpoint::default(),
        }
    }
}

impl Default for Checkpoint {
    fn default() -> Checkpoint {
        // A real 32-GPU run: every 500th step takes 1.7 times as long.
        Checkpoint {
            every: 0,
            factor: 1.7,
            declared: true,
            first_rank_only: false,
        }
    }
}

/// Why a spec is not a world.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// A number outside of what can be simulated.
    #[error("{what} is {value}; expected {expected}")]
    Range {
        /// Which.
        what: &'static str,
        /// What it is.
        value: f64,
        /// What it could be.
        expected: &'static str,
    },
    /// A fault of something that the world does not have.
    #[error("fault \"{fault}\": there is no {what} {number}; there are {count}, counted from 0")]
    NoSuch {
        /// The fault.
        fault: String,
        /// `rank`, `gpu` or `node`.
        what: &'static str,
        /// The number it names.
        number: u32,
        /// How many there are.
        count: u32,
    },
}

impl WorldSpec {
    /// Ranks in the world.
    pub fn ranks(&self) -> u32 {
        self.nodes.saturating_mul(self.gpus_per_node)
    }

    /// Reads `nodes=2 gpus=8 steps=500 seed=1 sigma=0.11`, every key optional.
    ///
    /// # Errors
    /// [`ScriptError`], which names the column and what is known.
    pub fn parse(text: &str) -> Result<WorldSpec, ScriptError> {
        let mut spec = WorldSpec::default();
        for word in words(text)? {
            let positive = || word.decimal("a number above 0", f64::MIN_POSITIVE..=1e6);
            let share = || word.decimal("a number, 0 to 1", 0.0..=1.0);
            let step = &mut spec.step;
            match word.key.as_str() {
                "job" => spec.job = word.read("a name", |text| Some(Arc::from(text)))?,
                "role" => spec.role = word.read("a name", |text| Some(Arc::from(text)))?,
                "nodes" => spec.nodes = word.number()?,
                "gpus" => spec.gpus_per_node = word.number()?,
                "steps" => spec.steps = word.number()?,
                "seed" => spec.seed = word.number()?,
                "self" => step.self_s = word.seconds()?,
                "transfer" => step.transfer_s = word.seconds()?,
                "sigma" => step.sigma = share()?,
                "tail" => step.tail_share = share()?,
                "autocorrelation" => step.autocorrelation = share()?,
                "offset" => step.offset = share()?,
                "warm-up" => step.warm_up_steps = word.number()?,
                "checkpoint-every" => step.checkpoint.every = word.number()?,
                "checkpoint" => step.checkpoint.factor = positive()?,
                // Both are bare words: undeclared=first is one rank that writes and does not say so.
                "undeclared" => {
                    step.checkpoint.declared = false;
                    step.checkpoint.first_rank_only = word.read("all or first", |text| match text {
                        "all" => Some(false),
                        "first" => Some(true),
                        _ => None,
                    })?;
                }
                "hang" => spec.hang_s = word.seconds()?,
                "readings" => {
                    spec.readings = word.read("on or off", |text| match text {
                        "on" => Some(true),
                        "off" => Some(false),
                        _ => None,
                    })?;
                }
                _ => return Err(word.unknown(KNOWN)),
            }
        }
        Ok(spec)
    }

    /// Whether it can be simulated.
    ///
    /// # Errors
    /// [`SpecError`], which names the value.
    pub fn check(&self) -> Result<(), SpecError> {
        let within = |what, value: f64, low: f64, high: f64, expected| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(SpecError::Range {
                    what,
                    value,
                    expected,
                })
            }
        };
        let ranks = f64::from(self.nodes) * f64::from(self.gpus_per_node);
        within(
            "nodes × GPUs",
            ranks,
            1.0,
            f64::from(MOST_RANKS),
            "1 to 131072 ranks",
        )?;
        let step = &self.step;
        within("self-time", step.self_s, 1e-4, 1e5, "100 µs to 100,000 s")?;
        within("transfer time", step.transfer_s, 0.0, 1e5, "0 to 100,000 s")?;
        within("sigma", step.sigma, 0.0, 1.0, "0 to 1")?;
        within("tail share", step.tail_share, 0.0, 1.0, "0 to 1")?;
        within("tail scale", step.tail_scale, 0.0, 2.0, "0 to 2")?;
        within(
            "autocorrelation",
            step.autocorrelation,
            0.0,
            0.9999,
            "0 to below 1",
        )?;
        within("offset", step.offset, 0.0, 0.5, "0 to 0.5")?;
        within(
            "checkpoint factor",
            step.checkpoint.factor,
            1.0,
            1e4,
            "1 to 10,000",
        )?;
        within("hang", self.hang_s, 0.0, 1e7, "0 to 10,000,000 s")?;
        for fault in &self.faults {
            self.check_fault(fault)?;
        }
        Ok(())
    }

    fn check_fault(&self, fault: &Fault) -> Result<(), SpecError> {
        if let Some((what, number)) = fault.names() {
            let count = if what == "node" { self.nodes } else { self.ranks() };
            if number >= count {
                return Err(SpecError::NoSuch {
                    fault: fault.to_string(),
                    what,
                    number,
                    count,
                });
            }
        }
        let (share, factor) = match *fault {
            Fault::Slow { factor, .. } => (0.0, factor),
            Fault::Spikes { share, factor, .. } => (share, factor),
            Fault::Loss { share } | Fault::Reorder { share } | Fault::Repeat { share } => (share, 1.0),
            _ => (0.0, 1.0),
        };
        let within = |what, value: f64, low: f64, high: f64, expected| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(SpecError::Range {
                    what,
                    value,
                    expected,
                })
            }
        };
        within("share of a fault", share, 0.0, 1.0, "0 to 1")?;
        within("factor of a fault", factor, 1.0, 1000.0, "1 to 1000")
    }
}
