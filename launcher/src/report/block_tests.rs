use std::collections::BTreeMap;

use paceline_health::id::Rank;
use paceline_health::report::{Cost, Part, PartTimes, RankTimes, Times, Usual};
use paceline_health::verdict::{Finding, Subject};

use super::*;
use crate::report::samples::{piece, rank, report, verdict};

const STYLE: Style = Style {
    color: false,
    unicode: false,
    width: 90,
};

fn rendered(report: &Report) -> String {
    render(report, &Policy::default(), STYLE, &[])
}

/// A whole job has no peers, so it is compared with its own past.
#[test]
fn steps_of_the_whole_job_are_beside_those_before() {
    let subject = Subject::Job { job: "j".into() };
    let mut slow = verdict(1, Finding::AllRanksSlow, subject, Cause::Power);
    slow.slowdown_ratio = Some(1.28);
    slow.evidence.push(piece("self_time_s", 0.128, 0.1));
    let text = rendered(&report(vec![slow]));
    assert!(text.contains("before #") && !text.contains("peers"), "{text}");
}

#[test]
fn every_kind_of_subject_reads_well() {
    let mut node = verdict(
        1,
        Finding::StragglerNode,
        Subject::Node { node: "n3".into() },
        Cause::Power,
    );
    node.slowdown_ratio = Some(1.25);
    node.evidence = vec![
        piece("self_time_s", 1.25, 1.0),
        piece("power_throttled_ratio", 0.9, 0.1),
    ];
    let link = Subject::Link {
        node: "n1".into(),
        peer: Some("n2".into()),
    };
    let mut link = verdict(2, Finding::SlowLink, link, Cause::Network);
    link.evidence = vec![piece("transfer_s", 0.2, 0.1)];
    link.observe_only = true;
    link.severity = Severity::Info;
    let job = Subject::Job { job: "j".into() };
    let mut job = verdict(3, Finding::StageImbalance, job, Cause::Unknown);
    job.since_step = None;
    job.raised_step = None;
    let rack = Subject::Rack { rack: "r7".into() };
    let rack = verdict(4, Finding::StragglerNode, rack, Cause::Thermal);
    let text = rendered(&report(vec![node, link, job, rack]));
    let expected = "\
-- paceline -- job j, 64 ranks, 1000 steps of 1.00 s, 16 min 40 s ------------------------
 ! WARNING straggler-node  node n3
   what      A node or rack is persistently slower than its peers. At least half of its
             ranks are slow together: what they share is slow, and the whole job runs at
             its speed.
   since     step 100 (1 min 40 s after the start), confirmed 12 steps later
   slower    1.25x ############################## 1.25 s
             peers ######################## 1.00 s
   why       power: the GPU is capped or braked; power throttled 90 %, peers 10 %
   cost      2.00 GPU-hours so far, worth 5.00 (192 a day, worth 480.00); 8.0 % of every
             step
   do        Check power supplies, the rack's power budget and the GPUs' power limits
             against the other nodes'.
 ! WARNING straggler-node  rack r7
   what      A node or rack is persistently slower than its peers. At least half of its
             ranks are slow together: what they share is slow, and the whole job runs at
             its speed.
   since     step 100 (1 min 40 s after the start), confirmed 12 steps later
   why       heat: the GPU protects itself
   cost      2.00 GPU-hours so far, worth 5.00 (192 a day, worth 480.00); 8.0 % of every
             step
   do        Check cooling and airflow of the node or rack; keep it out of new jobs until
             its clocks hold under load.
 ! WARNING stage-imbalance  job j
   what      Pipeline stages differ in work. All replicas wait for the heaviest stage. The
             cause is the job's partition, not a machine.
   since     1 min 40 s after the start, confirmed 12.0 s later
   cost      2.00 GPU-hours so far, worth 5.00 (192 a day, worth 480.00); 8.0 % of every
             step
   do        Move layers from the heaviest stage to the lightest; no node needs attention.
 . INFO slow-link  link n1 to n2, only observed
   coverage  64 of 64 ranks, 100 % of their steps
------------------------------------------------------------------------------------------
";
    assert_eq!(text, expected);
}

