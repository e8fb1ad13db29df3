//! The sidecar of a pod. It works like the sidecar of `paceline run`, but at its end it also writes the report as a
//! page, and the verdict block to the container's log.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use paceline_health::Policy;
use paceline_sidecar::aggregator::Reported;
use paceline_sidecar::{SidecarOptions, Starter};

use crate::config;
use crate::output::{self, Color, Style};
use crate::report::{self, block, page};

/// Runs the sidecar to its end. The exit code is always 0.
pub(crate) fn command(options: SidecarOptions, color: Color) -> ExitCode {
    let is_quiet = options.quiet;
    let starter = Starter {
        reported: Some(Reported(Arc::new(move |dir| show(dir, is_quiet, color)))),
        ..config::starter()
    };
    paceline_sidecar::main(options, starter)
}

fn show(dir: &Path, is_quiet: bool, color: Color) {
    let place = dir.join(report::FILE);
    let Ok(report) = report::read(&place) else { return };
    let (policy, style) = (Policy::default(), Style::stderr(color));
    let mut places = vec![place];
    match page::write(dir, &report, &policy) {
        Ok(page) => places.push(page),
        Err(problem) => output::warning(
            style,
            format_args!("{} could not be written: {problem}", page::FILE),
        ),
    }
    if !is_quiet {
        let places: Vec<&Path> = places.iter().map(PathBuf::as_path).collect();
        output::say(block::render(&report, &policy, style, &places).trim_end());
    }
}
