use paceline_health::verdict::Finding;

use super::super::world::{BEGIN, DAY, MINUTE, SECOND, World, report};
use super::super::*;

/// Each of two findings has its own debounce time.
#[test]
fn each_finding_has_its_own_debounce() {
    let rung_after = |finding: Finding, wait: u64| {
        let policy = "mode = \"act\"\n[guard]\ndebounce_s = 60\n[finding.nvlink-errors]\nmode = \"act\"\ndebounce_s = 300";
        let mut world = World::with(policy);
        let said = report(finding, "gpu GPU-a on n1");
        world.hear(said.clone());
        world.later(wait, &[said]);
        world.health.rung
    };
    assert_eq!(rung_after(Finding::GpuLost, 59 * SECOND), Rung::None);
    assert_eq!(rung_after(Finding::GpuLost, MINUTE), Rung::Evict);
    assert_eq!(rung_after(Finding::NvlinkErrors, 5 * MINUTE - SECOND), Rung::None);
    assert_eq!(rung_after(Finding::NvlinkErrors, 5 * MINUTE), Rung::Taint);
}

#[test]
fn no_more_than_the_guard_lets_out() {
    let out = |name: &str, job: &str| {
        let mut health = Health::of(name, "", BEGIN);
        (health.rung, health.jobs) = (Rung::Evict, vec![job.to_owned()]);
        (name.to_owned(), health)
    };
    let check = |others: Vec<(String, Health)>, nodes: u32, change: &str, refusal: Option<&str>| {
        let mut world = World::with(&format!("mode = \"act\"\n{change}"));
        (world.others, world.nodes) = (others, nodes);
        let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
        world.hear(lost.clone());
        world.later(5 * MINUTE, &[lost]);
        match refusal {
            None => assert_eq!(world.health.rung, Rung::Evict),
            Some(says) => {
                assert_eq!(
                    (world.health.rung, world.node.unschedulable),
                    (Rung::Label, false)
                );
                assert!(world.health.reason.contains(says), "{}", world.health.reason);
                let refused = world.words().iter().filter(|word| **word == "refused").count();
                assert_eq!(refused, 1, "said once");
            }
        }
    };
    let many = |count: usize, job: &str| {
        (0..count)
            .map(|index| out(&format!("o{index}"), job))
            .collect::<Vec<_>>()
    };
    // One node is always allowed.
    check(vec![], 3, "", None);
    check(many(1, "ml/other"), 3, "", Some("1 of the cluster's 3"));
    check(many(4, "ml/other"), 100, "", None);
    check(many(5, "ml/other"), 100, "", Some("most-out: 5"));
    check(many(9, "ml/other"), 100, "[guard]\nmost_out = 50", None);
    check(
        many(10, "ml/other"),
        100,
        "[guard]\nmost_out = 50",
        Some("10 of the cluster's 100"),
    );
    // At most a quarter of the job's 8 nodes may be out of service.
    check(many(1, "ml/train"), 100, "", None);
    check(
        many(2, "ml/train"),
        100,
        "",
        Some("2 of the 8 nodes of job ml/train"),
    );
    // Nodes in shadow mode do not count.
    let mut shadows = many(20, "ml/train");
    for (_, health) in &mut shadows {
        (health.rung, health.shadow) = (Rung::None, Rung::Evict);
    }
    check(shadows, 100, "", None);
}

#[test]
fn a_storm_opens_the_breaker_and_a_person_closes_it() {
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let mut world = World::acting();
    world.nodes = 8;
    for index in 0..3 {
        let mut health = Health::of(&format!("o{index}"), "", BEGIN);
        health.hear(report(Finding::GpuLost, "gpu GPU-x"), BEGIN);
        world.others.push((format!("o{index}"), health));
    }
    world.step();
    assert_eq!(world.breaker, None, "three of eight");
    world.hear(lost.clone());
    assert_eq!(
        world.breaker.as_ref().map(|open| (open.nodes, open.of)),
        Some((4, 8))
    );
    // The breaker does not close by itself, even if all findings clear.
    world.others.clear();
    world.later(DAY / 2, std::slice::from_ref(&lost));
    assert_eq!((world.health.rung, world.node.unschedulable), (Rung::None, false));
    assert!(
        world.health.reason.starts_with("breaker: 4 of 8"),
        "{}",
        world.health.reason
    );
    world.breaker = None;
    world.later(MINUTE, &[lost]);
    assert_eq!(world.health.rung, Rung::Evict);
    // Nodes without GPUs do not count. Only three of the eight GPU nodes (o0, o1 and n1) have findings, whatever the 12
    // other nodes report.
    let mut mixed = World::acting();
    mixed.nodes = 8;
    for name in ["o0", "o1"]
        .into_iter()
        .map(str::to_owned)
        .chain((0..12).map(|index| format!("cpu{index}")))
    {
        let mut health = Health::of(&name, "", BEGIN);
        health.hear(report(Finding::NetworkPort, "port"), BEGIN);
        mixed.others.push((name, health));
    }
    mixed.hear(report(Finding::GpuLost, "gpu GPU-a on n1"));
    assert_eq!(mixed.breaker, None);
    // With two nodes, findings on both do not open the breaker yet.
    let mut small = World::acting();
    small.nodes = 2;
    small.hear(report(Finding::GpuLost, "gpu GPU-a on n1"));
    assert_eq!(small.breaker, None);
}
