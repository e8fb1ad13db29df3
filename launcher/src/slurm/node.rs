//! The three programs that slurmd calls on a node.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use super::act::{self, Depth};
use super::audit::{self, Decision};
use super::check::{self, Health};
use super::scontrol;
use super::{CheckArgs, HealthArgs, claims, variable};
use crate::output;

/// What a prolog ends with where the node was drained; any other code but 0 is an error of ours, and no reason.
const DRAINED: u8 = 2;

/// Before a job: 1 where the node was drained, so that Slurm starts the job elsewhere; else 0.
pub(super) fn prolog(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let mut decision = begin("prolog", args)?;
    let (depth, health) = examine(&decision.node, args.measure);
    judge(args, depth, health, &mut decision);
    audit::keep(&decision, &args.log);
    Ok(match decision.done {
        "drain" => ExitCode::from(DRAINED),
        _ => ExitCode::SUCCESS,
    })
}

/// After a job. Always 0: any other code would drain the node, whatever was found.
pub(super) fn epilog(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let mut decision = begin("epilog", args)?;
    let said = claims::of_job(&decision.node);
    if let Some(problem) = &said.problem {
        output::say(format_args!(
            "paceline: what the job said cannot be read: {problem}"
        ));
    }
    decision.said.clone_from(&said.claims);
    let (depth, health) = examine(&decision.node, args.measure || !said.claims.is_empty());
    judge(args, depth, health, &mut decision);
    decision.ended = said.summary;
    audit::keep(&decision, &args.log);
    Ok(ExitCode::SUCCESS)
}

/// Now and then, on idle nodes.
pub(super) fn health_check(args: &HealthArgs) -> anyhow::Result<ExitCode> {
    let mut decision = begin("health-check", &args.check)?;
    let (state, reason) = scontrol::node_state(&decision.node)?;
    let is_idle = state.starts_with("IDLE");
    match Depth::of_reason(&reason).filter(|_| state.contains("DRAIN")) {
        // What is at work on it would be measured with it; reading disturbs nobody.
        Some(_) if !is_idle => return Ok(ExitCode::SUCCESS),
        Some(depth) => give_back(args, depth, &mut decision),
        None => {
            let (depth, health) = examine(&decision.node, args.check.measure && is_idle);
            // Every few minutes on every node: what is well fills no log.
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

/// Reading first: it is quick, and what it finds needs no work.
fn examine(node: &str, measure: bool) -> (Depth, Health) {
    match check::read(node) {
        health @ Health::Ill(_) => (Depth::Read, health),
        health if !measure => (Depth::Read, health),
        read => match check::measure(node) {
            // Alone, without a past, a measurement has nothing to compare with: then what was read stands.
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
            decision.why = "what the job said of it is not to be seen".to_owned();
        }
        Health::Well => decision.why = "nothing is bad".to_owned(),
        Health::Unknown(notes) => decision.why = format!("could not tell: {}", notes.join("; ")),
    }
}

/// A node of ours that is out and idle: the same look by which it was drained must find nothing now.
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
        Health::Unknown(notes) => {
            decision.why = format!("stays drained: could not tell: {}", notes.join("; "))
        }
        Health::Well => resume(args, decision),
    }
}

fn resume(args: &HealthArgs, decision: &mut Decision) {
    let now_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |span| span.as_secs());
    decision.done = "refuse";
    if !args.resume {
        decision.why = "nothing is bad any more; not given back: --resume is not given".to_owned();
    } else if !act::may_resume(&args.state, &decision.node, args.most_resumed, now_s) {
        decision.why = format!(
            "nothing is bad any more; not given back: it was {} times today, or that cannot be noted in {}",
            args.most_resumed,
            args.state.display()
        );
    } else {
        match scontrol::resume(&decision.node) {
            Ok(()) => (decision.done, decision.why) = ("resume", "nothing is bad any more".to_owned()),
            Err(problem) => decision.why = format!("Slurm did not give it back: {problem:#}"),
        }
    }
}
