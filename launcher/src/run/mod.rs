//! `paceline run`: the command as if it had been started alone, and a sidecar beside it.
//!
//! Three rules hold everywhere in here: the child never waits for us, its exit code is ours, and whatever fails of
//! ours is a warning.

mod address;
mod args;
mod detached;
mod directories;
mod dry;
mod ending;
pub(crate) mod identity;
mod instrumentation;
mod missing;
mod process;
mod remedy;
mod sidecar;
mod supervise;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use paceline_health::event::Event;
use paceline_health::report::Report;
use paceline_health::{Provenance, text::sanitize};
use paceline_sidecar::agent::tasks;
use paceline_sidecar::remedy::RemedyOptions;

use self::directories::{hook_dir, place};
use self::identity::{agents, neighbours};
use self::process::{child, signals, tee, terminal};
use crate::commands::notify;
use crate::config::{self, Settings};
use crate::output::{self, Color, Paint, Style, Usage};
use crate::preflight;
use crate::report::{self, block};
use crate::slurm;

pub(crate) use args::RunArgs;
pub(crate) use detached::Detached;
pub(crate) use directories::place::{RUN_LINK, places as ring_places};
pub(crate) use identity::{chance, cluster, run_dir, torchrun};
pub(crate) use instrumentation::flight_recorder::PREFIX as FLIGHT_RECORDER_PREFIX;
pub(crate) use instrumentation::{hook, plugin};
pub(crate) use process::signals::outlive_file_limit;
pub(crate) use supervise::Watcher;

/// What is run, under which names, and where its traces go.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The job's name.
    pub(crate) job: String,
    /// This node's name.
    pub(crate) node: String,
    /// Journal and report.
    pub(crate) run_dir: PathBuf,
    /// The rest.
    pub(crate) settings: Settings,
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Which of several tasks of this node that are started alike; `None`: there is only this one.
    pub(crate) task: Option<cluster::Task>,
    /// Others speak on the same terminal, before us.
    pub(crate) follows: bool,
    /// Variables that the command gets besides ours.
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// CLOCK_MONOTONIC at which the time of simulated GPUs begins.
    pub(crate) origin_ns: u64,
    /// What is known before the watch begins, and where that comes from.
    pub(crate) told: (Provenance, Vec<Event>),
    /// When all this began.
    pub(crate) started: Instant,
    /// What may be done about findings, and who is told.
    pub(crate) remedy: RemedyOptions,
    /// How stderr looks.
    pub(crate) style: Style,
}

impl Plan {
    /// Fills in what nobody said.
    pub(crate) fn new(settings: Settings, command: Vec<OsString>, style: Style) -> Plan {
        let around = surroundings;
        let job = settings
            .job
            .clone()
            .unwrap_or_else(|| identity::job(&command, &around));
        let node = settings.node.clone().unwrap_or_else(|| identity::node(&around));
        let run_dir = settings
            .run_dir
            .clone()
            .unwrap_or_else(|| identity::run_dir(&job));
        Plan {
            job,
            node,
            run_dir,
            settings,
            command,
            task: None,
            follows: false,
            env: Vec::new(),
            origin_ns: paceline_ring::monotonic_ns(),
            told: (Provenance::Live, Vec::new()),
            started: Instant::now(),
            remedy: RemedyOptions::default(),
            style,
        }
    }

    /// Starts as the preflight says.
    fn take(&mut self, start: preflight::Start) {
        self.env.extend(start.env);
        self.command = start.command.unwrap_or_else(|| std::mem::take(&mut self.command));
        // The node at which it would be may be the one that was left out.
        self.settings.aggregator = start.aggregator.or_else(|| self.settings.aggregator.take());
        self.told = (start.provenance, start.told);
    }
}

