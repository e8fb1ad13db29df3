//! Requests the stacks of one process and of its data loader workers.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use paceline_health::event::{Activity, MAX_WORKERS, ThreadState, WorkerActivity};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::kernel::{self, KernelView};
use super::parse;
use crate::source::host::files::Files;

/// Folder of the hooks' answers, in the ring directory (sidecar/probe/python/paceline/_stacks.py).
const FOLDER: &str = "stacks";
/// Timeout of an answer, and the time without new data after which an answer counts as complete.
const LONGEST: Duration = Duration::from_millis(1000);
const SETTLED: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Maximum bytes read of an answer. One thread takes a few kilobytes.
const MAX_ANSWER: u64 = 1 << 20;
/// Maximum number of workers queried per rank.
const MAX_ASKED: usize = 16;
/// Minimum age of a child that is queried, because a younger one may be about to exec another program.
const MIN_AGE: Duration = Duration::from_secs(1);

/// Reason for not querying a process that lacks our handler.
pub(super) const NO_HANDLER: &str =
    "no stack handler (PACELINE_HOOK or PACELINE_STACKS is off, or the program uses the signal itself)";

/// Reason for a missing answer: the process has the handler but is stuck in the kernel or gets no CPU time.
const NO_ANSWER: &str = "no answer within a second";

/// Queries processes one after the other.
#[derive(Debug)]
pub struct Asker {
    folder: PathBuf,
    files: Files,
}

/// The file into which a process writes its answers, its descriptor in that process, and the signal that requests an
/// answer.
#[derive(Debug)]
struct Line {
    file: File,
    descriptor: u32,
    signal: u32,
    /// Set once a process did not answer, because its late answer would be mistaken for that of the next process.
    is_late: bool,
}

impl Asker {
    /// Creates the asker for the hooks that share this ring directory.
    pub fn new(ring_dir: &Path) -> Asker {
        Asker {
            folder: ring_dir.join(FOLDER),
            files: Files::new(Path::new("/")),
        }
    }

    /// Returns the activity of a rank's main thread and of its workers. Merges workers with the same activity.
    pub fn ask(&mut self, pid: u32) -> (Activity, Vec<WorkerActivity>) {
        let Some(seen) = kernel::look(&mut self.files, pid) else {
            let gone = Activity {
                missing: "the process has ended".into(),
                ..Activity::default()
            };
            return (gone, Vec::new());
        };
        let mut line = self.line(pid, seen.start_time);
        let main = self.activity(pid, &seen, line.as_mut());
        let mut workers: Vec<WorkerActivity> = Vec::new();
        for child in self.children(pid).into_iter().take(MAX_ASKED) {
            let Some(seen) = kernel::look(&mut self.files, child) else {
                continue;
            };
            let is_young = self.age(&seen).is_none_or(|age| age < MIN_AGE);
            let activity = self.activity(child, &seen, line.as_mut().filter(|_| !is_young));
            // Otherwise the child is not a worker but a separate program, such as a compiler or a logger.
            let is_worker = !activity.frames.is_empty()
                || activity.state == ThreadState::Disk
                || &*activity.missing == NO_ANSWER;
            if !is_worker {
                continue;
            }
            match workers.iter().position(|worker| worker.activity == activity) {
                Some(same) => workers[same].count += 1,
                None if workers.len() < MAX_WORKERS => workers.push(WorkerActivity { count: 1, activity }),
                None => {}
            }
        }
        (main, workers)
    }

    fn activity(&mut self, pid: u32, seen: &KernelView, line: Option<&mut Line>) -> Activity {
        let stack = self.stack(pid, seen, line);
        // Look again after a missing answer: in a read from unresponsive storage, the signal turns an interruptible
        // sleep into an uninterruptible one.
        let later = match stack {
            Err(NO_ANSWER) => kernel::look(&mut self.files, pid),
            _ => None,
        };
        let seen = later.as_ref().unwrap_or(seen);
        let mut activity = Activity {
            state: seen.state,
            waits_in: seen.waits_in.as_str().into(),
            waits_for: seen.waits_for,
            ..Activity::default()
        };
        match stack {
            Ok(text) => (activity.frames, activity.own) = parse::main_thread(&text),
            Err(why) => activity.missing = why.into(),
        }
        if activity.frames.is_empty() && activity.missing.is_empty() {
            activity.missing = "its main thread runs no Python".into();
        }
        activity
    }

