//! Imports the JSON of nccl-tests' `-J` (2.17 and later), and reports of this program.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{ImportError, agreed, dtype, of_program, report, timing};
use crate::collective::Collective;
use crate::measure::{RankPlace, Report, Row, Timing};

/// The whole file. Unknown fields are skipped.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    version: serde_json::Value,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    config: Config,
    results: Vec<Measured>,
}

#[derive(Default, Deserialize)]
struct Config {
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    rank: usize,
    #[serde(default)]
    pid: u32,
    hostname: String,
    #[serde(default)]
    device_hex: String,
    #[serde(default)]
    device_info: String,
}

#[derive(Deserialize)]
struct Measured {
    size: u64,
    count: usize,
    #[serde(rename = "type")]
    dtype: String,
    redop: String,
    root: Root,
    #[serde(default)]
    out_of_place: Option<Half>,
    #[serde(default)]
    in_place: Option<Half>,
    #[serde(default)]
    out_of_place_per_iter: Option<PerIteration>,
    #[serde(default)]
    in_place_per_iter: Option<PerIteration>,
    #[serde(default)]
    experiment_name: String,
}

/// The root. In text form, it has leading blanks.
#[derive(Deserialize)]
#[serde(untagged)]
enum Root {
    Text(String),
    Number(i64),
}

#[derive(Deserialize)]
struct Half {
    #[serde(alias = "cpu_time")]
    time: f64,
    alg_bw: f64,
    bus_bw: f64,
    nwrong: Option<f64>,
}

#[derive(Deserialize)]
struct PerIteration {
    p50_us: f64,
    p99_us: f64,
}

/// Parses the file.
pub(super) fn read(text: &str, collective: Option<Collective>) -> Result<Report, ImportError> {
    let value: serde_json::Value = serde_json::from_str(text)?;
    if value.get("schema_version").is_some() {
        let report: Report = serde_json::from_str(text)?;
        agreed(Some(report.collective), collective)?;
        if report.results.is_empty() {
            return Err(ImportError::Empty);
        }
        return Ok(report);
    }
    // Parse the text again instead of converting the value, so that an error has a line number.
    let file: File = serde_json::from_str(text)?;
    let said = file.args.first().and_then(|program| of_program(program));
    let said = said.or_else(|| of_program(&file.results.first()?.experiment_name));
    let results = file
        .results
        .into_iter()
        .enumerate()
        .map(|(at, result)| row(at, result));
    let results: Vec<Row> = results.collect::<Result<_, _>>()?;
    let ranks = file.config.devices.into_iter().map(|device| RankPlace {
        rank: device.rank,
        host: device.hostname,
        pid: device.pid,
        device: format!("[{}] {}", device.device_hex, device.device_info),
    });
    let version = file
        .version
        .as_str()
        .map_or_else(|| "nccl-tests".into(), |text| format!("nccl-tests {text}"));
    let details = BTreeMap::from([("imported".to_owned(), "json".to_owned())]);
    report(version, details, (said, collective), ranks.collect(), results)
}

fn row(at: usize, result: Measured) -> Result<Row, ImportError> {
    let broken = |field: &str, what: String| ImportError::Value {
        place: format!("results[{at}].{field}"),
        what,
    };
    let root = match &result.root {
        Root::Number(root) => *root,
        Root::Text(text) => text
            .trim()
            .parse()
            .map_err(|_| broken("root", format!("{text} is not a number")))?,
    };
    let half = |field: &str,
                half: Option<Half>,
                details: Option<PerIteration>|
     -> Result<Option<Timing>, ImportError> {
        let Some(half) = half else { return Ok(None) };
        let values = [half.time, half.alg_bw, half.bus_bw];
        if values.iter().chain(&half.nwrong).any(|value| *value < 0.0) {
            return Err(broken(field, "negative".into()));
        }
        let mut timing = timing(values, half.nwrong.map(|wrong| wrong as u64));
        if let Some(details) = details {
            (timing.p50, timing.p99) = (details.p50_us, details.p99_us);
        }
        Ok(Some(timing))
    };
    Ok(Row {
        size: result.size,
        count: result.count,
        dtype: dtype(&result.dtype).map_err(|what| broken("type", what))?,
        redop: result.redop,
        root,
        out_of_place: half("out_of_place", result.out_of_place, result.out_of_place_per_iter)?,
        in_place: half("in_place", result.in_place, result.in_place_per_iter)?,
    })
}
