//! `paceline profiler`: shows what the NCCL plugin does in this node's ranks and sets how often it takes GPU times,
//! during training.
//!
//! It communicates with the plugin through the ring headers, which the plugin reads at each collective. Neither side
//! waits.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use paceline_ring::{Duty, Next, Reader, Record};
use paceline_sidecar::safe_file;
use serde::Serialize;

use crate::cli::LiveArgs;
use crate::config;
use crate::output::{self, Usage};

/// Version of the JSON output.
const SCHEMA_VERSION: u32 = 1;
/// Suffix of the file names of the plugin's rings.
const RING: &str = "-nccl.ring";
/// Prefix of the links in the run directory that lead to the nodes' ring directories.
pub(crate) const LINK: &str = "rings.";
/// Exit code if no plugin was found.
const COULD_NOT_TELL: u8 = 3;

/// `paceline profiler`.
#[derive(Debug, Args)]
#[command(
    after_help = "It applies to the ranks of this node; run it on all nodes of the job, for example with srun. \
        Exit codes: 0, or 3 if no plugin is loaded here.\n\nExample: paceline profiler sample 16"
)]
pub(crate) struct ProfilerArgs {
    /// New mode; without it, nothing changes.
    #[arg(value_enum)]
    what: Option<What>,
    /// For sample: GPU times in one of N windows of eight steps.
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    windows: Option<u32>,
    /// Only this rank. May be repeated.
    #[arg(long, value_name = "RANK")]
    rank: Vec<u32>,
    #[command(flatten)]
    live: LiveArgs,
    /// Print it as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// GPU times as often as by default.
    On,
    /// No GPU times; collectives are still reported.
    Off,
    /// GPU times in one of N windows of eight steps.
    Sample,
    /// Plugin disabled until the process ends.
    Stop,
}

#[derive(Debug, Serialize)]
struct Told {
    schema_version: u32,
    ranks: Vec<Seen>,
}

/// The state of one rank's plugin.
#[derive(Debug, PartialEq, Serialize)]
struct Seen {
    /// The rank, or `null` if the plugin has not reported it yet.
    rank: Option<u32>,
    pid: u32,
    /// The plugin's state: `one-of`, `never`, `took-itself-out`, `stopped` or `unknown`.
    state: &'static str,
    /// GPU times are taken in one of this many windows of eight steps.
    one_of: Option<u32>,
    /// The last request. 0 means that there was none, and 4294967295 means "never".
    asked: u32,
    calls: u64,
    cost_ns: u64,
    dropped: u64,
    given_up: u64,
}

/// Shows the plugins' states, and changes the mode if one is given.
pub(crate) fn command(args: &ProfilerArgs) -> anyhow::Result<ExitCode> {
    match (args.what, args.windows) {
        (Some(What::Sample), None) => {
            return Err(Usage("sample: needs N, as in 1 of N windows".to_owned()).into());
        }
        (Some(What::Sample), Some(_)) | (_, None) => {}
        (_, Some(_)) => return Err(Usage("only sample takes a number".to_owned()).into()),
    }
    let dir = config::live_run_dir(&args.live)?;
    let mut seen = Vec::new();
    for path in rings(&dir)? {
        let Ok(mut reader) = open(&path) else {
            continue;
        };
        let rank = rank(&mut reader);
        if !args.rank.is_empty() && !rank.is_some_and(|rank| args.rank.contains(&rank)) {
            continue;
        }
        if let Some(what) = args.what {
            what.tell(&reader, args.windows);
        }
        seen.push(Seen::of(&reader, rank));
    }
    seen.sort_by_key(|seen| (seen.rank, seen.pid));
    let found = !seen.is_empty();
    if args.json {
        let told = Told {
            schema_version: SCHEMA_VERSION,
            ranks: seen,
        };
        output::print(&(serde_json::to_string(&told)? + "\n"))?;
    } else if found {
        output::show(&render(&seen))?;
    } else {
        output::show(&format!("{}: NCCL has loaded no plugin here\n", dir.display()))?;
    }
    Ok(if found {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(COULD_NOT_TELL)
    })
}

impl What {
    fn tell(self, reader: &Reader, windows: Option<u32>) {
        match self {
            What::On => reader.sample(0),
            What::Off => reader.sample(u32::MAX),
            What::Sample => reader.sample(windows.unwrap_or(0)),
            What::Stop => reader.stop_writing(),
        }
    }
}

/// Opens a ring without following links and without blocking on a pipe, because the run directory may belong to another
/// user.
fn open(path: &Path) -> anyhow::Result<Reader> {
    Ok(Reader::from_file(&safe_file::open_existing(path)?)?)
}

