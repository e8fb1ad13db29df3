//! Queries real Python processes with the real hook.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use paceline_health::event::{Phase, ThreadState};
use rustix::process::{Pid, Signal, kill_process};

use super::*;

const HOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/probe/python");

/// A Python program that runs with the hook's stack handler and has printed a line.
struct Program(Child);

impl Program {
    fn new(ring_dir: &Path, script: &str, variables: &[(&str, &str)]) -> Program {
        std::fs::write(ring_dir.join("train.py"), script).unwrap();
        let mut child = Command::new("python3")
            .arg(ring_dir.join("train.py"))
            .env("PYTHONPATH", HOOK)
            .env("PACELINE_RING_DIR", ring_dir)
            .env_remove("PACELINE_RING_SHARED")
            .env_remove("PACELINE_STACKS")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Program(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Queries the program once it has printed its line and gone to sleep.
fn asked(ring_dir: &Path, program: &Program) -> (Activity, Vec<WorkerActivity>) {
    let mut asker = Asker::new(ring_dir);
    let mut ask = || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (main, workers) = asker.ask(program.pid());
        (main.state != ThreadState::Running).then_some((main, workers))
    };
    (0..500).find_map(|_| ask()).unwrap()
}

/// Returns the innermost frame of the user's own code.
fn own(activity: &Activity) -> (String, u32) {
    let own = activity.own.map(|own| &activity.frames[usize::from(own)]);
    own.map_or_else(
        || (activity.missing.to_string(), 0),
        |frame| (frame.function.to_string(), frame.line),
    )
}

#[test]
fn a_program_that_holds_a_lock_and_its_other_threads() {
    let dir = tempfile::tempdir().unwrap();
    let script = "import threading
from paceline import _stacks
_stacks.watch()
lock = threading.Lock()
lock.acquire()
def other():
    threading.Event().wait()
threading.Thread(target=other, daemon=True).start()
def next_batch():
    print('ready', flush=True)
    lock.acquire()
next_batch()
";
    let program = Program::new(dir.path(), script, &[]);
    // Queries work any number of times.
    for _ in 0..3 {
        let (main, workers) = asked(dir.path(), &program);
        assert_eq!(own(&main), ("next_batch".to_owned(), 11), "{main:?}");
        assert!(workers.is_empty());
        assert!(
            main.waits_in.starts_with("lock (futex)") || main.waits_in.ends_with("(kernel)"),
            "{main:?}"
        );
    }
}

#[test]
fn workers_that_were_forked_answer_and_programs_they_become_are_not_asked() {
    let dir = tempfile::tempdir().unwrap();
    let script = "import os, subprocess, sys, time
from paceline import _stacks
_stacks.watch()
sleeper = subprocess.Popen(['sleep', '60'])
def load():
    time.sleep(60)
for _ in range(2):
    if os.fork() == 0:
        load()
        os._exit(0)
time.sleep(1.5)
print('ready', flush=True)
os.wait()
";
    let program = Program::new(dir.path(), script, &[]);
    let (main, workers) = asked(dir.path(), &program);
    assert_eq!(own(&main), ("<module>".to_owned(), 13), "{main:?}");
    assert_eq!(workers.len(), 1, "{workers:?}");
    assert_eq!(
        (workers[0].count, own(&workers[0].activity)),
        (2, ("load".to_owned(), 6))
    );
    for child in Asker::new(dir.path()).children(program.pid()) {
        let pid = Pid::from_raw(child as i32).unwrap();
        assert!(kill_process(pid, Signal::KILL).is_ok(), "{child} is gone");
    }
}

#[test]
fn who_cannot_answer_is_not_asked_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let script = "import signal, sys, time
from paceline import _stacks
_stacks.watch()
exec(sys.argv[1] if len(sys.argv) > 1 else __import__('os').environ['THEN'])
print('ready', flush=True)
time.sleep(60)
";
    for (then, variables, missing) in [
        ("", &[("PACELINE_STACKS", "off")][..], ask::NO_HANDLER),
        // The program later handles the signal itself, blocks it, or execs another program.
        (
            "signal.signal(int(_stacks._path.split('-')[-2]), lambda *_: sys.exit(3))",
            &[],
            ask::NO_HANDLER,
        ),
        (
            "signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65))",
            &[],
            "it blocks the signal that asks for stacks",
        ),
        (
            // The other program is not a shell, because a shell that starts a program is in an uninterruptible sleep.
            "import os; os.execv(sys.executable, [sys.executable, '-Ic', \"import time; print('ready', flush=True); time.sleep(60)\"])",
            &[],
            ask::NO_HANDLER,
        ),
        // The program has closed inherited descriptors and has its own file at that descriptor.
        (
            "import os; os.close(_stacks._file); os.open(os.devnull, os.O_WRONLY)",
            &[],
            ask::NO_HANDLER,
        ),
    ] {
        let variables: Vec<(&str, &str)> = variables.iter().copied().chain([("THEN", then)]).collect();
        let mut program = Program::new(dir.path(), script, &variables);
        let (main, _) = asked(dir.path(), &program);
        assert_eq!((&*main.missing, main.frames.len()), (missing, 0), "{then}");
        assert!(program.0.try_wait().unwrap().is_none(), "it was ended: {then}");
    }
}

#[test]
fn a_signal_that_somebody_has_taken_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let script = "import signal, time
seen = signal.SIGRTMAX - 3
signal.signal(seen, lambda *_: print('taken', flush=True))
from paceline import _stacks
_stacks.watch()
assert _stacks._path.split('-')[-2] == str(seen - 1), _stacks._path
print('ready', flush=True)
time.sleep(60)
";
    let program = Program::new(dir.path(), script, &[]);
    assert_eq!(own(&asked(dir.path(), &program).0), ("<module>".to_owned(), 8));
}

