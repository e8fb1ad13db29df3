//! Monitors tasks that a scheduler starts, such as Slurm with a TaskProlog, and that have no launcher of ours as their
//! parent.
//!
//! Each task is registered in a directory that the tasks of its node, step and user share, and receives the path of
//! this directory. The process that registers the first task starts a watch in a session of its own. Until a task
//! writes data, the watch only waits: it creates nothing visible to the user, and runs no sidecar. Then the watch
//! manages the node's sidecar like a launcher, but without what only a parent process gets, such as the tasks' exit
//! codes.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use paceline_sidecar::agent::tasks::{self, Look};
use paceline_sidecar::remedy::RemedyOptions;
use paceline_sidecar::sink::status::Status;
use paceline_sidecar::source::ends;
use rustix::fs::{FlockOperation, flock};

use super::directories::place::{self, Place};
use super::directories::share::{self, Share};
use super::identity::cluster::{self, Task};
use super::instrumentation::environment::{Variable, additions};
use super::process::signals::Signals;
use super::remedy::stopper::Stopper;
use super::sidecar::process::{Running, arguments};
use super::{Plan, hook, identity, remedy};
use crate::config::{Settings, StepLog};
use crate::output::Style;

/// Interval between two checks of the tasks.
const LOOK: Duration = Duration::from_millis(200);
/// Maximum time to wait for missing tasks after the others have ended.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause before the first restart of a dead sidecar. It doubles with each restart.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// File that exists if a process waits for us after a task. The scheduler does not consider the step as ended until
/// that process exits.
const BEHIND: &str = "behind";
/// Maximum time after the tasks' end in which this file may appear.
const BEHIND_COMES: Duration = Duration::from_secs(4);

/// The tasks of one node.
pub(crate) struct Detached {
    plan: Plan,
    dir: PathBuf,
    expected: u32,
    /// True if the aggregator's address was configured.
    is_named: bool,
}

impl Detached {
    /// Creates the description of the tasks from the settings and the environment.
    pub(crate) fn new(mut settings: Settings, style: Style) -> Detached {
        // Print nothing on stdout, because our output would end up in the user's output.
        (settings.quiet, settings.json) = (true, false);
        let mut plan = Plan::new(settings, Vec::new(), style);
        let is_named = plan.settings.aggregator.is_some();
        plan.find_first();
        if !is_named && cluster::step(&super::surroundings).is_none() {
            // Look for the first node of the allocation: a batch script may start an mpirun, whose daemons on other
            // nodes join its job (see `join_batch_script`).
            plan.settings.aggregator = cluster::first_of_allocation(&super::surroundings);
        }
        let task = cluster::task(&super::surroundings).unwrap_or(Task { on_node: 1 });
        plan.task = Some(task);
        let memory = place::places().into_iter().find(|place| place.is_dir());
        // Use another directory than a `paceline run` inside the task does.
        let dir = Share::dir_in(
            &memory.unwrap_or_default(),
            &format!("{}\0detached", plan.job),
            &plan.node,
        );
        Detached {
            plan,
            dir,
            expected: task.on_node,
            is_named,
        }
    }

    /// Registers a task that is about to become this process, and starts `watch` unless a watch is running. Returns the
    /// environment variables for the task.
    ///
    /// # Errors
    /// If registering fails. The task then runs unmonitored.
    pub(crate) fn note(
        &self,
        name: &str,
        process: u32,
        mut watch: Command,
    ) -> anyhow::Result<Vec<(&'static str, OsString)>> {
        // Try again, because the last task of an earlier group may remove the directory in between.
        let mut noted = Err(io::ErrorKind::NotFound.into());
        for _ in 0..3 {
            noted = share::note_guest(&self.dir, name, process);
            if !matches!(&noted, Err(problem) if problem.kind() == io::ErrorKind::NotFound) {
                break;
            }
        }
        noted.with_context(|| format!("cannot share {}", self.dir.display()))?;
        let python = self.dir.join("python");
        hook::write_whole(&python).context("cannot write the hook")?;
        if let Some(claim) = share::claim_watch(&self.dir) {
            claim.hand_over(&mut watch);
            watch
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            // SAFETY: setsid is one system call, and touches no memory.
            unsafe {
                watch.pre_exec(|| Ok(rustix::process::setsid().map(drop)?));
            }
            let started = watch.spawn().context("cannot start the watch")?;
            claim.belongs_to(started.id());
        }
        Ok(self.variables(&python))
    }

