//! The main loop of a run. It handles signals to the child, the sidecar's messages, the child's end and the sidecar's
//! end.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use paceline_sidecar::agent::witness;
use paceline_sidecar::source::ends;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::process::child::{Change, Child};
use super::process::printed::Printed;
use super::process::signals::Signals;
use super::remedy::Ender;
use super::sidecar::{Farewell, Keeper, Life, Status};

/// Time for the sidecar to finish after the child's end.
const FINISH: Duration = Duration::from_secs(5);
/// Remaining time for the sidecar after another signal to us, and after our SIGTERM to the sidecar.
const HURRY: Duration = Duration::from_secs(1);
/// Interval between two checks if a sidecar that another task started has ended.
const FOREIGN: Duration = Duration::from_millis(50);

/// Maximum time until a signal has reached all processes of a step.
const SPREAD: Duration = Duration::from_millis(200);

/// Observes the run, and may request the child's end.
pub(crate) trait Watcher {
    /// Receives a status of the sidecar.
    fn status(&mut self, status: &Status);
    /// Called at the time of [`Watcher::wake_at`]. Returns true to end the child (by one SIGTERM).
    fn tick(&mut self, now: Instant) -> bool;
    /// Returns the time of the next call of [`Watcher::tick`].
    fn wake_at(&self) -> Option<Instant>;
    /// Called when the child has ended. Later statuses come from a sidecar that is about to end.
    fn ended(&mut self) {}
    /// Returns true if the watcher draws on stderr itself, next to other lines.
    fn draws(&self) -> bool {
        false
    }
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The child's exit code, or 128 + n if signal n ended it.
    pub(crate) code: i32,
    /// The time of the end.
    pub(crate) at: Instant,
    /// The sidecars' results, if there were any.
    pub(crate) life: Option<Life>,
}

/// Runs the loop until both the child and the sidecar have ended. `ring_dir` is the directory for notes between the
/// sidecar and us. `is_scheduled` is true if a scheduler may signal all processes of the step, not only us.
pub(crate) fn run(
    mut signals: Signals,
    mut child: Child,
    mut keeper: Option<Keeper>,
    watcher: &mut dyn Watcher,
    (ring_dir, is_scheduled): (Option<&Path>, bool),
) -> Ended {
    let scheduled = ring_dir.filter(|_| is_scheduled);
    let mut asked = false;
    let mut ender = Ender::new(ring_dir);
    let printed = Printed::begin();
    let code = loop {
        match child.poll() {
            Change::Ended(code) => break code,
            Change::Stopped(signal) => {
                child.stop_along(signal);
                continue;
            }
            Change::None => {}
        }
        let now = Instant::now();
        if let Some(keeper) = &mut keeper {
            for status in keeper.read() {
                watcher.status(&status);
            }
            keeper.tend(now);
        }
        ender.tend(&child, now);
        if watcher.wake_at().is_some_and(|at| at <= now) && watcher.tick(now) && !asked {
            asked = true;
            child.signal(Signal::TERM);
        }
        let deadline = keeper
            .as_ref()
            .and_then(Keeper::deadline)
            .into_iter()
            .chain(watcher.wake_at())
            .chain(ender.wake_at())
            .min();
        wait(&signals, keeper.as_ref(), deadline);
        for signal in signals.drain(Instant::now()) {
            note(signal, ring_dir);
            match signal {
                Signal::CONT => child.continued(),
                signal if scheduled.is_some_and(|dir| was_sent_to_all(signal, dir)) => {}
                signal => child.signal(signal),
            }
        }
    };
    let at = Instant::now();
    // Note signals that arrive late: a signal goes to all processes in turn, so the child may have ended before we
    // received it.
    for signal in signals.drain(at) {
        note(signal, ring_dir);
    }
    printed.report(code, ring_dir);
    watcher.ended();
    if let Some(keeper) = &mut keeper {
        finish(keeper, &mut signals, code, watcher);
    }
    Ended {
        code,
        at,
        life: keeper.map(Keeper::into_life),
    }
}

/// If the signal requests the command's end, leaves a note about it for the sidecar.
fn note(signal: Signal, ring_dir: Option<&Path>) {
    if let (Some(name), Some(dir)) = (asks_to_end(signal), ring_dir) {
        ends::note_asked(dir, name);
    }
}

/// Returns the signal's name, if it requests the end of a command.
fn asks_to_end(signal: Signal) -> Option<&'static str> {
    match signal {
        Signal::TERM => Some("SIGTERM"),
        Signal::INT => Some("SIGINT"),
        Signal::QUIT => Some("SIGQUIT"),
        Signal::HUP => Some("SIGHUP"),
        _ => None,
    }
}

/// Returns true if the child has received this signal too, which the sidecar shows ([`witness`]). Waits up to
/// [`SPREAD`] for that.
fn was_sent_to_all(signal: Signal, ring_dir: &Path) -> bool {
    let now = Instant::now();
    let since_ns = paceline_ring::monotonic_ns().saturating_sub(SPREAD.as_nanos() as u64);
    loop {
        if witness::has(ring_dir, signal.as_raw(), since_ns) {
            return true;
        }
        if now.elapsed() >= SPREAD {
            return false;
        }
        std::thread::sleep(SPREAD / 10);
    }
}

/// Waits until something may have changed. A missed wake-up costs at most a second.
fn wait(signals: &Signals, keeper: Option<&Keeper>, deadline: Option<Instant>) {
    let longest = Duration::from_secs(1);
    let time = deadline.map_or(longest, |at| {
        at.saturating_duration_since(Instant::now()).min(longest)
    });
    let fds: Vec<BorrowedFd<'_>> = [Some(signals.wake()), keeper.and_then(Keeper::wake)]
        .into_iter()
        .flatten()
        .collect();
    let mut fds: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    // Round up, so that a deadline has passed when we check it.
    let time = Timespec::try_from(time + Duration::from_micros(100)).ok();
    // Ignore the error: if poll is interrupted, a signal has arrived, which is what we wait for.
    let _ = poll(&mut fds, time.as_ref());
}

/// Notifies the sidecar and waits for its end: five seconds, then SIGTERM, then SIGKILL. Leaves no process of ours.
fn finish(keeper: &mut Keeper, signals: &mut Signals, code: i32, watcher: &mut dyn Watcher) {
    keeper.tell_exit(code);
    let mut deadline = Instant::now() + FINISH;
    let mut next = [Signal::TERM, Signal::KILL].into_iter();
    // Restart a sidecar that dies now once, because it may have been killed with the job and another one can still
    // finish the work.
    let mut again = true;
    loop {
        match keeper.farewell() {
            None => {}
            Some(Farewell::Died) if again => {
                again = false;
                keeper.tell_exit(code);
            }
            Some(_) => break,
        }
        let now = Instant::now();
        for status in keeper.read() {
            watcher.status(&status);
        }
        if now >= deadline {
            again = false;
            match next.next() {
                Some(signal) => keeper.signal(signal),
                None => return,
            }
            deadline = now + HURRY;
        }
        let look = if keeper.is_served() {
            now + FOREIGN
        } else {
            deadline
        };
        wait(signals, Some(keeper), Some(look.min(deadline)));
        // These signals are now meant for us, because the child has ended.
        let hurry = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
        if signals
            .drain(Instant::now())
            .iter()
            .any(|signal| hurry.contains(signal))
        {
            deadline = deadline.min(Instant::now() + HURRY);
        }
    }
    for status in keeper.read() {
        watcher.status(&status);
    }
}
