//! Scripted preflight events.

use std::collections::BTreeMap;

use datadriven::TestCase;
use paceline_health::event::{Bench, Event, LeftOut, Preflight};
use paceline_health::preflight::{Against, Comparison, Metric, Noted, Outcome, Place};
use paceline_health::verdict::Severity;

use super::script::{gpu, take};

/// Handles the command `preflight [nodes=4] [out=n3]`, which creates the result of a preflight. `out` is the excluded
/// node.
pub fn preflight(case: &mut TestCase) -> Result<Event, String> {
    let out: Option<String> = take(case, "out")?;
    let left_out = out.iter().map(|node| LeftOut {
        node: node.as_str().into(),
        why: "the CPU is slow".into(),
    });
    Ok(Event::Preflight(Preflight {
        mode: "quick".into(),
        outcome: if out.is_some() {
            Outcome::Critical
        } else {
            Outcome::Ok
        },
        seconds: 9.5,
        nodes: take(case, "nodes")?.unwrap_or(4),
        gpus: 0,
        comparisons: 8,
        values: BTreeMap::new(),
        policy: "exclude".into(),
        left_out: left_out.collect(),
    }))
}

/// Handles the command `bench of=n1 [absent=yes]`, which means that a node was measured. This discards its earlier
/// findings.
pub fn bench(case: &mut TestCase) -> Result<Event, String> {
    let of: String = take(case, "of")?.ok_or("of= is missing")?;
    Ok(Event::Bench(Bench {
        node: of.as_str().into(),
        there: take::<String>(case, "absent")?.is_none(),
        model: "test".into(),
        gpus: 0,
        values: BTreeMap::from([(Metric::CpuGemm, 100.0)]),
        of_gpus: BTreeMap::new(),
    }))
}

/// Handles the command `found [rank=1] of=NODE [to=NODE] metric=gemm value=812 expected=990 [against=history]
/// [unsure=yes]`. The finding is about the GPU of the rank if there is one, else about a node or a link.
pub fn found(case: &mut TestCase) -> Result<Event, String> {
    let of: String = take(case, "of")?.ok_or("of= is missing")?;
    let node = of.as_str().into();
    let to: Option<String> = take(case, "to")?;
    let place = match (take(case, "rank")?, to) {
        (Some(rank), _) => Place::Gpu { node, gpu: gpu(rank) },
        (None, Some(to)) => Place::pair(&node, &to.as_str().into()),
        (None, None) => Place::Node { node },
    };
    let word = |text: &str| format!("\"{text}\"");
    let against: String = take(case, "against")?.unwrap_or_else(|| "fleet".to_owned());
    let against: Against = serde_json::from_str(&word(&against)).map_err(|error| error.to_string())?;
    let metric: String = take(case, "metric")?.ok_or("metric= is missing")?;
    let severity = Severity::Critical;
    Ok(Event::PreflightFinding(Noted {
        place,
        or: Vec::new(),
        what: metric.as_str().into(),
        severity,
        value: take(case, "value")?,
        unit: "".into(),
        comparisons: vec![Comparison {
            against,
            expected: take(case, "expected")?.ok_or("expected= is missing")?,
            severity,
            source: "".into(),
        }],
        sure: take::<String>(case, "unsure")?.is_none(),
        says: "it is slow".into(),
        cause: "".into(),
        advice: "".into(),
    }))
}
