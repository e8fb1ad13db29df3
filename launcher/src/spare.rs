//! What cannot be read and was written by somebody who does not sit at this command is told of and left out: in a pod a variable, most
//! often of a manifest, or a file of settings; elsewhere the site's file, with which no job of the site would start. What stands on the
//! command line was typed, and is judged as everywhere.

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
/// What problems of remedies begin with that cannot be had.
const ON_FAULT: &str = "--on-fault ";
/// What a file may have bounded: it may have said anything.
const FILE_BOUNDS: [&str; 2] = ["PACELINE_HTTP", "PACELINE_ACT"];

/// Whether this is a container that Paceline was put into, or in front of.
pub(crate) fn is_in_pod() -> bool {
    let mut typed = env::args_os().take_while(|word| word != "--");
    env::var_os("PACELINE_POD").is_some() || typed.any(|word| word == "--pod")
}

/// Leaves out what cannot be read. To be called while nothing else runs in this process.
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

/// Leaves out the site's file where `paceline run` would not start for it. To be called while nothing else runs in this process.
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
    // What was typed is never done without what the file may have bounded it with.
    let mut bounded = ["http", "act"].into_iter();
    if bounded.any(|id| run.value_source(id) == Some(ValueSource::CommandLine)) {
        return;
    }
    let Err(problem) = read() else { return };
    let piece = Piece::File(file);
    if piece.is_named_by(&problem) {
        spare(&piece, &problem);
    } else if problem.starts_with(ON_FAULT) && piece.tried().is_none() {
        // What it wants done cannot be done for this command; the rest of it holds.
        say(format_args!(
            "on_fault of {} is left out: {}",
            piece.name().display(),
            first_line(&problem)
        ));
        set("PACELINE_ON_FAULT".as_ref(), "log".as_ref());
    }
}

/// Goes on without it, and says so.
fn spare(piece: &Piece, problem: &str) {
    let first = first_line(problem);
    let more = if piece.hides_observe() {
        "; its [observe], or some of it, cannot be read and is left out too: people are told also of that"
    } else {
        ""
    };
    let bound_too = match piece {
        Piece::File(_) => {
            "; PACELINE_HTTP and PACELINE_ACT, and other files' http and act, are left out with it"
        }
        Piece::Variable(..) => "",
    };
    say(format_args!(
        "{} is left out: {first}{more}{bound_too}",
        piece.name().display()
    ));
    piece.bound().iter().for_each(|name| forget(name.as_ref()));
    piece.leave_out();
}

fn first_line(problem: &str) -> &str {
    let first = problem.lines().next().unwrap_or("").trim_start_matches("error: ");
    first.split("; known are: ").next().unwrap_or(first)
}

/// What is said in one place, and can be left out.
enum Piece {
    /// A variable of ours, and its value.
    Variable(OsString, OsString),
    /// A file of settings: an image may have one for its own purposes.
    File(PathBuf),
}

impl Piece {
    fn name(&self) -> &OsStr {
        match self {
            Piece::Variable(name, _) => name,
            Piece::File(path) => path.as_os_str(),
        }
    }

    /// It is what the problem begins with.
    fn is_named_by(&self, problem: &str) -> bool {
        let rest = problem.strip_prefix(&*self.name().to_string_lossy());
        rest.is_some_and(|rest| rest.starts_with(':'))
    }

    fn leave_out(&self) {
        match self {
            Piece::Variable(name, _) => forget(name),
            Piece::File(path) => config::leave_out(path),
        }
    }

    /// It may want more observed only than can be read.
    fn hides_observe(&self) -> bool {
        matches!(self, Piece::File(path) if config::observed(path).is_cut)
    }

    /// What is left to read without it.
    fn tried(&self) -> Option<String> {
        self.leave_out();
        let left = read().err();
        match self {
            Piece::Variable(name, value) => set(name, value),
            Piece::File(path) => config::take_up(path),
        }
        left
    }

    /// What makes no sense without it, or would do more than was asked for.
    fn bound(&self) -> &'static [&'static str] {
        match self {
            Piece::Variable(name, _) => name.to_str().map_or(&[], bound),
            Piece::File(_) => &FILE_BOUNDS,
        }
    }
}

fn bound(name: &str) -> &'static [&'static str] {
    match name.strip_prefix("PACELINE_").unwrap_or_default() {
        // A page that was to be protected stays on loopback.
        "HTTP_TOKEN_FILE" | "HTTP_CERT" | "HTTP_KEY" => &["PACELINE_HTTP"],
        "ON_FAULT" | "REMEDY_LIMIT" | "REMEDY_LEDGER" | "CHECKPOINT_SIGNAL" | "CHECKPOINT_WAIT"
        | "STOP_GRACE" | "REQUEUE_COMMAND" => &["PACELINE_ACT"],
        _ => &[],
    }
}

