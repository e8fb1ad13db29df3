//! Two programs for a Kubernetes cluster. `inject` injects Paceline into new pods by a webhook that answers one kind of
//! request (AdmissionReview v1 for pod creation) and makes no requests of its own. It always allows the pod, because a
//! job must start even if monitoring fails. `remediate` receives verdicts about nodes.
//!
//! - [`webhook`]: handles the API server's admission requests, with metrics. `listener` handles TLS connections.
//! - [`certificate`]: provides serving certificates, from files or self-signed, for both programs.
//! - [`control`]: does the work besides the webhook in one replica: Secrets for jobs, and reports of pods without
//!   Paceline.
//! - [`api`], [`lease`]: the client of the cluster's API server, and leader election.
//! - [`remediate`]: the other program. [`release`] removes what both programs have added to the cluster.
//! - [`timestamp`]: converts timestamps of Kubernetes objects.

pub mod api;
pub mod certificate;
pub mod control;
pub mod lease;
mod listener;
pub mod options;
pub mod release;
pub mod remediate;
pub mod timestamp;
pub mod webhook;

use std::process::ExitCode;

use clap::Parser;

use options::{Command, Line};
use webhook::server;

/// Exit code for an invalid command line (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;

/// Runs the program.
pub fn main() -> ExitCode {
    let line = match Line::try_parse() {
        Ok(line) => line,
        Err(problem) => {
            // A closed stderr must not change the exit code.
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
        .and_then(|runtime| runtime.block_on(run(line.command)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            say(format_args!("{problem:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Inject(options) => server::run(*options, server::asked_to_end()).await,
        Command::Remediate(options) => remediate::serve(*options).await,
        Command::Release(options) => release::run(&options).await,
    }
}

/// Prints a line to stderr. If stderr is closed, the line is lost.
fn say(text: impl std::fmt::Display) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "paceline-operator: {text}");
}
