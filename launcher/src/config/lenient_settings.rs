//! Ignores, with a warning, unreadable settings that the user of this command did not type. These are variables and, in
//! a pod, all configuration files. Outside a pod, the only such file is the site's. Mistakes on the command line remain
//! errors.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory as _, Parser as _};
use paceline_sidecar::sink::notify::Receiver;

use crate::cli::{Cli, Command};
use crate::config::{self, Surroundings};
use crate::output::{Color, Style, warning};
use crate::run;

const NOTIFY: &str = "PACELINE_NOTIFY";
/// Prefix of errors about remedies that are not available.
const ON_FAULT: &str = "--on-fault ";
/// Variables to disable when a file is ignored, because the file may have restricted them. Its contents are unknown.
const FILE_BOUNDS: [&str; 2] = ["PACELINE_HTTP", "PACELINE_ACT"];

/// Returns true if Paceline was injected into this container or runs as the pod's sidecar container.
pub(crate) fn is_in_pod() -> bool {
    let mut typed = env::args_os().take_while(|word| word != "--");
    env::var_os("PACELINE_POD").is_some() || typed.any(|word| word == "--pod")
}

/// Ignores unreadable settings. Call it before anything else runs in this process, because it changes the environment.
pub(crate) fn unreadable_settings() {
    keep_receivers();
    say_closed_files();
    while let Err(problem) = read() {
        let Some(piece) = culprit(&problem) else {
            return;
        };
        spare(&piece, &problem);
    }
}

/// Ignores variables that `paceline run` cannot read, also outside pods: they come from a shell profile or a job
/// template, and the job must start anyway. Ignores none of them if that would do more than the command line asked for.
/// Call it before anything else runs in this process, because it changes the environment.
pub(crate) fn unreadable_variables() {
    let typed: Vec<String> = env::args_os()
        .skip(1)
        .take_while(|word| word != "--")
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if !typed.iter().any(|word| word == "run") {
        return;
    }
    let bounded = |word: &String| ["--act", "--http"].contains(&&**word) || word.starts_with("--http=");
    let is_bound_typed = typed.iter().any(bounded);
    keep_receivers();
    while let Err(problem) = read() {
        let Some(piece) = variables()
            .find(|piece| piece.is_named_by(&problem) || piece.is_flag_in(&problem))
            .or_else(|| variables().find(|piece| piece.tried().is_none()))
            // If several variables cannot be read, take one whose removal changes the error.
            .or_else(|| variables().find(|piece| piece.tried().as_deref() != Some(&problem)))
        else {
            return;
        };
        if is_bound_typed && !piece.bound().is_empty() {
            return;
        }
        spare(&piece, &problem);
    }
}

/// Returns all PACELINE_ variables.
fn variables() -> impl Iterator<Item = Piece> {
    let is_ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"PACELINE_");
    let all: Vec<_> = env::vars_os().filter(|(name, _)| is_ours(name)).collect();
    all.into_iter().map(|(name, value)| Piece::Variable(name, value))
}

/// Ignores the site's file if it keeps `paceline run` from starting. Call it before anything else runs in this process,
/// because it changes the environment.
pub(crate) fn unreadable_site_file() {
    let Some(file) = Surroundings::real()
        .files
        .pop()
        .filter(|file| file.symlink_metadata().is_ok())
    else {
        return;
    };
    let matches = Cli::command().try_get_matches();
    let Some(run) = matches
        .as_ref()
        .ok()
        .and_then(|found| found.subcommand_matches("run"))
    else {
        return;
    };
    // Keep the file if the command line sets a value that the file may have restricted. The value must never take
    // effect without these restrictions.
    let mut bounded = ["http", "act"].into_iter();
    if bounded.any(|id| run.value_source(id) == Some(ValueSource::CommandLine)) {
        return;
    }
    let Err(problem) = read() else { return };
    let piece = Piece::File(file);
    if piece.is_named_by(&problem) {
        spare(&piece, &problem);
    } else if problem.starts_with(ON_FAULT) && piece.tried().is_none() {
        // This command cannot use the file's on_fault. The rest of the file applies.
        say(format_args!(
            "on_fault of {} is ignored: {}",
            piece.name().display(),
            first_line(&problem)
        ));
        set("PACELINE_ON_FAULT".as_ref(), "log".as_ref());
    }
}

