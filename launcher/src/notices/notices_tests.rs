use std::time::Duration;

use paceline_health::verdict::{Cause, Finding};

use super::*;
use crate::report::samples;

const PLAIN: Style = Style {
    color: false,
    unicode: false,
    width: 80,
};

fn verdict(id: u64, severity: Severity, state: State) -> Verdict {
    let mut verdict = samples::verdict(id, Finding::Straggler, samples::rank(5), Cause::Unknown);
    (verdict.severity, verdict.state) = (severity, state);
    verdict.cleared_s = (state == State::Cleared).then_some(verdict.since_s + 75.0);
    verdict
}

#[test]
fn raised_worse_and_over_have_a_line_each_and_nothing_else_has() {
    use Severity::{Critical, Warning};
    let mut notices = Notices::new(PLAIN);
    let raised = verdict(1, Warning, State::Raised);
    assert_eq!(notices.change(&raised), Some(Change::Raised));
    let mut costlier = raised.clone();
    costlier.lost_gpu_hours += 1.0;
    assert_eq!(notices.change(&costlier), None, "only its cost grew");
    let mut explained = raised.clone();
    explained.cause = Cause::Thermal;
    assert_eq!(notices.change(&explained), Some(Change::Cause));
    assert_eq!(notices.change(&explained), None);
    let worse = verdict(1, Critical, State::Raised);
    assert_eq!(notices.change(&worse), Some(Change::Severity(Warning)));
    let over = verdict(1, Critical, State::Cleared);
    assert_eq!(notices.change(&over), Some(Change::Resolved));
    assert_eq!(notices.change(&over), None, "it was over");
    assert_eq!(
        notices.change(&verdict(2, Warning, State::Cleared)),
        None,
        "nobody read of it"
    );
    let mut observed = verdict(3, Critical, State::Raised);
    observed.observe_only = true;
    assert_eq!(notices.change(&observed), None);
}

#[test]
fn a_line_says_who_since_when_why_what_it_costs_and_what_to_do() {
    let mut raised = verdict(1, Severity::Warning, State::Raised);
    raised.cause = Cause::Thermal;
    raised.action = "Check airflow (paceline.toml); move the rank. Then look.".into();
    let text = line(&raised, Change::Raised, 1_700_000_000_000, PLAIN);
    assert!(
        text.starts_with("paceline: 22:13:20Z WARNING straggler: rank "),
        "{text}"
    );
    let order = [
        "; since: step ",
        "; why: heat",
        "; cost: ",
        " of every step; do: Check airflow (paceline.toml)",
    ];
    let places: Vec<_> = order.iter().map(|part| text.find(part)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");
    assert!(!text.contains('\n') && !text.contains("move the rank"), "{text}");
    let worse = line(&raised, Change::Severity(Severity::Info), 0, PLAIN);
    assert!(worse.contains("WARNING straggler (was INFO): "), "{worse}");
    let over = verdict(1, Severity::Warning, State::Cleared);
    let over = line(&over, Change::Resolved, 0, PLAIN);
    assert!(
        over.contains("Z resolved straggler: rank ") && over.ends_with(", lasted 1 min 15 s"),
        "{over}"
    );
}

#[test]
fn a_flood_is_five_lines_then_one_each_ten_seconds() {
    let mut notices = Notices::new(PLAIN);
    let begin = Instant::now();
    let at = |notices: &mut Notices, id, severity, seconds| {
        let verdict = verdict(id, severity, State::Raised);
        notices
            .on_verdict(&verdict, 0, begin + Duration::from_secs(seconds))
            .is_some()
    };
    let printed = (0..20)
        .filter(|id| at(&mut notices, *id, Severity::Warning, 0))
        .count();
    assert_eq!(printed, 5);
    assert!(
        at(&mut notices, 30, Severity::Critical, 0),
        "critical ones are not held back"
    );
    let held = |notices: &mut Notices, seconds| {
        notices.held_back("report.json", begin + Duration::from_secs(seconds))
    };
    assert_eq!(notices.wake_at(), Some(begin + Duration::from_secs(10)));
    assert_eq!(held(&mut notices, 9), None);
    let text = held(&mut notices, 10).unwrap();
    assert_eq!(text, "paceline: 15 more changes of findings, see report.json");
    assert_eq!((held(&mut notices, 11), notices.wake_at()), (None, None));
    assert!(!at(&mut notices, 40, Severity::Warning, 12));
    assert!(at(&mut notices, 41, Severity::Warning, 100));
}

#[test]
fn what_is_tracked_has_a_bound() {
    let mut notices = Notices::new(PLAIN);
    for id in 0..MAX_TRACKED as u64 + 100 {
        notices.change(&verdict(id, Severity::Warning, State::Raised));
    }
    assert_eq!(notices.incidents.len(), MAX_TRACKED);
}
