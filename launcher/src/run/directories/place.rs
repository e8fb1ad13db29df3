//! The directories of a run: a permanent one for the user, and one in shared memory that is removed at the end.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use paceline_sidecar::agent::tasks;
use paceline_sidecar::safe_file;
use rustix::fs::Access;

use super::hook_dir::{HookDir, first_of, make_in};
use super::share::Share;
use crate::commands::profiler;
use crate::run::identity::cluster::Task;
use crate::run::{Plan, hook, identity};
use crate::{output, report};

/// Name of the link in the ring directory to the run directory, by which tools find the jobs on this host.
pub(crate) const RUN_LINK: &str = "run";
/// Size of the rings of a node's ranks. Each hook needs a quarter of a megabyte, and each NCCL plugin half of one.
const RINGS_BYTES: u64 = 8 << 20;
/// Age from which a draft has no writer any more, because drafts are written quickly.
const DRAFT_LASTS: Duration = Duration::from_secs(60);

/// The directories of a run. The ring directory is removed on drop, however the run ends. If it is shared, the last
/// task removes it.
#[derive(Debug)]
pub(crate) struct Place {
    /// The directory for the journal, verdicts, report and the sidecar's log.
    pub(crate) run_dir: PathBuf,
    /// The directory for the rings of the trainers.
    pub(crate) ring_dir: PathBuf,
    /// The directory of the hook, in most cases inside the ring directory.
    pub(crate) python: PathBuf,
    /// The link in the run directory to the rings of this node, for `paceline profiler`.
    link: PathBuf,
    /// The file with the events from before monitoring starts, which is also in the ring directory.
    pub(crate) told: Option<PathBuf>,
    is_shared: bool,
    _held: Option<File>,
    /// Keeps the hook's own directory, if the ring directory has no room for the hook.
    _hook: Option<HookDir>,
}

impl Place {
    /// Creates both directories and writes the hook.
    pub(crate) fn make(plan: &Plan) -> anyhow::Result<(Place, Option<Share>)> {
        let run_dir = make_run_dir(plan)?;
        let share = plan.task.map(|task| enter(plan, task)).transpose()?;
        let ring_dir = match &share {
            Some(share) => share.dir().to_owned(),
            None => make_ring_dir().context("cannot make a directory for the rings")?,
        };
        let mut place = Place::of(plan, run_dir, ring_dir, share.is_some());
        if let Err(problem) = hook::write_whole(&place.python) {
            // All tasks of a node must share one ring directory, even if it has no room for the hook. The hook may be
            // elsewhere.
            let elsewhere = HookDir::make()
                .map_err(|_| problem)
                .context("cannot write the hook")?;
            place.python = elsewhere.python().to_owned();
            place._hook = Some(elsewhere);
        }
        Ok((place, share))
    }

    /// Uses a ring directory that other tasks created. The last of these tasks removes it.
    pub(crate) fn around(plan: &Plan, ring_dir: &Path) -> anyhow::Result<Place> {
        Ok(Place::of(plan, make_run_dir(plan)?, ring_dir.to_owned(), true))
    }

    fn of(plan: &Plan, run_dir: PathBuf, ring_dir: PathBuf, is_shared: bool) -> Place {
        let node = plan
            .node
            .replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
        let link = run_dir.join(format!("{}{node}", profiler::LINK));
        // Remove an earlier run's link, which is dangling. If the link cannot be created, only `paceline profiler`
        // fails.
        if link.is_symlink() {
            let _ = fs::remove_file(&link);
        }
        let _ = std::os::unix::fs::symlink(&ring_dir, &link);
        // Ignore an error: if tasks share a node, the first one has already created the link.
        let _ = std::os::unix::fs::symlink(&run_dir, ring_dir.join(RUN_LINK));
        let told = tell(plan, &ring_dir);
        Place {
            run_dir,
            python: ring_dir.join("python"),
            is_shared,
            _held: tasks::hold(&ring_dir),
            _hook: None,
            ring_dir,
            link,
            told,
        }
    }
}

/// Creates the run directory. If it cannot be used, creates a temporary one instead, so that no results are lost.
fn make_run_dir(plan: &Plan) -> anyhow::Result<PathBuf> {
    let problem = match make_writable(&plan.run_dir) {
        Ok(run_dir) => return Ok(prepared(plan, &run_dir)),
        Err(problem) => problem,
    };
    let cannot = format!("cannot write in {}: {problem}", plan.run_dir.display());
    let other = std::env::temp_dir().join(format!("paceline_{:016x}", identity::chance()));
    DirBuilder::new()
        .mode(0o700)
        .create(&other)
        .with_context(|| cannot.clone())?;
    let other = prepared(plan, &other);
    let hint = "--run-dir or PACELINE_RUN_DIR say where else";
    let told = format_args!("{cannot}; the report goes to {}; {hint}", other.display());
    output::warning(plan.style, told);
    Ok(other)
}

/// Creates a directory and checks that it is writable. A full disk is not an error, because it may have room later.
fn make_writable(dir: &Path) -> io::Result<PathBuf> {
    let dir = safe_file::make_dir(dir)?;
    rustix::fs::access(&dir, Access::WRITE_OK | Access::EXEC_OK)?;
    Ok(dir)
}