#[test]
fn of_many_unheard_nodes_it_says_how_many() {
    let job = Subject::Job { job: "j".into() };
    let mut job = verdict(1, Finding::TelemetryBlind, job, Cause::Unknown);
    job.evidence = vec![piece("unheard_nodes", 512.0, 600.0)];
    let text = rendered(&report(vec![job]));
    let headline = text.lines().nth(1).unwrap_or_default();
    assert!(
        headline.ends_with("telemetry-blind  512 of 600 nodes of job j"),
        "{text}"
    );
}

#[test]
fn what_was_lost_is_told_by_cause_and_in_money() {
    let mut found = report(Vec::new());
    let by_cause = [
        ("thermal", 9.1),
        ("checkpoint", 2.2),
        ("warm-up", 1.1),
        ("nothing", 0.0),
    ];
    found.cost = Cost {
        gpu_hours: 310.0,
        lost_gpu_hours: 12.4,
        by_cause: by_cause.map(|(cause, lost)| (cause.into(), lost)).into(),
        goodput_ratio: Some(0.96),
        step_s: Some(1.0),
        what_if_step_s: Some(0.8),
        gpu_hour_price: Some(2.5),
        lost_cost: Some(31.0),
    };
    let text = rendered(&found);
    let expected = "\
-- paceline -- job j, 64 ranks, 1000 steps of 1.00 s, 16 min 40 s ------------------------
 ok No finding: 64 ranks kept pace over 1000 steps.
   lost      12.40 GPU-hours of 310.00 GPU-hours (4.0 %), worth 31.00 at 2.50 an hour
             thermal 9.10 GPU-hours, checkpoint 2.20 GPU-hours, warm-up 1.10 GPU-hours
   goodput   96 % of the time was progress at full speed; steps would take 0.80 s instead
             of 1.00 s without the current problems
   coverage  64 of 64 ranks, 100 % of their steps
------------------------------------------------------------------------------------------
";
    assert_eq!(text, expected);
    // Remove the signals, as if no GPU was observed.
    found.coverage.signals.clear();
    assert!(rendered(&found).contains("lost      12.40 rank-hours of 310.00 rank-hours"));
    found.cost = Cost {
        gpu_hours: 310.0,
        by_cause: BTreeMap::new(),
        ..Cost::default()
    };
    let text = rendered(&found);
    assert!(!text.contains("lost") && !text.contains("goodput"), "{text}");
}

#[test]
fn times_of_the_job_and_of_the_ranks_that_stand_out() {
    let mut found = report(Vec::new());
    let part = |part, p50_s: f64| PartTimes {
        part,
        samples: 4000,
        sum_s: 4000.0 * p50_s,
        p50_s,
        p90_s: p50_s * 1.1,
        p99_s: p50_s * 1.5,
        max_s: p50_s * 4.0,
    };
    let rank = |rank, own: f64| RankTimes {
        rank: Rank(rank),
        steps: 1000,
        parts: [(
            Part::Own,
            Usual {
                p50_s: own,
                p99_s: own * 1.2,
            },
        )]
        .into(),
    };
    found.times = Times {
        parts: vec![
            part(Part::Step, 1.0),
            part(Part::Own, 0.9),
            part(Part::Data, 0.001),
            part(Part::Compute, 0.8),
            part(Part::Wait, 0.1),
            part(Part::Gc, 0.05),
        ],
        ranks: vec![rank(0, 0.9), rank(1, 0.91), rank(2, 1.17), rank(3, 0.9)],
    };
    let text = rendered(&found);
    let expected = "\
-- paceline -- job j, 64 ranks, 1000 steps of 1.00 s, 16 min 40 s ------------------------
 ok No finding: 64 ranks kept pace over 1000 steps.
   steps     1.00 s, p90 1.10 s, p99 1.50 s, longest 4.00 s
             compute 800.0 ms, p99 1.20 s; wait 100.0 ms, p99 150.0 ms
             longest self-time: rank 2 1.17 s (30 % more than the median rank)
   coverage  64 of 64 ranks, 100 % of their steps
------------------------------------------------------------------------------------------
";
    assert_eq!(text, expected);
}

