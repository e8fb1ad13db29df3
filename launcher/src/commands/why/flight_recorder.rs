//! Reads dumps of PyTorch's flight recorder, for runs that PyTorch's watchdog ended and for jobs without Paceline.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use paceline_health::flight_recorder::{Comparison, Dump, Position};
use paceline_health::id::Rank;
use paceline_health::text::humanize::{count, ranks};
use paceline_health::text::sanitize;

use crate::output::progress::Progress;
use crate::output::{self, Paint, Style};
use crate::run::FLIGHT_RECORDER_PREFIX;

/// Maximum size of a dump. The recorder's default of 2,000 entries takes about a megabyte.
const MAX_BYTES: u64 = 256 << 20;
/// If a rank's last operation is older than the newest operation of all ranks by more than this, its dump belongs to a
/// hang in an earlier attempt.
const OF_ONE_HANG: Duration = Duration::from_secs(300);
/// Maximum number of rank groups shown.
const MAX_POSITIONS: usize = 16;
/// Maximum number of characters in a line of the output.
const MAX_LINE: usize = 240;

/// Reads the dumps in a run's directory. Returns `None` if there are none, or if they cannot be read, in which case it
/// also prints a warning. Findings and stacks are shown anyway.
pub(super) fn of_run(run_dir: &Path, style: Style) -> Option<Comparison> {
    // The path is a bare `report.json`, so its directory is the current one.
    let run_dir = if run_dir == Path::new("") {
        Path::new(".")
    } else {
        run_dir
    };
    let is_dump = |name: &str| name.starts_with(FLIGHT_RECORDER_PREFIX);
    let found = files(run_dir, &is_dump).and_then(|files| match files.is_empty() {
        true => Ok(None),
        false => compared(run_dir, files, style).map(Some),
    });
    found.unwrap_or_else(|problem| {
        output::warning(style, format_args!("{problem:#}"));
        None
    })
}

/// Reads the dumps in a directory. Their file names only have to end with the rank.
pub(super) fn of_directory(dir: &Path, style: Style) -> anyhow::Result<Comparison> {
    let files = files(dir, &|_| true)?;
    if files.is_empty() {
        anyhow::bail!(
            "{}: no file whose name ends with a rank, as comm_lib_trace_rank_7 or nccl_trace_rank_7",
            dir.display()
        );
    }
    compared(dir, files, style)
}

struct Found {
    path: PathBuf,
    rank: Rank,
}

fn files(dir: &Path, is_dump: &dyn Fn(&str) -> bool) -> anyhow::Result<Vec<Found>> {
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let found = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file)?;
        let name = entry.file_name();
        let name = name.to_str().filter(|name| is_dump(name))?;
        Some(Found {
            path: entry.path(),
            rank: rank(name)?,
        })
    });
    Ok(found.collect())
}

/// Returns the rank at the end of a file name such as `nccl_trace_rank_7` or `_dump_7.pkl`.
fn rank(name: &str) -> Option<Rank> {
    let stem = ["pkl", "pickle", "bin", "dump"]
        .iter()
        .find_map(|end| name.strip_suffix(end)?.strip_suffix('.'));
    let name = stem.unwrap_or(name);
    let digits = name
        .trim_end_matches(|letter: char| letter.is_ascii_digit())
        .len();
    name.get(digits..)?.parse().ok().map(Rank)
}

fn compared(dir: &Path, mut files: Vec<Found>, style: Style) -> anyhow::Result<Comparison> {
    files.sort_by(|one, other| (one.rank, &one.path).cmp(&(other.rank, &other.path)));
    let (mut dumps, mut unread) = (BTreeMap::new(), None);
    let mut progress = Progress::new(style, "dumps");
    let all = files.len() as u64;
    for (done, found) in files.into_iter().enumerate() {
        progress.at(done as u64, all);
        match read(&found.path) {
            Ok(dump) if !dumps.contains_key(&found.rank) => drop(dumps.insert(found.rank, dump)),
            Ok(_) => anyhow::bail!("{}: a second dump of rank {}", found.path.display(), found.rank),
            Err(problem) => {
                let (_, bad) =
                    unread.get_or_insert((format!("{}: {problem:#}", found.path.display()), 0_u64));
                *bad += 1;
            }
        }
    }
    drop(progress);
    match unread {
        Some((first, bad)) if dumps.is_empty() => {
            anyhow::bail!("{first} ({} in all that could not be read)", count(bad, "file"))
        }
        Some((first, 1)) => output::warning(style, format_args!("left out: {first}")),
        Some((first, bad)) => {
            output::warning(style, format_args!("{bad} files left out, the first: {first}"))
        }
        None if dumps.is_empty() => anyhow::bail!("{}: no dumps", dir.display()),
        None => {}
    }
    let all = dumps.len();
    let newest = dumps.values().map(|dump| dump.last_ns).max().unwrap_or(0);
    dumps.retain(|_, dump: &mut Dump| {
        dump.last_ns == 0 || newest - dump.last_ns <= OF_ONE_HANG.as_nanos() as u64
    });
    if dumps.len() < all {
        let older = count((all - dumps.len()) as u64, "dump");
        let than = OF_ONE_HANG.as_secs() / 60;
        output::warning(
            style,
            format_args!(
                "{older} left out: the last operation is more than {than} minutes older than the others'"
            ),
        );
    }
    Ok(Comparison::of(&dumps))
}

