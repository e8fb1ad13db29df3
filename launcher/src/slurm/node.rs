//! The three programs that slurmd runs on a node: prolog, epilog and health check.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use paceline_nccl_bench::preflight::hosts;
use paceline_sidecar::sink::metrics::ends;

use super::act::{self, Depth};
use super::audit::{self, Decision};
use super::check::{self, Health};
use super::scontrol;
use super::{CheckArgs, EpilogArgs, HealthArgs, claims, variable};
use crate::output;

/// The prolog's exit code after it has drained the node. Any other code except 0 is an error of ours, and not a reason
/// to drain.
const DRAINED: u8 = 2;

/// Runs before a job. Returns 2 if the node was drained, so that Slurm starts the job elsewhere. Otherwise returns 0.
pub(super) fn prolog(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let mut decision = begin("prolog", args)?;
    let alone = Alone::of(&decision, args.measure);
    let (depth, health) = examine(&decision.node, alone == Alone::Yes);
    judge(args, depth, health, &mut decision);
    alone.tell(&mut decision);
    audit::keep(&decision, &args.log);
    Ok(match decision.done {
        "drain" => ExitCode::from(DRAINED),
        _ => ExitCode::SUCCESS,
    })
}

/// Runs after a job. Always returns 0, because any other code would drain the node, regardless of the findings.
pub(super) fn epilog(args: &EpilogArgs) -> anyhow::Result<ExitCode> {
    let EpilogArgs {
        check: args,
        textfile,
    } = args;
    let mut decision = begin("epilog", args)?;
    let said = claims::of_job(&decision.node);
    if let Some(problem) = &said.problem {
        output::say(format_args!(
            "paceline: the job's findings cannot be read: {problem}"
        ));
    }
    decision.said.clone_from(&said.claims);
    let alone = Alone::of(&decision, args.measure || !said.claims.is_empty());
    let (depth, health) = examine(&decision.node, alone == Alone::Yes);
    judge(args, depth, health, &mut decision);
    alone.tell(&mut decision);
    if let Some(path) = textfile
        && let Err(problem) = count_ends(path, &decision, &said)
    {
        output::say(format_args!("paceline: {}: {problem}", path.display()));
    }
    decision.ended = said.summary;
    audit::keep(&decision, &args.log);
    Ok(ExitCode::SUCCESS)
}

/// Runs periodically. A node that is not idle is read, but neither measured nor resumed.
pub(super) fn health_check(args: &HealthArgs) -> anyhow::Result<ExitCode> {
    let mut decision = begin("health-check", &args.check)?;
    let (state, reason) = scontrol::node_state(&decision.node)?;
    let is_idle = state.starts_with("IDLE");
    match Depth::of_reason(&reason).filter(|_| state.contains("DRAIN")) {
        // Do not resume a node that still runs a job, because a measurement would include the job's work.
        Some(_) if !is_idle => return Ok(ExitCode::SUCCESS),
        Some(depth) => give_back(args, depth, &mut decision),
        None => {
            let (depth, health) = examine(&decision.node, args.check.measure && is_idle);
            // Do not log healthy nodes, because this runs every few minutes on every node.
            if health == Health::Well {
                return Ok(ExitCode::SUCCESS);
            }
            judge(&args.check, depth, health, &mut decision);
        }
    }
    audit::keep(&decision, &args.check.log);
    Ok(ExitCode::SUCCESS)
}

fn begin(by: &'static str, args: &CheckArgs) -> anyhow::Result<Decision> {
    Ok(Decision {
        by,
        node: args.node()?,
        job: variable("SLURM_JOB_ID"),
        user: variable("SLURM_JOB_USER").or_else(|| variable("SLURM_JOB_UID")),
        done: "none",
        ..Decision::default()
    })
}

/// Whether a node may be measured. Next to another job, a measurement would show the node as slow, and would slow down
/// that job.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Alone {
    /// A measurement was not requested.
    Unasked,
    Yes,
    /// Another job runs on the node, or this could not be determined. The text says which.
    No(String),
}

