//! Why something is slow: joined evidence, or none. Each cause needs its own counter in the window.

use std::sync::Arc;

use super::gpus::Gpus;
use super::plan::Plan;
use super::roster::Roster;
use crate::event::{GpuReading, Signal};
use crate::frame::Provenance;
use crate::id::{GpuId, Rank};
use crate::policy::Thresholds;
use crate::time::Time;
use crate::verdict::{Cause, Evidence};

/// GPUs of peers that are looked at for a cause.
const PEERS: usize = 64;

/// What counters said lately.
#[derive(Debug, Default)]
pub struct Causes {
    gpus: Gpus,
}

/// What is slow, and what is known of it from its steps.
#[derive(Clone, Copy, Debug)]
pub struct Suspect<'a> {
    pub ranks: &'a [Rank],
    pub since: Time,
    /// Self-time beyond the peers', seconds a step.
    pub excess_s: f64,
    /// How much of that sits in the data phase and in garbage collection.
    pub data_excess_s: f64,
    pub gc_excess_s: f64,
    /// First and last journal entry of those steps.
    pub entries: (u64, u64),
}

/// What the counters of a suspect may be compared with.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub roster: &'a Roster,
    pub plan: &'a Plan,
    pub limits: &'a Thresholds,
}

/// A cause with the evidence for it, and how far that can be trusted.
#[derive(Clone, Debug)]
pub struct Explained {
    pub cause: Cause,
    pub evidence: Vec<Evidence>,
    pub signals: Vec<Signal>,
    pub provenance: Provenance,
}

impl Causes {
    /// Takes a reading; `entry` is its place in the journal. True when the GPU was never read before.
    pub fn gpu(&mut self, at: Time, entry: u64, provenance: Provenance, reading: &GpuReading) -> bool {
        let is_new = self.gpus.model(&reading.gpu).is_none();
        self.gpus.observe(at, entry, provenance, reading);
        is_new
    }

    /// The model of a GPU that was read.
    pub fn model(&self, gpu: &GpuId) -> Option<Arc<str>> {
        self.gpus.model(gpu)
    }

    /// The cause that counters show for what is slow; none without a counter.
    pub fn explain(&self, suspect: &Suspect<'_>, scope: &Scope<'_>) -> Option<Explained> {
        suspect
            .ranks
            .iter()
            .find_map(|rank| self.thermal(*rank, suspect.since, scope))
    }

    fn thermal(&self, rank: Rank, since: Time, scope: &Scope<'_>) -> Option<Explained> {
        let gpu = scope.roster.member(rank)?.gpu.as_ref()?;
        let peers = peers_of(rank, scope);
        let thermal = self
            .gpus
            .thermal(gpu, peers.into_iter(), since, &scope.limits.thermal)?;
        Some(Explained {
            cause: Cause::Thermal,
            evidence: thermal.evidence,
            signals: vec![Signal::S3],
            provenance: thermal.provenance,
        })
    }
}

/// GPUs of the ranks that do the same work.
fn peers_of<'a>(rank: Rank, scope: &Scope<'a>) -> Vec<&'a GpuId> {
    let Some(place) = scope.plan.place(rank) else {
        return Vec::new();
    };
    scope.plan.roles[place.role as usize]
        .members
        .iter()
        .filter(|peer| **peer != rank)
        .filter_map(|peer| scope.roster.member(*peer)?.gpu.as_ref())
        .take(PEERS)
        .collect()
}
