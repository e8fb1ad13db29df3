//! The sidecar's life: started beside the child, started again when it dies, told the end, waited for a while.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use super::Plan;
use super::place::Place;
use crate::output::{self, Style};

pub(crate) use paceline_sidecar::sink::status::Status;

/// Where the sidecar's own warnings go, in the run directory.
const LOG: &str = "sidecar.log";
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A sidecar that lived this long had no trouble with its start.
const SETTLED: Duration = Duration::from_secs(60);
/// A status line is far shorter; what is longer is none.
const MAX_LINE: usize = 1 << 20;

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
    /// Directory of the aggregator, if one of our sidecars was it.
    aggregates_in: Option<PathBuf>,
    /// Address of the aggregator, if it was none of ours.
    joined: Option<String>,
    heard: Vec<Status>,
    late: bool,
}

/// How a sidecar ended that was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// With its work done.
    InOrder,
    /// In some other way.
    Died,
}

#[derive(Debug)]
enum State {
    Up(Running),
    /// To be started again then.
    Down(Instant),
    /// It has finished in order.
    Done,
}

#[derive(Debug)]
struct Running {
    process: Child,
    input: Option<ChildStdin>,
    output: Option<ChildStdout>,
    line: Vec<u8>,
    since: Instant,
}

impl Keeper {
    /// Starts a sidecar for the child with this process id.
    pub(crate) fn new(plan: &Plan, place: &Place, child: u32, step_log: Option<&Path>) -> Keeper {
        let mut keeper = Keeper {
            args: arguments(plan, place, step_log),
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
        };
        keeper.start();
        keeper
    }

    fn start(&mut self) {
        match Running::start(&self.args, &self.run_dir, self.child) {
            Ok(running) => self.state = State::Up(running),
            Err(problem) => self.down(format_args!("cannot be started: {problem:#}")),
        }
    }

    /// It is not there: say so once, try again later.
    fn down(&mut self, why: impl std::fmt::Display) {
        let pause = self.pause;
        if self.deaths == 0 {
            let log = self.run_dir.join(LOG);
            let log = log.display();
            output::warning(
                self.style,
                format_args!("the sidecar {why}; it is started again, and the job goes on ({log})"),
            );
        }
        self.deaths += 1;
        self.state = State::Down(Instant::now() + pause);
        self.pause = (pause * 2).min(LONGEST_PAUSE);
    }

    /// Readable when it says something or is gone.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Up(running) => running.output.as_ref().map(AsFd::as_fd),
            State::Down(_) | State::Done => None,
        }
    }

    /// When [`Keeper::tend`] has something to do at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Down(again) => Some(*again),
            State::Up(_) | State::Done => None,
        }
    }

    /// What it said since.
    pub(crate) fn read(&mut self) -> Vec<Status> {
        self.listen();
        std::mem::take(&mut self.heard)
    }

    fn listen(&mut self) {
        let State::Up(running) = &mut self.state else {
            return;
        };
        for status in running.read() {
            if let Status::Ready {
                run_dir, aggregator, ..
            } = &status
            {
                self.aggregates_in = run_dir.as_ref().map(PathBuf::from);
                self.joined = run_dir.is_none().then(|| aggregator.clone());
            }
            self.heard.push(status);
        }
    }

    /// Looks after it: a dead one is started again when its pause is over.
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
            State::Down(again) if now >= *again => self.start(),
            State::Down(_) | State::Done => {}
        }
    }

    /// How it ended and when it had begun, if it has ended. Its last words are kept.
    fn ended(&mut self) -> Option<(ExitStatus, Instant)> {
        let State::Up(running) = &mut self.state else {
            return None;
        };
        let (status, since) = (running.process.try_wait().ok().flatten()?, running.since);
        self.listen();
        Some((status, since))
    }

    /// Tells it that the child has ended. One that is down is started once more, for what the rings still hold.
    pub(crate) fn tell_exit(&mut self, code: i32) {
        if matches!(self.state, State::Down(_)) {
            self.start();
        }
        if let State::Up(running) = &mut self.state {
            running.say(format_args!("{{\"exit\":{{\"code\":{code}}}}}"));
        }
    }

    /// After [`Keeper::tell_exit`]: how its life ended, if it has.
    pub(crate) fn farewell(&mut self) -> Option<Farewell> {
        match self.ended() {
            Some((status, _)) if status.success() => self.state = State::Done,
            Some((status, _)) => self.down(describe(status)),
            None if matches!(self.state, State::Up(_)) => return None,
            None => {}
        }
        Some(if matches!(self.state, State::Done) {
            Farewell::InOrder
        } else {
            Farewell::Died
        })
    }

    /// It takes too long: asks it to end, or ends it.
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.late = true;
        if let State::Up(running) = &self.state {
            // It has not been waited for, so the number is still its own.
            let _ = kill_process(Pid::from_child(&running.process), signal);
        }
    }

    /// What can be said of its life.
    pub(crate) fn into_life(self) -> Life {
        Life {
            finished: matches!(self.state, State::Done),
            late: self.late,
            aggregates_in: self.aggregates_in,
            joined: self.joined,
            run_dir: self.run_dir,
        }
    }
}