    /// Finds the answer file of this process's hook. The start time excludes the file of an earlier process with the
    /// same ID.
    fn line(&self, pid: u32, start_time: u64) -> Option<Line> {
        let prefix = format!("{pid}-{start_time}-");
        let entries = std::fs::read_dir(&self.folder).ok()?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let (name, signal, descriptor) = names.into_iter().find_map(|name| {
            let (signal, descriptor) = name.strip_prefix(&prefix)?.split_once('-')?;
            let (signal, descriptor) = (signal.parse().ok()?, descriptor.parse().ok()?);
            Some((name, signal, descriptor))
        })?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags.bits() as i32)
            .open(self.folder.join(name))
            .ok()?;
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        // Accept only real-time signals of Linux, so that nothing else is ever sent.
        (is_file && (34..=64).contains(&signal)).then_some(Line {
            file,
            descriptor,
            signal,
            is_late: false,
        })
    }

    /// Makes the process write its stacks, and returns them.
    ///
    /// # Errors
    /// The reason why there is no stack.
    fn stack(
        &mut self,
        pid: u32,
        seen: &KernelView,
        line: Option<&mut Line>,
    ) -> Result<String, &'static str> {
        match seen.state {
            ThreadState::Stopped => return Err("stopped by a signal"),
            ThreadState::Traced => return Err("stopped by a debugger"),
            ThreadState::Zombie => return Err("the process has ended"),
            // Do not query this process. It would answer when it wakes up, in the middle of the next process's answer.
            ThreadState::Disk => return Err("in an uninterruptible sleep of the kernel"),
            ThreadState::Running | ThreadState::Sleeping | ThreadState::Unknown => {}
        }
        let line = line.ok_or(NO_HANDLER)?;
        if line.is_late {
            return Err("not asked, as another process of this rank did not answer");
        }
        let pid_of = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid_of = pid_of.ok_or("the process has ended")?;
        let handle = pidfd_open(pid_of, PidfdFlags::empty()).map_err(|error| match error {
            Errno::SRCH => "the process has ended",
            _ => "this system does not let it be asked (pidfd_open)",
        })?;
        // Check again after opening the handle, so that the result applies to this very process. Without a handler, the
        // signal would kill it.
        let now = kernel::look(&mut self.files, pid);
        if now.is_none_or(|now| now.start_time != seen.start_time) {
            return Err("the process has ended");
        }
        if !self.answers_into(pid, line) {
            return Err(NO_HANDLER);
        }
        let signals = kernel::signals(&mut self.files, pid).ok_or("the process has ended")?;
        let bit = 1_u64 << (line.signal - 1);
        if signals.caught & bit == 0 {
            return Err(NO_HANDLER);
        }
        if signals.blocked & bit != 0 {
            return Err("it blocks the signal that asks for stacks");
        }
        let length = || line.file.metadata().map_or(0, |metadata| metadata.len());
        let before = length();
        // SAFETY: a number from 34 to 64 is a real-time signal of Linux that glibc does not keep for itself (32, 33),
        // and the process handles this signal.
        let signal = unsafe { Signal::from_raw_unchecked(line.signal as i32) };
        pidfd_send_signal(&handle, signal)
            .map_err(|_| "the signal that asks for stacks could not be sent")?;
        let begun = Instant::now();
        let (mut last, mut changed) = (before, begun);
        while begun.elapsed() < LONGEST {
            std::thread::sleep(LOOK_EVERY);
            let now = length();
            if now != last {
                (last, changed) = (now, Instant::now());
            } else if now > before && changed.elapsed() >= SETTLED {
                break;
            }
        }
        let length = last.saturating_sub(before).min(MAX_ANSWER);
        if length == 0 {
            line.is_late = true;
            return Err(NO_ANSWER);
        }
        let mut answer = vec![0; length as usize];
        let read = line.file.read_at(&mut answer, before).unwrap_or(0);
        answer.truncate(read);
        if last > MAX_ANSWER {
            // Clear the file. The process appends, so its next answer starts at the new end.
            let _ = line.file.set_len(0);
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Returns true if the process has the answer file at this descriptor. A process that has exec'ed another program
    /// lacks it, and one that has closed inherited descriptors may have another file there.
    fn answers_into(&self, pid: u32, line: &Line) -> bool {
        let theirs = std::fs::metadata(self.files.at(format!("proc/{pid}/fd/{}", line.descriptor)));
        let ours = line.file.metadata();
        let id = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        matches!((theirs.map(id), ours.map(id)), (Ok(theirs), Ok(ours)) if theirs == ours)
    }

    /// Returns the age of a process.
    fn age(&mut self, seen: &KernelView) -> Option<Duration> {
        let uptime = self.files.text("proc/uptime").ok()?;
        let uptime_s: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
        let started_s = seen.start_time as f64 / rustix::param::clock_ticks_per_second() as f64;
        Some(Duration::from_secs_f64((uptime_s - started_s).max(0.0)))
    }

    pub(super) fn children(&self, pid: u32) -> Vec<u32> {
        let mut text = String::new();
        let path = self.files.at(format!("proc/{pid}/task/{pid}/children"));
        let _ = File::open(path).and_then(|file| file.take(1 << 16).read_to_string(&mut text));
        text.split_ascii_whitespace()
            .filter_map(|child| child.parse().ok())
            .collect()
    }
}
