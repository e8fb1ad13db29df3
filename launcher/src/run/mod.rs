//! `paceline run`: runs the command as if it had been started without Paceline, with a sidecar next to it.
//!
//! Three rules apply to all code here: the child never waits for us, its exit code is ours, and our own failures are
//! only warnings.

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

/// What to run, under which names, and where its data goes.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The job's name.
    pub(crate) job: String,
    /// This node's name.
    pub(crate) node: String,
    /// Directory for journal and report.
    pub(crate) run_dir: PathBuf,
    /// All other settings.
    pub(crate) settings: Settings,
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
    /// The place of this task among several identical ones on this node, or `None` if there is only one.
    pub(crate) task: Option<cluster::Task>,
    /// True if another instance prints to the same terminal, and is the first of those that do.
    pub(crate) follows: bool,
    /// Further variables for the command.
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// The CLOCK_MONOTONIC time at which the simulated GPUs' time starts.
    pub(crate) origin_ns: u64,
    /// Events from before monitoring starts, and their provenance.
    pub(crate) told: (Provenance, Vec<Event>),
    /// Start time of the run.
    pub(crate) started: Instant,
    /// Automatic actions and notifications.
    pub(crate) remedy: RemedyOptions,
    /// Style of stderr.
    pub(crate) style: Style,
}

impl Plan {
    /// Fills in missing settings.
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

    /// Applies the decision of the preflight.
    fn take(&mut self, start: preflight::Start) {
        self.env.extend(start.env);
        self.command = start.command.unwrap_or_else(|| std::mem::take(&mut self.command));
        // Use the preflight's address if it has one, because the default node may be the excluded one.
        self.settings.aggregator = start.aggregator.or_else(|| self.settings.aggregator.take());
        self.told = (start.provenance, start.told);
    }
}

/// Returns the value of an environment variable, if it is not empty.
fn surroundings(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Plan {
    /// Sets the aggregator's address to the job's first node, unless one is configured. After a preflight, the first
    /// node may be another one.
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

/// Returns true if several instances started together print to the same terminal, and we are not the first of them.
pub(crate) fn is_follower() -> bool {
    cluster::is_follower(&surroundings)
}

/// The result of a run.
pub(crate) struct Outcome {
    /// The child's exit code, or 128 + n if signal n ended it.
    pub(crate) code: i32,
    /// The report and its location.
    pub(crate) known: ending::Known,
    /// True if the command could be started.
    pub(crate) began: bool,
}

/// Loads and checks all settings.
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
    // If the user has given a node name, the name distinguishes the agents, so they are not tasks of one node.
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

/// Starts the command and the sidecar, waits for the command, ends the sidecar, and finds or creates the report.
pub(crate) fn launch(plan: &Plan, watcher: &mut dyn Watcher) -> anyhow::Result<Outcome> {
    // Catch signals before anything is started. Otherwise an early signal could be lost, or end only us.
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
        // Remove what killed runs have left, because it may fill the memory.
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
    // Provide the hook anyway, because a program that imports paceline must not fail because of our problems.
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
        // Run the command without us, because the descriptors or processes may suffice for it alone.
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
    // Do the rest only now, because nothing slow may delay the job's start.
    if let Some(place) = &place {
        tasks::note_command(&place.ring_dir, child.id());
    }
    place::clear_left_behind();
    let keeper = place.as_ref().map(|place| {
        sidecar::Keeper::new(plan, place, share, child.id(), tee.as_ref().map(|tee| &*tee.path))
    });
    let ring_dir = place.as_ref().map(|place| place.ring_dir.as_path());
    // From here on, the command also writes to stderr.
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

/// Opens the source of steps, if they are read from printed output.
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

/// Prints the verdict block and, if requested, the report.
pub(crate) fn tell(plan: &Plan, outcome: &Outcome) {
    let known = &outcome.known;
    // Print nothing, because another task of this node will print the report.
    if known.is_left_to_others {
        return;
    }
    // Print nothing, because the first node prints everything to the same terminal.
    if known.elsewhere.is_some() && plan.follows {
        return;
    }
    // Print no block if the command did not start, because this failure was reported already.
    if !plan.settings.quiet && outcome.began {
        let policy = &plan.settings.policy;
        let text = match &known.elsewhere {
            // Refer to the aggregator's report, because this node's own report has no data.
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

/// Returns the paths of the report and its page.
fn places(known: &ending::Known) -> Vec<&Path> {
    [&known.place, &known.page]
        .into_iter()
        .flatten()
        .map(|path| &**path)
        .collect()
}

/// Warns about notices that our own aggregator could not send. They are stored next to the report.
fn say_untold(plan: &Plan, known: &ending::Known) {
    let dir = known.place.as_deref().and_then(Path::parent);
    if let (Some(dir), None, false) = (dir, &known.elsewhere, known.is_left_to_others) {
        notify::say_untold(dir, &plan.remedy, plan.style);
    }
}

/// Prints the report as one line on stdout. A failure cannot change the exit code, which is the child's.
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

/// Converts the child's exit code to ours. A code that does not fit in a byte cannot come from a process.
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
