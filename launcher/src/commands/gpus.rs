//! `paceline gpus`: lists the signals that can be read from this machine's GPUs, using the same code that monitors a
//! job.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use paceline_health::event::{Access, GpuProcess, Missing, Reading};
use paceline_health::text::sanitize;
use paceline_sidecar::source::nvml::{Refusal, Survey, SurveyedGpu, survey};
use serde::Serialize;

use crate::cli::GpusArgs;
use crate::output::{self, Color, Paint, Style};

/// Version of the JSON output.
const SCHEMA_VERSION: u32 = 1;
/// Exit code if a GPU could not be read.
const COULD_NOT_TELL: u8 = 3;

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Found {
    schema_version: u32,
    /// Whether the GPUs can be read.
    access: Access,
    /// The reason why the GPUs cannot be read, if they cannot.
    text: String,
    /// The driver, its GPUs and their signals.
    #[serde(flatten)]
    survey: Survey,
}

/// Lists the GPUs.
pub(crate) fn command(args: &GpusArgs, color: Color) -> anyhow::Result<ExitCode> {
    let found = Found::of(survey(
        args.nvml_lib.as_deref(),
        Duration::from_secs(args.seconds),
    ));
    if args.json {
        output::print(&(serde_json::to_string(&found)? + "\n"))?;
    } else {
        output::show(&found.render(Style::stdout(color)))?;
    }
    Ok(if found.is_complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(COULD_NOT_TELL)
    })
}

impl Found {
    fn of(survey: Result<Survey, Refusal>) -> Found {
        let (access, text, survey) = match survey {
            Ok(survey) => (Access::Readable, String::new(), survey),
            Err(refusal) => {
                let nothing = Survey {
                    driver: "".into(),
                    gpus: Vec::new(),
                };
                (refusal.access, refusal.text, nothing)
            }
        };
        Found {
            schema_version: SCHEMA_VERSION,
            access,
            text,
            survey,
        }
    }

    fn is_complete(&self) -> bool {
        let readable = |gpu: &SurveyedGpu| gpu.access == Access::Readable;
        self.access == Access::Readable && self.survey.gpus.iter().all(readable)
    }

    fn render(&self, style: Style) -> String {
        let mut text = String::new();
        if self.access != Access::Readable {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{}: {}",
                style.paint(Paint::Warn, words(self.access)),
                self.text
            );
            return text;
        }
        let _ = writeln!(text, "driver {}", self.survey.driver);
        for gpu in &self.survey.gpus {
            text += &render(gpu, style);
        }
        text
    }
}

fn render(gpu: &SurveyedGpu, style: Style) -> String {
    let uuid = gpu.gpu_uuid.as_ref().map_or("(no UUID)", |uuid| uuid.as_str());
    let title = format!("GPU {}  {uuid}", gpu.index);
    let mut text = format!("\n{}", style.paint(Paint::Strong, title));
    for known in [&*gpu.pci_bus_id, &*gpu.model] {
        if !known.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(text, "  {}", sanitize::name(known));
        }
    }
    text.push('\n');
    if gpu.access != Access::Readable {
        let _ = writeln!(
            text,
            "  {}: {}",
            style.paint(Paint::Warn, words(gpu.access)),
            gpu.text
        );
    }
    for (signal, reading) in &gpu.signals {
        // Show the signal's name as serde serializes it.
        let name = serde_json::to_value(signal).unwrap_or_default();
        let name = name.as_str().unwrap_or_default();
        let value = match reading {
            Reading::Value(value) => number(*value),
            Reading::Missing(Missing::Unsupported) => style.paint(Paint::Faint, "unsupported"),
            Reading::Missing(Missing::Error(error)) => style.paint(Paint::Warn, format!("error: {error}")),
        };
        let _ = writeln!(text, "  {name:<28} {value}");
    }
    for process in &gpu.processes {
        let _ = writeln!(text, "  held by {}", holder(process));
    }
    text
}

/// Formats a number with at most four decimals and without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn holder(process: &GpuProcess) -> String {
    let mut text = format!("{} {}", process.pid, sanitize::name(&process.name));
    if let Some(bytes) = process.used_bytes {
        let _ = write!(text, " ({:.1} GiB)", bytes as f64 / f64::from(1 << 30));
    }
    text
}

fn words(access: Access) -> &'static str {
    match access {
        Access::Readable => "readable",
        Access::Absent => "no NVIDIA driver here",
        Access::NoLibrary => "no NVML library",
        Access::NoDriver => "the driver does not answer",
        Access::VersionMismatch => "library and driver differ in version",
        Access::NoPermission => "no permission",
        Access::NoDevice => "no GPU",
        Access::Lost => "lost",
        Access::Silent => "silent",
        Access::Failing => "fails",
        Access::NoEvents => "no events",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (value, wanted) in [
            (0.0, "0"),
            (612.3, "612.3"),
            (-3.0, "-3"),
            (8.589_934_592e10, "85899345920"),
            (0.542_51, "0.5425"),
        ] {
            assert_eq!(number(value), wanted);
        }
    }
}
