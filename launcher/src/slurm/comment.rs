//! Writes a summary line into a job's own Comment, which `squeue -o %k` and `scontrol show job` show. It is written at
//! the job's end from inside the job, as the job's user. For a job of root, it is also written into the AdminComment. A
//! comment from another source is kept.

use std::path::Path;

use paceline_health::Provenance;
use paceline_health::report::{Reason, Report};
use paceline_health::text::humanize;
use paceline_health::verdict::{Severity, Verdict};

use super::{scontrol, variable};
use crate::report;

/// Prefix that identifies our own lines.
const MARK: &str = "paceline: ";
/// Maximum length of the line.
const MOST: usize = 200;

/// Writes the line from the report in a run directory, if there is a report.
pub(super) fn of_run(run_dir: &Path) {
    if let Ok(report) = report::read(&run_dir.join(report::FILE)) {
        write(&report);
    }
}

/// Writes the line if this is a Slurm job whose comment is empty or ours. The two Slurm commands take at most three
/// seconds in total. A failure is not reported, because the job is ending.
pub(crate) fn write(report: &Report) {
    let Some(job) = variable("SLURM_JOB_ID") else {
        return;
    };
    let Ok(shown) = scontrol::quickly(&["show", "job", &job]) else {
        return;
    };
    let line = scontrol::plain(&line(report), MOST);
    // Write the AdminComment only as root, because only operators may write it, and attempts by others would fill the
    // controller's log.
    let is_root = rustix::process::geteuid().is_root();
    for field in ["Comment", "AdminComment"] {
        if is_free(&shown, field) && (field == "Comment" || is_root) {
            let change = format!("{field}={line}");
            let _ = scontrol::quickly(&["update", &format!("jobid={job}"), &change]);
        }
    }
}

/// Returns true if the field is empty or has a line of ours.
fn is_free(shown: &str, field: &str) -> bool {
    let value = |line: &str| {
        Some(
            line.trim_start()
                .strip_prefix(field)?
                .strip_prefix('=')?
                .to_owned(),
        )
    };
    let comment = shown.lines().find_map(value);
    comment.is_none_or(|said| said.is_empty() || said == "(null)" || said.starts_with(MARK))
}

/// Formats the end of the job and the most important finding.
fn line(report: &Report) -> String {
    let end = match &report.end {
        // Leave out the end if it is not known, because without a launcher of ours there are no exit codes.
        None => "",
        Some(end) if end.reason == Reason::Success => "ended well, ",
        Some(end) => &format!("{}, ", end.reason.name()),
    };
    let mut text = format!("{MARK}{end}{} steps", report.steps);
    let is_told = |verdict: &&Verdict| {
        verdict.severity >= Severity::Warning
            && verdict.provenance == Provenance::Live
            && !verdict.observe_only
    };
    let told: Vec<&Verdict> = report.verdicts.iter().filter(is_told).collect();
    let worst = told.iter().min_by_key(|verdict| verdict.weight());
    match worst {
        Some(verdict) => {
            text += &format!("; {} of {}", verdict.finding, verdict.subject_text());
            if let Some(ratio) = verdict.slowdown_ratio {
                text += &format!(", {ratio:.2}x slow");
            }
            let lost = humanize::hours(verdict.lost_gpu_hours, humanize::whose(report));
            text += &format!(", {lost} lost");
            if told.len() > 1 {
                text += &format!("; and {} more", told.len() - 1);
            }
        }
        None if report.world_size == 0 => text += "; no rank was seen",
        None => text += "; nothing found",
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_health::Detector;
    use paceline_health::Policy;
    use paceline_health::report::Ending;

    #[test]
    fn whose_a_comment_is() {
        for (shown, wanted) in [
            ("JobId=7\n   Priority=1\n", true),
            ("   Comment=\n", true),
            ("   Comment=(null)\n", true),
            ("   Comment=paceline: ended well, 7 steps\n", true),
            ("   Comment=third try\n   Power=\n", false),
            ("   AdminComment=x\n   Comment=mine: paceline: \n", false),
        ] {
            assert_eq!(is_free(shown, "Comment"), wanted, "{shown}");
        }
    }

    #[test]
    fn whose_an_operators_comment_is() {
        for (shown, wanted) in [
            ("   Comment=x\n", true),
            ("   AdminComment=paceline: 7 steps \n   Comment=x\n", true),
            ("   AdminComment=see ticket 4711 \n", false),
        ] {
            assert_eq!(is_free(shown, "AdminComment"), wanted, "{shown}");
        }
    }

    #[test]
    fn a_line() {
        let mut report = Detector::new(Policy::default()).report();
        assert_eq!(line(&report), "paceline: 0 steps; no rank was seen");
        (report.world_size, report.steps) = (8, 150);
        report.end = Some(Ending::success());
        assert_eq!(line(&report), "paceline: ended well, 150 steps; nothing found");
        let verdict = |severity: &str, lost: f64, provenance: &str| -> Verdict {
            serde_json::from_value(serde_json::json!({
                "id": 1, "finding": "straggler", "subject": {"kind": "rank", "rank": 5, "node": "n3"}, "severity": severity,
                "state": "raised", "since_s": 1.0, "since_step": null, "raised_s": 2.0, "raised_step": null,
                "cleared_s": null, "signals": [], "provenance": provenance, "slowdown_ratio": 1.3, "cause": "unknown",
                "evidence": [], "impact_ratio": null, "lost_gpu_hours": lost, "action": "look"
            }))
            .unwrap()
        };
        report.verdicts = vec![
            verdict("warning", 7.0, "live"),
            verdict("critical", 41.2, "live"),
            verdict("critical", 99.0, "injected"),
        ];
        let said = line(&report);
        assert!(
            said.starts_with("paceline: ended well, 150 steps; straggler of rank 5")
                && said.ends_with(", 1.30x slow, 41.20 rank-hours lost; and 1 more"),
            "{said}"
        );
    }
}
