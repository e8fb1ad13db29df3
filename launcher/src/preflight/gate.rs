//! The gate before a job: whether this node starts the command, and what the command is told of the others.
//!
//! A preflight that cannot be done stops no job, unless the user asked for one that can (`fail`).

use std::collections::BTreeSet;
use std::ffi::OsString;

use paceline_health::id::NodeId;
use paceline_health::preflight::{Outcome, Report};
use paceline_nccl_bench::preflight::{Mode, hosts::compress};

use super::args::{Gate, GateArgs};
use super::{CRITICAL, MeetingArgs, UNKNOWN, Wish, show, work};
use crate::output::{self, Color};
use crate::run::Plan;

/// What follows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Start the command, with these variables more.
    Start(Vec<(&'static str, OsString)>),
    /// Do not start it; end with this code.
    Leave(u8),
}

/// Runs the preflight that `args` ask for.
pub(crate) fn gate(args: &GateArgs, mode: Mode, plan: &Plan, color: Color) -> anyhow::Result<Way> {
    let command: Vec<String> = plan
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
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
        command: command.clone(),
    };
    let report = match work::run(&wish, color) {
        Ok(report) => report,
        // What was asked for makes no sense: that is told before anything is started.
        Err(problem) if problem.is::<crate::output::Usage>() => return Err(problem),
        Err(problem) if args.preflight_policy == Gate::Fail => {
            return Err(problem.context("the preflight could not be done, and the job was not started"));
        }
        Err(problem) => {
            output::warning(
                plan.style,
                format_args!("no preflight, the job starts without: {problem:#}"),
            );
            return Ok(Way::Start(Vec::new()));
        }
    };
    if !plan.settings.quiet {
        output::say(show::render(&report, plan.style).trim_end());
    }
    let way = choose(args.preflight_policy, &report, &plan.node, wanted(&command));
    match &way {
        Way::Leave(0) => output::say(format_args!(
            "paceline: this node, {}, leaves the job to the others",
            plan.node
        )),
        Way::Leave(_) => output::say("paceline: the job is not started"),
        Way::Start(_) => {}
    }
    Ok(way)
}

/// Least and most nodes that the command takes: torchrun's `--nnodes N` or `MIN:MAX`.
fn wanted(command: &[String]) -> Option<(usize, usize)> {
    let mut words = command.iter();
    while let Some(word) = words.next() {
        let (flag, value) = word
            .split_once('=')
            .map_or((&**word, None), |(flag, value)| (flag, Some(value)));
        if flag == "--nnodes" {
            let value = value.or_else(|| words.next().map(String::as_str))?;
            let (least, most) = value.split_once(':').unwrap_or((value, value));
            return Some((least.parse().ok()?, most.parse().ok()?));
        }
    }
    None
}

fn choose(policy: Gate, report: &Report, node: &str, wanted: Option<(usize, usize)>) -> Way {
    let bad = report.bad_nodes();
    match policy {
        Gate::Warn => Way::Start(Vec::new()),
        Gate::Fail => match report.outcome {
            Outcome::Critical => Way::Leave(CRITICAL),
            Outcome::Unknown => Way::Leave(UNKNOWN),
            Outcome::Ok | Outcome::Warning => Way::Start(Vec::new()),
        },
        Gate::Exclude if bad.is_empty() => Way::Start(Vec::new()),
        Gate::Exclude => exclude(report, &bad, node, wanted),
    }
}

fn exclude(report: &Report, bad: &BTreeSet<NodeId>, node: &str, wanted: Option<(usize, usize)>) -> Way {
    let good: Vec<&str> = report
        .nodes
        .keys()
        .filter(|known| !bad.contains(*known))
        .map(NodeId::as_str)
        .collect();
    let (least, most) = wanted.unwrap_or((1, good.len()));
    if good.len() < least {
        return Way::Leave(CRITICAL);
    }
    // The first so many: the same choice on every node, for all have the same report.
    let chosen = &good[..good.len().min(most)];
    let Some(rank) = chosen.iter().position(|known| *known == node) else {
        return Way::Leave(0);
    };
    Way::Start(vec![
        ("PACELINE_NODES", compress(chosen.iter().copied()).into()),
        ("PACELINE_NNODES", chosen.len().to_string().into()),
        ("PACELINE_NODE_RANK", rank.to_string().into()),
        ("PACELINE_FIRST_NODE", chosen[0].into()),
        (
            "PACELINE_EXCLUDED_NODES",
            compress(bad.iter().map(NodeId::as_str)).into(),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_health::preflight::{NodeRow, PREFLIGHT_SCHEMA, Problem};

    fn report(nodes: u32, lost: &[&str]) -> Report {
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
                .map(|n| (NodeId::from(&*format!("n{n}")), NodeRow::default()))
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

    fn variable(way: &Way, name: &str) -> Option<String> {
        let Way::Start(variables) = way else { return None };
        let pair = variables.iter().find(|(known, _)| *known == name);
        pair.map(|(_, value)| value.to_string_lossy().into_owned())
    }

    #[test]
    fn each_policy() {
        let (well, ill) = (report(4, &[]), report(4, &["n2"]));
        assert_eq!(choose(Gate::Warn, &ill, "n2", None), Way::Start(Vec::new()));
        assert_eq!(choose(Gate::Fail, &ill, "n1", None), Way::Leave(CRITICAL));
        assert_eq!(choose(Gate::Fail, &well, "n1", None), Way::Start(Vec::new()));
        assert_eq!(choose(Gate::Exclude, &well, "n1", None), Way::Start(Vec::new()));
    }

    #[test]
    fn the_bad_one_leaves_and_the_others_know() {
        let ill = report(4, &["n2"]);
        assert_eq!(choose(Gate::Exclude, &ill, "n2", None), Way::Leave(0));
        let way = choose(Gate::Exclude, &ill, "n3", None);
        assert_eq!(variable(&way, "PACELINE_NODES").as_deref(), Some("n[1,3-4]"));
        assert_eq!(variable(&way, "PACELINE_NODE_RANK").as_deref(), Some("1"));
        assert_eq!(variable(&way, "PACELINE_EXCLUDED_NODES").as_deref(), Some("n2"));
    }

    #[test]
    fn a_spare_stays_out_and_too_few_do_not_start() {
        let ill = report(4, &["n2"]);
        let command = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let two = wanted(&command("torchrun --nnodes 2 t.py"));
        assert_eq!(two, Some((2, 2)));
        assert_eq!(
            variable(&choose(Gate::Exclude, &ill, "n3", two), "PACELINE_NNODES").as_deref(),
            Some("2")
        );
        assert_eq!(choose(Gate::Exclude, &ill, "n4", two), Way::Leave(0));
        let four = wanted(&command("torchrun --nnodes=4 t.py"));
        assert_eq!(choose(Gate::Exclude, &ill, "n1", four), Way::Leave(CRITICAL));
        let elastic = wanted(&command("torchrun --nnodes=2:4 t.py"));
        assert_eq!(
            variable(&choose(Gate::Exclude, &ill, "n4", elastic), "PACELINE_NNODES").as_deref(),
            Some("3")
        );
    }
}
