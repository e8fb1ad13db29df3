//! What a node does by itself: reads what it is, lets its GPUs or its CPU work, and sums inside the node.

use std::fs;
use std::sync::Arc;

use paceline_health::id::NodeId;
use paceline_health::preflight::{Fact, Metric, Place, Sample};
use paceline_health::stats::{median, robust_sigma};

use super::cpu;
use super::group;
use super::message::{Failed, Found};
use super::mode::Limits;
use crate::transport::Deadline;

/// The node's own part of a preflight.
pub trait Tools: Send + Sync {
    /// Reads what the node is.
    fn snapshot(&self, node: &NodeId, deadline: &Deadline) -> Result<Found, Failed>;

    /// Lets its GPUs, or its CPU, work.
    fn work(&self, node: &NodeId, round: u32, limits: &Limits, deadline: &Deadline) -> Result<Found, Failed>;

    /// All-reduce inside the node.
    fn local(&self, node: &NodeId, round: u32, limits: &Limits, deadline: &Deadline)
    -> Result<Found, Failed>;
}

/// A host without GPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Tools for Host {
    fn snapshot(&self, node: &NodeId, _: &Deadline) -> Result<Found, Failed> {
        Ok(Found {
            model: cpu_model(),
            facts: vec![fact(node, "cpu_limit", cpu_limit())],
            ..Found::default()
        })
    }

    fn work(&self, node: &NodeId, round: u32, limits: &Limits, deadline: &Deadline) -> Result<Found, Failed> {
        let worked = cpu::work(limits.passes, deadline);
        let conditions = format!("{}, {} threads", cpu_model(), worked.threads);
        let sample = |metric, values: &[f64]| sample(node, metric, &conditions, round, values);
        Ok(Found {
            samples: [
                sample(Metric::CpuGemm, &worked.gflops),
                sample(Metric::CpuMemory, &worked.gbps),
            ]
            .into_iter()
            .flatten()
            .collect(),
            ..Found::default()
        })
    }

    fn local(
        &self,
        node: &NodeId,
        round: u32,
        limits: &Limits,
        deadline: &Deadline,
    ) -> Result<Found, Failed> {
        group::inside(node, round, limits, deadline)
    }
}

fn fact(node: &NodeId, name: &str, value: Option<String>) -> Fact {
    Fact {
        node: node.clone(),
        gpu: None,
        port: None,
        name: name.into(),
        value: value.map(Arc::from),
    }
}

fn sample(node: &NodeId, metric: Metric, conditions: &str, round: u32, values: &[f64]) -> Option<Sample> {
    let value = median(&mut values.to_vec())?;
    let sigma = robust_sigma(&mut values.to_vec()).unwrap_or(0.0);
    Some(Sample {
        place: Place::Node { node: node.clone() },
        metric,
        conditions: conditions.into(),
        rail: None,
        round,
        value,
        spread: if value > 0.0 { sigma / value } else { 0.0 },
        passes: u32::try_from(values.len()).unwrap_or(u32::MAX),
        bytes: 0,
    })
}

fn cpu_model() -> Arc<str> {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // Not every architecture has a name for it.
    text.lines()
        .find_map(|line| {
            line.strip_prefix("model name")?
                .split_once(':')
                .map(|(_, name)| name.trim())
        })
        .unwrap_or(std::env::consts::ARCH)
        .into()
}

/// CPUs that the control group of this process may use, as a number; `none` without a limit.
fn cpu_limit() -> Option<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut least: Option<f64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(names), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let found = if names.is_empty() {
            limit_v2(path)
        } else if names.split(',').any(|name| name == "cpu") {
            limit_v1(path)
        } else {
            None
        };
        least = match (least, found) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
    Some(least.map_or_else(|| "none".to_owned(), |cpus| format!("{cpus:.2} CPUs")))
}

fn limit_v2(path: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/sys/fs/cgroup{path}/cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

fn limit_v1(path: &str) -> Option<f64> {
    let number = |name: &str| {
        let text = fs::read_to_string(format!("/sys/fs/cgroup/cpu{path}/cpu.{name}")).ok()?;
        text.trim().parse::<f64>().ok()
    };
    let quota = number("cfs_quota_us").filter(|quota| *quota > 0.0)?;
    Some(quota / number("cfs_period_us")?)
}