/// Prints a warning and continues without the piece.
fn spare(piece: &Piece, problem: &str) {
    let first = first_line(problem);
    let more = if piece.hides_observe() {
        "; its [observe], or part of it, cannot be read and is ignored too: those findings also send alerts"
    } else {
        ""
    };
    let bound_too = match piece {
        Piece::File(_) => {
            "; PACELINE_HTTP and PACELINE_ACT, and http and act of other files, are ignored with it"
        }
        Piece::Variable(..) => "",
    };
    say(format_args!(
        "{} is ignored: {first}{more}{bound_too}",
        piece.name().display()
    ));
    for name in piece.bound() {
        match piece {
            // Set the variable to a harmless value. If it were removed, a value from a file would apply.
            Piece::Variable(..) => set(name.as_ref(), harmless(name).as_ref()),
            Piece::File(_) => forget(name.as_ref()),
        }
    }
    piece.leave_out();
}

fn first_line(problem: &str) -> &str {
    let first = problem.lines().next().unwrap_or("").trim_start_matches("error: ");
    first.split("; known are: ").next().unwrap_or(first)
}

/// A source of settings that can be ignored.
enum Piece {
    /// A PACELINE_ variable and its value.
    Variable(OsString, OsString),
    /// A configuration file. In a container, the image may have one for its own purposes.
    File(PathBuf),
}

impl Piece {
    fn name(&self) -> &OsStr {
        match self {
            Piece::Variable(name, _) => name,
            Piece::File(path) => path.as_os_str(),
        }
    }

    /// Returns true if the error message begins with this piece's name.
    fn is_named_by(&self, problem: &str) -> bool {
        let rest = problem.strip_prefix(&*self.name().to_string_lossy());
        rest.is_some_and(|rest| rest.starts_with(':'))
    }

    /// Returns true if clap's error message names the flag of this variable, and the message changes without the
    /// variable.
    fn is_flag_in(&self, problem: &str) -> bool {
        let name = self
            .name()
            .to_string_lossy()
            .to_ascii_lowercase()
            .replace('_', "-");
        let flag = name.strip_prefix("paceline-");
        // clap writes the flag with or without the name of its value.
        let is_named =
            |flag| problem.contains(&format!("'--{flag} ")) || problem.contains(&format!("'--{flag}'"));
        flag.is_some_and(is_named) && self.tried().as_deref() != Some(problem)
    }

    fn leave_out(&self) {
        match self {
            Piece::Variable(name, _) => forget(name),
            Piece::File(path) => config::leave_out(path),
        }
    }

    /// Returns true if this is a file whose `[observe]` section may list more than can be read.
    fn hides_observe(&self) -> bool {
        matches!(self, Piece::File(path) if config::observed(path).is_cut)
    }

    /// Returns the error that remains if this piece is ignored.
    fn tried(&self) -> Option<String> {
        self.leave_out();
        let left = read().err();
        match self {
            Piece::Variable(name, value) => set(name, value),
            Piece::File(path) => config::take_up(path),
        }
        left
    }

    /// Returns the variables to disable with this piece, because without it they make no sense or would do more than
    /// requested.
    fn bound(&self) -> &'static [&'static str] {
        match self {
            Piece::Variable(name, _) => name.to_str().map_or(&[], bound),
            Piece::File(_) => &FILE_BOUNDS,
        }
    }
}

/// Returns the value that disables a variable.
fn harmless(name: &str) -> &'static str {
    match name {
        "PACELINE_ACT" => "false",
        _ => "127.0.0.1:0",
    }
}

