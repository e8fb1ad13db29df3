//! Decides, after a preflight, whether this node starts the command, and sets the variables that describe the other
//! nodes.
//!
//! A preflight that fails to run stops no job, unless the user asked for that (`fail`).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use paceline_health::Provenance;
use paceline_health::event::{Bench, Event};
use paceline_health::id::NodeId;
use paceline_health::preflight::{Outcome, Problem, Report};
use paceline_nccl_bench::preflight::{Mode, hosts::compress};

use super::args::{Gate, GateArgs};
use super::endpoint::{self, Redirected};
use super::{CRITICAL, MeetingArgs, UNKNOWN, Wish, show, work};
use crate::config::lenient_settings;
use crate::output::{self, Color};
use crate::run::{Plan, cluster};

/// The decision of the gate.
#[derive(Debug)]
pub(crate) enum Way {
    /// Start the command.
    Start(Box<Start>),
    /// Do not start the command, and exit with this code.
    Leave(u8),
}

/// How to start the command.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// Environment variables to set.
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// The changed command, if its rendezvous was at an excluded node.
    pub(crate) command: Option<Vec<OsString>>,
    /// The address of the job's aggregator, if its usual node does not start.
    pub(crate) aggregator: Option<String>,
    /// The preflight events of this node, for the sidecar.
    pub(crate) told: Vec<Event>,
    /// The provenance of these events.
    pub(crate) provenance: Provenance,
}

