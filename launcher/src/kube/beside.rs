//! The sidecar of a pod: as that of `run`, and at its end the report as a page, and the verdict block for whoever reads the container's log.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use paceline_health::Policy;
use paceline_sidecar::SidecarOptions;

use crate::config;
use crate::output::{self, Color, Style};
use crate::report::{self, block, page};

/// Runs it to its end. Its exit code is always 0.
pub(crate) fn command(options: SidecarOptions, color: Color) -> ExitCode {
    let began = SystemTime::now();
    let place = options.run_dir.as_ref().map(|dir| dir.join(report::FILE));
    let is_quiet = options.quiet;
    let code = paceline_sidecar::main(options, Some(config::reload()));
    let Some(place) = place else {
        return code;
    };
    let written = place.metadata().and_then(|meta| meta.modified());
    if written.is_ok_and(|at| at >= began)
        && let Ok(report) = report::read(&place)
    {
        let (policy, style) = (Policy::default(), Style::stderr(color));
        let mut places = vec![place.clone()];
        match page::write(place.parent().unwrap_or(&place), &report, &policy) {
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
    code
}
