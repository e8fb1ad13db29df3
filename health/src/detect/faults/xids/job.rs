//! XIDs that concern the whole job instead of one GPU, which are counted once for all GPUs, and XIDs that only follow
//! other XIDs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{CONTAINED, EXCEPTION, PAGE_FAULT, SYMPATHETIC, XidReport};
use crate::detect::faults::ledger::{Ledger, Part};
use crate::detect::faults::{FaultContext, FaultRule, xid_name};
use crate::frame::Provenance;
use crate::id::{GpuId, NodeId};
use crate::time::Time;
use crate::verdict::Finding;

/// Maximum number of XIDs of the job that are distinguished, and maximum number of GPUs counted for each.
const MAX_CODES: usize = 64;
const MAX_GPUS: usize = 1024;

/// XIDs that concern the whole job instead of one GPU.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct JobXids {
    codes: BTreeMap<(Finding, u32), JobCode>,
    /// Reports of XID 45 that may still be followed by another XID, by GPU: their deadline, and their number and
    /// journal entries so far.
    alone: BTreeMap<(NodeId, GpuId), (Time, Waiting)>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Waiting {
    count: u64,
    entries: (u64, u64),
    provenance: Provenance,
}

#[derive(Debug, Serialize, Deserialize)]
struct JobCode {
    count: u64,
    last: Time,
    gpus: BTreeSet<(NodeId, GpuId)>,
    first: String,
}

impl JobXids {
    /// Drops the waiting XIDs 45 of a GPU, because another XID occurred there and they belong to it.
    pub fn followed(&mut self, node: &NodeId, gpu: &GpuId) {
        self.alone.remove(&(node.clone(), gpu.clone()));
    }

    /// Returns on how many GPUs of the job this XID occurred.
    pub fn gpus(&self, finding: Finding, xid: u32) -> usize {
        self.codes.get(&(finding, xid)).map_or(1, |code| code.gpus.len())
    }

    pub fn clear(&mut self) {
        self.codes.clear();
        self.alone.clear();
    }

    /// Ends the XIDs that have not occurred for a long time.
    pub fn quiet(&mut self, context: &FaultContext<'_>, ledger: &mut Ledger) {
        let span = Duration::from_secs_f64(context.limits.xid_quiet_s);
        let job = context.job_subject();
        self.codes.retain(|(finding, xid), code| {
            let over = code.last + span;
            if over <= context.at {
                ledger.drop_part(over, *finding, &job, &xid_name(*xid));
            }
            over > context.at
        });
    }

    pub fn add(&mut self, context: &FaultContext<'_>, ledger: &mut Ledger, seen: &XidReport<'_>) {
        let key = (seen.judged.finding, seen.xid);
        if self.codes.len() >= MAX_CODES && !self.codes.contains_key(&key) {
            return;
        }
        let place = || match context.rank_on(seen.gpu) {
            Some((rank, _)) => format!("rank {rank} on {} ({})", context.node, seen.gpu),
            None => format!("{} on {}", seen.gpu, context.node),
        };
        let code = self.codes.entry(key).or_insert_with(|| JobCode {
            count: 0,
            last: context.at,
            gpus: BTreeSet::new(),
            first: place(),
        });
        code.count = code.count.saturating_add(seen.new);
        code.last = context.at;
        if code.gpus.len() < MAX_GPUS {
            code.gpus.insert((context.node.clone(), seen.gpu.clone()));
        }
        let gpus = code.gpus.len();
        let why = match gpus {
            1 => format!("XID {} ({}) of {}", seen.xid, seen.judged.means, code.first),
            _ => format!(
                "XID {} ({}) on several GPUs, first of {}",
                seen.xid, seen.judged.means, code.first
            ),
        };
        let mut part = Part::new(context, seen.judged.severity, why)
            .asks(seen.judged.order.remedy, seen.judged.order.when)
            .shows(&*xid_name(seen.xid), code.count as f64)
            .shows(format!("xid_{}_gpus", seen.xid), gpus as f64);
        part.count = code.count;
        if gpus > 1 && matches!(seen.xid, EXCEPTION | PAGE_FAULT) {
            part.more = "It is a bug in the application, not a GPU fault.".to_owned();
        }
        if seen.xid == CONTAINED {
            part.more = "The error was contained: reset this GPU when the job has ended.".to_owned();
        }
        ledger.hold(
            context,
            seen.judged.finding,
            &context.job_subject(),
            &xid_name(seen.xid),
            part,
        );
    }
}

impl FaultRule {
    /// Handles XID 45. It is ignored if another XID occurred on the same GPU, because it is then only a consequence of
    /// that XID. Otherwise it waits, and `follow_alone` reports it if no other XID follows.
    pub(super) fn sympathetic(&mut self, context: &FaultContext<'_>, seen: &XidReport<'_>) {
        if seen.new == 0 {
            return;
        }
        let span = Duration::from_secs_f64(context.limits.xid_follows_s);
        let key = (context.node.clone(), seen.gpu.clone());
        if self
            .gpus
            .get(&key)
            .and_then(|gpu| gpu.other_than(SYMPATHETIC, context.at, span))
            .is_some()
        {
            return;
        }
        let entry = (context.entry, context.entry);
        let (_, waiting) = self.job_xids.alone.entry(key).or_insert((
            context.at + span,
            Waiting {
                count: 0,
                entries: entry,
                provenance: context.provenance,
            },
        ));
        waiting.count = waiting.count.saturating_add(seen.new);
        waiting.entries.1 = context.entry;
    }

    /// Reports the XIDs 45 that no other XID followed.
    pub(crate) fn follow_alone(&mut self, context: &FaultContext<'_>) {
        let due: Vec<(NodeId, GpuId)> = self
            .job_xids
            .alone
            .iter()
            .filter(|(_, (until, _))| *until <= context.at)
            .map(|(key, _)| key.clone())
            .collect();
        for (node, id) in due {
            let Some((until, waiting)) = self.job_xids.alone.remove(&(node.clone(), id.clone())) else {
                continue;
            };
            let then = FaultContext {
                at: until,
                entry: waiting.entries.1,
                provenance: waiting.provenance,
                node: &node,
                ..*context
            };
            let judged = context.tables.judge(SYMPATHETIC, "", None);
            let (xid, gpu, new) = (SYMPATHETIC, &id, waiting.count);
            self.job_xids.add(
                &then,
                &mut self.ledger,
                &XidReport {
                    xid,
                    gpu,
                    judged,
                    new,
                },
            );
        }
    }
}
