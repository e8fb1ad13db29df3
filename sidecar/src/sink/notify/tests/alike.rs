//! The same finding on eight GPUs of a node is one message. A lost GPU does not wait for a second one.

use std::sync::Arc;

use paceline_health::verdict::{Cause, Finding, Severity, State, Subject, Verdict};
use serde_json::Value;

use super::super::body::letters;
use super::super::news::News;
use super::super::notice::{Notice, Status};
use super::super::receiver::{Address, Kind, Receiver};
use super::super::spool::Parcel;
use super::{NOW, verdict};

fn of_gpu(gpu: u32, severity: Severity, state: State) -> Verdict {
    Verdict {
        finding: Finding::GpuThrottled,
        subject: Subject::Gpu {
            gpu_uuid: format!("GPU-0000000{gpu}-aaaa").as_str().into(),
            node: "node2".into(),
        },
        action: Arc::from("Heat slows it down: run diagnostics on this GPU."),
        ..verdict(u64::from(gpu) + 1, gpu, severity, state)
    }
}

/// A job whose GPUs raise and clear findings at given seconds. Returns the resulting notices.
struct Job(News);

impl Job {
    fn new() -> Job {
        Job(News::open("j".into(), Default::default()))
    }

    fn at(&mut self, at_s: u64, said: &[Verdict]) -> Vec<String> {
        let now = NOW + at_s * 1000;
        said.iter().for_each(|verdict| self.0.verdict(verdict, now));
        let line =
            |notice: &Notice| format!("{:?} {} {}", notice.status, notice.severity.name(), notice.whom());
        self.0.poll(now).iter().map(line).collect()
    }
}

fn warning(gpu: u32) -> Verdict {
    of_gpu(gpu, Severity::Warning, State::Raised)
}

fn critical(gpu: u32) -> Verdict {
    of_gpu(gpu, Severity::Critical, State::Raised)
}

fn over(gpu: u32) -> Verdict {
    of_gpu(gpu, Severity::Warning, State::Cleared)
}

const NONE: [&str; 0] = [];

#[test]
fn eight_gpus_that_warn_one_after_another_are_one_message() {
    let mut job = Job::new();
    for gpu in 0..8 {
        assert_eq!(job.at(u64::from(gpu), &[warning(gpu)]), NONE);
    }
    assert_eq!(job.at(9, &[]), NONE);
    assert_eq!(job.at(10, &[]), ["Firing warning 8 GPUs on node2"]);
    assert_eq!(job.at(11, &[warning(3)]), NONE);
    assert_eq!(job.0.open_notices(NOW).len(), 1);
    // The message is resolved once, with the last GPU.
    let first: Vec<Verdict> = (0..7).map(over).collect();
    assert_eq!(job.at(20, &first), NONE);
    assert_eq!(job.at(21, &[over(7)]), ["Resolved warning 8 GPUs on node2"]);
    assert_eq!(job.0.open_notices(NOW), []);
}

#[test]
fn two_gpus_are_two_messages_and_wait_no_longer() {
    let mut job = Job::new();
    assert_eq!(job.at(0, &[warning(0), warning(1)]), NONE);
    let said = job.at(10, &[]);
    assert_eq!(
        said,
        [
            "Firing warning gpu GPU-00000000-aaaa on node2",
            "Firing warning gpu GPU-00000001-aaaa on node2"
        ]
    );
}

#[test]
fn what_is_critical_of_one_gpu_waits_for_nobody() {
    let mut job = Job::new();
    assert_eq!(
        job.at(0, &[critical(0)]),
        ["Firing critical gpu GPU-00000000-aaaa on node2"]
    );
    // The other GPUs follow. There is one more message, which counts all GPUs, and not seven messages.
    let others: Vec<Verdict> = (1..7).map(critical).collect();
    assert_eq!(job.at(1, &others), NONE);
    assert_eq!(job.at(3, &[]), ["Firing critical 7 GPUs on node2"]);
    assert_eq!(job.at(4, &[critical(7)]), NONE);
    // A GPU that joins much later is reported.
    assert_eq!(job.at(100, &[critical(8)]), ["Firing critical 9 GPUs on node2"]);
}

#[test]
fn one_that_becomes_critical_is_told_for_all() {
    let mut job = Job::new();
    let all: Vec<Verdict> = (0..3).map(warning).collect();
    job.at(0, &all);
    assert_eq!(job.at(10, &[]), ["Firing warning 3 GPUs on node2"]);
    assert_eq!(job.at(12, &[critical(1)]), ["Firing critical 3 GPUs on node2"]);
    assert_eq!(job.at(13, &[warning(1)]), NONE);
}