    fn variables(&self, python: &Path) -> Vec<Variable> {
        let mut added = additions(&self.plan, Some(&self.dir), Some(python));
        // Leave out the job's and node's names, because they are those of this step and the steps of a batch script
        // must not inherit them.
        added.retain(|(name, _)| !matches!(*name, "PACELINE_JOB" | "PACELINE_NODE"));
        let outer = super::surroundings("PACELINE_RING_DIR").map(|dir| Path::new(&dir).join("python"));
        for (name, value) in &mut added {
            if *name == "PYTHONPATH" {
                *value = without(value, outer.as_deref().filter(|outer| *outer != python));
            }
        }
        added
    }

    /// Watches until the tasks have ended. Returns the job's run directory, which has its report, if trainers were seen
    /// and the aggregator ran on this node.
    ///
    /// # Errors
    /// If monitoring is impossible.
    pub(crate) fn watch(&mut self) -> anyhow::Result<Option<PathBuf>> {
        let _held = tasks::hold(&self.dir);
        // Catch signals, because a signal to all processes is meant for the tasks, and the watch must continue until
        // they have ended.
        let _signals = Signals::take().context("cannot listen to signals")?;
        let mut end = End::new(self.expected);
        loop {
            if is_written(&self.dir) {
                break;
            }
            if end.is_over(&self.dir) {
                let _ = fs::remove_dir_all(&self.dir);
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
        let command = tasks::commands(&self.dir).into_iter().find_map(command_of);
        let command = command.unwrap_or_default();
        self.plan.remedy = self.remedies(&command);
        if cluster::is_daemon_of_mpi(&command) {
            self.join_batch_script();
        }
        let place = Place::around(&self.plan, &self.dir)?;
        let kept = self.keep(&place, &mut end);
        // Remove the directory in case it remains. A sidecar that ended normally has already removed it.
        if end.is_over(&self.dir) {
            let _ = fs::remove_dir_all(&self.dir);
        }
        drop(place);
        place::clear_left_behind();
        kept
    }

    /// Returns the remedies that are possible for these tasks. A remedy that would end the job for nothing is reduced
    /// to a signal, which the audit log shows. A refusal could not be shown to the user.
    fn remedies(&self, command: &[OsString]) -> RemedyOptions {
        let asked = &self.plan.settings.remedy;
        let checked = |options: RemedyOptions| remedy::checked(options, command, &super::surroundings);
        checked(asked.clone())
            .or_else(|_| checked(asked.only_signalling()))
            .unwrap_or_default()
    }

    /// If the step's ranks belong to an mpirun in the batch script, makes them join the script's job.
    fn join_batch_script(&mut self) {
        let around = &super::surroundings;
        let plan = &mut self.plan;
        if plan.settings.job.is_none()
            && let Some(job) = identity::allocation(around)
        {
            if plan.settings.run_dir.is_none() {
                plan.run_dir = identity::run_dir(&job);
            }
            plan.job = job;
        }
        if !self.is_named {
            plan.settings.aggregator = cluster::first_of_allocation(around);
        }
    }

    /// Restarts the sidecar until one has finished its work.
    fn keep(&self, place: &Place, end: &mut End) -> anyhow::Result<Option<PathBuf>> {
        let step_log = match &self.plan.settings.step_log {
            Some(StepLog::File(path)) => Some(std::path::absolute(path)?),
            // The tasks' output cannot be read, because it does not pass through us.
            Some(StepLog::Stdout | StepLog::Stderr) | None => None,
        };
        let words = arguments(&self.plan, &place.run_dir, &self.dir, step_log.as_deref());
        let (mut pause, mut aggregates_in) = (FIRST_PAUSE, None);
        // Count as a task ourselves, because the sidecar must get the reason of the tasks' end before it considers them
        // as ended.
        end.stay = share::stay(&self.dir).ok();
        let mut stopper = Stopper::new(&self.dir);
        loop {
            let was_over = end.is_over(&self.dir);
            let mut running = Running::start(&words, &place.run_dir, 0, None)?;
            let status = loop {
                stopper.tend();
                if end.stay.is_some() && end.is_over(&self.dir) {
                    if self.is_waited_for() {
                        ends::note_scheduler(&self.dir);
                    }
                    end.stay = None;
                }
                aggregates_in = self.aggregates_in().or(aggregates_in);
                match running.process.try_wait()? {
                    Some(status) => break status,
                    None => thread::sleep(LOOK),
                }
            };
            // Run the sidecar once more for the remaining data in the rings, but only once.
            if status.success() || was_over {
                return Ok(aggregates_in);
            }
            let again = Instant::now() + pause;
            while Instant::now() < again && !end.is_over(&self.dir) {
                stopper.tend();
                thread::sleep(LOOK);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns true if the step lasts until we have finished, so that Slurm reports the job as running as long as it
    /// trains. Otherwise, if the scheduler reports the end of the job, this may mean only that the step has ended.
    fn is_waited_for(&self) -> bool {
        let until = Instant::now() + BEHIND_COMES;
        loop {
            match self.dir.join(BEHIND).exists() {
                false if Instant::now() < until => thread::sleep(LOOK / 4),
                is_there => return is_there,
            }
        }
    }

    fn aggregates_in(&self) -> Option<PathBuf> {
        let text = fs::read(self.dir.join(tasks::READY)).ok()?;
        match serde_json::from_slice(&text).ok()? {
            Status::Ready { run_dir, .. } => run_dir.map(PathBuf::from),
            _ => None,
        }
    }

    /// Called after a task's end. If it was the node's last task, waits up to `limit` until the watch has finished.
    pub(crate) fn wait(&self, limit: Duration) {
        let Ok(lock) = share::watch_of(&self.dir) else {
            return;
        };
        // Ignore an error. Without the file, the watch does not query why the job ends.
        let _ = fs::write(self.dir.join(BEHIND), "");
        if !guests(&self.dir, self.expected).is_over() {
            return;
        }
        let until = Instant::now() + limit;
        while flock(&lock, FlockOperation::NonBlockingLockShared).is_err() && Instant::now() < until {
            thread::sleep(LOOK / 4);
        }
    }
}

/// Returns the command line of a process.
fn command_of(pid: u32) -> Option<Vec<OsString>> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = words.strip_suffix(b"\0")?;
    let words = words.split(|byte| *byte == 0);
    Some(words.map(|word| OsStr::from_bytes(word).to_owned()).collect())
}

/// Knows if the tasks of a node have ended.
struct End {
    expected: u32,
    idle_since: Option<Instant>,
    /// The lock of our own entry among the tasks.
    stay: Option<fs::File>,
}

impl End {
    fn new(expected: u32) -> End {
        End {
            expected,
            idle_since: None,
            stay: None,
        }
    }

    fn is_over(&mut self, dir: &Path) -> bool {
        let now = guests(dir, self.expected);
        if now.over < now.came {
            self.idle_since = None;
            return false;
        }
        now.is_over() || self.idle_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
    }
}

/// Returns the state of the tasks without the watch itself, which is the only one with a lock.
fn guests(dir: &Path, expected: u32) -> Look {
    let mut now = tasks::look(dir, expected);
    now.came = now.came.saturating_sub(now.launchers);
    now
}

/// Returns true if a trainer has written a ring, or the exception that ended it.
fn is_written(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| {
        let name = name.as_encoded_bytes();
        name == b"ends" || name.ends_with(b".ring") && !name.starts_with(b".")
    })
}

/// Returns a search path without one of its directories.
fn without(path: &OsStr, folder: Option<&Path>) -> OsString {
    let Some(folder) = folder else {
        return path.to_owned();
    };
    let kept = std::env::split_paths(path).filter(|entry| entry != folder);
    std::env::join_paths(kept).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_what_a_batch_script_has_left() {
        let path = OsStr::new("/shm/b/python:/shm/a/python:/lib");
        assert_eq!(without(path, None), path);
        assert_eq!(
            without(path, Some(Path::new("/shm/a/python"))),
            "/shm/b/python:/lib"
        );
    }

    #[test]
    fn a_trainer_that_writes() {
        let dir = tempfile::tempdir().unwrap();
        for (name, wanted) in [("python", false), (".7.ring", false), ("7-nccl.ring", true)] {
            fs::write(dir.path().join(name), "").unwrap();
            assert_eq!(is_written(dir.path()), wanted, "{name}");
        }
    }
}