/// Returns the paths of this node's plugin rings.
fn rings(run_dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(run_dir).with_context(|| run_dir.display().to_string())?;
    let links = entries
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(LINK.as_bytes()));
    // Ignore unreadable directories: the targets of other nodes' links do not exist on this node.
    let files = links
        .filter_map(|link| std::fs::read_dir(link.path()).ok())
        .flatten();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.ends_with(RING.as_bytes()) && !name.starts_with(b".")
    };
    Ok(files.flatten().map(|file| file.path()).filter(is_ours).collect())
}

/// Returns the rank that writes the ring. The header has it once the sidecar has read the first record. Until then, it
/// is taken from that record.
fn rank(reader: &mut Reader) -> Option<u32> {
    if reader.attach().is_none() && matches!(reader.next(0, false), Next::Empty | Next::Broken) {
        return None;
    }
    match reader.attach() {
        Some(Record::Attach(attach)) => Some(attach.rank),
        _ => None,
    }
}

impl Seen {
    fn of(reader: &Reader, rank: Option<u32>) -> Seen {
        let (asked, duty) = reader.duty();
        let (calls, cost_ns) = reader.spent();
        let (state, one_of) = match duty {
            Duty::Unknown => ("unknown", None),
            Duty::OneOf(windows) => ("one-of", Some(windows)),
            Duty::Never => ("never", None),
            Duty::TookItselfOut => ("took-itself-out", None),
            Duty::Stopped => ("stopped", None),
        };
        Seen {
            rank,
            pid: reader.pid(),
            state,
            one_of,
            asked,
            calls,
            cost_ns,
            dropped: reader.dropped(),
            given_up: reader.given_up(),
        }
    }

    fn does(&self) -> String {
        let now = match (self.state, self.one_of) {
            (_, Some(1)) => "always".to_owned(),
            (_, Some(windows)) => format!("1 of {windows} windows"),
            ("never", _) => "never".to_owned(),
            ("took-itself-out", _) => "over its budget, disabled".to_owned(),
            ("stopped", _) => "stopped".to_owned(),
            _ => "not said".to_owned(),
        };
        let is_new = match self.asked {
            0 => false,
            u32::MAX => self.state == "one-of",
            asked => self.state == "never" || self.one_of.is_some_and(|windows| windows < asked),
        };
        if is_new { now + " (asked anew)" } else { now }
    }
}

fn render(all: &[Seen]) -> String {
    let mut text =
        String::from("rank      pid  GPU times                 calls     cost  dropped  given up\n");
    for seen in all {
        let rank = seen.rank.map_or("?".to_owned(), |rank| rank.to_string());
        let cost = format!("{:.1} ms", seen.cost_ns as f64 / 1e6);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{rank:>4} {:>8}  {:<20} {:>10} {cost:>8} {:>8} {:>9}",
            seen.pid,
            seen.does(),
            seen.calls,
            seen.dropped,
            seen.given_up,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_ring::{Attach, Writer};

    fn seen(state: &'static str, one_of: Option<u32>, asked: u32) -> Seen {
        Seen {
            rank: Some(3),
            pid: 77,
            state,
            one_of,
            asked,
            calls: 1_200,
            cost_ns: 2_500_000,
            dropped: 1,
            given_up: 0,
        }
    }

    #[test]
    fn a_table() {
        let all = [
            seen("one-of", Some(4), 0),
            seen("one-of", Some(1), u32::MAX),
            seen("took-itself-out", None, 0),
        ];
        let wanted = "\
rank      pid  GPU times                 calls     cost  dropped  given up
   3       77  1 of 4 windows             1200   2.5 ms        1         0
   3       77  always (asked anew)        1200   2.5 ms        1         0
   3       77  over its budget, disabled       1200   2.5 ms        1         0
";
        assert_eq!(render(&all), wanted);
    }

    #[test]
    fn rings_of_this_node() {
        let folder = tempfile::tempdir().unwrap();
        let (run, rings_dir) = (folder.path().join("run"), folder.path().join("rings"));
        std::fs::create_dir(&run).unwrap();
        std::fs::create_dir(&rings_dir).unwrap();
        std::os::unix::fs::symlink(&rings_dir, run.join("rings.here")).unwrap();
        std::os::unix::fs::symlink("/nowhere", run.join("rings.there")).unwrap();
        let hook = Writer::create_named(&rings_dir, "7.ring", 1 << 10).unwrap();
        let plugin = Writer::create_named(&rings_dir, "7-nccl.ring", 1 << 10).unwrap();
        plugin.write(&Record::Attach(Attach {
            rank: 5,
            ..Attach::default()
        }));
        drop(hook);
        let found = rings(&run).unwrap();
        assert_eq!(found, [run.join("rings.here/7-nccl.ring")]);
        let mut reader = Reader::open(&found[0]).unwrap();
        assert_eq!(rank(&mut reader), Some(5));
        What::Sample.tell(&reader, Some(16));
        assert_eq!(Seen::of(&reader, Some(5)).asked, 16);
        What::Stop.tell(&reader, None);
        assert_eq!(Seen::of(&reader, Some(5)).state, "stopped");
    }
}