/// Runs the preflight requested by `args`.
pub(crate) fn gate(args: &GateArgs, mode: Mode, plan: &Plan, color: Color) -> anyhow::Result<Way> {
    let wish = Wish {
        mode,
        meeting: MeetingArgs {
            nodes: args.preflight_nodes.clone(),
            nnodes: args.preflight_nnodes,
            key_file: plan.settings.key_file.clone(),
            min_busbw: args.min_busbw,
            passports: args.passports.clone(),
            ..MeetingArgs::default()
        },
        job: plan.job.clone(),
        node: plan.node.clone(),
        run_dir: Some(plan.run_dir.clone()),
        command: plan.command.clone(),
    };
    let report = match work::run(&wish, color) {
        Ok(report) => report,
        // Report usage errors, because this is before the start, where a user sees them.
        Err(problem) if problem.is::<crate::output::Usage>() && !lenient_settings::is_in_pod() => {
            return Err(problem);
        }
        Err(problem) if args.preflight_policy == Gate::Fail => {
            return Err(problem.context("the preflight failed, and the job was not started"));
        }
        Err(problem) => {
            output::warning(
                plan.style,
                format_args!("the preflight failed, the job starts without it: {problem:#}"),
            );
            let told = undone(&plan.node, &format!("{problem:#}"));
            return Ok(Way::Start(Box::new(Start {
                told,
                ..Start::default()
            })));
        }
    };
    if !plan.settings.quiet {
        output::say(show::render(&report, plan.style).trim_end());
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let meets = endpoint::host(&plan.command, &variable, &report);
    let choice = choose(
        args.preflight_policy,
        &report,
        &plan.node,
        wanted(&plan.command, &variable),
        meets,
    );
    Ok(match choice {
        Choice::Leave(0) => {
            output::say(format_args!(
                "paceline: this node, {}, is excluded from the job",
                plan.node
            ));
            Way::Leave(0)
        }
        Choice::Leave(code) => {
            output::say("paceline: the job is not started");
            Way::Leave(code)
        }
        Choice::All => {
            let all = report.nodes.keys().cloned().collect();
            Way::Start(Box::new(started(&report, plan, args.preflight_policy, &all)))
        }
        Choice::These(chosen) => Way::Start(Box::new(among(&report, plan, &variable, &chosen))),
    })
}

/// Returns the events of a preflight that failed.
fn undone(node: &str, what: &str) -> Vec<Event> {
    let node = NodeId::from(node);
    let bench = Bench {
        node: node.clone(),
        there: false,
        model: "".into(),
        gpus: 0,
        values: BTreeMap::new(),
        of_gpus: BTreeMap::new(),
    };
    let problem = Problem {
        node: Some(node),
        phase: "preflight".into(),
        what: what.into(),
        lost: true,
    };
    vec![Event::Bench(bench), Event::PreflightProblem(problem)]
}

fn started(report: &Report, plan: &Plan, policy: Gate, starting: &BTreeSet<NodeId>) -> Start {
    Start {
        told: report.events(&NodeId::from(&*plan.node), starting, policy.name()),
        provenance: if report.simulated {
            Provenance::Sim
        } else {
            Provenance::Live
        },
        ..Start::default()
    }
}

/// Starts this node as one of several chosen nodes, with the list of these nodes and a rendezvous at one of them.
fn among(
    report: &Report,
    plan: &Plan,
    variable: &dyn Fn(&str) -> Option<String>,
    chosen: &[&NodeId],
) -> Start {
    let rank = chosen
        .iter()
        .position(|known| known.as_str() == plan.node)
        .unwrap_or(0);
    // If all nodes start, keep the rendezvous where it is.
    let is_all = chosen.len() == report.nodes.len();
    let redirected = if is_all {
        Redirected::default()
    } else {
        endpoint::redirect(&plan.command, variable, report, chosen, rank)
    };
    for said in &redirected.said {
        output::say(format_args!("paceline: {said}"));
    }
    let bad = report.bad_nodes();
    let mut env: Vec<(&'static str, OsString)> = vec![
        (
            "PACELINE_NODES",
            compress(chosen.iter().map(|node| node.as_str())).into(),
        ),
        ("PACELINE_NNODES", chosen.len().to_string().into()),
        ("PACELINE_NODE_RANK", rank.to_string().into()),
        (
            "PACELINE_EXCLUDED_NODES",
            compress(bad.iter().map(NodeId::as_str)).into(),
        ),
    ];
    let first = chosen.first();
    env.extend(first.map(|node| ("PACELINE_FIRST_NODE", node.as_str().into())));
    env.extend(redirected.env);
    let starting = chosen.iter().map(|node| (*node).clone()).collect();
    Start {
        env,
        command: redirected.command,
        aggregator: first
            .filter(|_| {
                let given = plan.settings.aggregator.as_deref();
                chosen.len() > 1 && !is_all && !endpoint::starts(given, report, chosen)
            })
            .map(|node| endpoint::reach(node, report.nodes.get(*node))),
        ..started(report, plan, Gate::Exclude, &starting)
    }
}

/// Returns the minimum and maximum number of nodes of the command, from torchrun's `--nnodes N` or `MIN:MAX`, or from
/// its variable.
fn wanted(command: &[OsString], variable: &dyn Fn(&str) -> Option<String>) -> Option<(usize, usize)> {
    let value = cluster::torchrun_option(command, variable, "nnodes")?;
    let (least, most) = value.split_once(':').unwrap_or((&value, &value));
    Some((least.parse().ok()?, most.parse().ok()?))
}

/// Which nodes start the command.
#[derive(Debug, PartialEq, Eq)]
enum Choice<'a> {
    /// All nodes start, and nothing changes.
    All,
    /// These nodes start, including this one. The first is the rendezvous host.
    These(Vec<&'a NodeId>),
    /// This node does not start, and exits with this code.
    Leave(u8),
}

fn choose<'a>(
    policy: Gate,
    report: &'a Report,
    node: &str,
    wanted: Option<(usize, usize)>,
    meets: Option<NodeId>,
) -> Choice<'a> {
    let bad = report.bad_nodes();
    match policy {
        Gate::Warn => Choice::All,
        Gate::Fail => match report.outcome {
            Outcome::Critical => Choice::Leave(CRITICAL),
            Outcome::Unknown => Choice::Leave(UNKNOWN),
            Outcome::Ok | Outcome::Warning => Choice::All,
        },
        Gate::Exclude => exclude(report, &bad, node, wanted, meets),
    }
}

fn exclude<'a>(
    report: &'a Report,
    bad: &BTreeSet<NodeId>,
    node: &str,
    wanted: Option<(usize, usize)>,
    meets: Option<NodeId>,
) -> Choice<'a> {
    let mut good: Vec<&NodeId> = report
        .nodes
        .keys()
        .filter(|known| !bad.contains(*known))
        .collect();
    // Keep the rendezvous host first if it is healthy.
    good.sort_by_key(|known| Some(*known) != meets.as_ref());
    let (least, most) = wanted.unwrap_or((1, good.len()));
    if good.len() < least {
        // If no node is bad, the command expects more nodes than were measured.
        return if bad.is_empty() {
            Choice::All
        } else {
            Choice::Leave(CRITICAL)
        };
    }
    // Take the first `most` nodes. All nodes make the same choice, since all have the same report.
    good.truncate(most);
    if good.iter().any(|known| known.as_str() == node) {
        Choice::These(good)
    } else {
        Choice::Leave(0)
    }
}

