use std::fs::File;
use std::io::Write;
use std::time::Instant;

use super::*;

const SECOND: u64 = 1_000_000_000;

struct Log {
    _dir: tempfile::TempDir,
    file: File,
    source: StepLog,
}

impl Log {
    fn new(pattern: Option<&str>) -> Log {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = File::create(&path).unwrap();
        let pattern = pattern.map(|pattern| StepPattern::parse(pattern).unwrap());
        let mut source = StepLog::new(path, pattern);
        source.world_size = 8;
        Log {
            _dir: dir,
            file,
            source,
        }
    }

    /// Writes `text` and polls until this many events have arrived.
    fn after(&mut self, text: &str, count: usize) -> Vec<Event> {
        self.file.write_all(text.as_bytes()).unwrap();
        let begun = Instant::now();
        let mut told = Vec::new();
        while told.len() < count {
            self.beat(&[]);
            self.source.poll(0, &mut |_, event| {
                told.push(event);
                1
            });
            assert!(begun.elapsed() < Duration::from_secs(20), "{told:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        told
    }

    /// Simulates the heartbeat of one second. `others` are pulses of other ranks of this node.
    fn beat(&mut self, others: &[Pulse]) -> Vec<Pulse> {
        let mut pulses = others.to_vec();
        self.source.pulses(host::monotonic_ns(), &mut pulses);
        self.source.notice(&pulses, 0);
        pulses
    }
}

fn steps(told: &[Event]) -> Vec<(u64, u64)> {
    let step = |event: &Event| match event {
        Event::Step(step) => {
            assert_eq!((step.signal, step.phases), (Signal::S0, None));
            Some((step.step, step.dur_ns / 1_000_000))
        }
        _ => None,
    };
    told.iter().filter_map(step).collect()
}

#[test]
fn lines_become_steps_of_the_whole_job() {
    let mut log = Log::new(None);
    let told = log.after(
        "starting\niter 0: loss 9.1, time 900.00ms, mfu -100.00%\niter 1: loss 8.0, time 135.20ms\n",
        3,
    );
    let Event::Attach(attach) = &told[0] else {
        panic!("{told:?}")
    };
    assert_eq!((attach.rank, attach.world_size, attach.pid), (Rank(0), 8, 0));
    assert_eq!(&*attach.framework, "log of nanoGPT");
    assert_eq!(steps(&told), [(0, 900), (1, 135)]);
    let pulses = log.beat(&[]);
    assert_eq!((pulses[0].step, pulses[0].idle_ns), (2, 0));
    // A new journal receives the introduction again.
    log.source.introduce(&mut |_, _| 1);
    let told = log.after("iter 2: loss 8.0, time 136.00ms\n", 2);
    assert!(
        matches!(told[0], Event::Attach(_)) && steps(&told) == [(2, 136)],
        "{told:?}"
    );
    assert_eq!(log.source.losses(), Losses::default());
}

#[test]
fn whoever_sees_more_is_not_disturbed() {
    let mut log = Log::new(None);
    let ring = Pulse {
        rank: Rank(0),
        restart: 0,
        step: 2,
        phase: Phase::Compute,
        idle_ns: 0,
        alive: true,
    };
    assert_eq!(log.beat(&[ring]).len(), 1);
    log.file.write_all(b"iter 0: loss 9.1, time 900.00ms\n").unwrap();
    let begun = Instant::now();
    while log.source.attach.is_none() {
        log.source.poll(0, &mut |_, event| panic!("{event:?}"));
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..3 {
        assert_eq!(log.beat(&[ring]).len(), 1);
        log.source.poll(0, &mut |_, event| panic!("{event:?}"));
    }
    assert!(log.source.waiting.is_empty());
}

#[test]
fn a_log_that_has_stopped_is_silent() {
    let mut log = Log::new(Some(r"^(?P<step>\d+) (?P<ms>\d+)$"));
    assert_eq!(steps(&log.after("1 100\n2 100\n", 3)), [(1, 100), (2, 100)]);
    let mut pulses = Vec::new();
    log.source.pulses(host::monotonic_ns() + 61 * SECOND, &mut pulses);
    assert!(pulses[0].idle_ns >= 60 * SECOND, "{pulses:?}");
}

#[test]
fn the_last_lines_of_a_short_job_are_told() {
    let mut log = Log::new(None);
    log.file.write_all(b"step 1 took 5 ms\n").unwrap();
    let begun = Instant::now();
    let mut told = Vec::new();
    // At its end, the agent calls `is_idle`, polls once more, and exits.
    while told.len() < 2 {
        log.source.is_idle();
        log.source.poll(0, &mut |_, event| {
            told.push(event);
            1
        });
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(steps(&told), [(1, 5)]);
}
