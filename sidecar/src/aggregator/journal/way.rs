//! Handles obstacles to the files of a run directory: a directory, a pipe, a device or a symbolic link that has the
//! name of such a file. Opening a pipe may block forever, a directory cannot be written, and links are not followed, so
//! the obstacle is renamed.

use std::fs;
use std::path::{Path, PathBuf};

use super::{segments, snapshot};
use crate::warn;

/// Files that an aggregator reads or writes by these names, besides the segments of its journal and their snapshots.
const NAMES: [&str; 11] = [
    "journal.ndjson",
    "journal.owner",
    "journal.origin",
    "journal.torn",
    ".reserve",
    "verdicts.ndjson",
    "report.json",
    "metrics.addr",
    "aggregator.pid",
    "remedies.ndjson",
    "remedies.json",
];
/// Extension added to the name of an obstacle.
const ASIDE: &str = "aside";

/// Renames obstacles in `dir`, with a warning. Obstacles that cannot be renamed remain.
pub(super) fn clear(dir: &Path) {
    let journal = dir.join("journal.ndjson");
    let numbered = [segments::END, snapshot::END]
        .into_iter()
        .flat_map(|end| segments::named(&journal, end).unwrap_or_default());
    let named = NAMES.map(|name| dir.join(name)).into_iter();
    for path in named.chain(numbered.map(|(_, path)| path)) {
        if is_in_the_way(&path) {
            move_aside(&path);
        }
    }
}

fn move_aside(path: &Path) {
    let aside = free_name(path);
    let (from, to) = (path.display(), aside.display());
    let kind = format!("in the way: {from}");
    match fs::rename(path, &aside) {
        Ok(()) => warn::once(kind, format_args!("{from} is not a file: moved to {to}")),
        Err(error) => warn::once(
            kind,
            format_args!("{from} is not a file, and cannot be moved: {error}"),
        ),
    }
}

/// Returns true if the path exists and is not a regular file.
fn is_in_the_way(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_file())
}

fn free_name(path: &Path) -> PathBuf {
    let first = path.with_added_extension(ASIDE);
    let more = (1u32..).map(|number| path.with_added_extension(format!("{ASIDE}.{number}")));
    let mut names = std::iter::once(first.clone()).chain(more);
    let is_free = |name: &PathBuf| fs::symlink_metadata(name).is_err();
    names.find(is_free).unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_what_is_no_file_is_moved() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("journal-000003.ndjson")).unwrap();
        fs::create_dir(at("journal-000003.ndjson.aside")).unwrap();
        fs::create_dir(at("journal-000002.state")).unwrap();
        fs::create_dir(at("somebody's own")).unwrap();
        let pipe = Command::new("mkfifo").arg(at("verdicts.ndjson")).status();
        assert!(pipe.unwrap().success());
        symlink(at("report.json"), at("report.json")).unwrap();
        symlink(at("elsewhere"), at("remedies.ndjson")).unwrap();
        symlink(at("journal-000001.ndjson"), at("journal.ndjson")).unwrap();
        fs::write(at("journal-000001.ndjson"), "kept").unwrap();
        clear(dir.path());
        let mut names: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "journal-000001.ndjson",
                "journal-000002.state.aside",
                "journal-000003.ndjson.aside",
                "journal-000003.ndjson.aside.1",
                "journal.ndjson.aside",
                "remedies.ndjson.aside",
                "report.json.aside",
                "somebody's own",
                "verdicts.ndjson.aside",
            ]
        );
    }
}
