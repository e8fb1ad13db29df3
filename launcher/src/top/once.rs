//! Prints all data as JSON for scripts. docs/wire.md describes the format, and `schema_version` changes with it.

use serde::Serialize;

use super::app::{App, Link};
use super::client::response::{Coverage, Ending, GpuNow, StepTimes, Verdict};
use super::job::RankNow;

/// Version of the JSON output.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Told<'a> {
    schema_version: u32,
    job: &'a str,
    address: &'a str,
    run_dir: &'a str,
    state: &'static str,
    world_size: u64,
    nodes: usize,
    steps: u64,
    median_step_s: Option<f64>,
    last_step: Option<StepTimes>,
    /// Time in seconds since the last step that all ranks finished.
    still_s: f64,
    duration_s: f64,
    goodput_ratio: Option<f64>,
    gpu_hours: f64,
    lost_gpu_hours: f64,
    lost_cost: Option<f64>,
    coverage: Coverage,
    findings: u64,
    raised: u64,
    verdicts: &'a [Verdict],
    ranks: Vec<RankTold<'a>>,
    end: Option<&'a Ending>,
}

#[derive(Serialize)]
struct RankTold<'a> {
    rank: u32,
    node: Option<&'a str>,
    up: bool,
    slowdown_ratio: Option<f64>,
    step: Option<u64>,
    steps_behind: Option<u16>,
    step_s: Option<f64>,
    phases: Option<Phases>,
    gpu: Option<GpuTold<'a>>,
    /// The id of the finding that is shown next to the rank.
    verdict: Option<u64>,
}

/// The shares of the phases in the last step.
#[derive(Serialize)]
struct Phases {
    data: f64,
    compute: f64,
    wait: f64,
    optimizer: f64,
    checkpoint: f64,
}

#[derive(Serialize)]
struct GpuTold<'a> {
    uuid: &'a str,
    pci: Option<&'a str>,
    model: Option<&'a str>,
    #[serde(flatten)]
    now: GpuNow,
    troubles: Vec<&'static str>,
}

/// Returns one line of JSON.
pub(super) fn json(app: &App) -> serde_json::Result<String> {
    let nothing = super::client::response::Report::default();
    let report = app.job.report.as_ref().unwrap_or(&nothing);
    let told = Told {
        schema_version: SCHEMA_VERSION,
        job: report.job.as_str(),
        address: &app.address,
        run_dir: report.dir.as_str(),
        state: match (&app.link, &report.end) {
            (Link::Ended(_), _) | (_, Some(_)) => "ended",
            (Link::Away { .. }, None) => "away",
            (Link::Live, None) => "running",
        },
        world_size: report.world,
        nodes: app.job.nodes(),
        steps: report.steps,
        median_step_s: report.median_s,
        last_step: app.job.step,
        still_s: (app.still_s * 10.0).round() / 10.0,
        duration_s: report.duration_s,
        goodput_ratio: report.cost.goodput,
        gpu_hours: report.cost.gpu_hours,
        lost_gpu_hours: report.cost.lost_gpu_hours,
        lost_cost: report.cost.lost_cost,
        coverage: report.coverage.clone(),
        findings: report.findings,
        raised: report.raised,
        verdicts: &report.verdicts,
        ranks: app.order.iter().map(|rank| of(&app.job.rank(*rank))).collect(),
        end: report.end.as_ref(),
    };
    Ok(serde_json::to_string(&told)? + "\n")
}

fn of<'a>(now: &RankNow<'a>) -> RankTold<'a> {
    let round = |value: f64| (value * 1e6).round() / 1e6;
    RankTold {
        rank: now.rank,
        node: now.node.map(|node| node.as_str()),
        up: now.is_up,
        slowdown_ratio: now.slowdown().map(round),
        step: now.step,
        steps_behind: now.standing.behind,
        step_s: now.standing.took_s.map(round),
        phases: now
            .standing
            .shares
            .map(|[data, compute, wait, optimizer, checkpoint]| Phases {
                data,
                compute,
                wait,
                optimizer,
                checkpoint,
            }),
        gpu: now.gpu.as_ref().map(|gpu| GpuTold {
            uuid: gpu.uuid.as_str(),
            pci: gpu.bus.map(|bus| bus.as_str()),
            model: gpu.model.map(|model| model.as_str()),
            now: gpu.now,
            troubles: gpu.now.troubles().collect(),
        }),
        verdict: now.verdict.map(|verdict| verdict.id),
    }
}
