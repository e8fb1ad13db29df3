//! Tests of the places of ranks, of step times, and of what slow ranks share.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::path::Path;
use super::plan::Plan;
use crate::Policy;
use crate::detect::members::roster::Roster;
use crate::detect::straggler::localise::locate;
use crate::detect::straggler::open_straggler::Extent;
use crate::event::{Agent, Attach, Axis, Event, Layout};
use crate::frame::{Frame, Provenance, SCHEMA_VERSION};
use crate::id::Rank;
use crate::time::Time;

/// Plan of ranks in nodes and of nodes in racks of two. The sizes (dp, tp, pp) define each rank's layout, in Megatron's
/// order.
pub fn plan(nodes: u32, gpus: u32, (dp, tp, pp): (u32, u32, u32), micro_batches: u32) -> Plan {
    let mut roster = Roster::default();
    let mut seq = vec![0; nodes as usize];
    let mut see = |node: u32, event: Event| {
        seq[node as usize] += 1;
        let frame = Frame {
            v: SCHEMA_VERSION,
            node: format!("n{node}").as_str().into(),
            agent: 1,
            seq: seq[node as usize],
            provenance: Provenance::Live,
            event,
        };
        roster.observe(Time::ZERO, &frame);
    };
    for node in 0..nodes {
        let rack: Arc<str> = format!("r{}", node / 2).into();
        see(
            node,
            Event::Agent(Agent {
                paceline: "test".into(),
                sources: Vec::new(),
                unix_ms: 0,
                rack,
                versions: BTreeMap::new(),
            }),
        );
    }
    for rank in 0..nodes * gpus {
        let node = rank / gpus;
        see(
            node,
            Event::Attach(Attach {
                rank: Rank(rank),
                local_rank: rank % gpus,
                world_size: nodes * gpus,
                restart: 0,
                pid: rank,
                gpu: None,
                role: "".into(),
                framework: "test".into(),
            }),
        );
        let axis = |index, size| Axis { index, size };
        if dp * tp * pp > 1 {
            see(
                node,
                Event::Layout(Layout {
                    rank: Rank(rank),
                    restart: 0,
                    dp: axis(rank / tp % dp, dp),
                    tp: axis(rank % tp, tp),
                    pp: axis(rank / (tp * dp), pp),
                    ep: Axis::default(),
                    cp: Axis::default(),
                    micro_batches,
                }),
            );
        }
    }
    Plan::new(&roster, 3, |_| "".into(), &BTreeMap::new())
}

#[test]
fn peers_do_the_same_work() {
    for (nodes, gpus, layout, sizes) in [
        // If nothing is declared, all ranks are alike.
        (2, 4, (1, 1, 1), vec![8]),
        (2, 4, (8, 1, 1), vec![8]),
        // With enough replicas, each tensor slice of each stage has peers of its own.
        (4, 4, (4, 2, 2), vec![4, 4, 4, 4]),
        // With two replicas, the slices of a stage are merged, but stages never are.
        (2, 4, (2, 2, 2), vec![4, 4]),
        (2, 8, (1, 8, 2), vec![8, 8]),
    ] {
        let plan = plan(nodes, gpus, layout, 0);
        let found: Vec<usize> = plan.roles.iter().map(|role| role.members.len()).collect();
        assert_eq!(found, sizes, "{layout:?}");
    }
}

/// Fifty-six of sixty-four declared stages have no rank, so this is not accepted as a pipeline.
#[test]
fn a_pipeline_that_nobody_is_in_is_none() {
    assert_eq!(plan(2, 4, (1, 1, 8), 4).stages, 8);
    assert_eq!(plan(2, 4, (1, 1, 64), 4).stages, 1);
}

#[test]
fn a_step_takes_what_its_critical_path_takes() {
    let all = |plan: &Plan, own: &dyn Fn(u32) -> f64| {
        let ranks = (0..plan.ranks as u32).filter_map(|rank| Some((*plan.place(Rank(rank))?, own(rank))));
        Path::new(plan, 1, &[]).step_s(ranks)
    };
    let flat = plan(1, 4, (1, 1, 1), 0);
    assert_eq!(all(&flat, &|rank| f64::from(rank)), 3.0);
    // Two replicas of four stages with eight micro-batches, and 8 s of work in each stage, take 8 × (8 + 3) / 8.
    let pipeline = plan(2, 4, (2, 1, 4), 8);
    assert!((all(&pipeline, &|_| 8.0) - 11.0).abs() < 1e-9);
    // If the last stage of one replica takes 12 s, the step takes (12 × 8 + 3 × 8) / 8. An earlier stage hides part of
    // its slowness in the time that it would idle before its first backward pass.
    let heavy = all(&pipeline, &|rank| if rank == 7 { 12.0 } else { 8.0 });
    assert!((heavy - 15.0).abs() < 1e-9, "{heavy}");
    let middle = all(&pipeline, &|rank| if rank == 3 { 12.0 } else { 8.0 });
    assert!((13.0..15.0).contains(&middle), "{middle}");
}

#[test]
fn what_slow_ranks_have_in_common() {
    let check = |slow: &[u32], plan: &Plan, expected: Extent| {
        let slow: Vec<Rank> = slow.iter().copied().map(Rank).collect();
        let located = locate(slow[0], &slow, plan, &Policy::default().detector.straggler);
        assert_eq!(located.extent, expected, "{slow:?}");
        assert!(located.members.contains(&slow[0]));
    };
    let node = |name: &str| Extent::Node(name.into());
    let eight_nodes = plan(8, 8, (1, 1, 1), 0);
    check(&[9], &eight_nodes, Extent::Rank(Rank(9)));
    check(&[9, 40], &eight_nodes, Extent::Rank(Rank(9)));
    // If three of eight ranks on a node are slow, they are reported as single ranks. If half of them are, the node is
    // reported.
    check(&[9, 10, 11], &eight_nodes, Extent::Rank(Rank(9)));
    check(&[8, 9, 10, 11], &eight_nodes, node("n1"));
    check(&(8..16).collect::<Vec<u32>>(), &eight_nodes, node("n1"));
    // Both nodes of a rack are slow, so the rack is reported.
    check(
        &(16..32).collect::<Vec<u32>>(),
        &eight_nodes,
        Extent::Rack("r1".into()),
    );
    // Slow nodes in two racks are reported as nodes. If more than a fifth of the ranks are slow and share no place, the
    // job is reported.
    let apart: Vec<u32> = (8..16).chain(56..58).collect();
    check(&apart, &eight_nodes, node("n1"));
    check(
        &(0..64).step_by(4).collect::<Vec<u32>>(),
        &eight_nodes,
        Extent::Job,
    );
    // If one of two nodes is slow, the node is reported although it is more than a fifth of the ranks. A single node
    // cannot be compared with another.
    check(&[4, 5, 6, 7], &plan(2, 4, (1, 1, 1), 0), node("n1"));
    check(&[1, 2, 3], &plan(1, 8, (1, 1, 1), 0), Extent::Job);
    check(&[1, 2], &plan(1, 8, (1, 1, 1), 0), Extent::Rank(Rank(1)));
}
