//! The sidecar of one node, and the aggregator of one job.
//!
//! The sources (the trainers' rings, GPUs) produce events. The [`agent`] packs them into numbered frames, and the
//! [`uplink`] sends these to the job's aggregator. The [`aggregator`] writes them to its journal in their final order
//! and evaluates them. The results go to files, metrics and status lines ([`sink`]). Nothing here ever makes a trainer
//! wait.

pub mod agent;
pub mod aggregator;
pub mod guard;
pub mod host;
pub mod load;
pub mod options;
mod pod;
pub mod relay;
pub mod remedy;
pub mod safe_file;
pub mod sink;
pub mod site;
pub mod source;
pub mod uplink;
mod warn;

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;

use paceline_health::frame::SCHEMA_VERSION;
use paceline_health::id::{JobId, NodeId};

pub use options::SidecarOptions;
pub use warn::chain;

use agent::control::Words;
use agent::join::Invitation;
use agent::{Agent, control, shell, tasks};
use aggregator::control::Reload;
use aggregator::place::{self, Candidate};
use aggregator::{Plan, Reported};
use guard::JobKey;
use guard::den::Den;
use remedy::RemedyPlan;
use remedy::hand::Hand;
use sink::status::StatusStream;
use source::Source;
use source::ends::Ends;
use source::host::Host;
use source::inspector::Inspector;
use source::kmsg::{self, Kmsg};
use source::launcher_events::LauncherEvents;
use source::nvml::NvmlSource;
use source::probe::Probe;
use source::ras::{self, Ras};
use source::replay::Replay;
use source::sim_gpu::SimGpu;
use source::stacks::StackSource;
use source::step_log::StepLog;
use source::trainers::Trainers;
use uplink::Uplink;
use uplink::wire::Hello;

/// Maximum memory for unacknowledged frames.
const SPOOL_BYTES: usize = 4 << 20;

/// Callbacks from the program that starts a sidecar.
#[derive(Clone, Debug, Default)]
pub struct Starter {
    /// Rereads the policy values in configuration files; values from the command line keep precedence.
    pub reload: Option<Reload>,
    /// Called at the end, once the report is complete, if the aggregator runs in this process.
    pub reported: Option<Reported>,
}