fn bound(name: &str) -> &'static [&'static str] {
    match name.strip_prefix("PACELINE_").unwrap_or_default() {
        // Without its token or certificate, the page must stay on loopback.
        "HTTP_TOKEN_FILE" | "HTTP_CERT" | "HTTP_KEY" => &["PACELINE_HTTP"],
        "ON_FAULT" | "REMEDY_LIMIT" | "REMEDY_LEDGER" | "CHECKPOINT_SIGNAL" | "CHECKPOINT_WAIT"
        | "STOP_GRACE" | "REQUEUE_COMMAND" => &["PACELINE_ACT"],
        _ => &[],
    }
}

/// Reads all settings that are checked before the start, and returns the first error.
fn read() -> Result<(), String> {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(problem) => {
            let is_help = matches!(
                problem.kind(),
                ErrorKind::DisplayHelp
                    | ErrorKind::DisplayVersion
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            );
            return if is_help { Ok(()) } else { Err(problem.to_string()) };
        }
    };
    let checked = match &cli.command {
        Command::Run(args) => run::check(args).map(drop),
        Command::Sidecar(args) if args.pod => args.http.read().map(drop).and(args.doors.read().map(drop)),
        _ => Ok(()),
    };
    checked.map_err(|problem| format!("{problem:#}"))
}

/// Returns the piece that causes the error. The first choice is the piece that the message names. The second is one
/// without which reading succeeds, and the third is one without which it fails differently. The order matters because
/// ignoring a valid piece may cause an earlier error: a certificate needs its key, and only PACELINE_KEY_OPTIONAL
/// permits a missing key.
fn culprit(problem: &str) -> Option<Piece> {
    let Surroundings { files, left_out, .. } = Surroundings::real();
    let files = files.into_iter().filter(|file| !left_out.contains(file));
    let files = files.map(Piece::File);
    let mut tried: Vec<(Piece, Option<String>)> = variables()
        .chain(files)
        .map(|piece| {
            let left = piece.tried();
            (piece, left)
        })
        .filter(|(_, left)| left.as_deref() != Some(problem))
        .collect();
    let named = tried.iter().position(|(piece, _)| piece.is_named_by(problem));
    let cures = tried.iter().position(|(_, left)| left.is_none());
    let at = named.or(cures).or((!tried.is_empty()).then_some(0))?;
    Some(tried.swap_remove(at).0)
}

/// Warns about files that this user may not read. Such files are always ignored, but in a pod they were probably
/// mounted for Paceline.
fn say_closed_files() {
    for path in Surroundings::real().files.iter().filter(|path| path.is_file()) {
        if let Err(problem) = File::open(path) {
            say(format_args!(
                "{} is ignored: {problem}; findings that its [observe] lists also send alerts",
                path.display()
            ));
            FILE_BOUNDS.iter().for_each(|name| forget(name.as_ref()));
        }
    }
}

/// Keeps the valid receivers. An invalid one from the job's author must not disable the cluster's remediator, which
/// follows it.
fn keep_receivers() {
    let Ok(said) = env::var(NOTIFY) else { return };
    let is_some = |words: &&str| match Receiver::of(words) {
        Ok(_) => true,
        Err(problem) => {
            say(format_args!("a receiver of {NOTIFY} is ignored: {problem}"));
            false
        }
    };
    let kept: Vec<&str> = said.split_whitespace().filter(is_some).collect();
    match kept.is_empty() {
        true => forget(NOTIFY.as_ref()),
        false => set(NOTIFY.as_ref(), kept.join(" ").as_ref()),
    }
}

/// Prints the warning. If several instances were started together, only one of them prints it.
fn say(text: impl std::fmt::Display) {
    if !is_in_pod() && run::is_follower() {
        return;
    }
    warning(Style::stderr(Color::Auto), text);
}

fn forget(name: &OsStr) {
    // SAFETY: nothing else runs in this process yet.
    unsafe { env::remove_var(name) }
}

fn set(name: &OsStr, value: &OsStr) {
    // SAFETY: nothing else runs in this process yet.
    unsafe { env::set_var(name, value) }
}

#[cfg(test)]
#[path = "lenient_settings_tests.rs"]
mod tests;
