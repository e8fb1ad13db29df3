//! Doing it: meets, leads or attends, keeps what was measured.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use paceline_health::preflight::{Metric, Outcome, Past, Report, Sample};
use paceline_nccl_bench::preflight::{
    Asked, Brief, Lead, Machine, Me, Mode, Passports, SimFleet, Stamp, attend, conduct, lead, place,
};
use paceline_seal::Key;

use super::{FILE, MeetingArgs, PAGE, page, usage};
use crate::output::{self, Color, Style};
use crate::progress::Progress;
use crate::run::cluster;

/// What is asked for.
pub(crate) struct Wish {
    pub(crate) mode: Mode,
    pub(crate) meeting: MeetingArgs,
    pub(crate) job: String,
    pub(crate) node: String,
    pub(crate) run_dir: Option<PathBuf>,
    /// The command that will be run, if one will.
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
        let report = attend(&place.first, &me, &machine, wait, &mut |_| ())?;
        keep(&report, wish.run_dir.as_deref(), style);
        return Ok(report);
    };
    let passports = meeting.passports.clone().map(Passports::at);
    let past = |samples: &[Sample]| history(passports.as_ref(), samples, style);
    let report = lead(
        Lead {
            listener,
            expected: place.expected,
            mode: wish.mode,
            wait,
            min_busbw: meeting.min_busbw,
            past: &past,
        },
        &me,
        &machine,
        &mut |_, done, all| progress.at(u64::from(done), u64::from(all)),
    )?;
    drop(progress);
    keep(&report, wish.run_dir.as_deref(), style);
    if let Some(passports) = &passports
        && let Err(problem) = stamp(passports, &wish.node, &report)
    {
        let problem = format_args!("what was measured could not be added to the passports: {problem}");
        output::warning(style, problem);
    }
    Ok(report)
}

/// This program again, as one rank over NCCL.
fn rank_command() -> Vec<OsString> {
    let own = std::env::current_exe().map(PathBuf::into_os_string);
    own.map_or(Vec::new(), |own| {
        vec![own, "nccl-bench".into(), "--preflight-rank".into()]
    })
}

/// This machine, with the libraries that the environment names.
pub(super) fn machine() -> Machine {
    Machine {
        nvml_lib: std::env::var_os("PACELINE_NVML_LIB").map(PathBuf::from),
        nccl_lib: std::env::var_os("PACELINE_NCCL_LIB").map(PathBuf::from),
        cuda_lib: std::env::var_os("PACELINE_CUDA_LIB").map(PathBuf::from),
        cublas_lib: std::env::var_os("PACELINE_CUBLAS_LIB").map(PathBuf::from),
        rank: rank_command(),
    }
}

/// Runs one on machines that are not there.
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
    let report = conduct(&mut fleet, brief, &|_| Vec::new(), &mut |_, done, all| {
        progress.at(u64::from(done), u64::from(all));
    });
    drop(progress);
    keep(&report, wish.run_dir.as_deref(), style);
    Ok(report)
}

/// What is known of the past. That it cannot be read is no reason not to measure.
fn history(passports: Option<&Passports>, samples: &[Sample], style: Style) -> Vec<Past> {
    let Some(passports) = passports else {
        return Vec::new();
    };
    match passports.read() {
        Ok(history) => {
            if history.broken > 0 {
                let lines = history.broken;
                output::warning(
                    style,
                    format_args!("{lines} lines of the passports cannot be read and are left out"),
                );
            }
            history.past(samples)
        }
        Err(problem) => {
            output::warning(style, format_args!("the passports cannot be read: {problem}"));
            Vec::new()
        }
    }
}

/// preflight.json and preflight.html, each whole or not at all. What was found counts also where it cannot be kept: all
/// nodes must come to the same.
fn keep(report: &Report, run_dir: Option<&Path>, style: Style) {
    let Some(dir) = run_dir else { return };
    let write = |name: &str, bytes: Vec<u8>| {
        fs::create_dir_all(dir)?;
        let own = dir.join(format!(".{name}.{}", std::process::id()));
        fs::write(&own, bytes)?;
        fs::rename(own, dir.join(name))
    };
    let json = serde_json::to_vec(report).map_err(std::io::Error::other);
    let written = json
        .and_then(|json| write(FILE, json))
        .and_then(|()| write(PAGE, page::page(report).into_bytes()));
    if let Err(problem) = written {
        let dir = dir.display();
        output::warning(
            style,
            format_args!("{FILE} cannot be written to {dir}: {problem}"),
        );
    }
}

fn stamp(passports: &Passports, node: &str, report: &Report) -> std::io::Result<()> {
    let at = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |span| span.as_secs());
    let stamps: Vec<Stamp> = report
        .samples
        .iter()
        // That nothing came through is told, and is no measurement of a link.
        .filter(|sample| sample.value > 0.0 || sample.metric == Metric::PairLoss)
        .map(|sample| Stamp {
            at,
            job: report.job.0.clone(),
            well: report.outcome == Outcome::Ok || !accused(report, sample),
            place: sample.place.clone(),
            metric: sample.metric,
            conditions: sample.conditions.clone(),
            value: sample.value,
        })
        .collect();
    passports.add(node, &stamps)
}

/// Whether something was found against what a sample is of.
fn accused(report: &Report, sample: &Sample) -> bool {
    report
        .findings
        .iter()
        .any(|noted| noted.metric() == Some(sample.metric) && noted.concerns(&sample.place))
}
