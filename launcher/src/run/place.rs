//! The directories of a run: one for the user to keep, and one in shared memory that is gone at the end.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::{Plan, hook, identity};
use crate::{output, profiler, report};

/// Directories of a run. The ring directory is removed when this is dropped, in whatever way the run ends.
#[derive(Debug)]
pub(crate) struct Place {
    /// Journal, verdicts, report, the sidecar's log.
    pub(crate) run_dir: PathBuf,
    /// Rings of the trainers.
    pub(crate) ring_dir: PathBuf,
    /// The hook, inside the ring directory.
    pub(crate) python: PathBuf,
    /// In the run directory, where `paceline profiler` finds the rings of this node.
    link: PathBuf,
    /// What is known before the watch begins, in the ring directory as well.
    pub(crate) told: Option<PathBuf>,
}

impl Place {
    /// Makes both directories and writes the hook.
    pub(crate) fn make(plan: &Plan) -> anyhow::Result<Place> {
        let made = fs::create_dir_all(&plan.run_dir);
        made.with_context(|| format!("cannot make {}", plan.run_dir.display()))?;
        // Absolute: the sidecar and the trainers may have another working directory.
        let run_dir = fs::canonicalize(&plan.run_dir).unwrap_or_else(|_| plan.run_dir.clone());
        spare_foreign_report(plan, &run_dir);
        let ring_dir = make_ring_dir().context("cannot make a directory for the rings")?;
        let python = ring_dir.join("python");
        let node = plan
            .node
            .replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
        let link = run_dir.join(format!("{}{node}", profiler::LINK));
        // One that an earlier run left behind leads nowhere. Without a link that command finds nothing, and no more.
        if link.is_symlink() {
            let _ = fs::remove_file(&link);
        }
        let _ = std::os::unix::fs::symlink(&ring_dir, &link);
        let told = tell(plan, &ring_dir);
        let place = Place {
            run_dir,
            ring_dir,
            python,
            link,
            told,
        };
        hook::write(&place.python).context("cannot write the hook")?;
        Ok(place)
    }
}

/// Leaves what is known already for the sidecar.
fn tell(plan: &Plan, ring_dir: &Path) -> Option<PathBuf> {
    let (provenance, events) = &plan.told;
    let path = ring_dir.join("told.ndjson");
    if events.is_empty() {
        return None;
    }
    let written = paceline_sidecar::source::told::write(&path, *provenance, events);
    written
        .map_err(|problem| {
            let problem = format_args!("the journal will not have the preflight: {problem}");
            output::warning(plan.style, problem);
        })
        .ok()?;
    Some(path)
}

impl Drop for Place {
    fn drop(&mut self) {
        // A trainer that outlives its launcher keeps its mapping; the memory goes with it.
        let _ = fs::remove_dir_all(&self.ring_dir);
        let _ = fs::remove_file(&self.link);
    }
}

/// A report.json that is not ours is somebody's result: it is moved aside before ours takes its name.
fn spare_foreign_report(plan: &Plan, run_dir: &Path) {
    let path = run_dir.join(report::FILE);
    if !report::is_foreign(&path) {
        return;
    }
    let free = (1..1000)
        .map(|number| run_dir.join(format!("report.{number}.json")))
        .find(|other| !other.exists());
    let moved = free.map(|other| (fs::rename(&path, &other), other));
    let path = path.display();
    match moved {
        Some((Ok(()), other)) => output::warning(
            plan.style,
            format_args!("{path} is not of paceline: moved to {}", other.display()),
        ),
        _ => output::warning(
            plan.style,
            format_args!("{path} is not of paceline and will be replaced"),
        ),
    }
}

/// A fresh directory that nobody else may enter, in memory if there is some.
fn make_ring_dir() -> io::Result<PathBuf> {
    let shared = PathBuf::from("/dev/shm");
    let variable = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let places = [
        Some(shared),
        variable("XDG_RUNTIME_DIR"),
        variable("TMPDIR"),
        Some(PathBuf::from("/tmp")),
    ];
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for place in places.into_iter().flatten() {
        match make_in(&place) {
            Ok(path) => return Ok(path),
            Err(problem) => last = problem,
        }
    }
    Err(last)
}

/// `paceline-<pid>-<chance>`. The builder never takes over what somebody else has put there.
fn make_in(place: &Path) -> io::Result<PathBuf> {
    let name = format!(
        "paceline-{}-{:08x}",
        std::process::id(),
        identity::chance() as u32
    );
    let path = place.join(name);
    DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_ring_directory_is_private_and_fresh() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (make_in(folder.path()).unwrap(), make_in(folder.path()).unwrap());
        assert_ne!(one, two);
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
