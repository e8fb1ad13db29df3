//! Drains a node, or resumes it, after checking permission, a budget, and if the drain is ours.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use paceline_sidecar::safe_file;

use super::CheckArgs;
use super::audit::Decision;
use super::scontrol::{self, Drained, MARK};

/// Number of seconds in a day.
const DAY: u64 = 86_400;
/// Maximum length of a reason, so that it is still readable in sinfo.
const MOST_REASON: usize = 300;
/// After this time, all drains of our second are visible, because the controller records drains by the second.
const SAME_SECOND: Duration = Duration::from_millis(1500);
/// Number of attempts for a request, because the controller may be overloaded.
const TRIES: u32 = 3;

/// How a fault was detected. Its end must be confirmed in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// The fault was detected by reading the node's state.
    Read,
    /// The fault was detected by a measurement.
    Measured,
}

impl Depth {
    fn name(self) -> &'static str {
        match self {
            Depth::Read => "read",
            Depth::Measured => "measured",
        }
    }

    /// Returns the depth from the reason of a node that we have drained.
    pub(super) fn of_reason(reason: &str) -> Option<Depth> {
        let rest = reason.strip_prefix(MARK)?;
        [Depth::Read, Depth::Measured]
            .into_iter()
            .find(|depth| rest.starts_with(&format!("[{}]:", depth.name())))
    }
}

/// Drains the node of `decision` because of its findings, unless a check refuses it. Records the result in `decision`.
pub(super) fn drain(args: &CheckArgs, depth: Depth, decision: &mut Decision) {
    let found = decision.found.join("; ");
    let (refuse, why) = match refusal(args, &decision.node) {
        Some(why) => (true, format!("{found}; not drained: {why}")),
        None => (false, found),
    };
    (decision.done, decision.why) = (if refuse { "refuse" } else { "drain" }, why);
    if refuse {
        return;
    }
    let reason = reason(depth, decision);
    if let Err(problem) = scontrol::drain(&decision.node, &reason) {
        (decision.done, decision.why) = (
            "none",
            format!("{}; Slurm did not drain it: {problem:#}", decision.why),
        );
        return;
    }
    yield_to_others(args.most_drained, &reason, decision);
}

/// Resumes the node if more nodes are drained than allowed. If many nodes are checked at the same time, all of them
/// count the drained nodes before any of them drains. Therefore each counts again after its own drain. All see the same
/// order, so that as many as allowed stay drained.
fn yield_to_others(most: usize, reason: &str, decision: &mut Decision) {
    thread::sleep(SAME_SECOND);
    let before = match again(scontrol::drained_by_us) {
        Ok(nodes) => nodes.iter().position(|drained| drained.node == decision.node),
        Err(problem) => {
            decision.why += &format!("; the number of other drained nodes is not known: {problem:#}");
            return;
        }
    };
    let Some(before) = before.filter(|before| *before >= most) else {
        return;
    };
    let said = format!("paceline drained {before} nodes before it, and --most-drained is {most}");
    // Leave the node drained if another person or program has changed it since then.
    let taken_back = again(|| match scontrol::node_state(&decision.node)? {
        (_, now) if !now.starts_with(reason) => anyhow::bail!("its reason has changed: {now}"),
        _ => scontrol::resume(&decision.node),
    });
    match taken_back {
        Ok(()) => {
            decision.done = "yield";
            decision.why += &format!("; drained and resumed at once: {said}");
        }
        Err(problem) => decision.why += &format!("; not resumed although {said}: {problem:#}"),
    }
}

fn again<T>(ask: impl Fn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut answer = ask();
    for _ in 1..TRIES {
        if answer.is_ok() {
            break;
        }
        thread::sleep(Duration::from_millis(200));
        answer = ask();
    }
    answer
}

fn refusal(args: &CheckArgs, node: &str) -> Option<String> {
    if !args.drain {
        return Some("without --drain".to_owned());
    }
    match scontrol::node_state(node) {
        Ok((state, reason)) if state.contains("DRAIN") && Depth::of_reason(&reason).is_none() => {
            return Some(format!("it was drained by another program or person ({reason})"));
        }
        Ok(_) => {}
        Err(problem) => return Some(format!("its state is not known: {problem:#}")),
    }
    match scontrol::drained_by_us() {
        Ok(nodes) if nodes.iter().any(|Drained { node: known, .. }| known == node) => {
            Some("it is already drained".to_owned())
        }
        Ok(nodes) if nodes.len() >= args.most_drained => Some(format!(
            "{} nodes are drained by paceline, and --most-drained is {}",
            nodes.len(),
            args.most_drained
        )),
        Ok(_) => None,
        Err(problem) => Some(format!("the number of drained nodes is not known: {problem:#}")),
    }
}

/// Formats the reason from the depth, the findings and the evidence, such as `paceline[read]: GPU 3: ... (epilog of job
/// 7 of ada, which reported: ...)`.
fn reason(depth: Depth, decision: &Decision) -> String {
    let mut around = decision.by.to_owned();
    if let (Some(job), Some(user)) = (&decision.job, &decision.user) {
        around += &format!(", job {job} of {user}");
    }
    if let Some(said) = decision.said.first() {
        around += &format!(", which reported: {said}");
    }
    let text = format!(
        "{MARK}[{}]: {} ({around})",
        depth.name(),
        decision.found.join("; ")
    );
    scontrol::plain(&text, MOST_REASON)
}

/// Records in `folder` that a node is resumed at `now_s`. Returns false if it was resumed too often within a day, or if
/// recording failed.
pub(super) fn may_resume(folder: &Path, node: &str, most: usize, now_s: u64) -> bool {
    let name: String = node
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c))
        .collect();
    let path = folder.join(format!("resumed-{name}"));
    let known = fs::read_to_string(&path).unwrap_or_default();
    let mut times: Vec<u64> = known.lines().filter_map(|line| line.parse().ok()).collect();
    times.retain(|at| now_s.saturating_sub(*at) < DAY);
    if times.len() >= most {
        return false;
    }
    times.push(now_s);
    let text: String = times.iter().map(|at| format!("{at}\n")).collect();
    fs::create_dir_all(folder).is_ok() && safe_file::write(&path, text.as_bytes()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_who_what_and_evidence() {
        let decision = Decision {
            by: "epilog",
            node: "n3".to_owned(),
            job: Some("7".to_owned()),
            user: Some("ada".to_owned()),
            found: vec!["n3 GPU 0: rows\ncannot be remapped".to_owned()],
            said: vec!["critical gpu-fault".to_owned(), "more".to_owned()],
            ..Decision::default()
        };
        let text = reason(Depth::Read, &decision);
        assert_eq!(
            text,
            "paceline[read]: n3 GPU 0: rows cannot be remapped (epilog, job 7 of ada, which reported: critical gpu-fault)"
        );
        assert_eq!(Depth::of_reason(&text), Some(Depth::Read));
        assert_eq!(Depth::of_reason("paceline[measured]: x"), Some(Depth::Measured));
        for foreign in ["bad disk", "", "Paceline[read]: x", "paceline: by hand"] {
            assert_eq!(Depth::of_reason(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_node_comes_back_so_many_times_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        let may = |node, now| may_resume(&folder, node, 2, now);
        assert!(may("n1", 1000) && may("n1", 2000));
        assert!(!may("n1", 3000));
        assert!(may("n2", 3000));
        assert!(may("n1", 1000 + DAY));
        assert!(!may_resume(Path::new("/proc/nowhere"), "n1", 2, 0));
    }
}