/// Creates reports for tests.
#[cfg(test)]
pub(super) mod sample {
    use super::*;
    use paceline_health::preflight::{NodeRow, PREFLIGHT_SCHEMA};

    /// Returns a report of `nodes` nodes, of which those in `lost` did not respond.
    pub(crate) fn report(nodes: u32, lost: &[&str]) -> Report {
        Report {
            schema_version: PREFLIGHT_SCHEMA,
            paceline: "0".into(),
            job: "j".into(),
            mode: "quick".into(),
            simulated: false,
            outcome: if lost.is_empty() {
                Outcome::Ok
            } else {
                Outcome::Critical
            },
            seconds: 1.0,
            phases: Vec::new(),
            nodes: (1..=nodes)
                .map(|n| (NodeId::from(&*format!("n{n}")), row()))
                .collect(),
            findings: Vec::new(),
            problems: lost
                .iter()
                .map(|node| Problem {
                    node: Some(NodeId::from(*node)),
                    phase: "work".into(),
                    what: "gone".into(),
                    lost: true,
                })
                .collect(),
            comparisons: 1,
            unsteady: Vec::new(),
            samples: Vec::new(),
            carried: Vec::new(),
        }
    }

    fn row() -> NodeRow {
        NodeRow {
            there: true,
            ..NodeRow::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sample::report;
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn these(choice: &Choice<'_>) -> String {
        match choice {
            Choice::These(nodes) => nodes
                .iter()
                .map(|node| node.as_str())
                .collect::<Vec<_>>()
                .join(" "),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn each_policy() {
        let (well, ill) = (report(4, &[]), report(4, &["n2"]));
        assert_eq!(choose(Gate::Warn, &ill, "n2", None, None), Choice::All);
        assert_eq!(
            choose(Gate::Fail, &ill, "n1", None, None),
            Choice::Leave(CRITICAL)
        );
        assert_eq!(choose(Gate::Fail, &well, "n1", None, None), Choice::All);
        assert_eq!(
            these(&choose(Gate::Exclude, &well, "n1", None, None)),
            "n1 n2 n3 n4"
        );
    }

    #[test]
    fn the_bad_one_leaves_and_the_others_know() {
        let ill = report(4, &["n2"]);
        assert_eq!(choose(Gate::Exclude, &ill, "n2", None, None), Choice::Leave(0));
        assert_eq!(these(&choose(Gate::Exclude, &ill, "n3", None, None)), "n1 n3 n4");
        // The rendezvous host comes first, unless it is bad.
        let meets = |node: &str| Some(NodeId::from(node));
        assert_eq!(
            these(&choose(Gate::Exclude, &ill, "n3", None, meets("n4"))),
            "n4 n1 n3"
        );
        assert_eq!(
            these(&choose(Gate::Exclude, &ill, "n3", None, meets("n2"))),
            "n1 n3 n4"
        );
    }

    #[test]
    fn a_spare_stays_out_and_too_few_do_not_start() {
        let ill = report(4, &["n2"]);
        let of = |command: &str| wanted(&words(command), &|_| None);
        let two = of("torchrun --nnodes 2 t.py");
        assert_eq!(two, Some((2, 2)));
        assert_eq!(these(&choose(Gate::Exclude, &ill, "n3", two, None)), "n1 n3");
        assert_eq!(choose(Gate::Exclude, &ill, "n4", two, None), Choice::Leave(0));
        let four = of("torchrun --nnodes=4 t.py");
        assert_eq!(
            choose(Gate::Exclude, &ill, "n1", four, None),
            Choice::Leave(CRITICAL)
        );
        let elastic = of("torchrun --nnodes=2:4 t.py");
        assert_eq!(
            these(&choose(Gate::Exclude, &ill, "n4", elastic, None)),
            "n1 n3 n4"
        );
        // This also holds if no node is bad.
        let well = report(4, &[]);
        assert_eq!(these(&choose(Gate::Exclude, &well, "n2", two, None)), "n1 n2");
        assert_eq!(choose(Gate::Exclude, &well, "n3", two, None), Choice::Leave(0));
        let eight = of("torchrun --nnodes 8 t.py");
        assert_eq!(choose(Gate::Exclude, &well, "n1", eight, None), Choice::All);
        let told = |name: &str| (name == "PET_NNODES").then(|| "2".to_owned());
        assert_eq!(wanted(&words("torchrun t.py"), &told), Some((2, 2)));
    }
}
