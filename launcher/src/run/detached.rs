//! Watching tasks that somebody else starts, as Slurm does with a TaskProlog in front: no launcher of ours stands between.
//!
//! Each task is noted in a directory that those of its node, step and user share, and is told where that is. Whoever notes
//! the first starts a process of its own session, which waits: until one of the tasks writes, nothing is made where the
//! user could see it, and no sidecar runs. Then it keeps the node's sidecar as a launcher would, but for what only a parent
//! can know: the codes with which the tasks end.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use paceline_sidecar::agent::tasks;
use paceline_sidecar::sink::status::Status;
use paceline_sidecar::source::ends;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use super::cluster::Task;
use super::environment::{Variable, additions};
use super::place::{self, Place};
use super::process::{Running, arguments};
use super::share::{self, Share};
use super::signals::Signals;
use super::{Plan, hook};
use crate::config::{Settings, StepLog};
use crate::output::Style;

/// The tasks are looked at this often.
const LOOK: Duration = Duration::from_millis(200);
/// Tasks that are to come and do not are waited for so long after the others are over.
const PATIENCE: Duration = Duration::from_secs(30);
/// A sidecar that died is started again after this, and each time after twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The tasks of one node.
pub(crate) struct Detached {
    plan: Plan,
    dir: PathBuf,
    expected: u32,
}

impl Detached {
    /// As settings and environment have it.
    pub(crate) fn new(mut settings: Settings, style: Style) -> Detached {
        // What is printed here would stand in the user's output.
        (settings.quiet, settings.json) = (true, false);
        let mut plan = Plan::new(settings, Vec::new(), style);
        plan.find_first();
        let task = super::cluster::task(&super::surroundings).unwrap_or(Task { on_node: 1 });
        plan.task = Some(task);
        let memory = place::places().into_iter().find(|place| place.is_dir());
        // Of its own: a `paceline run` inside has the other one.
        let dir = Share::dir_in(
            &memory.unwrap_or_default(),
            &format!("{}\0detached", plan.job),
            &plan.node,
        );
        Detached {
            plan,
            dir,
            expected: task.on_node,
        }
    }

    /// Notes a task that is about to become this process, has somebody watch (`watch` is started where nobody does), and
    /// says what the task has to find in its environment.
    ///
    /// # Errors
    /// The task then runs unwatched.
    pub(crate) fn note(
        &self,
        name: &str,
        process: u32,
        mut watch: Command,
    ) -> anyhow::Result<Vec<(&'static str, OsString)>> {
        // Whoever was the last of others may remove it between two steps.
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
        let mut added = additions(&self.plan, Some((&self.dir, python)));
        // The names of the job and the node are those of this step: of a batch script its steps must not inherit them.
        added.retain(|(name, _)| !matches!(*name, "PACELINE_JOB" | "PACELINE_NODE"));
        let outer = super::surroundings("PACELINE_RING_DIR").map(|dir| Path::new(&dir).join("python"));
        for (name, value) in &mut added {
            if *name == "PYTHONPATH" {
                *value = without(value, outer.as_deref().filter(|outer| *outer != python));
            }
        }
        added
    }

    /// Watches until the tasks are over. `Some`: trainers were seen, and this is the job's run directory with its report,
    /// where the aggregator was on this node.
    ///
    /// # Errors
    /// Where nothing can be watched.
    pub(crate) fn watch(&self) -> anyhow::Result<Option<PathBuf>> {
        let _held = tasks::hold(&self.dir);
        // Slurm signals all that belongs to a step, and ends what is left when the step is over.
        let mut signals = Signals::take().context("cannot listen to signals")?;
        let mut end = End::new(self.expected);
        loop {
            self.note_signals(&mut signals);
            if is_written(&self.dir) {
                break;
            }
            if end.is_over(&self.dir) {
                let _ = fs::remove_dir_all(&self.dir);
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
        let place = Place::around(&self.plan, &self.dir)?;
        let kept = self.keep(&place, &mut signals, &mut end);
        // A sidecar that ended in order has removed it.
        if end.is_over(&self.dir) {
            let _ = fs::remove_dir_all(&self.dir);
        }
        drop(place);
        place::clear_left_behind();
        kept
    }

    /// Keeps a sidecar running until one has ended with its work done.
    fn keep(&self, place: &Place, signals: &mut Signals, end: &mut End) -> anyhow::Result<Option<PathBuf>> {
        let step_log = match &self.plan.settings.step_log {
            Some(StepLog::File(path)) => Some(std::path::absolute(path)?),
            // What tasks print is not ours to read.
            Some(StepLog::Stdout | StepLog::Stderr) | None => None,
        };
        let words = arguments(&self.plan, &place.run_dir, &self.dir, step_log.as_deref());
        let (mut pause, mut aggregates_in) = (FIRST_PAUSE, None);
        loop {
            let was_over = end.is_over(&self.dir);
            let mut running = Running::start(&words, &place.run_dir, 0, None)?;
            let status = loop {
                self.note_signals(signals);
                aggregates_in = self.aggregates_in().or(aggregates_in);
                match running.process.try_wait()? {
                    Some(status) => break status,
                    None => thread::sleep(LOOK),
                }
            };
            // Once more for what the rings hold, and not for ever.
            if status.success() || was_over {
                return Ok(aggregates_in);
            }
            let again = Instant::now() + pause;
            while Instant::now() < again && !end.is_over(&self.dir) {
                self.note_signals(signals);
                thread::sleep(LOOK);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn aggregates_in(&self) -> Option<PathBuf> {
        let text = fs::read(self.dir.join(tasks::READY)).ok()?;
        match serde_json::from_slice(&text).ok()? {
            Status::Ready { run_dir, .. } => run_dir.map(PathBuf::from),
            _ => None,
        }
    }

    /// What asks us to end asks the whole step; the sidecar wants to know why.
    fn note_signals(&self, signals: &mut Signals) {
        for signal in signals.drain(Instant::now()) {
            if signal == Signal::TERM {
                ends::note_asked(&self.dir, "SIGTERM");
            }
        }
    }

    /// After a task's end: when it was the node's last, waits until the watch is over, so long at most.
    pub(crate) fn wait(&self, limit: Duration) {
        let Ok(lock) = share::watch_of(&self.dir) else {
            return;
        };
        if !tasks::look(&self.dir, self.expected).is_over() {
            return;
        }
        let until = Instant::now() + limit;
        while flock(&lock, FlockOperation::NonBlockingLockShared).is_err() && Instant::now() < until {
            thread::sleep(LOOK / 4);
        }
    }
}

/// When the tasks of a node are over.
struct End {
    expected: u32,
    idle_since: Option<Instant>,
}

impl End {
    fn new(expected: u32) -> End {
        End {
            expected,
            idle_since: None,
        }
    }

    fn is_over(&mut self, dir: &Path) -> bool {
        let now = tasks::look(dir, self.expected);
        if now.over < now.came {
            self.idle_since = None;
            return false;
        }
        now.is_over() || self.idle_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
    }
}

/// Whether a trainer has something to say: a ring, or the exception that it ended with.
fn is_written(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| {
        let name = name.as_encoded_bytes();
        name == b"ends" || name.ends_with(b".ring") && !name.starts_with(b".")
    })
}

/// A search path without one of its folders.
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
