//! Manages the sidecar: starts it next to the child, restarts it when it dies, notifies it of the child's end, and
//! gives it time to finish. `process` is one of its processes.

pub(crate) mod process;

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use self::process::{LOG, Running, arguments};
use super::Plan;
use super::directories::place::Place;
use super::directories::share::Share;
use crate::output::{self, Style};

pub(crate) use paceline_sidecar::sink::status::Status;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Interval between two checks of a sidecar that another task started.
const LOOK: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A sidecar that ran for this long counts as successfully started.
const SETTLED: Duration = Duration::from_secs(60);

/// Keeps a sidecar running.
#[derive(Debug)]
pub(crate) struct Keeper {
    args: Vec<OsString>,
    run_dir: PathBuf,
    child: u32,
    style: Style,
    state: State,
    pause: Duration,
    deaths: u32,
    /// The aggregator's directory, if one of our sidecars ran the aggregator.
    aggregates_in: Option<PathBuf>,
    /// The aggregator's address, if it was not one of ours.
    joined: Option<String>,
    heard: Vec<Status>,
    late: bool,
    /// The other tasks of this node, which share the sidecar.
    share: Option<Share>,
    /// True if other tasks of this node are still running.
    others: bool,
    /// The last known ready status from the shared directory. Our sidecar writes it there, where all tasks find it.
    ready: Option<Status>,
}

/// How a sidecar ended after it was notified of the child's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// The sidecar ended after it finished its work.
    InOrder,
    /// The sidecar ended in any other way.
    Died,
}

#[derive(Debug)]
enum State {
    Up(Running),
    /// The sidecar is down, and will be restarted at this time.
    Down(Instant),
    /// Another task of this node has started the sidecar, and we check it again at this time.
    Served(Instant),
    /// The sidecar has finished normally.
    Done,
}

impl Keeper {
    /// Starts a sidecar for the child with this process id.
    pub(crate) fn new(
        plan: &Plan,
        place: &Place,
        share: Option<Share>,
        child: u32,
        step_log: Option<&Path>,
    ) -> Keeper {
        let mut args = arguments(plan, &place.run_dir, &place.ring_dir, step_log);
        args.extend(place.told.as_ref().map(|told| {
            let mut word = OsString::from("--told=");
            word.push(told);
            word
        }));
        let mut keeper = Keeper {
            args,
            run_dir: place.run_dir.clone(),
            child,
            style: plan.style,
            state: State::Done,
            pause: FIRST_PAUSE,
            deaths: 0,
            aggregates_in: None,
            joined: None,
            heard: Vec::new(),
            late: false,
            share,
            others: false,
            ready: None,
        };
        if let Some(share) = &mut keeper.share {
            share.say(format_args!("{{\"child\":{child}}}"));
        }
        keeper.start();
        keeper
    }

    fn start(&mut self) {
        let claim = self.share.as_ref().map(Share::claim);
        if let Some(None) = claim {
            self.state = State::Served(Instant::now() + LOOK);
            return;
        }
        // Remember the status of an earlier sidecar, to ignore it.
        self.ready = self.share.as_ref().and_then(Share::ready);
        match Running::start(&self.args, &self.run_dir, self.child, claim.flatten()) {
            Ok(running) => self.state = State::Up(running),
            Err(problem) => self.down(format_args!("cannot be started: {problem:#}")),
        }
    }

    /// Records that the sidecar is down. Warns once, and schedules a restart.
    fn down(&mut self, why: impl std::fmt::Display) {
        let pause = self.pause;
        if self.deaths == 0 {
            let log = self.run_dir.join(LOG);
            let log = log.display();
            output::warning(
                self.style,
                format_args!("the sidecar {why}; it is restarted, and the job continues ({log})"),
            );
        }
        self.deaths += 1;
        self.state = State::Down(Instant::now() + pause);
        self.pause = (pause * 2).min(LONGEST_PAUSE);
    }

