//! Events of a preflight when the job starts. All nodes have the same report. Each node sends the outcome and its own
//! results. The first node that starts also sends results that belong to no node, and those of nodes that do not start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Metric, NodeRow, Noted, Place, PreflightTable, Problem, Report};
use crate::event::{Bench, Event, LeftOut, Preflight};
use crate::id::{GpuId, NodeId};

/// Maximum number of problems and excluded nodes that are sent, because frames have a size limit.
const MOST: usize = 1024;

impl Report {
    /// Returns the events that `node` sends. `starting` are the nodes that take part in the job. `policy` is the
    /// requested action on bad results.
    pub fn events(&self, node: &NodeId, starting: &BTreeSet<NodeId>, policy: &str) -> Vec<Event> {
        // A node that was lost starts without the report.
        let teller = starting
            .iter()
            .find(|node| self.nodes.get(*node).is_some_and(|row| row.there));
        let is_teller = teller == Some(node);
        let table = PreflightTable::default();
        // Every node sends the outcome, because a node that reports alone has no other node to send it.
        let mut events = vec![Event::Preflight(self.header(&table, starting, policy))];
        for (known, row) in &self.nodes {
            let starts = starting.contains(known) && row.there;
            if known == node || (is_teller && !starts) {
                events.push(Event::Bench(self.bench(&table, known, row)));
                events.extend(self.told_of(Some(known)));
            }
        }
        if is_teller {
            events.extend(self.told_of(None));
        }
        events
    }

    fn header(&self, table: &PreflightTable, starting: &BTreeSet<NodeId>, policy: &str) -> Preflight {
        let out = self.nodes.keys().filter(|node| !starting.contains(*node));
        Preflight {
            mode: Arc::clone(&self.mode),
            outcome: self.outcome,
            seconds: self.seconds,
            nodes: u32::try_from(self.nodes.len()).unwrap_or(u32::MAX),
            gpus: self.nodes.values().map(|row| row.gpus).sum(),
            comparisons: self.comparisons as u64,
            values: self.best_of(table, &Place::Job),
            policy: policy.into(),
            left_out: out
                .take(MOST)
                .map(|node| LeftOut {
                    node: node.clone(),
                    why: self.why_out(node),
                })
                .collect(),
        }
    }

    /// Returns why a node does not take part.
    fn why_out(&self, node: &NodeId) -> Arc<str> {
        let lost = |problem: &&Problem| problem.lost && problem.node.as_ref() == Some(node);
        if let Some(problem) = self.problems.iter().find(lost) {
            return Arc::clone(&problem.what);
        }
        let bad = |noted: &&Noted| noted.place.node() == Some(node) && noted.condemns();
        match self.findings.iter().find(bad) {
            Some(noted) => format!("{}: {}", noted.place, noted.says).into(),
            None => "a spare: enough nodes start without it".into(),
        }
    }

    fn bench(&self, table: &PreflightTable, node: &NodeId, row: &NodeRow) -> Bench {
        let gpus: BTreeSet<&GpuId> = self
            .samples
            .iter()
            .filter_map(|sample| match &sample.place {
                Place::Gpu { node: own, gpu } if own == node => Some(gpu),
                _ => None,
            })
            .collect();
        let of_gpus = gpus.into_iter().map(|gpu| {
            let (node, gpu) = (node.clone(), gpu.clone());
            (gpu.clone(), self.best_of(table, &Place::Gpu { node, gpu }))
        });
        Bench {
            node: node.clone(),
            there: row.there,
            model: Arc::clone(&row.model),
            gpus: row.gpus,
            values: row.values.clone(),
            of_gpus: of_gpus.collect(),
        }
    }

    /// Returns the results of a place. If a measurement was repeated, the better result counts, as in the judgment.
    fn best_of(&self, table: &PreflightTable, place: &Place) -> BTreeMap<Metric, f64> {
        let mut values = BTreeMap::new();
        for sample in self.samples.iter().filter(|sample| sample.place == *place) {
            let best = values.entry(sample.metric).or_insert(sample.value);
            *best = table.metric(sample.metric).best(*best, sample.value);
        }
        values
    }

