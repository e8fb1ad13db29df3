//! Two programs of a Kubernetes cluster. `inject` puts Paceline into pods as they are made, by a webhook that answers one kind of
//! question (AdmissionReview v1 about a pod that is to be created), asks nobody anything, and never says no: health of a job is no
//! reason not to start it. `remediate` takes verdicts about nodes.
//!
//! - [`webhook`]: questions of the API server and their answers, with metrics; `listener`: connections with TLS.
//! - [`certificate`]: what is shown to whoever connects, from files or of our own making, for both programs.
//! - [`control`]: beside the webhook, in one replica: the jobs' Secrets, pods that have no Paceline.
//! - [`api`], [`lease`]: the cluster's API server, and which replica acts.
//! - [`remediate`]: the other program. [`release`]: what both have put into the cluster is taken off.
//! - [`timestamp`]: times as objects of Kubernetes have them.

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

/// Exit code of a command line that makes no sense (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;

/// The whole program.
pub fn main() -> ExitCode {
    let line = match Line::try_parse() {
        Ok(line) => line,
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

/// A line on stderr. Nobody may read it; that is no reason to stop.
fn say(text: impl std::fmt::Display) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "paceline-operator: {text}");
}
