//! The sidecar of a pod: as that of `run`, and at its end the verdict block, for whoever reads the container's log.

use std::process::ExitCode;
use std::time::SystemTime;

use paceline_health::Policy;
use paceline_sidecar::SidecarOptions;

use crate::config;
use crate::output::{self, Color, Style};
use crate::report::{self, block};

/// Runs it to its end. Its exit code is always 0.
pub(crate) fn command(options: SidecarOptions, color: Color) -> ExitCode {
    let began = SystemTime::now();
    let place = options.run_dir.as_ref().map(|dir| dir.join(report::FILE));
    let is_quiet = options.quiet;
    let code = paceline_sidecar::main(options, Some(config::reload()));
    let Some(place) = place.filter(|_| !is_quiet) else {
        return code;
    };
    let written = place.metadata().and_then(|meta| meta.modified());
    if written.is_ok_and(|at| at >= began)
        && let Ok(report) = report::read(&place)
    {
        let style = Style::stderr(color);
        output::say(block::render(&report, &Policy::default(), style, Some(&place)).trim_end());
    }
    code
}
