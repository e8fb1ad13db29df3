//! Checks that in any order of events the limits hold, and what the operator does not own stays unchanged.

use std::collections::BTreeMap;

use paceline_health::verdict::Finding;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::drain::{Round, drained};
use super::super::recovery::checked;
use super::super::world::{BEGIN, apply, node, report};
use super::super::*;

/// An event on one of the nodes.
#[derive(Clone, Debug)]
enum Happens {
    Raised(usize, Finding),
    Over(usize, Finding),
    Drained(usize, u32),
    Checked(usize, bool),
    /// Others cordon or uncordon the node, and add or remove their own taint.
    Cordon(usize, bool),
    Taint(usize, bool),
    Repaired(usize),
    Hold(usize, bool),
    Reboot(usize),
    Later(u64),
    /// Another leader continues from the state in the cluster.
    Restart,
    Reset,
}

const NODES: usize = 12;

fn happens() -> impl Strategy<Value = Happens> {
    use Happens::{
        Checked, Cordon, Drained, Hold, Later, Over, Raised, Reboot, Repaired, Reset, Restart, Taint,
    };
    let finding = prop::sample::select(vec![
        Finding::GpuLost,
        Finding::RowRemap,
        Finding::NvlinkErrors,
        Finding::Straggler,
    ]);
    let at = 0..NODES;
    prop_oneof![
        6 => (at.clone(), finding.clone()).prop_map(|(at, finding)| Raised(at, finding)),
        2 => (at.clone(), finding).prop_map(|(at, finding)| Over(at, finding)),
        2 => (at.clone(), 0..3_u32).prop_map(|(at, left)| Drained(at, left)),
        2 => (at.clone(), any::<bool>()).prop_map(|(at, passed)| Checked(at, passed)),
        2 => (at.clone(), any::<bool>()).prop_map(|(at, on)| Cordon(at, on)),
        2 => (at.clone(), any::<bool>()).prop_map(|(at, on)| Taint(at, on)),
        1 => at.clone().prop_map(Repaired),
        1 => (at.clone(), any::<bool>()).prop_map(|(at, on)| Hold(at, on)),
        1 => at.prop_map(Reboot),
        6 => (1..400_u64).prop_map(Later),
        1 => Just(Restart),
        1 => Just(Reset),
    ]
}

struct Cluster {
    rules: Rules,
    nodes: Vec<NodeView>,
    healths: BTreeMap<String, Health>,
    /// True for each node that was cordoned by others, not by the operator.
    foreign: [bool; NODES],
    breaker: Option<Breaker>,
    started: u64,
    now: u64,
}

impl Cluster {
    fn out(&self) -> usize {
        self.healths
            .values()
            .filter(|health| health.rung.is_out())
            .count()
    }

    fn look(&mut self) {
        let out_before = self.out();
        let mut census = Census::of(
            &self.healths,
            &self.nodes.iter().map(|node| node.name.clone()).collect(),
            self.breaker.clone(),
            &self.rules,
            self.now,
        );
        self.breaker = census.breaker.clone();
        for (index, view) in self.nodes.iter_mut().enumerate() {
            let health = self
                .healths
                .entry(view.name.clone())
                .or_insert_with(|| Health::of(&view.uid, &view.boot, BEGIN));
            let scene = Scene {
                now: self.now,
                started: self.started,
                rules: &self.rules,
                census: &census,
            };
            let before = health.rung;
            step(health, view, &scene);
            census.count(&view.name, health);
            if view.hold || census.breaker.is_some() {
                assert!(
                    health.rung <= before,
                    "nothing climbs while it is held or the breaker is open"
                );
                continue;
            }
            let foreign: Vec<Value> = others(view);
            if let Some(patch) = Marks::of(health).patch(view) {
                apply(view, &patch);
            }
            assert_eq!(others(view), foreign, "others' taints");
            assert!(
                !self.foreign[index] || view.unschedulable,
                "uncordoned what another had cordoned"
            );
            assert!(
                !self.foreign[index] || view.mark.is_none(),
                "took over what another had cordoned"
            );
        }
        let most =
            Rules::share(self.rules.guard.cluster_percent, NODES as u32).min(self.rules.guard.most_out);
        assert!(self.out() <= out_before.max(most as usize), "{} out", self.out());
        assert!(self.out() <= most as usize, "{} out", self.out());
    }

    fn happens(&mut self, what: &Happens) {
        let name = |index: usize| format!("n{index}");
        let rules = self.rules.clone();
        let subject = |at: usize| format!("gpu GPU-{at}");
        match *what {
            Happens::Raised(at, finding) | Happens::Over(at, finding) => {
                let mut said = report(finding, &subject(at));
                said.holds = matches!(what, Happens::Raised(..));
                let view = &self.nodes[at];
                let health = self
                    .healths
                    .entry(name(at))
                    .or_insert_with(|| Health::of(&view.uid, &view.boot, BEGIN));
                health.hear(said, self.now);
            }
            Happens::Drained(at, left) => {
                if let Some(health) = self.healths.get_mut(&name(at)) {
                    drained(health, Round { left, blocked: None }, &rules, self.now);
                }
            }
            Happens::Checked(at, passed) => {
                if let Some(health) = self.healths.get_mut(&name(at)) {
                    checked(health, passed, "", &rules, self.now);
                }
            }
            Happens::Cordon(at, on) => {
                let view = &mut self.nodes[at];
                self.foreign[at] = on && view.mark.is_none();
                view.unschedulable = on;
            }
            Happens::Taint(at, on) => {
                let view = &mut self.nodes[at];
                view.taints.retain(|taint| taint["key"] != "example.org/own");
                if on {
                    view.taints
                        .insert(0, json!({ "key": "example.org/own", "effect": "NoExecute" }));
                }
            }
            Happens::Repaired(at) => self.nodes[at].repaired = Some("yes".to_owned()),
            Happens::Hold(at, on) => self.nodes[at].hold = on,
            Happens::Reboot(at) => self.nodes[at].boot.push('x'),
            Happens::Later(seconds) => self.now += seconds * 1000,
            Happens::Restart => {
                let kept = serde_json::to_string(&self.healths).unwrap();
                self.healths = serde_json::from_str(&kept).unwrap();
                self.started = self.now;
            }
            Happens::Reset => self.breaker = None,
        }
    }
}

fn others(view: &NodeView) -> Vec<Value> {
    view.taints
        .iter()
        .filter(|taint| taint["key"] != marks::TAINT)
        .cloned()
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_guard_holds(course in prop::collection::vec(happens(), 1..120), percent in 1..60_u32, most in 1..6_u32) {
        let policy = format!(
            "mode = \"act\"\n[guard]\ncluster_percent = {percent}\njob_percent = 100\nmost_out = {most}\n[finding.nvlink-errors]\nmode = \"act\""
        );
        let mut cluster = Cluster {
            rules: Rules::with(&policy).unwrap(),
            nodes: (0..NODES).map(|index| node(&format!("n{index}"))).collect(),
            healths: BTreeMap::new(),
            foreign: [false; NODES],
            breaker: None,
            started: BEGIN,
            now: BEGIN,
        };
        for what in &course {
            cluster.happens(what);
            cluster.look();
        }
    }
}
