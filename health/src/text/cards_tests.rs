//! Which verdicts share a card, and which do not.

use super::*;
use crate::fault::{Remedy, When};
use crate::frame::Provenance;
use crate::id::Rank;
use crate::text::humanize::evidence::phrase;

fn of_gpu(id: u64, gpu: u64, node: &str) -> Verdict {
    Verdict {
        id,
        finding: Finding::GpuThrottled,
        subject: Subject::Gpu {
            gpu_uuid: format!("GPU-0000000{gpu}-aaaa").as_str().into(),
            node: node.into(),
        },
        severity: Severity::Warning,
        state: State::Raised,
        since_s: 10.0 + gpu as f64,
        since_step: Some(100 + gpu),
        raised_s: 20.0 + gpu as f64,
        raised_step: None,
        cleared_s: None,
        signals: Vec::new(),
        provenance: Provenance::Live,
        slowdown_ratio: None,
        cause: Cause::Thermal,
        evidence: vec![piece("thermal_throttled_ratio", 0.92)],
        impact_ratio: None,
        lost_gpu_hours: 0.0,
        lost_cost: None,
        action: "Heat slows it down: run diagnostics on this GPU at the end of the job.".into(),
        observe_only: false,
        order: Some(Order {
            remedy: Remedy::Diagnose,
            when: When::JobEnd,
        }),
        says: None,
        unresolved_at_exit: false,
    }
}

fn over(verdict: Verdict, at: f64) -> Verdict {
    Verdict {
        state: State::Cleared,
        cleared_s: Some(at),
        ..verdict
    }
}

fn whom(verdicts: &[Verdict]) -> Vec<String> {
    cards(verdicts)
        .iter()
        .map(|card| card.verdict.subject_text())
        .collect()
}

#[test]
fn eight_gpus_of_a_node_are_one_card() {
    let verdicts: Vec<Verdict> = (0..8).map(|gpu| of_gpu(gpu + 1, gpu, "node2")).collect();
    let found = cards(&verdicts);
    assert_eq!(whom(&verdicts), ["8 GPUs on node2"]);
    let (card, gpus) = (&found[0].verdict, &found[0].gpus);
    assert_eq!(
        (card.id, card.since_s, card.since_step, card.raised_s),
        (1, 10.0, Some(100), 20.0)
    );
    assert_eq!(gpus.len(), 8);
    let phrases: Vec<String> = card.evidence.iter().map(phrase).collect();
    assert_eq!(phrases[0], "GPUs alike 8");
    assert_eq!(phrases[8], "GPU-00000007 time slowed by heat 92 %");
    assert!(card.action.contains("on each of these GPUs"), "{}", card.action);
}

#[test]
fn what_differs_has_a_card_of_its_own() {
    let mut verdicts: Vec<Verdict> = (0..4).map(|gpu| of_gpu(gpu + 1, gpu, "n1")).collect();
    verdicts[3].cause = Cause::Power;
    verdicts.extend((0..2).map(|gpu| of_gpu(gpu + 5, gpu, "n2")));
    verdicts.push(Verdict {
        severity: Severity::Critical,
        ..of_gpu(7, 5, "n1")
    });
    verdicts.push(Verdict {
        subject: Subject::Rank {
            rank: Rank(3),
            node: "n1".into(),
            gpu_uuid: None,
        },
        ..of_gpu(8, 5, "n1")
    });
    let mut found = whom(&verdicts);
    // The worst comes first.
    assert_eq!(found.remove(0), "gpu GPU-00000005-aaaa on n1");
    found.sort();
    let alone = [
        "GPU-00000000-aaaa on n2",
        "GPU-00000001-aaaa on n2",
        "GPU-00000003-aaaa on n1",
    ];
    let wanted: Vec<String> = std::iter::once("3 GPUs on n1".to_owned())
        .chain(alone.map(|gpu| format!("gpu {gpu}")))
        .chain(["rank 3 on n1".to_owned()])
        .collect();
    assert_eq!(found, wanted);
}

#[test]
fn one_gpu_that_comes_and_goes_is_not_many() {
    let verdicts: Vec<Verdict> = (1..=5).map(|id| over(of_gpu(id, 0, "n1"), 21.0)).collect();
    assert_eq!(whom(&verdicts).len(), 5);
}

/// Cleared and active verdicts are separate cards, and so is a recurrence a day later.
#[test]
fn episodes_are_told_apart() {
    let mut verdicts: Vec<Verdict> = (0..3)
        .map(|gpu| over(of_gpu(gpu + 1, gpu, "n1"), 100.0 + gpu as f64))
        .collect();
    let later = |gpu: u64, id| Verdict {
        since_s: 86_400.0,
        raised_s: 86_400.0,
        ..of_gpu(id, gpu, "n1")
    };
    verdicts.extend((0..3).map(|gpu| over(later(gpu, gpu + 4), 86_500.0)));
    verdicts.extend((3..6).map(|gpu| later(gpu, gpu + 7)));
    let found = cards(&verdicts);
    let times: Vec<_> = found
        .iter()
        .map(|card| (card.verdict.id, card.verdict.since_s, card.verdict.cleared_s))
        .collect();
    assert_eq!(
        times,
        [
            (10, 86_400.0, None),
            (1, 10.0, Some(102.0)),
            (4, 86_400.0, Some(86_500.0))
        ]
    );
    assert_eq!(whom(&verdicts), ["3 GPUs on n1"; 3]);
}
