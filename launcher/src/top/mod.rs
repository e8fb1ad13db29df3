//! `paceline top`: a running job in a terminal. It queries the aggregator like the live page (docs/page.md), shows as
//! much as fits, and changes nothing.
//!
//! - `client`: `link` is the connection to the aggregator, `place` and `choose` find the job, and `response` parses its
//!   data.
//! - `job` has the state of the job. `app` has the state of the view, and handles keys. `once` prints JSON.
//! - `screen`: `view`, `answer`, `table`, `detail` and `say` format the screen as lines, `paper` draws lines on a
//!   screen, and `terminal` controls the terminal.

mod app;
mod client;
mod job;
mod once;
mod screen;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use paceline_sidecar::sink::http::visit::{Passport, VisitError, Visitor};

use self::app::App;
use self::client::choose;
use self::client::link::Line;
use self::client::place::Target;
use self::client::response::{News, Text};
use self::job::Sort;
use self::screen::{paper, terminal, view};
use crate::output::{self, Color, NoJob, Style, Usage};

/// `paceline top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Keys: arrows, PgUp, PgDn (or j, k); Enter a rank; d the finding; n, p the next, the one \
        before; / filter; s order; space pauses; ? all keys; q quits. Without a terminal it prints \
        once.\n\nExamples: paceline top, paceline top paceline-4711.0, \
paceline top --once --json 127.0.0.1:9810"
)]
pub(crate) struct TopArgs {
    /// A run directory, or the address of the job's live page (HOST:PORT, https://HOST:PORT) [default: this user's newest
    /// running job on this host].
    #[arg(value_name = "RUN|ADDRESS", env = "PACELINE_RUN_DIR")]
    run: Option<String>,
    /// Print once and exit.
    #[arg(long)]
    once: bool,
    /// Print everything once, as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Number of ranks to print.
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
    /// The order of ranks.
    #[arg(long, value_enum, default_value_t, value_name = "ORDER")]
    sort: Sort,
    /// Only ranks that match: a rank number, part of a node or GPU name, a finding.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// File with the page's access token, if it needs one.
    #[arg(long, env = "PACELINE_HTTP_TOKEN_FILE", value_name = "FILE")]
    http_token_file: Option<PathBuf>,
    /// CA certificates (PEM) that verify the page's TLS certificate [default: those of the system, for https://].
    #[arg(long, env = "PACELINE_HTTP_CERT", value_name = "FILE")]
    http_cert: Option<PathBuf>,
}

/// Shows the job.
pub(crate) fn command(args: &TopArgs, color: Color) -> anyhow::Result<ExitCode> {
    let scheme = if args.http_cert.is_some() { "https" } else { "http" };
    let passport = Passport::read(args.http_token_file.as_deref(), args.http_cert.as_deref())
        .map_err(|problem| Usage(problem.to_string()))?;
    let visitor = Visitor::with(passport);
    let (line, news, aside) = match &args.run {
        Some(typed) => {
            let (line, news) = named(Target::of(typed, scheme)?, visitor, scheme)?;
            (line, news, None)
        }
        None => choose::newest(visitor, scheme)?,
    };
    let mut app = App {
        address: line.base.clone(),
        sort: args.sort,
        filter: args.filter.clone(),
        aside,
        ..App::default()
    };
    app.job.take(news);
    app.put_in_order();
    app.pass(Instant::now());
    let style = Style::stdout(color);
    if args.json {
        if let Some(aside) = &app.aside {
            output::warning(Style::stderr(color), &aside.text);
        }
        output::print(&once::json(&app)?)?;
    } else if args.once || !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        let lines = view::plain(&app, style.width, args.rows, style);
        output::print(&paper::print(&lines, style))?;
    } else {
        let (epoch, serial) = (app.job.epoch.as_str().to_owned(), app.job.serial);
        let heard = line.follow(epoch, serial)?;
        terminal::run(app, &heard, style)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The state of the newest running job on this machine.
pub(crate) struct Seen {
    pub(crate) job: String,
    pub(crate) steps: u64,
    /// The sources of the self-times, from S0 to S3.
    pub(crate) signals: Vec<String>,
    /// What limits the verdicts.
    pub(crate) notes: Vec<String>,
}

/// Queries this user's newest job on this host.
pub(crate) fn newest() -> anyhow::Result<Seen> {
    let passport = Passport::read(None, None).map_err(|problem| Usage(problem.to_string()))?;
    let (_, news, _) = choose::newest(Visitor::with(passport), "http")?;
    let report = news.report.unwrap_or_default();
    let strings = |texts: &[Text]| texts.iter().map(ToString::to_string).collect();
    Ok(Seen {
        job: report.job.to_string(),
        steps: report.steps,
        signals: strings(&report.coverage.signals),
        notes: strings(&report.coverage.notes),
    })
}

/// Connects to the job that was given.
fn named(target: Target, visitor: Visitor, scheme: &'static str) -> anyhow::Result<(Line, News)> {
    let hint = || target.hint();
    let base = target
        .base(scheme, visitor.has_token())
        .map_err(|problem| NoJob(format!("{problem}{}", hint())))?;
    let line = Line {
        target: target.clone(),
        visitor,
        scheme,
        base,
    };
    match line.ask() {
        Ok(news) => Ok((line, news)),
        Err(problem @ VisitError::Token) => Err(Usage(format!("{}: {problem}", line.base)).into()),
        Err(problem) => Err(NoJob(format!("{}: {problem}{}", line.base, hint())).into()),
    }
}

#[cfg(test)]
mod tests;
