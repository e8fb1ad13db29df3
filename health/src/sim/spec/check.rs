//! Checks that a spec can be simulated. If it cannot, the error names the value.

use super::shape::{Target, When};
use super::{Framework, MOST_RANKS, SpecError, WorldSpec};
use crate::sim::fault::Fault;
use crate::verdict::Cause;

fn within(
    what: &'static str,
    value: f64,
    low: f64,
    high: f64,
    expected: &'static str,
) -> Result<(), SpecError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(SpecError::Range {
        what,
        value,
        expected,
    })
}

/// Maximum number of micro-batch parts per step of an interleaved pipeline.
const MOST_PARTS: u64 = 1 << 22;

impl WorldSpec {
    /// Checks that the spec can be simulated.
    ///
    /// # Errors
    /// [`SpecError`], which names the value.
    pub fn check(&self) -> Result<(), SpecError> {
        let ranks = f64::from(self.nodes) * f64::from(self.gpus_per_node);
        let most = f64::from(MOST_RANKS);
        within("nodes × GPUs", ranks, 1.0, most, "1 to 131072 ranks")?;
        let racks = f64::from(self.racks);
        within(
            "racks",
            racks,
            0.0,
            f64::from(self.nodes),
            "0 to the number of nodes",
        )?;
        let layout = self.layout.of(self.ranks())?;
        if !(self.stages.is_empty() || self.stages.len() == layout.pp as usize) {
            return Err(SpecError::Conflict(
                "stages= must name one weight for each stage of pp=",
            ));
        }
        for weight in &self.stages {
            within("work of a stage", *weight, 0.01, 100.0, "0.01 to 100")?;
        }
        if self.framework == Framework::Fsdp && layout.pp > 1 {
            return Err(SpecError::Conflict(
                "framework=fsdp has no pipeline here; expected pp=1",
            ));
        }
        within("chunks", f64::from(layout.chunks), 1.0, 64.0, "1 to 64")?;
        if layout.chunks > 1 && (layout.pp == 1 || !layout.micro.is_multiple_of(layout.pp)) {
            return Err(SpecError::Conflict(
                "chunks= interleaves a pipeline; expected pp= above 1 and micro= a multiple of it",
            ));
        }
        let parts = u64::from(layout.pp) * u64::from(layout.chunks) * u64::from(layout.micro);
        if layout.chunks > 1 && parts > MOST_PARTS {
            return Err(SpecError::Conflict(
                "pp= × chunks= × micro= is too much for a step; expected 4,194,304 at most",
            ));
        }
        let beside = f64::from(self.beside);
        within("beside", beside, 0.0, 512.0, "0 to 512 layers or buckets")?;
        if self.beside > 0 && !self.comms_by_gpu {
            return Err(SpecError::Conflict(
                "beside= is what GPUs time; expected comms=gpu",
            ));
        }
        if self.work.experts > 0.0 && layout.ep == 1 {
            return Err(SpecError::Conflict("experts= needs ep= above 1"));
        }
        self.check_step()?;
        within("time of a restart", self.restart_s, 0.0, 1e6, "0 to 1,000,000 s")?;
        within("hang", self.hang_s, 0.0, 1e7, "0 to 10,000,000 s")?;
        self.faults.iter().try_for_each(|fault| self.check_fault(fault))
    }

    fn check_step(&self) -> Result<(), SpecError> {
        let step = &self.step;
        within("self-time", step.self_s, 1e-4, 1e5, "100 µs to 100,000 s")?;
        for (what, value) in [
            ("transfer time", step.transfer_s),
            ("exchange time", step.exchange_s),
            ("hop time", step.hop_s),
            ("pause of garbage collection", step.gc.pause_s),
        ] {
            within(what, value, 0.0, 1e5, "0 to 100,000 s")?;
        }
        within("share of data", step.data_share, 0.0, 0.9, "0 to 0.9")?;
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
        within("packed", self.work.packed, 0.0, 0.3, "0 to 0.3")?;
        within("experts", self.work.experts, 0.0, 2.0, "0 to 2")?;
        within(
            "checkpoint factor",
            step.checkpoint.factor,
            1.0,
            1e4,
            "1 to 10,000",
        )?;
        within(
            "evaluation factor",
            step.evaluation.factor,
            1.0,
            1e4,
            "1 to 10,000",
        )
    }

    fn check_fault(&self, fault: &Fault) -> Result<(), SpecError> {
        let peer = match *fault {
            Fault::Link { peer, .. } => peer.map(|peer| ("node", peer)),
            _ => None,
        };
        for (what, number) in fault.names().into_iter().chain(peer) {
            let count = match what {
                "node" => self.nodes,
                "rack" => self.racks,
                _ => self.ranks(),
            };
            if number >= count {
                return Err(SpecError::NoSuch {
                    fault: fault.to_string(),
                    what,
                    number,
                    count,
                });
            }
        }
        let (factor, share) = fault.magnitude();
        within("share of a fault", share, 0.0, 1.0, "0 to 1")?;
        within("factor of a fault", factor, 1.0, 1000.0, "1 to 1000")?;
        match self.futile(fault) {
            Some(why) => Err(SpecError::Futile {
                fault: fault.to_string(),
                why,
            }),
            None => Ok(()),
        }
    }

    /// Returns why a fault could never have an effect in this world, or `None` if it could.
    fn futile(&self, fault: &Fault) -> Option<&'static str> {
        let alone = "a link needs two nodes";
        match *fault {
            Fault::Slow {
                micro: Some(micro), ..
            } if micro >= self.layout.micro.max(1) => {
                Some("there are fewer micro-batches, counted from 0: see micro=")
            }
            Fault::Slow { when, cause, on, .. } => match cause {
                Cause::Nvlink if self.gpus_per_node < 2 => Some("NVLink needs two GPUs on a node"),
                Cause::Network if self.nodes < 2 => Some(alone),
                Cause::Imbalance => Some("imbalance is no fault: see stages=, packed= and experts="),
                Cause::Checkpoint => Some("checkpoints are no cause of a slow rank: see checkpoint-every="),
                Cause::Evaluation => Some("evaluations are no cause of a slow rank: see evaluate-every="),
                cause if cause.is_of_hang() => {
                    Some("that is a cause of a rank that hangs, not of a slow one")
                }
                _ if when.moves.is_some() && on == Target::All => Some("what is everywhere cannot move"),
                _ => idle(&when),
            },
            Fault::Link { node, peer, when, .. } => match peer {
                _ if self.nodes < 2 => Some(alone),
                Some(peer) if peer == node => Some("a link has two ends"),
                _ => idle(&when),
            },
            Fault::CheckpointSlow { rank, when, .. } => {
                let plan = &self.step.checkpoint;
                if plan.every == 0 {
                    Some("there are no checkpoints: checkpoint-every=")
                } else if plan.first_rank_only && rank != 0 {
                    Some("only rank 0 writes checkpoints")
                } else {
                    idle(&when)
                }
            }
            Fault::WarmUpSlow { .. } if self.step.warm_up_steps == 0 => Some("there is no warm-up: warm-up="),
            Fault::Skew { .. } if self.nodes < 2 => Some("it needs at least two nodes"),
            _ => None,
        }
    }
}

fn idle(when: &When) -> Option<&'static str> {
    if when.until.is_some_and(|until| until <= when.from) {
        return Some("until is not after from");
    }
    let zero = [when.every, when.lasts, when.moves].contains(&Some(0));
    (zero || when.every.is_some() != when.lasts.is_some())
        .then_some("every and for go together, and neither they nor moves are 0")
}