/// What came of the sidecars of a run.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// The last one ended in order.
    pub(crate) finished: bool,
    /// It did not finish in time.
    pub(crate) late: bool,
    /// Where the aggregator wrote, if it was one of ours.
    pub(crate) aggregates_in: Option<PathBuf>,
    /// Address of the aggregator, if it was none of ours.
    pub(crate) joined: Option<String>,
    /// The run directory.
    pub(crate) run_dir: PathBuf,
}

impl Running {
    fn start(args: &[OsString], run_dir: &Path, child: u32) -> anyhow::Result<Running> {
        let log = File::options().create(true).append(true).open(run_dir.join(LOG));
        // A disk that is full must not keep it from starting.
        let stderr = log.map_or_else(|_| Stdio::null(), Stdio::from);
        let mut process = Command::new(program())
            .arg0("paceline")
            .args(args)
            // Of its own, so that neither Ctrl-C nor a stop of the job reaches it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        if let Some(output) = &output {
            rustix::io::ioctl_fionbio(output, true).context("its output")?;
        }
        if let Some(input) = &input {
            rustix::io::ioctl_fionbio(input, true).context("its input")?;
        }
        let mut running = Running {
            process,
            input,
            output,
            line: Vec::new(),
            since: Instant::now(),
        };
        running.say(format_args!("{{\"child\":{child}}}"));
        Ok(running)
    }

    /// One line to it. When it does not read, it misses the line; we never wait.
    fn say(&mut self, line: impl std::fmt::Display) {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(format!("{line}\n").as_bytes());
        }
    }

    fn read(&mut self) -> Vec<Status> {
        let mut said = Vec::new();
        let mut buffer = [0; 4096];
        while let Some(output) = &mut self.output {
            match output.read(&mut buffer) {
                Ok(0) => self.output = None,
                Ok(count) => self.take(&buffer[..count], &mut said),
                Err(problem) if problem.kind() == io::ErrorKind::Interrupted => {}
                Err(problem) if problem.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.output = None,
            }
        }
        said
    }

    fn take(&mut self, bytes: &[u8], said: &mut Vec<Status>) {
        for byte in bytes {
            if *byte == b'\n' {
                // A status of a later version is none of ours.
                said.extend(serde_json::from_slice::<Status>(&self.line));
                self.line.clear();
            } else if self.line.len() < MAX_LINE {
                self.line.push(*byte);
            }
        }
    }
}

/// This very program, also when its file was replaced by a newer one in the meantime.
fn program() -> PathBuf {
    std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

fn arguments(plan: &Plan, place: &Place, step_log: Option<&Path>) -> Vec<OsString> {
    let mut args = vec![OsString::from("sidecar"), OsString::from("--inherit-ring-dir")];
    // One word each: a value may begin with a dash.
    let mut flag = |name: &str, value: &std::ffi::OsStr| {
        let mut word = OsString::from(format!("--{name}="));
        word.push(value);
        args.push(word);
    };
    flag("job", plan.job.as_ref());
    flag("node", plan.node.as_ref());
    flag("run-dir", place.run_dir.as_os_str());
    flag("ring-dir", place.ring_dir.as_os_str());
    if let Some(told) = &place.told {
        flag("told", told.as_os_str());
    }
    if let Some(aggregator) = &plan.settings.aggregator {
        flag("aggregator", aggregator.as_ref());
    }
    if let Some(key) = &plan.settings.key_file {
        flag("key-file", key.as_os_str());
    }
    if let Some(http) = plan.settings.http {
        flag("http", http.to_string().as_ref());
    }
    if let Some(library) = &plan.settings.nvml_lib {
        flag("nvml-lib", library.as_os_str());
    }
    if let Some(log) = &plan.settings.kmsg {
        flag("kmsg", log.as_os_str());
    }
    if let Some(address) = &plan.settings.ras {
        flag("ras", address.as_ref());
    }
    if let Some(path) = step_log {
        flag("step-log", path.as_os_str());
        if let Some(pattern) = &plan.settings.step_regex {
            flag("step-regex", pattern.as_ref());
        }
    }
    if let Some(path) = &plan.settings.inspector {
        flag("inspector", path.as_os_str());
    }
    if let Some(script) = &plan.settings.sim_gpus {
        flag("sim-gpus", script.to_string().as_ref());
        flag("sim-origin-ns", plan.origin_ns.to_string().as_ref());
    }
    for (key, value) in &plan.settings.changes {
        flag("policy", format!("{key}={value}").as_ref());
    }
    for key in &plan.settings.pinned {
        flag("pinned", key.as_ref());
    }
    args
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        (code, None) => format!("ended with code {}", code.unwrap_or_default()),
    }
}
