//! The webhook that puts Paceline into pods as they are made. It answers one kind of question (AdmissionReview v1 about a pod
//! that is to be created), asks nobody anything, and never says no: health of a job is no reason not to start it.
//!
//! - [`review`]: a question's bytes in, an answer out; no socket is known there.
//! - [`server`]: connections, TLS, and the end in order.
//! - [`certificate`]: the certificate, read again when its files change.
//! - [`metrics`]: what the program tells of itself.

pub mod certificate;
pub mod metrics;
pub mod options;
pub mod review;
pub mod server;

use std::process::ExitCode;

use clap::Parser;

use options::Options;

/// Exit code of a command line that makes no sense (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;

/// The whole program.
pub fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(problem) => {
            // A closed stderr is no reason to fail in another way.
            let _ = problem.print();
            return ExitCode::from(if problem.use_stderr() { USAGE } else { 0 });
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(2)
        .enable_all()
        .build();
    let ended = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(server::run(options, server::asked_to_end())));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            say(format_args!("{problem:#}"));
            ExitCode::FAILURE
        }
    }
}

/// A line on stderr. Nobody may read it; that is no reason to stop.
fn say(text: impl std::fmt::Display) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "paceline-operator: {text}");
}