    /// Returns a descriptor that is readable when the sidecar has sent a status or has exited.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Up(running) => running.output.as_ref().map(AsFd::as_fd),
            State::Down(_) | State::Served(_) | State::Done => None,
        }
    }

    /// Returns the next time when [`Keeper::tend`] has work.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Down(again) | State::Served(again) => Some(*again),
            State::Up(_) | State::Done => None,
        }
    }

    /// Returns new statuses of the sidecar.
    pub(crate) fn read(&mut self) -> Vec<Status> {
        self.listen();
        if let (State::Up(_), Some(share)) = (&self.state, &self.share) {
            let ready = share.ready().filter(|ready| self.ready.as_ref() != Some(ready));
            if ready.is_some() {
                self.heard.extend(ready.clone());
                self.ready = ready;
            }
        }
        if let Some(share) = &mut self.share {
            self.heard.extend(share.verdicts());
        }
        std::mem::take(&mut self.heard)
    }

    fn listen(&mut self) {
        let State::Up(running) = &mut self.state else {
            return;
        };
        for status in running.read() {
            self.note(&status);
            self.heard.push(status);
        }
    }

    fn note(&mut self, status: &Status) {
        if let Status::Ready {
            run_dir,
            aggregator,
            alone,
            ..
        } = status
        {
            if let Some(why) = alone {
                let told = format_args!("this node is watched alone, not with the rest of its job: {why}");
                output::warning(self.style, told);
            }
            self.aggregates_in = run_dir.as_ref().map(PathBuf::from);
            self.joined = run_dir.is_none().then(|| aggregator.clone());
        }
    }

    /// Restarts a dead sidecar after the pause.
    pub(crate) fn tend(&mut self, now: Instant) {
        match &self.state {
            State::Up(_) => {
                if let Some((status, since)) = self.ended() {
                    if now.duration_since(since) >= SETTLED {
                        self.pause = FIRST_PAUSE;
                    }
                    self.down(describe(status));
                }
            }
            State::Down(again) | State::Served(again) if now >= *again => self.start(),
            State::Down(_) | State::Served(_) | State::Done => {}
        }
    }

    /// Returns the sidecar's exit status and start time, if it has exited. Also reads its last statuses.
    fn ended(&mut self) -> Option<(ExitStatus, Instant)> {
        let State::Up(running) = &mut self.state else {
            return None;
        };
        let (status, since) = (running.process.try_wait().ok().flatten()?, running.since);
        self.listen();
        Some((status, since))
    }

    /// Notifies the sidecar of the child's end. If it is down, restarts it for the remaining data in the rings.
    pub(crate) fn tell_exit(&mut self, code: i32) {
        let line = format!("{{\"exit\":{{\"code\":{code}}}}}");
        if let Some(share) = &mut self.share {
            share.say(&line);
            if !share.is_last() {
                // Leave the sidecar running, because the other tasks still need it.
                self.others = true;
                self.state = State::Done;
                return;
            }
        }
        if matches!(self.state, State::Down(_)) {
            self.start();
        }
        if let State::Up(running) = &mut self.state {
            running.say(line);
        }
    }

    /// Called after [`Keeper::tell_exit`]. Returns how the sidecar ended, if it has.
    pub(crate) fn farewell(&mut self) -> Option<Farewell> {
        match (self.ended(), &self.state) {
            (Some((status, _)), _) if status.success() => self.state = State::Done,
            (Some((status, _)), _) => self.down(describe(status)),
            (None, State::Up(_)) => return None,
            (None, State::Served(_)) => {
                let share = self.share.as_ref()?;
                // If the lock is free, the sidecar that another task started has ended.
                share.claim()?;
                if share.is_done() {
                    self.state = State::Done;
                } else {
                    self.down("of this node is gone");
                }
            }
            (None, State::Down(_) | State::Done) => {}
        }
        if let Some(ready) = self.share.as_ref().and_then(Share::ready) {
            self.note(&ready);
        }
        Some(if matches!(self.state, State::Done) {
            Farewell::InOrder
        } else {
            Farewell::Died
        })
    }

    /// Signals the sidecar to end, because it takes too long.
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.late = true;
        // The process id is still that of the sidecar, because it was not reaped or it holds the lock.
        let process = match &self.state {
            State::Up(running) => Some(Pid::from_child(&running.process)),
            State::Served(_) => self.share.as_ref().and_then(Share::sidecar),
            State::Down(_) | State::Done => None,
        };
        if let Some(process) = process {
            let _ = kill_process(process, signal);
        }
    }

    /// Returns true if the sidecar's end does not wake us, because it is not our child.
    pub(crate) fn is_served(&self) -> bool {
        matches!(self.state, State::Served(_))
    }

    /// Returns the summary of all sidecars of this run.
    pub(crate) fn into_life(self) -> Life {
        Life {
            others: self.others,
            finished: matches!(self.state, State::Done),
            late: self.late,
            aggregates_in: self.aggregates_in,
            joined: self.joined,
            run_dir: self.run_dir,
        }
    }
}

/// The result of a run's sidecars.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// True if other tasks of this node are still running. They will print the results.
    pub(crate) others: bool,
    /// True if the last sidecar ended normally.
    pub(crate) finished: bool,
    /// True if the last sidecar did not finish in time.
    pub(crate) late: bool,
    /// The aggregator's directory, if it was one of ours.
    pub(crate) aggregates_in: Option<PathBuf>,
    /// The aggregator's address, if it was not one of ours.
    pub(crate) joined: Option<String>,
    /// The run directory.
    pub(crate) run_dir: PathBuf,
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        (code, None) => format!("ended with code {}", code.unwrap_or_default()),
    }
}