impl Alone {
    fn of(decision: &Decision, is_asked: bool) -> Alone {
        if !is_asked {
            return Alone::Unasked;
        }
        match scontrol::jobs_on(&decision.node) {
            Ok(jobs) => match jobs.iter().find(|job| decision.job.as_ref() != Some(job)) {
                Some(other) => Alone::No(format!("job {other} also runs here")),
                None => Alone::Yes,
            },
            Err(problem) => Alone::No(format!("other jobs on the node are not known: {problem:#}")),
        }
    }

    /// If the measurement was skipped, records that in the decision.
    fn tell(&self, decision: &mut Decision) {
        if let Alone::No(why) = self {
            decision.why += &format!("; only read, not measured: {why}");
        }
    }
}

/// Counts the ends of runs whose first node this was, from the job's reports. A user can cause false counts, but
/// nothing else.
fn count_ends(path: &Path, decision: &Decision, said: &claims::Said) -> io::Result<()> {
    let is_ours = |end: &&claims::End| match &end.first {
        Some(first) => *first == decision.node,
        None => is_first(&decision.node),
    };
    let job = decision.job.as_deref().unwrap_or_default();
    let name = |end: &claims::End| (format!("{job}/{}", end.run), end.reason);
    let ends: Vec<_> = said.ends.iter().filter(is_ours).map(name).collect();
    ends::count(path, &ends)
}

/// Returns true if this is the first of the job's nodes, as listed by slurmd.
fn is_first(node: &str) -> bool {
    let names = variable("SLURM_JOB_NODELIST").or_else(|| variable("SLURM_NODELIST"));
    let names = names.and_then(|names| hosts::expand(&names).ok());
    names.is_some_and(|names| names.first().is_some_and(|first| first == node))
}

/// Checks a node. Reads it first, because that is fast and its findings need no measurement.
fn examine(node: &str, measure: bool) -> (Depth, Health) {
    match check::read(node) {
        health @ Health::Ill(_) => (Depth::Read, health),
        health if !measure => (Depth::Read, health),
        read => match check::measure(node) {
            // Use the result of reading if the measurement has none. For a single node without a history, a measurement
            // has nothing to compare with.
            Health::Unknown(_) => (Depth::Read, read),
            health => (Depth::Measured, health),
        },
    }
}

fn judge(args: &CheckArgs, depth: Depth, health: Health, decision: &mut Decision) {
    match health {
        Health::Ill(found) => {
            decision.found = found;
            act::drain(args, depth, decision);
        }
        Health::Well if !decision.said.is_empty() => {
            decision.why = "the job's finding could not be confirmed".to_owned();
        }
        Health::Well => decision.why = "no problem found".to_owned(),
        Health::Unknown(notes) => decision.why = format!("no result: {}", notes.join("; ")),
    }
}

/// Resumes an idle node that we have drained, if the same kind of check that drained it finds nothing now.
fn give_back(args: &HealthArgs, drained: Depth, decision: &mut Decision) {
    let health = match (check::read(&decision.node), drained) {
        (Health::Well, Depth::Measured) => check::measure(&decision.node),
        (read, _) => read,
    };
    match health {
        Health::Ill(found) => {
            decision.why = format!("stays drained: {}", found.join("; "));
            decision.found = found;
        }
        Health::Unknown(notes) => decision.why = format!("stays drained: no result: {}", notes.join("; ")),
        Health::Well => resume(args, decision),
    }
}

fn resume(args: &HealthArgs, decision: &mut Decision) {
    let now_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |span| span.as_secs());
    decision.done = "refuse";
    if !args.resume {
        decision.why = "no problem found any more; not resumed: without --resume".to_owned();
    } else if !act::may_resume(&args.state, &decision.node, args.most_resumed, now_s) {
        decision.why = format!(
            "no problem found any more; not resumed: already {} times today, or the count cannot be stored in {}",
            args.most_resumed,
            args.state.display()
        );
    } else {
        match scontrol::resume(&decision.node) {
            Ok(()) => (decision.done, decision.why) = ("resume", "no problem found any more".to_owned()),
            Err(problem) => decision.why = format!("Slurm did not resume it: {problem:#}"),
        }
    }
}