/// The GPUs are hot again before the cool-down is over. This is reported once, after it, with a count.
#[test]
fn what_comes_back_soon_waits() {
    let mut job = Job::new();
    let (all, none): (Vec<Verdict>, Vec<Verdict>) = (0..4).map(|gpu| (warning(gpu), over(gpu))).unzip();
    job.at(0, &all);
    assert_eq!(job.at(10, &[]), ["Firing warning 4 GPUs on node2"]);
    assert_eq!(job.at(20, &none), ["Resolved warning 4 GPUs on node2"]);
    assert_eq!(job.at(30, &all), NONE);
    assert_eq!(job.at(100, &[]), NONE);
    assert_eq!(job.at(310, &[]), ["Firing warning 4 GPUs on node2"]);
    assert_eq!(job.0.open_notices(NOW)[0].times, 2);
}

#[test]
fn a_restart_and_the_end_of_the_job_tell_it_once() {
    let mut job = Job::new();
    let all: Vec<Verdict> = (0..8).map(warning).collect();
    job.at(0, &all);
    assert_eq!(job.at(10, &[]).len(), 1);
    let saved = serde_json::to_string(job.0.saved()).unwrap();
    let open = || Job(News::open("j".into(), serde_json::from_str(&saved).unwrap()));
    let mut same = open();
    same.0.resume(&all, NOW + 20_000);
    assert_eq!(same.at(20, &[]), NONE);
    let last = same.0.close(NOW + 30_000);
    let told: Vec<_> = last.iter().map(|notice| (notice.status, notice.whom())).collect();
    assert_eq!(told, [(Status::Resolved, "8 GPUs on node2".to_owned())]);
    let mut another = open();
    another.0.resume(&[], NOW + 20_000);
    assert_eq!(another.at(20, &[]), ["Resolved warning 8 GPUs on node2"]);
    // Nothing waits at the end of a job.
    let mut short = Job::new();
    short.at(0, &all);
    assert_eq!(short.0.close(NOW + 1000).len(), 2);
}

fn alerts(notices: Vec<Notice>) -> Value {
    let parcel = Parcel {
        unix_ms: NOW,
        notices,
    };
    letters(&Kind::Alertmanager(Address::Open(String::new())), &parcel, 1)[0]
        .body
        .clone()
}

/// Alertmanager identifies an alert by its labels, so the number of GPUs and the cause are not labels.
#[test]
fn labels_stay_while_gpus_join_and_the_cause_is_found() {
    let mut news = News::open("j".into(), Default::default());
    let unknown = |gpu| Verdict {
        cause: Cause::Unknown,
        ..warning(gpu)
    };
    (0..3).for_each(|gpu| news.verdict(&unknown(gpu), NOW));
    let before = alerts(news.poll(NOW + 10_000));
    (0..5).for_each(|gpu| news.verdict(&warning(gpu), NOW + 11_000));
    let after = alerts(news.poll(NOW + 12_000));
    assert_eq!(before[0]["labels"], after[0]["labels"]);
    assert_eq!(
        (before.as_array().unwrap().len(), after.as_array().unwrap().len()),
        (1, 1)
    );
    let annotation = |alerts: &Value, name: &str| alerts[0]["annotations"][name].as_str().unwrap().to_owned();
    assert_eq!(
        annotation(&before, "summary"),
        "A GPU slows itself down: 3 GPUs on node2"
    );
    let description = annotation(&after, "description");
    assert_eq!(
        description,
        "5 GPUs on node2, cause thermal. Heat slows it down: run diagnostics on each of these GPUs."
    );
    assert!(annotation(&after, "evidence").contains("GPU-00000004"), "{after}");
    assert_eq!(
        annotation(&after, "command"),
        "paceline explain finding gpu-throttled"
    );
}

/// Findings about the design of a job never page. The detector makes them warnings, whatever their cost.
#[test]
fn a_ticket_wakes_nobody() {
    let mut news = News::open("j".into(), Default::default());
    let mut costly = verdict(1, 3, Severity::Warning, State::Raised);
    costly.finding = Finding::ExpertImbalance;
    news.verdict(&costly, NOW);
    let notices = news.poll(NOW);
    assert_eq!(notices[0].worst, Severity::Warning);
    let receives = |words: &str| Receiver::of(words).unwrap().wants(&notices[0]);
    assert!(receives("alertmanager=http://am:9093") && receives("slack=env:SLACK"));
    assert!(!receives("pagerduty=env:KEY") && !receives("slack=env:SLACK,severity=critical"));
    let labels = alerts(notices)[0]["labels"].clone();
    assert_eq!(
        (&labels["severity"], &labels["urgency"]),
        (&"warning".into(), &"ticket".into())
    );
    news.verdict(&verdict(2, 3, Severity::Critical, State::Raised), NOW);
    let labels = alerts(news.poll(NOW))[0]["labels"].clone();
    assert_eq!(
        (&labels["severity"], &labels["urgency"]),
        (&"critical".into(), &"page".into())
    );
}