    /// Returns the findings and problems of a node. A `node` of `None` selects those that do not belong to a single
    /// node.
    fn told_of(&self, node: Option<&NodeId>) -> Vec<Event> {
        let findings = self.findings.iter().filter(|noted| noted.place.node() == node);
        let problems = self
            .problems
            .iter()
            .filter(|problem| problem.node.as_ref() == node);
        let findings = findings.cloned().map(Event::PreflightFinding).take(MOST);
        let problems = problems.cloned().map(Event::PreflightProblem).take(MOST);
        findings.chain(problems).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::{Outcome, PREFLIGHT_SCHEMA, Sample};
    use crate::verdict::Severity;

    fn noted(place: Place) -> Noted {
        Noted {
            place,
            or: Vec::new(),
            what: "gemm".into(),
            severity: Severity::Critical,
            value: Some(1.0),
            unit: "".into(),
            comparisons: Vec::new(),
            sure: true,
            says: "it is slow".into(),
            cause: "".into(),
            advice: "".into(),
        }
    }

    fn gpu(node: &str) -> Place {
        Place::Gpu {
            node: node.into(),
            gpu: "GPU-a".into(),
        }
    }

    fn sample(place: Place, round: u32, value: f64) -> Sample {
        Sample {
            place,
            metric: Metric::Gemm,
            conditions: "".into(),
            rail: None,
            round,
            value,
            spread: 0.0,
            passes: 3,
            bytes: 0,
        }
    }

    /// n1 is lost, n2 is bad, n3 and n4 are good, n5 is a spare.
    fn report() -> Report {
        let row = |there| NodeRow {
            there,
            gpus: 1,
            ..NodeRow::default()
        };
        let nodes = (1..=5).map(|n| (NodeId::from(&*format!("n{n}")), row(n != 1)));
        Report {
            schema_version: PREFLIGHT_SCHEMA,
            paceline: "0".into(),
            job: "j".into(),
            mode: "quick".into(),
            simulated: false,
            outcome: Outcome::Critical,
            seconds: 9.0,
            phases: Vec::new(),
            nodes: nodes.collect(),
            findings: vec![noted(gpu("n2")), noted(Place::pair(&"n3".into(), &"n4".into()))],
            problems: vec![Problem {
                node: Some("n1".into()),
                phase: "rendezvous".into(),
                what: "it never came".into(),
                lost: true,
            }],
            comparisons: 9,
            unsteady: Vec::new(),
            carried: Vec::new(),
            samples: vec![sample(gpu("n3"), 0, 5.0), sample(gpu("n3"), 1, 6.0)],
        }
    }

    /// Returns the events of a node, abbreviated.
    fn told(node: &str, starting: &[&str]) -> String {
        let starting = starting.iter().map(|node| NodeId::from(*node)).collect();
        let events = report().events(&node.into(), &starting, "exclude");
        let short = |event: &Event| match event {
            Event::Preflight(header) => format!("header without {}", header.left_out.len()),
            Event::Bench(bench) => format!("bench {}", bench.node),
            Event::PreflightFinding(noted) => format!("finding {}", noted.place),
            Event::PreflightProblem(problem) => format!("problem {}", problem.what),
            other => format!("{other:?}"),
        };
        events.iter().map(short).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn each_tells_of_itself_and_the_first_of_the_rest() {
        let starting = ["n3", "n4"];
        assert_eq!(
            told("n3", &starting),
            "header without 3, bench n1, problem it never came, bench n2, finding GPU-a of node n2, bench n3, bench n5, \
             finding the path between n3 and n4"
        );
        assert_eq!(told("n4", &starting), "header without 3, bench n4");
        // All nodes start, including the lost one. The lost one has no results to send.
        let all = ["n1", "n2", "n3", "n4", "n5"];
        assert_eq!(
            told("n2", &all),
            "header without 0, bench n1, problem it never came, bench n2, finding GPU-a of node n2, \
             finding the path between n3 and n4"
        );
    }

    #[test]
    fn gpus_that_were_measured_in_whatever_way_are_counted_once() {
        let mut report = report();
        (report.problems, report.findings) = (Vec::new(), Vec::new());
        report.nodes.retain(|node, _| node.as_str() == "n3");
        report.samples[1].metric = Metric::GpuMemory;
        report
            .samples
            .push(sample(Place::Node { node: "n3".into() }, 0, 1.0));
        report.demand_gpus(1);
        assert_eq!((report.outcome, report.problems.len()), (Outcome::Ok, 0));
        report.demand_gpus(2);
        assert_eq!(report.outcome, Outcome::Critical);
        assert_eq!(
            &*report.problems[0].what,
            "1 of 2 GPUs were measured, and 1 were found"
        );
        assert!(report.bad_nodes().contains(&NodeId::from("n3")));
    }

    #[test]
    fn who_is_left_out_knows_why_and_what_is_measured_again_counts() {
        let starting = ["n3", "n4"].map(NodeId::from).into_iter().collect();
        let events = report().events(&"n3".into(), &starting, "exclude");
        let Event::Preflight(header) = &events[0] else {
            panic!("{events:?}")
        };
        let why: Vec<&str> = header.left_out.iter().map(|out| &*out.why).collect();
        assert_eq!(
            why,
            [
                "it never came",
                "GPU-a of node n2: it is slow",
                "a spare: enough nodes start without it"
            ]
        );
        let own = events.iter().find_map(|event| match event {
            Event::Bench(bench) if bench.node.as_str() == "n3" => bench.of_gpus.get(&"GPU-a".into()),
            _ => None,
        });
        assert_eq!(own, Some(&BTreeMap::from([(Metric::Gemm, 6.0)])));
    }
}