#[test]
fn a_process_that_is_stopped_or_gone_is_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let script = "import time
from paceline import _stacks
_stacks.watch()
print('ready', flush=True)
time.sleep(60)
";
    let program = Program::new(dir.path(), script, &[]);
    let pid = Pid::from_raw(program.pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let stopped = (0..500).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let (main, _) = asked(dir.path(), &program);
        (main.state == ThreadState::Stopped).then_some(main)
    });
    assert_eq!(&*stopped.unwrap().missing, "stopped by a signal");
    let gone = program.pid();
    drop(program);
    assert_eq!(
        &*Asker::new(dir.path()).ask(gone).0.missing,
        "the process has ended"
    );
}

#[test]
fn ranks_that_do_the_same_are_one_event() {
    let answer = |rank, missing: &str| {
        let main = Activity {
            missing: missing.into(),
            ..Activity::default()
        };
        (Rank(rank), 0, main, Vec::new())
    };
    let all = merged(vec![answer(0, "a"), answer(1, "b"), answer(2, "a")]);
    let ranks: Vec<&[Rank]> = all.iter().map(|stacks| stacks.ranks.as_slice()).collect();
    assert_eq!(ranks, [&[Rank(0), Rank(2)][..], &[Rank(1)]]);
}

/// Returns the events for ranks 0 and 1 at two times a second apart. `still_s` is how long rank 1 has made no progress
/// at each of them.
fn events_of(trainers: Trainers, dir: &Path, still_s: [u64; 2]) -> Vec<Stacks> {
    let mut source = StackSource::new(dir.to_owned(), trainers);
    let mut events = Vec::new();
    for (second, idle_s) in (100..).zip(still_s) {
        let pulse = |rank, idle_s: u64| Pulse {
            rank: Rank(rank),
            restart: 0,
            step: 7,
            phase: Phase::Compute,
            idle_ns: idle_s * 1_000_000_000,
            alive: true,
        };
        source.notice(&[pulse(0, 0), pulse(1, idle_s)], second * 1_000_000_000);
        for _ in 0..if idle_s == still_s[1] { 60 } else { 1 } {
            source.poll(0, &mut |_, event| {
                let Event::Stacks(stacks) = event else {
                    panic!("{event:?}")
                };
                events.push(stacks);
                0
            });
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    events
}

#[test]
fn a_rank_of_another_container_says_so_and_one_that_has_moved_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let events = events_of(Trainers::default(), dir.path(), [6, 7]);
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].main.missing.contains("container"), "{events:?}");
    let trainers = Trainers::default();
    trainers.are(BTreeMap::from([(Rank(1), std::process::id())]));
    assert_eq!(events_of(trainers.clone(), dir.path(), [6, 7]).len(), 1);
    // The rank made progress while it was queried, so there is no event.
    assert_eq!(events_of(trainers, dir.path(), [6, 0]), []);
}