fn read(path: &Path) -> anyhow::Result<Dump> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        anyhow::bail!("more than {} MB", MAX_BYTES >> 20);
    }
    Ok(Dump::decode(&bytes)?)
}

/// Formats the comparison as human-readable text.
pub(super) fn text(compared: &Comparison, style: Style) -> String {
    let dumps = count(compared.ranks.len() as u64, "rank");
    let head = format!("PyTorch's flight recorder, {dumps}");
    let mut text = format!("\n {}\n", style.paint(Paint::Strong, head));
    let line = |text: &str| sanitize::clip(text, MAX_LINE);
    text += &format!("   {}\n", line(&compared.says));
    for position in compared.positions.iter().take(MAX_POSITIONS) {
        text += &format!("   {}\n", style.paint(Paint::Faint, line(&says_of(position))));
    }
    let more = compared.positions.len().saturating_sub(MAX_POSITIONS);
    if more > 0 {
        text += &format!("   and {}\n", count(more as u64, "other group"));
    }
    text
}

/// Formats a position, such as `ranks 0-1, 3: in all_reduce #151 of dp (16.2 KiB), at train.py:88 in step`.
fn says_of(position: &Position) -> String {
    let state = if position.is_pending { "in" } else { "after" };
    let at = match position.at.as_str() {
        "" => String::new(),
        at => format!(", at {at}"),
    };
    format!("{}: {state} {}{at}", ranks(&position.ranks), position.operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_with_the_rank() {
        for (name, expected) in [
            ("comm_lib_trace_rank_12", Some(12)),
            ("nccl_trace_rank_0", Some(0)),
            ("_dump_7.pkl", Some(7)),
            ("3", Some(3)),
            ("log", None),
            ("rank_1.json", None),
            ("rank_99999999999", None),
        ] {
            assert_eq!(rank(name).map(|rank| rank.0), expected, "{name}");
        }
    }

    const SET: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../health/tests/flight_recorder/missing"
    );
    const PLAIN: Style = Style {
        color: false,
        unicode: true,
        width: 100,
    };

    #[test]
    fn a_directory_of_dumps_in_words() {
        let compared = of_directory(Path::new(SET), PLAIN).unwrap();
        let expected = "
 PyTorch's flight recorder, 4 ranks
   rank 2 has not entered all_reduce #156 of group 0 (16.2 KiB), 3 other ranks have
   rank 2: after all_reduce #155 of group 0 (16.2 KiB)
   ranks 0-1, 3: in all_reduce #156 of group 0 (16.2 KiB)
";
        assert_eq!(text(&compared, PLAIN), expected);
    }

    #[test]
    fn bad_files_are_told_and_the_others_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let error = of_directory(dir.path(), PLAIN).unwrap_err().to_string();
        assert!(
            error.ends_with("as comm_lib_trace_rank_7 or nccl_trace_rank_7"),
            "{error}"
        );
        fs::write(dir.path().join("rank_0"), b"\x80\x02cposix\nsystem\n").unwrap();
        let error = of_directory(dir.path(), PLAIN).unwrap_err().to_string();
        assert!(
            error.ends_with(
                "rank_0: byte 2: not a pickle of basic types (1 file in all that could not be read)"
            ),
            "{error}"
        );
        for rank in [1, 3] {
            let name = format!("rank_{rank}");
            fs::copy(Path::new(SET).join(&name), dir.path().join(&name)).unwrap();
        }
        let compared = of_directory(dir.path(), PLAIN).unwrap();
        assert_eq!(compared.without_dump, [Rank(0), Rank(2)]);
        fs::copy(dir.path().join("rank_1"), dir.path().join("other_1")).unwrap();
        let error = of_directory(dir.path(), PLAIN).unwrap_err().to_string();
        assert!(error.ends_with("a second dump of rank 1"), "{error}");
    }

    #[test]
    fn those_of_a_run() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of_run(dir.path(), PLAIN), None);
        let copy = |set: &str, rank: u32| {
            let to = dir.path().join(format!("{FLIGHT_RECORDER_PREFIX}{rank}"));
            fs::copy(
                Path::new(SET).with_file_name(set).join(format!("rank_{rank}")),
                to,
            )
            .unwrap();
        };
        (0..4).for_each(|rank| copy("missing", rank));
        let compared = of_run(dir.path(), PLAIN).unwrap();
        assert_eq!(compared.suspects, [Rank(2)]);
        // Add a dump of another job, taken five minutes earlier.
        copy("another-collective", 2);
        let compared = of_run(dir.path(), PLAIN).unwrap();
        assert_eq!(
            (&*compared.suspects, &*compared.without_dump),
            (&[][..], &[Rank(2)][..])
        );
        // Damaged dumps do not hide the other information.
        (0..4).for_each(|rank| {
            fs::write(dir.path().join(format!("{FLIGHT_RECORDER_PREFIX}{rank}")), "").unwrap()
        });
        assert_eq!(of_run(dir.path(), PLAIN), None);
    }
}
