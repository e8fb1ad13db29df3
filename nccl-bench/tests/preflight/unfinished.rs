//! Tests a link that is so bad that no large message arrives in time. The earlier results of small messages must count.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paceline_health::id::NodeId;
use paceline_health::preflight::{Metric, Place, Report, Sample};
use paceline_nccl_bench::preflight::{Brief, Fault, Fleet, Found, Mode, Task, conduct};

/// A fleet of four nodes. Between n1 and n2, 5 % of all packets are lost.
struct Lossy;

fn names() -> Vec<NodeId> {
    ["n1", "n2", "n3", "n4"].map(NodeId::from).to_vec()
}

fn sample(place: &Place, metric: Metric, round: u32, value: f64) -> Sample {
    Sample {
        place: place.clone(),
        metric,
        conditions: "".into(),
        rail: None,
        round,
        value,
        spread: 0.0,
        passes: 5,
        bytes: 1 << 20,
    }
}

fn answer(task: &Task) -> Result<Found, Fault> {
    let Task::Group {
        nodes,
        rank: 0,
        pair_round: Some(round),
        ..
    } = task
    else {
        return Ok(Found::default());
    };
    let place = Place::pair(&nodes[0], &nodes[1]);
    let bad = place == Place::pair(&"n1".into(), &"n2".into());
    let mut samples = vec![sample(
        &place,
        Metric::PairLoss,
        *round,
        if bad { 0.05 } else { 0.0 },
    )];
    if bad {
        let what = "pairs: not done within 7.0 s".to_owned();
        return Err(Fault {
            what,
            samples,
            ..Fault::default()
        });
    }
    samples.push(sample(&place, Metric::PairBusbw, *round, 10.0));
    Ok(Found {
        samples,
        ..Found::default()
    })
}

impl Fleet for Lossy {
    fn nodes(&self) -> Vec<NodeId> {
        names()
    }

    fn ask(
        &mut self,
        _: &str,
        tasks: Vec<(NodeId, Task)>,
        _: Duration,
    ) -> BTreeMap<NodeId, Result<Found, Fault>> {
        tasks
            .into_iter()
            .map(|(node, task)| (node, answer(&task)))
            .collect()
    }

    fn done(&mut self, _: &Report) {}
}

#[test]
fn what_was_seen_before_the_deadline_counts() {
    let brief = Brief {
        mode: Mode::Quick,
        job: "j".into(),
        paceline: "0".into(),
        min_busbw: None,
        simulated: false,
        began: Instant::now(),
        problems: Vec::new(),
    };
    let report = conduct(&mut Lossy, brief, &|_| Ok(Vec::new()), &mut |_, _, _| {});
    let findings: Vec<String> = report
        .findings
        .iter()
        .map(|noted| format!("{} {} {}", noted.place, noted.what, noted.sure))
        .collect();
    assert_eq!(findings, ["the path between n1 and n2 pair_loss true"]);
    // The report also states that the measurement did not finish.
    assert!(
        report
            .problems
            .iter()
            .all(|problem| problem.node == Some("n1".into()) && !problem.lost)
    );
    assert!(!report.problems.is_empty());
}