/// Runs a sidecar until it ends. Reads launcher messages from stdin, and writes status lines (in a pod: text) to stdout
/// and warnings to stderr.
pub fn main(options: SidecarOptions, starter: Starter) -> ExitCode {
    if let Some(at) = options.relay {
        return relay::main(&options, at);
    }
    if options.pod {
        return pod::main(&options, &starter);
    }
    match run(options, starter) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            warn::once("fatal", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(options: SidecarOptions, starter: Starter) -> anyhow::Result<()> {
    let launcher = std::os::unix::process::parent_id();
    let inherited = options.ring_dir.clone().filter(|_| options.inherit_ring_dir);
    // Install the signal handlers first, because a signal that arrives before them would kill the process.
    let shared = options.ring_dir.clone().zip(options.tasks);
    let words = match &shared {
        Some((dir, tasks)) => Words::Tasks(dir.clone(), *tasks),
        None if options.pod => Words::None,
        None => Words::Lines(std::io::stdin()),
    };
    let controls = control::listen(words, inherited.clone())?;
    let _held = inherited.as_deref().and_then(tasks::hold);
    let (status, end) = match &shared {
        Some((dir, _)) => StatusStream::ready_in(&dir.join(tasks::READY)),
        None if options.pod && !options.status_json => {
            StatusStream::for_people(std::io::stdout(), options.quiet)
        }
        None => StatusStream::to(std::io::stdout()),
    };
    let trainers = Trainers::default();
    let sources = sources(&options, &trainers)?;
    let hand = options.ring_dir.clone().map(|dir| Hand::new(dir, trainers));
    let invitation = invitation(options, starter, status)?;
    let agent = Agent::new(Uplink::new(invitation.me.clone(), SPOOL_BYTES), sources).with_hand(hand);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()?;
    runtime.block_on(shell::run(agent, invitation, controls));
    runtime.shutdown_background();
    end.wait();
    if let Some((dir, _)) = &shared {
        // If this fails because memory is full, another sidecar reads the rings a second time.
        let _ = std::fs::write(dir.join(tasks::DONE), "");
    }
    let is_orphan = match &shared {
        Some((dir, count)) => tasks::look(dir, *count).launchers == 0,
        None => std::os::unix::process::parent_id() != launcher,
    };
    if let Some(dir) = inherited.filter(|_| is_orphan) {
        // No other process is left to remove the directory. If this fails, the directory is already gone.
        let _ = std::fs::remove_dir_all(dir);
    }
    Ok(())
}

fn sources(options: &SidecarOptions, trainers: &Trainers) -> anyhow::Result<Vec<Box<dyn Source>>> {
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    if let Some(path) = &options.told {
        match LauncherEvents::open(path) {
            Ok(told) => sources.push(Box::new(told)),
            // Report the problem and continue without these events.
            Err(error) => warn::once("told", format_args!("{}: {error}", path.display())),
        }
    }
    if let Some(dir) = &options.ring_dir {
        let probe = Probe::new(dir.clone())
            .telling(trainers.clone())
            .of_pod(options.pod);
        sources.push(Box::new(probe));
        sources.push(Box::new(Ends::new(dir.clone(), &options.host_root)));
        if options.replay.is_none() {
            // In a pod, the process IDs belong to another container's namespace, so this source must not use them.
            let visible = if options.pod {
                Trainers::default()
            } else {
                trainers.clone()
            };
            sources.push(Box::new(StackSource::new(dir.clone(), visible)));
        }
    }
    if let Some(script) = &options.sim_gpus {
        let origin_ns = options.sim_origin_ns.unwrap_or_else(host::monotonic_ns);
        sources.push(Box::new(SimGpu::new(script.clone(), origin_ns)));
    } else if options.replay.is_none() {
        sources.push(Box::new(NvmlSource::new(options.nvml_lib.clone())));
    }
    let is_real = options.sim_gpus.is_none() && options.replay.is_none();
    if is_real {
        sources.push(Box::new(Host::new(&options.host_root, trainers.clone())));
    }
    if let Some(path) = &options.kmsg {
        sources.push(Box::new(Kmsg::new(path.clone())));
    } else if is_real && Kmsg::is_of_use() {
        sources.push(Box::new(Kmsg::new(kmsg::DEVICE.into())));
    }
    if let Some(path) = &options.step_log {
        sources.push(Box::new(StepLog::new(path.clone(), options.step_regex.clone())));
    }
    if let Some(path) = &options.inspector {
        sources.push(Box::new(Inspector::new(path.clone())));
    }
    let ras = match options.ras.as_deref() {
        Some("off") => None,
        Some(address) => Some(address.to_owned()),
        None if is_real => Ras::address(|name| std::env::var(name).ok()),
        None => None,
    };
    if let Some(address) = ras {
        sources.push(Box::new(Ras::new(address, ras::Limits::default())));
    }
    if let Some(path) = &options.replay {
        let replay = Replay::open(path).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        sources.push(Box::new(replay));
    }
    Ok(sources)
}

fn invitation(options: SidecarOptions, starter: Starter, status: StatusStream) -> anyhow::Result<Invitation> {
    let job = JobId::from(options.job.as_str());
    let node = NodeId::from(options.node.clone().unwrap_or_else(host::hostname).as_str());
    let me = Hello {
        v: SCHEMA_VERSION,
        job: job.clone(),
        node: node.clone(),
        agent: host::incarnation(),
    };
    let http = options.http.read()?;
    let key = JobKey::of(&job, options.key_file.as_deref())?;
    // Keep a name for later lookups, because it may be created late or resolve to another host later. An IP address
    // does not change.
    let mut asked = options
        .aggregator()
        .filter(|asked| is_name(asked))
        .map(str::to_owned);
    let (mut candidates, mut alone_because) = match place::candidates(options.aggregator(), &job, &node) {
        Ok(candidates) => (candidates, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    if key.nobody_else.is_some() && (asked.is_some() || candidates.iter().any(Candidate::is_shared)) {
        (asked, candidates) = (None, Vec::new());
        alone_because = Some("its aggregator is on another host".to_owned());
    }
    let den = Arc::new(Den::dig(options.ring_dir.as_deref())?);
    let plan = Plan {
        job,
        node,
        // Only a relay may run without a run directory.
        run_dir: options.run_dir.unwrap_or_default(),
        remedy: RemedyPlan {
            home: Some(me.node.clone()),
            ..options.remedy.plan()
        },
        policy: options.policy,
        reload: starter.reload.map(|reload| reload.without(options.pinned)),
        reported: starter.reported,
        journal: aggregator::journal::segments::Limits::within(options.journal_bytes),
        doors: options.doors.read()?,
    };
    Ok(Invitation {
        me,
        candidates,
        asked,
        silent: None,
        alone_because,
        attempt: 0,
        key,
        den,
        http: Some(http),
        plan,
        status,
    })
}

fn is_name(asked: &str) -> bool {
    let host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
    let is_address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    host != "localhost" && !is_address(host) && !is_address(asked)
}
