//! `paceline simulate`: simulates a job in virtual time, and evaluates it with the same detector as a real one.

mod connect;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use paceline_health::codec::line;
use paceline_health::event::{Event, PolicyChange};
use paceline_health::sim::{Truth, World, WorldSpec};
use paceline_health::text::humanize;
use paceline_health::{Detector, Entry, Frame, Policy};
use paceline_sidecar::safe_file;

use crate::cli::SimulateArgs;
use crate::config::changes_of;
use crate::output::progress::Progress;
use crate::output::{self, Color, Paint, Style, Usage};
use crate::report::{self, block};

pub(crate) use connect::ConnectArgs;

/// Number of frames between two progress updates.
const LOOK_EVERY: u64 = 4096;

/// Simulates a job.
pub(crate) fn command(args: &SimulateArgs, color: Color) -> anyhow::Result<ExitCode> {
    if let Some(address) = &args.load.connect {
        return connect::command(&args.load, spec(args)?, address, (args.json, color));
    }
    let changes = changes_of(&[&args.set[..], &args.gpu_hour_price].concat())?;
    let mut world = World::new(spec(args)?).map_err(|problem| Usage(problem.to_string()))?;
    let mut run = Run {
        detector: Detector::new(Policy::default()),
        journal: None,
        last: 0,
    };
    if let Some(path) = &args.journal {
        run.journal = Some(Writer::create(path)?);
    }
    let mut progress = Progress::new(Style::stderr(color), "steps");
    let mut first = true;
    while let Some((at_ns, frame)) = world.next() {
        let (node, v, provenance) = (frame.node.clone(), frame.v, frame.provenance);
        let asked = run.detector.asked();
        run.take(Entry { n: 0, at_ns, frame })?;
        if run.detector.asked() != asked {
            world.want(run.detector.wants());
        }
        if first {
            // Write the policy changes directly after the journal's opening entry, as a real aggregator does.
            for (seq, (key, value)) in (2..).zip(&changes) {
                let event = Event::Policy(PolicyChange {
                    key: Arc::from(key.as_str()),
                    value: *value,
                    by: "start".into(),
                });
                let node = node.clone();
                run.take(Entry {
                    n: 0,
                    at_ns,
                    frame: Frame {
                        v,
                        node,
                        agent: 0,
                        seq,
                        provenance,
                        event,
                    },
                })?;
            }
        }
        first = false;
        if run.last.is_multiple_of(LOOK_EVERY) {
            progress.at(world.steps(), world.spec().steps);
        }
    }
    drop(progress);
    if let Some(journal) = run.journal.take() {
        journal.finish()?;
    }
    let found = run.detector.report();
    if args.json {
        output::print(&report::line(&found)?)?;
    } else {
        let style = Style::stdout(color);
        let text = block::render(&found, run.detector.policy(), style, &[]);
        output::show(&(text + &truths(&world, style)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn spec(args: &SimulateArgs) -> Result<WorldSpec, Usage> {
    let usage = |what: &str, problem: &dyn std::fmt::Display| Usage(format!("{what}: {problem}"));
    let text = args.world.as_deref().unwrap_or_default();
    let mut spec = WorldSpec::parse(text).map_err(|problem| usage("--world", &problem))?;
    spec.nodes = args.nodes.unwrap_or(spec.nodes);
    spec.gpus_per_node = args.gpus.unwrap_or(spec.gpus_per_node);
    if let Some(ranks) = args.load.ranks {
        if spec.gpus_per_node == 0 || !ranks.is_multiple_of(spec.gpus_per_node) {
            let each = spec.gpus_per_node;
            return Err(Usage(format!(
                "--ranks {ranks}: no multiple of {each} ranks on each node"
            )));
        }
        spec.nodes = ranks / spec.gpus_per_node;
    }
    spec.steps = args.steps.unwrap_or(spec.steps);
    spec.seed = args.seed.unwrap_or(spec.seed);
    for fault in &args.fault {
        if fault.trim().is_empty() {
            let message = "--fault: empty; use for example \"slow rank=3 factor=1.25 from=100\"";
            return Err(Usage(message.to_owned()));
        }
        spec.faults
            .push(fault.parse().map_err(|problem| usage("--fault", &problem))?);
    }
    Ok(spec)
}

struct Run {
    detector: Detector,
    journal: Option<Writer>,
    last: u64,
}

impl Run {
    fn take(&mut self, mut entry: Entry) -> anyhow::Result<()> {
        self.last += 1;
        entry.n = self.last;
        if let Some(journal) = &mut self.journal {
            journal.append(&entry)?;
        }
        self.detector.read(&entry);
        // Drop the single verdicts, because the report has the last state of each.
        while self.detector.poll().is_some() {}
        Ok(())
    }
}

struct Writer {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Writer {
    fn create(path: &Path) -> anyhow::Result<Writer> {
        let file = safe_file::create_named(path).with_context(|| path.display().to_string())?;
        Ok(Writer {
            path: path.to_owned(),
            out: BufWriter::with_capacity(1 << 18, file),
        })
    }

    fn append(&mut self, entry: &Entry) -> anyhow::Result<()> {
        let mut text = line::encode(entry);
        text.push('\n');
        self.out
            .write_all(text.as_bytes())
            .with_context(|| self.path.display().to_string())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.out.flush().with_context(|| self.path.display().to_string())
    }
}

/// Lists the simulated faults, to be printed below the findings.
fn truths(world: &World, style: Style) -> String {
    let mut text = String::new();
    for truth in world.truth() {
        let line = format!("   {:10}{}", "truth", describe(truth));
        let _ = writeln!(text, "{}", style.paint(Paint::Faint, line));
    }
    for cost in world.own_costs() {
        let lost = humanize::hours(cost.lost_gpu_s / 3600.0, "GPU");
        let share = 100.0 * cost.lost_gpu_s / cost.of_gpu_s;
        let line = format!(
            "   {:10}{}; {lost} lost, {share:.1} %",
            "truth", cost.expected.finding
        );
        let _ = writeln!(text, "{}", style.paint(Paint::Faint, line));
    }
    text
}

fn describe(truth: &Truth) -> String {
    let mut parts = vec![truth.fault.to_string()];
    match (truth.since_step, truth.last_step) {
        (Some(from), Some(to)) if from != to => parts.push(format!("affected steps {from} to {to}")),
        (Some(step), _) => parts.push(format!("affected step {step}")),
        (None, _) => parts.push("affected no step".to_owned()),
    }
    if truth.lost_gpu_s > 0.0 {
        parts.push(format!(
            "{} lost",
            humanize::hours(truth.lost_gpu_s / 3600.0, "GPU")
        ));
    }
    parts.join("; ")
}
