use paceline_health::sim::{Fault, Truth};
use paceline_health::verdict::{Cause, Finding, Severity};

use super::*;
use crate::evaluate::baselines::Naming;
use crate::evaluate::suite::{TUNING, of};

fn claim(finding: Finding, who: Who, step: u64) -> Claim {
    Claim {
        finding,
        who,
        step,
        cause: Cause::Unknown,
        severity: Severity::Warning,
        lost_gpu_s: 0.0,
    }
}

fn truth(since_step: u64, last_step: u64, lost_gpu_s: f64) -> Truth {
    let fault: Fault = "slow rank=3 factor=2 from=200".parse().unwrap();
    Truth {
        fault,
        expected: None,
        rank: None,
        gpu: None,
        node: None,
        ranks: Vec::new(),
        since_step: Some(since_step),
        last_step: Some(last_step),
        lost_gpu_s,
    }
}

fn outcome(claims: Vec<Claim>, truths: Vec<Truth>) -> Outcome {
    Outcome {
        claims,
        namings: Vec::new(),
        truths,
        ranks: 16,
        per_node: 8,
        rank_steps: 1_000_000,
        steps_ratio: Some(1.0),
        gaps: false,
    }
}

/// Scores `outcomes`. All of them are outcomes of the scenario with this name, and its first required rank is the
/// culprit.
fn judge<T>(suite: Suite, name: &str, outcomes: &[Outcome], look: impl Fn(&[Case<'_>], Who) -> T) -> T {
    let scenarios = of(&[suite]);
    let scenario = scenarios.iter().find(|one| one.name == name).unwrap();
    let job = scenario.job(0, TUNING, 0).unwrap();
    let culprit = job.expect.first().map_or(Who::Job, |expected| expected.who);
    let cases: Vec<Case<'_>> = outcomes
        .iter()
        .map(|outcome| Case {
            scenario,
            job: &job,
            outcome,
        })
        .collect();
    look(&cases, culprit)
}

fn culprit(name: &str) -> Who {
    judge(Suite::Quiet, name, &[], |_, who| who)
}

fn value(rows: &[Row], name: &str) -> Option<f64> {
    rows.iter().find(|row| row.name.starts_with(name)).unwrap().value
}

const NAME: &str = "quiet-ddp-16-20-later";

#[test]
fn a_verdict_is_right_only_on_the_right_one_and_in_time() {
    let who = culprit(NAME);
    let straggler = |who, step| claim(Finding::Straggler, who, step);
    let wrong_rank = Who::Rank(if who == Who::Rank(0) { 1 } else { 0 });
    for (name, claims, recall, precision) in [
        ("right", vec![straggler(who, 204)], 1.0, Some(1.0)),
        ("too early", vec![straggler(who, 150)], 0.0, Some(0.0)),
        ("too late", vec![straggler(who, 371)], 0.0, Some(0.0)),
        ("another rank", vec![straggler(wrong_rank, 204)], 0.0, Some(0.0)),
        (
            "another finding",
            vec![claim(Finding::RankSilent, who, 204)],
            0.0,
            Some(0.0),
        ),
        ("nothing", vec![], 0.0, None),
        (
            "right twice is one hit",
            vec![
                straggler(who, 204),
                straggler(who, 300),
                straggler(wrong_rank, 300),
            ],
            1.0,
            Some(0.5),
        ),
    ] {
        let outcomes = [outcome(claims, vec![truth(200, 350, 0.0)])];
        let rows = judge(Suite::Quiet, NAME, &outcomes, |cases, _| detection::rows(cases));
        assert_eq!(value(&rows, "recall"), Some(recall), "{name}");
        let said = rows.iter().find(|row| row.name.starts_with("precision"));
        assert_eq!(said.and_then(|row| row.value), precision, "{name}");
    }
}

#[test]
fn the_first_name_counts_and_silence_is_no_name() {
    let who = culprit(NAME);
    let other = Who::Rank(if who == Who::Rank(0) { 1 } else { 0 });
    let straggler = |who, step| claim(Finding::Straggler, who, step);
    let outcomes = [
        outcome(
            vec![straggler(who, 204), straggler(other, 210)],
            vec![truth(200, 350, 0.0)],
        ),
        outcome(
            vec![straggler(other, 204), straggler(who, 210)],
            vec![truth(200, 350, 0.0)],
        ),
        outcome(vec![], vec![truth(200, 350, 0.0)]),
        outcome(
            vec![claim(Finding::AllRanksSlow, Who::Job, 203), straggler(who, 210)],
            vec![truth(200, 350, 0.0)],
        ),
    ];
    let rows = judge(Suite::Quiet, NAME, &outcomes, |cases, _| detection::rows(cases));
    assert_eq!(value(&rows, "rank named first"), Some(0.5));
}

#[test]
fn steps_to_decide_are_counted_from_the_first_slow_step() {
    let name = "pace-20-quiet";
    let who = judge(Suite::Pace, name, &[], |_, who| who);
    let found = |step| {
        outcome(
            vec![claim(Finding::Straggler, who, step)],
            vec![truth(200, 299, 0.0)],
        )
    };
    let never = outcome(vec![], vec![truth(200, 299, 0.0)]);
    let outcomes = [found(204), found(206), found(203), never.clone(), never];
    let rows = judge(Suite::Pace, name, &outcomes, |cases, _| detection::rows(cases));
    assert_eq!(value(&rows, "median steps"), Some(7.0));
    let all = judge(Suite::Pace, name, &outcomes, |cases, _| {
        detection::delays(cases, name, None)
    });
    assert_eq!(all, [5.0, 7.0, 4.0, f64::INFINITY, f64::INFINITY]);
}

#[test]
fn any_verdict_on_a_healthy_world_is_a_false_alarm() {
    let name = "healthy-sigma-11-checkpoint-128";
    let mut info = claim(Finding::Straggler, Who::Rank(3), 50);
    info.severity = Severity::Info;
    let mut loud = outcome(vec![info, claim(Finding::AllRanksSlow, Who::Job, 60)], vec![]);
    loud.namings = vec![Naming {
        rule: 3,
        rank: 2,
        step: 20,
    }];
    let still: Vec<Outcome> = (0..99).map(|_| outcome(vec![], vec![])).collect();
    let rate = |outcomes: &[Outcome]| {
        let rows = judge(Suite::Healthy, name, outcomes, |cases, _| alarms::rows(cases));
        let row = rows.into_iter().find(|row| row.name.starts_with("false alarms"));
        row.unwrap()
    };
    let quiet = rate(&still);
    // The bound is 3.0 events over 99 million rank-steps.
    assert!((quiet.value.unwrap() - 0.3026).abs() < 1e-3, "{quiet:?}");
    let row = rate(&[still, vec![loud]].concat());
    // The bound is 6.30 events over 100 million rank-steps.
    assert!((row.value.unwrap() - 0.6296).abs() < 1e-3, "{row:?}");
    assert!((row.baselines["MAD z > 3.5"].unwrap() - 0.4744).abs() < 1e-3);
}

#[test]
fn costs_are_compared_with_all_incidents_of_the_rank() {
    let who = culprit(NAME);
    let mut parts = vec![
        claim(Finding::Straggler, who, 204),
        claim(Finding::Straggler, who, 300),
    ];
    (parts[0].lost_gpu_s, parts[1].lost_gpu_s) = (60.0, 30.0);
    let outcomes = [outcome(parts, vec![truth(200, 350, 100.0)])];
    let errors = judge(Suite::Quiet, NAME, &outcomes, |cases, _| cost::errors(cases));
    assert!(errors.len() == 1 && (errors[0] - 0.1).abs() < 1e-12, "{errors:?}");
}

#[test]
fn failures_say_what_was_expected_and_how_to_see_it_again() {
    let who = culprit(NAME);
    let outcomes = [outcome(
        vec![claim(Finding::AllRanksSlow, Who::Job, 60)],
        vec![truth(200, 350, 0.0)],
    )];
    let failed = judge(Suite::Quiet, NAME, &outcomes, |cases, _| failures(cases));
    assert_eq!(failed.len(), 1);
    assert_eq!(
        failed[0].mistakes,
        [
            format!("missed straggler {who}, true from step 200 to 350"),
            "false all-ranks-slow job (warning, cause unknown) in step 60".to_owned()
        ]
    );
    assert!(
        failed[0].command.starts_with("paceline simulate --seed "),
        "{}",
        failed[0].command
    );
}
