//! Creates reports for tests.

use std::collections::BTreeMap;

use paceline_health::event::Signal;
use paceline_health::id::Rank;
use paceline_health::report::{Cost, Coverage, Part, REPORT_VERSION, RankTimes, Report, Times, Usual};
use paceline_health::verdict::{Cause, Evidence, Finding, Severity, State, Subject, Verdict};
use paceline_health::{Policy, Provenance};

pub(crate) fn verdict(id: u64, finding: Finding, subject: Subject, cause: Cause) -> Verdict {
    Verdict {
        id,
        finding,
        subject,
        severity: Severity::Warning,
        state: State::Raised,
        since_s: 100.0,
        since_step: Some(100),
        raised_s: 112.0,
        raised_step: Some(112),
        cleared_s: None,
        signals: Vec::new(),
        provenance: Provenance::Live,
        slowdown_ratio: None,
        cause,
        evidence: Vec::new(),
        impact_ratio: Some(0.08),
        lost_gpu_hours: 2.0,
        lost_cost: Some(5.0),
        action: Policy::default().action(finding, cause),
        observe_only: false,
        order: None,
        says: None,
        unresolved_at_exit: false,
    }
}

pub(crate) fn rank(number: u32) -> Subject {
    Subject::Rank {
        rank: Rank(number),
        node: "n1".into(),
        gpu_uuid: None,
    }
}

pub(crate) fn piece(what: &str, value: f64, peers: f64) -> Evidence {
    Evidence {
        what: what.into(),
        value,
        peers: Some(peers),
        entries: None,
    }
}

/// Returns the times of a rank with this typical self-time.
pub(crate) fn times(rank: u32, own_s: f64) -> RankTimes {
    let usual = Usual {
        p50_s: own_s,
        p99_s: own_s * 1.1,
    };
    RankTimes {
        rank: Rank(rank),
        steps: 100,
        parts: BTreeMap::from([(Part::Own, usual)]),
    }
}

pub(crate) fn report(verdicts: Vec<Verdict>) -> Report {
    Report {
        schema_version: REPORT_VERSION,
        job: "j".into(),
        world_size: 64,
        steps: 1000,
        median_step_s: Some(1.0),
        times: Times::default(),
        duration_s: 1000.0,
        last_step_s: Some(1000.0),
        exits: Vec::new(),
        coverage: Coverage {
            steps_ratio: Some(1.0),
            ranks_seen: 64,
            ranks_expected: 64,
            signals: vec![Signal::S2, Signal::S3],
            frames_lost: 0,
            ring_dropped: 0,
            ring_torn: 0,
            journal_lost: 0,
            gaps: Vec::new(),
            notes: Vec::new(),
        },
        undecided: None,
        cost: Cost::default(),
        preflight: None,
        verdicts,
        stacks: Vec::new(),
        end: None,
        remedies: Default::default(),
        began_unix_ms: None,
        versions: BTreeMap::new(),
        gpu_means: BTreeMap::new(),
        history: None,
    }
}