/// The environment, without variables that are empty.
fn surroundings(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Plan {
    /// Where nobody said where the aggregator is: on the job's first node. After a preflight that may be another one.
    fn find_first(&mut self) {
        let found = |name: &str| {
            let ours = self.env.iter().find(|(known, _)| *known == name);
            ours.map(|(_, value)| value.to_string_lossy().into_owned())
                .or_else(|| surroundings(name))
        };
        let first = cluster::first_node(&self.command, &found);
        self.settings.aggregator = self.settings.aggregator.take().or(first);
    }
}

/// Whether others that were started with us speak on the same terminal, and we are not the first of them.
pub(crate) fn is_follower() -> bool {
    cluster::is_follower(&surroundings)
}

/// What came of a run.
pub(crate) struct Outcome {
    /// The child's exit code, 128 + n for a signal.
    pub(crate) code: i32,
    /// What is known of the job.
    pub(crate) known: ending::Known,
    /// The command could be started.
    pub(crate) began: bool,
}

/// All that is asked for, if it makes sense.
pub(crate) fn check(args: &RunArgs) -> anyhow::Result<(Settings, RemedyOptions)> {
    let settings = config::load(&args.settings)?;
    let remedy = args.remedy.clone().or(settings.remedy.clone());
    let remedy = remedy::checked(remedy, &args.command, &surroundings)?;
    Ok((settings, remedy))
}

/// Runs a command.
pub(crate) fn command(args: RunArgs, color: Color) -> anyhow::Result<ExitCode> {
    let (settings, remedy) = check(&args)?;
    let mut plan = Plan::new(settings, args.command, Style::stderr(color));
    plan.remedy = remedy;
    plan.follows = is_follower();
    missing::tell(&plan);
    plan.task = cluster::task(&surroundings);
    // Who names its nodes knows better which agent is which.
    if plan.settings.node.is_none() {
        plan.task = plan
            .task
            .or_else(|| agents::on_this_host(&plan.command, &surroundings));
    }
    if args.dry_run {
        plan.find_first();
        dry::show(&plan)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !plan.settings.quiet && !plan.follows {
        output::say(banner(&plan));
        let is_made_up =
            plan.settings.job.is_none() && identity::found_job(&plan.command, &surroundings).is_none();
        if let Some(note) = neighbours::note(&plan.command, &plan.node).filter(|_| is_made_up) {
            output::say(format_args!(
                "{} {note}",
                plan.style.paint(Paint::Faint, "paceline:")
            ));
        }
    }
    if let (Some(_), Some(task)) = (args.gate.preflight, plan.task) {
        return Err(Usage(format!(
            "--preflight needs one task per node, and this node has {}: run `srun --ntasks-per-node=1 paceline \
             preflight` first",
            task.on_node
        ))
        .into());
    }
    if let Some(mode) = args.gate.preflight {
        match preflight::gate(&args.gate, mode, &plan, color)? {
            preflight::Way::Start(start) => plan.take(*start),
            preflight::Way::Leave(code) => return Ok(ExitCode::from(code)),
        }
    }
    plan.find_first();
    let outcome = launch(&plan, &mut address::Announcer::new(&plan))?;
    tell(&plan, &outcome);
    say_untold(&plan, &outcome.known);
    let is_known_elsewhere = outcome.known.elsewhere.is_some() || outcome.known.is_left_to_others;
    if !is_known_elsewhere {
        ending::count(&plan, &outcome.known);
        if plan.settings.slurm_comment {
            slurm::comment::write(&outcome.known.report);
        }
    }
    Ok(exit_code(outcome.code))
}

/// Starts the command and the sidecar, waits for the first, ends the second, and finds or makes the report.
pub(crate) fn launch(plan: &Plan, watcher: &mut dyn Watcher) -> anyhow::Result<Outcome> {
    // Before anything is started: a signal that comes early must not be lost, nor end us alone.
    let signals = match signals::Signals::take() {
        Ok(signals) => signals,
        Err(problem) => {
            return Ok(ending::not_begun(
                plan,
                None,
                &child::become_command(plan, &problem),
            ));
        }
    };
    let made = place::Place::make(plan).or_else(|_| {
        // What killed runs have left may take all the room.
        place::clear_left_behind();
        place::Place::make(plan)
    });
    let (place, share) = match made {
        Ok((place, share)) => (Some(place), share),
        Err(problem) => {
            output::warning(plan.style, format_args!("the job runs unwatched: {problem:#}"));
            (None, None)
        }
    };
    // A program that has `import paceline` in it must not fail for what we could not do.
    let spare_hook = match &place {
        None => hook_dir::HookDir::make().ok(),
        Some(_) => None,
    };
    let python = place
        .as_ref()
        .map(|place| &*place.python)
        .or(spare_hook.as_ref().map(|hook| hook.python()));
    let terminal = terminal::Terminal::ours();
    let tee = place.as_ref().and_then(|_| open_tee(plan));
    let child = match child::Child::start(plan, place.as_ref(), python, terminal, tee.as_ref()) {
        Ok(child) => child,
        // Without descriptors or processes for both there may be enough for the command alone.
        Err(failed) if failed.is_of_us() => {
            drop((signals, tee, share, place, spare_hook));
            return Ok(ending::not_begun(
                plan,
                None,
                &child::become_command(plan, &failed),
            ));
        }
        Err(failed) => {
            if let Some(share) = share {
                share.leave(failed.code());
            }
            return Ok(ending::not_begun(plan, place.as_ref(), &failed));
        }
    };
    // Nothing that can take time stands between a job and its start.
    if let Some(place) = &place {
        tasks::note_command(&place.ring_dir, child.id());
    }
    place::clear_left_behind();
    let keeper = place.as_ref().map(|place| {
        sidecar::Keeper::new(plan, place, share, child.id(), tee.as_ref().map(|tee| &*tee.path))
    });
    let ring_dir = place.as_ref().map(|place| place.ring_dir.as_path());
    // From here on the command writes on stderr, too.
    let passed = || tee.as_ref().and_then(|tee| tee.passed.clone());
    let background = (!watcher.draws()).then(|| output::Background::start(passed()));
    let place = (ring_dir, cluster::is_scheduled(&surroundings));
    let ended = supervise::run(signals, child, keeper, watcher, place);
    drop(background);
    if let Some(tee) = tee {
        tee.finish();
    }
    let mut known = ending::settle(plan, &ended);
    known.page = ending::draw(plan, &known);
    Ok(Outcome {
        code: ended.code,
        known,
        began: true,
    })
}

/// What the steps are read from, if they are to be read from what is printed.
fn open_tee(plan: &Plan) -> Option<tee::Tee> {
    let opened = tee::Tee::of(plan.settings.step_log.as_ref()?);
    opened
        .map_err(|problem| {
            output::warning(
                plan.style,
                format_args!("no steps are read from the log: {problem}"),
            );
        })
        .ok()
}

/// Prints the verdict block and, if asked for, the report.
pub(crate) fn tell(plan: &Plan, outcome: &Outcome) {
    let known = &outcome.known;
    // Another task of this node will tell it.
    if known.is_left_to_others {
        return;
    }
    // The first node says it all, on the same terminal.
    if known.elsewhere.is_some() && plan.follows {
        return;
    }
    // Of a command that could not be started all was said.
    if !plan.settings.quiet && outcome.began {
        let policy = &plan.settings.policy;
        let text = match &known.elsewhere {
            // A report of this node alone would say that nothing is known.
            Some(aggregator) => format!(
                "{} the data of {} is in the report of the job's aggregator at {aggregator}",
                plan.style.paint(Paint::Faint, "paceline:"),
                plan.node
            ),
            None => block::render(&known.report, policy, plan.style, &places(known)),
        };
        output::say(text.trim_end_matches('\n'));
    }
    if plan.settings.json {
        print_json(&known.report, plan.style);
    }
}

/// Where the report lies, as file and as page.
fn places(known: &ending::Known) -> Vec<&Path> {
    [&known.place, &known.page]
        .into_iter()
        .flatten()
        .map(|path| &**path)
        .collect()
}

/// What the aggregator, if it was ours, could not send. It lies beside the report.
fn say_untold(plan: &Plan, known: &ending::Known) {
    let dir = known.place.as_deref().and_then(Path::parent);
    if let (Some(dir), None, false) = (dir, &known.elsewhere, known.is_left_to_others) {
        notify::say_untold(dir, &plan.remedy, plan.style);
    }
}

/// One line on stdout. It cannot change the exit code, which is the child's.
fn print_json(found: &Report, style: Style) {
    let printed = report::line(found)
        .map_err(anyhow::Error::from)
        .and_then(|line| Ok(output::print(&line)?));
    if let Err(problem) = printed {
        output::warning(
            style,
            format_args!("the report could not be printed: {problem:#}"),
        );
    }
}

/// A child's code as ours; what does not fit in a byte cannot come from a process.
pub(crate) fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn banner(plan: &Plan) -> String {
    let dot = plan.style.glyph(" · ", ", ");
    let mut parts = vec![format!(
        "job {}",
        plan.style.paint(Paint::Strong, sanitize::label(&plan.job))
    )];
    parts.push(format!("run directory {}", plan.run_dir.display()));
    format!(
        "{} {}",
        plan.style.paint(Paint::Faint, "paceline:"),
        parts.join(dot)
    )
}