fn prepared(plan: &Plan, run_dir: &Path) -> PathBuf {
    // Make the path absolute, because the sidecar and the trainers may have another working directory.
    let run_dir = fs::canonicalize(run_dir).unwrap_or_else(|_| run_dir.to_owned());
    spare_foreign_report(plan, &run_dir);
    clear_drafts(&run_dir);
    run_dir
}

/// Writes the known events to a file for the sidecar.
fn tell(plan: &Plan, ring_dir: &Path) -> Option<PathBuf> {
    let (provenance, events) = &plan.told;
    let path = ring_dir.join("told.ndjson");
    if events.is_empty() {
        return None;
    }
    let written = paceline_sidecar::source::launcher_events::write(&path, *provenance, events);
    written
        .map_err(|problem| {
            let problem = format_args!("the journal will not contain the preflight: {problem}");
            output::warning(plan.style, problem);
        })
        .ok()?;
    Some(path)
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_shared {
            // A trainer that outlives its launcher keeps its mapping. The memory is freed when the trainer ends.
            let _ = fs::remove_dir_all(&self.ring_dir);
        }
        // Remove the link if the last task has already removed the shared directory.
        if !self.ring_dir.exists() {
            let _ = fs::remove_file(&self.link);
        }
    }
}

/// Removes files that a killed process was still writing ([`paceline_sidecar::sink::write_whole`]).
fn clear_drafts(run_dir: &Path) {
    for entry in fs::read_dir(run_dir).into_iter().flatten().flatten() {
        let is_old = |meta: fs::Metadata| {
            let age = meta.modified().ok().and_then(|at| at.elapsed().ok());
            meta.is_file() && age.is_some_and(|age| age > DRAFT_LASTS)
        };
        if is_draft(&entry.path()) && entry.metadata().is_ok_and(is_old) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns true for names such as `<name>.<16 digits>.new`.
fn is_draft(path: &Path) -> bool {
    let chance = path.file_stem().and_then(|stem| Path::new(stem).extension());
    path.extension().is_some_and(|end| end == "new")
        && chance.is_some_and(|chance| {
            chance.len() == 16 && chance.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit)
        })
}

/// Renames a report.json of another program, which is a user's result, before our report gets this name.
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
            format_args!("{path} was not written by paceline: moved to {}", other.display()),
        ),
        _ => output::warning(
            plan.style,
            format_args!("{path} was not written by paceline and will be replaced"),
        ),
    }
}

/// Enters the directory that this task shares with the others of its node.
fn enter(plan: &Plan, task: Task) -> anyhow::Result<Share> {
    // All tasks must choose the same place, so each takes the first one that exists. Another place is used only if
    // another user already has a directory of that name there, which then applies to all tasks.
    let places = places().into_iter().filter(|place| place.is_dir());
    let mut problem = anyhow::anyhow!("there is no directory for shared data");
    for place in places {
        match Share::enter(&place, &plan.job, &plan.node, task.on_node) {
            Ok(share) => return Ok(share),
            Err(error) => {
                let is_taken = error.kind() == io::ErrorKind::PermissionDenied;
                problem = anyhow::Error::from(error)
                    .context(format!("cannot share a directory in {}", place.display()));
                if !is_taken {
                    break;
                }
            }
        }
    }
    Err(problem)
}

/// Returns the places for ring directories, those in memory first.
pub(crate) fn places() -> Vec<PathBuf> {
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
    places.into_iter().flatten().collect()
}

/// Creates a ring directory. The first choice is in memory, with room for the rings of a node's ranks and the hook. The
/// second choice is where there is room for the hook, and the last one is anywhere.
fn make_ring_dir() -> io::Result<PathBuf> {
    let places = places();
    let has_room = |place: &Path| {
        let found = rustix::fs::statvfs(place)?;
        // A tmpfs without a limit reports no blocks, so it counts as having room.
        let is_roomy = found.f_blocks == 0 || found.f_bavail.saturating_mul(found.f_frsize) >= RINGS_BYTES;
        match is_roomy {
            true => make_with_hook(place),
            false => Err(io::ErrorKind::StorageFull.into()),
        }
    };
    first_of(&places, has_room)
        .or_else(|_| first_of(&places, make_with_hook))
        .or_else(|_| first_of(&places, make_in))
}

fn make_with_hook(place: &Path) -> io::Result<PathBuf> {
    let dir = make_in(place)?;
    hook::write_whole(&dir.join("python")).inspect_err(|_| {
        let _ = fs::remove_dir_all(&dir);
    })?;
    Ok(dir)
}

/// Removes what this user's killed runs have left in memory, if none of their processes is still running.
pub(crate) fn clear_left_behind() {
    let user = rustix::process::geteuid().as_raw();
    let entries = places().into_iter().filter_map(|place| fs::read_dir(place).ok());
    for entry in entries.flatten().flatten() {
        let is_ours = entry.file_name().as_encoded_bytes().starts_with(b"paceline-")
            && fs::symlink_metadata(entry.path()).is_ok_and(|meta| meta.is_dir() && meta.uid() == user);
        if is_ours && let Some(_held) = tasks::left_behind(&entry.path()) {
            // Ignore an error, because another run may be removing the same directory.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