/// Reads all that is read before anything begins, and says what stops it.
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

/// What the problem names, or that without which it can be read, or fails for another reason. Without a good one it may fail sooner:
/// a certificate needs its key, and only PACELINE_KEY_OPTIONAL excuses a key that is missing.
fn culprit(problem: &str) -> Option<Piece> {
    let is_ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"PACELINE_");
    let variables: Vec<_> = env::vars_os().filter(|(name, _)| is_ours(name)).collect();
    let variables = variables
        .into_iter()
        .map(|(name, value)| Piece::Variable(name, value));
    let Surroundings { files, left_out, .. } = Surroundings::real();
    let files = files.into_iter().filter(|file| !left_out.contains(file));
    let files = files.map(Piece::File);
    let mut tried: Vec<(Piece, Option<String>)> = variables
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

/// A file that this user may not read says nothing, as everywhere; in a pod it was most often mounted for us.
fn say_closed_files() {
    for path in Surroundings::real().files.iter().filter(|path| path.is_file()) {
        if let Err(problem) = File::open(path) {
            say(format_args!(
                "{} is left out: {problem}; people are told also of what its [observe] may want observed only",
                path.display()
            ));
            FILE_BOUNDS.iter().for_each(|name| forget(name.as_ref()));
        }
    }
}

/// Of several receivers those that are some: the cluster's remediator may stand behind a mistake of the job's author.
fn keep_receivers() {
    let Ok(said) = env::var(NOTIFY) else { return };
    let is_some = |words: &&str| match Receiver::of(words) {
        Ok(_) => true,
        Err(problem) => {
            say(format_args!("a receiver of {NOTIFY} is left out: {problem}"));
            false
        }
    };
    let kept: Vec<&str> = said.split_whitespace().filter(is_some).collect();
    match kept.is_empty() {
        true => forget(NOTIFY.as_ref()),
        false => set(NOTIFY.as_ref(), kept.join(" ").as_ref()),
    }
}

/// Once, where others were started with us.
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
mod tests {
    use paceline_inject::{Settings, Wish};
    use paceline_sidecar::aggregator::{place, segments};
    use paceline_sidecar::sink::http::Place;
    use serde_json::json;

    /// What the injector lets through is what the program reads; what the program would not read it leaves out, with a note.
    #[test]
    fn annotations_are_judged_as_the_program_judges() {
        let is_taken = |name: &str, text: &str| {
            let pod = json!({ "metadata": { "annotations": { format!("paceline.dev/{name}"): text } } });
            let mut notes = Vec::new();
            Wish::of(&pod, &Settings::default(), &mut notes);
            notes.is_empty()
        };
        let addresses = [
            ":9810",
            "a:9810",
            "eth0:9810",
            "10.0.0.1:9810",
            "[::1]:9810",
            "fd00::7:9810",
            "0.0.0.0:1",
        ];
        let wrong = [
            "9810",
            "eth0",
            "eth0:",
            "1.2.3:4",
            "eth0:70000",
            "a/b:1",
            "averyveryverylongname:1",
            "::",
            "[eth0]:1",
        ];
        for text in addresses
            .into_iter()
            .chain(wrong)
            .filter(|text| text.contains(':'))
        {
            assert_eq!(is_taken("metrics", text), text.parse::<Place>().is_ok(), "{text}");
        }
        // A port alone stands behind the pod's address, of either family.
        for (text, is_good) in [
            ("9810", true),
            ("+9810", false),
            ("0", false),
            ("70000", false),
            ("eth0", false),
        ] {
            let places = [format!("10.0.0.1:{text}"), format!("fd00::7:{text}")];
            let is_read = places.iter().all(|place| place.parse::<Place>().is_ok());
            assert_eq!(is_taken("metrics", text), is_good, "{text}");
            assert!(is_read || !is_good, "{text}");
        }
        let hosts = [
            "host",
            "host:1",
            "host:99999",
            "host:0",
            "host:",
            ":1",
            "h/x",
            "fd00::1",
            "[fd00::1]:7",
            "a:b",
        ];
        let relays = [
            "r:1,host",
            "r:1,s:2,host:3",
            "r,host",
            "r:1,",
            ",",
            "r:1,host:99999",
        ];
        for text in hosts.into_iter().chain(relays) {
            assert_eq!(is_taken("aggregator", text), place::check(text).is_ok(), "{text}");
        }
        for (text, is_good) in [
            ("512MiB", true),
            ("1GiB", true),
            ("0MiB", false),
            ("8GB", false),
            ("much", false),
        ] {
            assert_eq!(is_taken("journal-bytes", text), is_good, "{text}");
            assert!(!is_good || segments::parse_bytes(text).is_ok(), "{text}");
        }
    }
}
