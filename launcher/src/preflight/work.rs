//! Runs a preflight: meets the other nodes, coordinates or takes part, and stores the results.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use paceline_health::preflight::{Report, Sample};
use paceline_nccl_bench::preflight::{
    Asked, Brief, Lead, Machine, Me, Mode, SimFleet, attend, conduct, lead, place,
};
use paceline_seal::Key;
use paceline_sidecar::safe_file;
use paceline_sidecar::sink::write_whole;

use super::past::{self, Past};
use super::{FILE, MeetingArgs, PAGE, page, usage};
use crate::output::progress::Progress;
use crate::output::{self, Color, Style};
use crate::run::cluster;

/// The requested preflight.
pub(crate) struct Wish {
    pub(crate) mode: Mode,
    pub(crate) meeting: MeetingArgs,
    pub(crate) job: String,
    pub(crate) node: String,
    pub(crate) run_dir: Option<PathBuf>,
    /// The command that will run after the preflight, if any.
    pub(crate) command: Vec<OsString>,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs a preflight on this node.
pub(crate) fn run(wish: &Wish, color: Color) -> anyhow::Result<Report> {
    let style = Style::stderr(color);
    let meeting = &wish.meeting;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let asked = Asked {
        nodes: meeting.nodes.clone(),
        nodes_file: meeting.nodes_file.clone(),
        rendezvous: meeting.rendezvous.clone(),
        service: meeting.service.clone(),
        count: meeting.nnodes,
        port: meeting.port,
        scheduled: cluster::allocation(&variable),
        training: cluster::meeting(&wish.command, &variable),
        node: wish.node.clone(),
        job: wish.job.clone(),
    };
    let wait = wish.mode.wait();
    let place = place(&asked, wait).map_err(usage)?;
    let key = Key::find(meeting.key_file.as_deref(), variable).map_err(usage)?;
    let me = Me {
        node: wish.node.as_str().into(),
        job: wish.job.as_str().into(),
        key: key.of_job(&wish.job),
        paceline: VERSION.into(),
    };
    let machine = machine();
    let mut progress = Progress::new(style, "phases of the preflight");
    let Some(listener) = place.listener else {
        let mut report = attend(&place.first, &me, &machine, wait, &mut |_| ())?;
        demand(&mut report, meeting);
        keep(&report, wish.run_dir.as_deref(), style);
        return Ok(report);
    };
    let past = Past::of(meeting.passports.as_deref(), style);
    let recall = move |samples: &[Sample]| past.recall(samples);
    let mut report = lead(
        Lead {
            listener,
            expected: place.expected,
            mode: wish.mode,
            wait,
            min_busbw: meeting.min_busbw,
            past: &recall,
        },
        &me,
        &machine,
        &mut |_, done, all| progress.at(u64::from(done), u64::from(all)),
    )?;
    drop(progress);
    demand(&mut report, meeting);
    keep(&report, wish.run_dir.as_deref(), style);
    past::add(meeting.passports.as_deref(), &wish.node, &report, style);
    Ok(report)
}

/// Returns the command line that starts this program as one NCCL rank.
fn rank_command() -> Vec<OsString> {
    let own = std::env::current_exe().map(PathBuf::into_os_string);
    own.map_or(Vec::new(), |own| {
        vec![own, "nccl-bench".into(), "--preflight-rank".into()]
    })
}

/// Returns this machine, with the libraries that the environment names.
pub(super) fn machine() -> Machine {
    Machine {
        nvml_lib: std::env::var_os("PACELINE_NVML_LIB").map(PathBuf::from),
        nccl_lib: std::env::var_os("PACELINE_NCCL_LIB").map(PathBuf::from),
        cuda_lib: std::env::var_os("PACELINE_CUDA_LIB").map(PathBuf::from),
        cublas_lib: std::env::var_os("PACELINE_CUBLAS_LIB").map(PathBuf::from),
        rank: rank_command(),
    }
}

/// Runs a preflight on simulated machines.
pub(crate) fn simulate(script: &str, wish: &Wish, color: Color) -> anyhow::Result<Report> {
    let mut fleet = SimFleet::parse(script).map_err(usage)?;
    let brief = Brief {
        mode: wish.mode,
        job: wish.job.as_str().into(),
        paceline: VERSION.into(),
        min_busbw: wish.meeting.min_busbw,
        simulated: true,
        began: Instant::now(),
        problems: Vec::new(),
    };
    let style = Style::stderr(color);
    let mut progress = Progress::new(style, "phases of the preflight");
    let mut report = conduct(&mut fleet, brief, &|_| Ok(Vec::new()), &mut |_, done, all| {
        progress.at(u64::from(done), u64::from(all));
    });
    drop(progress);
    demand(&mut report, &wish.meeting);
    keep(&report, wish.run_dir.as_deref(), style);
    Ok(report)
}

fn demand(report: &mut Report, meeting: &MeetingArgs) {
    if let Some(gpus) = meeting.gpus {
        report.demand_gpus(gpus);
    }
}

/// Writes preflight.json and preflight.html atomically. If this fails, the findings count anyway, because all nodes
/// must come to the same decision.
fn keep(report: &Report, run_dir: Option<&Path>, style: Style) {
    let Some(dir) = run_dir else { return };
    let json = serde_json::to_vec(report).map_err(std::io::Error::other);
    let written = safe_file::make_dir(dir)
        .and(json)
        .and_then(|json| write_whole(&dir.join(FILE), &json))
        .and_then(|()| write_whole(&dir.join(PAGE), page::page(report).as_bytes()));
    if let Err(problem) = written {
        let dir = dir.display();
        output::warning(
            style,
            format_args!("{FILE} cannot be written to {dir}: {problem}"),
        );
    }
}