/// A node's name must not move the cursor in a reader's terminal.
#[test]
fn hostile_names_do_not_speak_to_the_terminal() {
    let hostile = "\x1b[2J\x1b]0;owned\x07\u{9b}31m\u{202e}";
    let mut slow = verdict(
        1,
        Finding::Straggler,
        Subject::Node { node: hostile.into() },
        Cause::Unknown,
    );
    slow.action = hostile.into();
    slow.evidence = vec![piece(hostile, 1.0, 2.0)];
    let mut found = report(vec![slow]);
    found.job = hostile.into();
    found.coverage.notes = vec![hostile.into()];
    found.cost.lost_gpu_hours = 1.0;
    found.cost.by_cause = [(hostile.into(), 1.0)].into();
    let text = rendered(&found);
    let speaks = |letter: char| letter != '\n' && (letter.is_control() || letter == '\u{202e}');
    assert!(!text.contains(speaks), "{text:?}");
    assert!(text.contains("␛[2J"), "{text}");
}

/// GPUs of a node with the same finding share one card, here and on the report's page. Otherwise eight cards would hide
/// the other findings.
#[test]
fn hot_gpus_of_a_node_are_one_card() {
    let hot = |gpu: u64| {
        let subject = Subject::Gpu {
            gpu_uuid: format!("GPU-0000000{gpu}-aaaa").as_str().into(),
            node: "node2".into(),
        };
        let mut hot = verdict(gpu + 1, Finding::GpuThrottled, subject, Cause::Thermal);
        hot.evidence = vec![piece("temperature_c", 88.0, 60.0)];
        hot
    };
    let mut verdicts: Vec<Verdict> = (0..8).map(hot).collect();
    verdicts.push(verdict(9, Finding::Straggler, rank(3), Cause::Thermal));
    let report = report(verdicts);
    let text = rendered(&report);
    assert_eq!(text.matches("WARNING").count(), 2, "{text}");
    assert!(
        text.contains("WARNING gpu-throttled  8 GPUs on node2\n"),
        "{text}"
    );
    let words: Vec<&str> = text.split_whitespace().collect();
    let evidence = "GPU-00000007 temperature 88 C, peers 60 C";
    assert!(words.join(" ").contains(evidence), "{text}");
    let page = crate::report::page::page(&report, &Policy::default());
    assert_eq!(
        page.matches("8 GPUs on node2").count(),
        3,
        "as a card with whom it is about, and once in the timeline"
    );
    assert!(!page.contains("gpu GPU-00000003"), "{page}");
}

#[test]
fn of_few_steps_nobody_says_that_ranks_kept_pace() {
    let mut few = report(Vec::new());
    few.steps = 1;
    let (good, text) = nothing_found(&few);
    assert!(!good && text.contains("too few steps to judge"), "{text}");
    few.steps = 1000;
    assert!(nothing_found(&few).0);
}

#[test]
fn where_the_run_directory_is_gone_nobody_says_that_no_rank_was_seen() {
    let mut gone = report(Vec::new());
    gone.coverage.ranks_seen = 0;
    gone.coverage.notes = vec![format!("{REMOVED} (folded by the launcher)").into()];
    let (good, text) = nothing_found(&gone);
    assert!(
        !good && text.contains("was removed") && !text.contains("No rank"),
        "{text}"
    );
}

#[test]
fn forty_columns_hold_it() {
    let subject = Subject::Rank {
        rank: Rank(5),
        node: "node-with-a-name-0017".into(),
        gpu_uuid: Some("GPU-25bf1e78-0000".into()),
    };
    let mut slow = verdict(1, Finding::Straggler, subject, Cause::Thermal);
    slow.slowdown_ratio = Some(1.25);
    slow.evidence = vec![piece("self_time_s", 0.0998, 0.0797)];
    let narrow = Style {
        color: false,
        unicode: false,
        width: 40,
    };
    let text = render(&report(vec![slow]), &Policy::default(), narrow, &[]);
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 44).collect();
    assert!(long.is_empty(), "{long:#?}");
    let bars: Vec<&str> = text.lines().filter(|line| line.contains("##")).collect();
    assert!(
        bars.len() == 2 && bars.iter().all(|bar| bar.chars().count() <= 40),
        "{text}"
    );
}
