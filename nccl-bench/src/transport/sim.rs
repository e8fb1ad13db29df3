//! A transport that transfers nothing. Its times come from the simulated [`Fabric`], and no real time passes. It is for
//! demonstrations, and for tests of programs that read results. One value represents all ranks.

use std::time::Duration;

use super::{About, Deadline, Transport, TransportError};
use crate::collective::Plan;
use crate::fabric::{Dice, Fabric, SimFault};
use crate::measure::{RankPlace, RankTimes};

const NAME: &str = "sim";
/// Variation between iterations, as a share.
const NOISE: f64 = 0.01;
/// Share by which a slow rank takes longer than the others.
const BEHIND: f64 = 0.02;

/// The simulated transport; see the module documentation.
#[derive(Clone, Debug)]
pub struct SimTransport {
    fabric: Fabric,
    script: String,
    ranks: usize,
    plan: Option<Plan>,
    /// Number of iterations so far. Each iteration has its own random numbers.
    iteration: u64,
    /// Every rank's times for the prepared plan, in microseconds.
    times: Vec<Vec<f64>>,
}

impl SimTransport {
    /// Uses the first `ranks` GPUs of the fabric in `script`, node by node, or all of them if `ranks` is `None`.
    ///
    /// # Errors
    /// Returns [`TransportError::Unsupported`] if the fabric has fewer GPUs, or the error of a missing rank if a node
    /// is absent.
    pub fn open(
        fabric: Fabric,
        script: &str,
        ranks: Option<usize>,
        deadline: &Deadline,
    ) -> Result<SimTransport, TransportError> {
        let all = fabric.nodes() as usize * fabric.gpus() as usize;
        let ranks = ranks.unwrap_or(all);
        if !(1..=all).contains(&ranks) {
            let what = format!("{ranks} ranks on {all} GPUs");
            return Err(TransportError::Unsupported {
                transport: NAME,
                what,
            });
        }
        let sim = SimTransport {
            fabric,
            script: script.to_owned(),
            ranks,
            plan: None,
            iteration: 0,
            times: Vec::new(),
        };
        match (0..ranks).find(|rank| sim.fabric.is_absent(sim.place(*rank).0)) {
            Some(rank) => Err(deadline.passed(Some(rank))),
            None => Ok(sim),
        }
    }

    /// Returns the node and the GPU of a rank, counted from 1.
    fn place(&self, rank: usize) -> (u32, u32) {
        let (rank, gpus) = (rank as u32, self.fabric.gpus());
        (rank / gpus + 1, rank % gpus + 1)
    }

    fn nodes(&self) -> Vec<u32> {
        (1..=self.place(self.ranks - 1).0).collect()
    }

    /// Returns true if the other ranks wait for this rank.
    fn is_behind(&self, rank: usize) -> bool {
        let (node, gpu) = self.place(rank);
        self.fabric.any(|fault| match fault {
            SimFault::SlowGpu(at, index, _) => (*at, *index) == (node, gpu),
            SimFault::HalfNic(at) | SimFault::Delay(at) | SimFault::Loss(at) => *at == node,
            _ => false,
        })
    }

    fn unprepared() -> TransportError {
        TransportError::Unsupported {
            transport: NAME,
            what: "a run before it is prepared".into(),
        }
    }
}

impl Transport for SimTransport {
    fn about(&self) -> About {
        About {
            transport: NAME.to_owned(),
            simulated: true,
            details: [("fabric".to_owned(), self.script.clone())].into(),
        }
    }

    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn prepare(&mut self, plan: &Plan, _: &Deadline) -> Result<(), TransportError> {
        self.plan = Some(*plan);
        self.times = vec![Vec::new(); self.ranks];
        Ok(())
    }

    fn run(&mut self, iterations: u32, _: &Deadline) -> Result<Vec<Duration>, TransportError> {
        let plan = self.plan.ok_or_else(SimTransport::unprepared)?;
        let carried = plan.bytes() as f64 * plan.collective.bus_factor(plan.ranks);
        let time = self.fabric.time(&self.nodes(), carried).as_secs_f64() * 1e6;
        let behind: Vec<bool> = (0..self.ranks).map(|rank| self.is_behind(rank)).collect();
        for _ in 0..iterations {
            self.iteration += 1;
            let mut dice = Dice::of(&[self.fabric.seed(), self.iteration, plan.bytes()]);
            let time = time * (1.0 + NOISE * dice.normal().abs());
            for (times, behind) in self.times.iter_mut().zip(&behind) {
                let own = NOISE / 10.0 * dice.normal().abs();
                // All ranks end together with the last one, so the faster ranks' times differ only slightly.
                times.push(time * (1.0 - own - if *behind { 0.0 } else { BEHIND }));
            }
        }
        let mine = &self.times[0];
        let last = mine.len() - iterations as usize;
        Ok(mine[last..]
            .iter()
            .map(|time| Duration::from_secs_f64(time / 1e6))
            .collect())
    }

    /// Returns 0, because there is nothing to verify. [`SimTransport::gather`] marks the results as not verified.
    fn verify(&mut self, _: &Deadline) -> Result<u64, TransportError> {
        Ok(0)
    }

    fn agree(&mut self, value: u64, _: &Deadline) -> Result<u64, TransportError> {
        Ok(value)
    }

    fn gather(&mut self, mine: RankTimes, _: &Deadline) -> Result<Option<Vec<RankTimes>>, TransportError> {
        let timed = mine.times.len();
        let of = |(rank, times): (usize, &Vec<f64>)| RankTimes {
            rank,
            times: times[times.len().saturating_sub(timed)..].to_vec(),
            nwrong: None,
        };
        Ok(Some(self.times.iter().enumerate().map(of).collect()))
    }

    fn places(&mut self, _: RankPlace, _: &Deadline) -> Result<Option<Vec<RankPlace>>, TransportError> {
        let of = |rank| {
            let (node, gpu) = self.place(rank);
            RankPlace {
                rank,
                host: self.fabric.name(node),
                pid: 0,
                device: format!("simulated H100, GPU {}", gpu - 1),
            }
        };
        Ok(Some((0..self.ranks).map(of).collect()))
    }

    fn abort(&mut self) {}
}
