//! Tests which notices are sent, and how often.

use paceline_health::fault::{Order, Remedy, When};
use paceline_health::report::Report;
use paceline_health::verdict::{Cause, Severity, State, Verdict};
use paceline_health::{Detector, Policy};

use super::super::news::News;
use super::super::notice::{Notice, Status};
use super::{NOW, verdict};

/// Applies `raised`, `worse` or `cleared` at a given second. Returns the notices as `status severity [times]`.
fn said(news: &mut News, at_s: u64, word: &str) -> Vec<String> {
    let now = NOW + at_s * 1000;
    match word {
        "raised" => news.verdict(&verdict(1, 3, Severity::Warning, State::Raised), now),
        "worse" => news.verdict(&verdict(1, 3, Severity::Critical, State::Raised), now),
        "cleared" => news.verdict(&verdict(1, 3, Severity::Warning, State::Cleared), now),
        _ => {}
    }
    let line = |notice: &Notice| format!("{:?} {} {}", notice.status, notice.severity.name(), notice.times);
    news.poll(now).iter().map(line).collect()
}

#[test]
fn once_then_worse_then_over_then_not_too_soon() {
    let mut news = News::open("j".into(), Default::default());
    let none: [&str; 0] = [];
    assert_eq!(said(&mut news, 0, "raised"), ["Firing warning 1"]);
    assert_eq!(said(&mut news, 1, "raised"), none);
    assert_eq!(said(&mut news, 2, "worse"), ["Firing critical 1"]);
    assert_eq!(said(&mut news, 3, "raised"), none, "what was told stands");
    assert_eq!(said(&mut news, 4, "cleared"), ["Resolved critical 1"]);
    assert_eq!(said(&mut news, 5, "cleared"), none);
    // The incident flaps. There are no notices until the cool-down is over.
    assert_eq!(said(&mut news, 6, "raised"), none);
    assert_eq!(said(&mut news, 7, "cleared"), none);
    assert_eq!(said(&mut news, 8, "raised"), none);
    assert_eq!(said(&mut news, 301, ""), none);
    assert_eq!(said(&mut news, 302, ""), ["Firing warning 3"]);
    assert_eq!(said(&mut news, 303, "cleared"), ["Resolved warning 3"]);
}

#[test]
fn a_cause_that_is_found_later_is_told_once() {
    let mut news = News::open("j".into(), Default::default());
    let mut say = |at_s: u64, cause| {
        let found = Verdict {
            cause,
            ..verdict(1, 3, Severity::Critical, State::Raised)
        };
        news.verdict(&found, NOW + at_s * 1000);
        let told = news.poll(NOW + at_s * 1000);
        told.iter()
            .map(|notice| notice.cause.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(say(0, Cause::Unknown), ["unknown"]);
    assert_eq!(say(1, Cause::Unknown), [""; 0]);
    assert_eq!(say(2, Cause::Thermal), ["thermal"]);
    assert_eq!(say(3, Cause::Thermal), [""; 0]);
}

#[test]
fn a_restart_tells_nothing_twice_and_forgets_nothing() {
    let mut news = News::open("j".into(), Default::default());
    said(&mut news, 0, "raised");
    let saved = serde_json::to_string(news.saved()).unwrap();
    let open = || News::open("j".into(), serde_json::from_str(&saved).unwrap());
    let mut same = open();
    same.resume(&[verdict(1, 3, Severity::Warning, State::Raised)], NOW + 9000);
    assert_eq!(same.poll(NOW + 9000), []);
    let mut over = open();
    over.resume(&[verdict(1, 3, Severity::Warning, State::Cleared)], NOW + 9000);
    assert_eq!(over.poll(NOW + 9000)[0].status, Status::Resolved);
    let mut another = open();
    another.resume(&[], NOW + 9000);
    assert_eq!(another.poll(NOW + 9000)[0].status, Status::Resolved);
}

#[test]
fn the_end_of_a_job_is_not_the_end_of_a_sick_gpu() {
    let mut news = News::open("j".into(), Default::default());
    let mut sick = verdict(2, 4, Severity::Critical, State::Raised);
    sick.order = Some(Order {
        remedy: Remedy::ResetGpu,
        when: When::Now,
    });
    news.verdict(&sick, NOW);
    news.verdict(&verdict(1, 3, Severity::Warning, State::Raised), NOW);
    news.poll(NOW);
    let last = news.close(NOW + 1000);
    let status = |rank: &str| {
        last.iter()
            .find(|notice| notice.subject.contains(rank))
            .unwrap()
            .status
    };
    assert_eq!(
        (status("rank 3"), status("rank 4")),
        (Status::Resolved, Status::Firing)
    );
}

#[test]
fn what_it_has_come_to_is_said_when_it_is_next_spoken_of() {
    let mut news = News::open("j".into(), Default::default());
    let at = |slowdown_ratio, state| Verdict {
        slowdown_ratio: Some(slowdown_ratio),
        impact_ratio: None,
        ..verdict(1, 3, Severity::Warning, state)
    };
    news.verdict(&at(1.27, State::Raised), NOW);
    assert_eq!(news.poll(NOW)[0].costs, "1.27x as long as its peers");
    news.update(&report(at(1.33, State::Raised)));
    assert_eq!(news.poll(NOW + 5000), [], "that alone is no news");
    assert_eq!(
        news.open_notices(NOW + 6000)[0].costs,
        "1.33x as long as its peers"
    );
    news.verdict(&at(1.35, State::Cleared), NOW + 9000);
    assert_eq!(news.poll(NOW + 9000)[0].costs, "1.35x as long as its peers");
}

fn report(verdict: Verdict) -> Report {
    Report {
        verdicts: vec![verdict],
        ..Detector::new(Policy::default()).report()
    }
}

#[test]
fn of_what_stands_still_is_said_what_was_lost() {
    let mut news = News::open("j".into(), Default::default());
    let silent = Verdict {
        slowdown_ratio: None,
        impact_ratio: None,
        lost_gpu_hours: 0.09,
        ..verdict(1, 3, Severity::Critical, State::Raised)
    };
    news.verdict(&silent, NOW);
    assert_eq!(news.poll(NOW)[0].costs, "0.09 GPU-hours so far");
    // This job has no visible GPUs, so its time is counted in rank-hours. The duration is checked too.
    news.update(&report(silent.clone()));
    assert_eq!(news.open_notices(NOW)[0].costs, "0.09 rank-hours so far");
    let over = Verdict {
        state: State::Cleared,
        cleared_s: Some(silent.since_s + 40.0),
        ..silent
    };
    news.verdict(&over, NOW + 9000);
    let said = &news.poll(NOW + 9000)[0].since;
    assert!(said.ends_with(", over after 40.0 s"), "{said}");
}
