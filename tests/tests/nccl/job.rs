//! Runs a job without a hook under `paceline run`: four processes that have only the plugin.

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::{elf, harness};

/// A job with steps of five collectives, 11 ms each. The rank `slow` computes longer by a factor.
struct Job {
    place: TempDir,
}

impl Job {
    fn new() -> Job {
        Job {
            place: TempDir::new().unwrap(),
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.place.path().join(name)
    }

    fn run(&self, steps: u32, slow: i32, factor: f64) -> Output {
        self.run_until("wait", steps, slow, factor)
    }

    /// Runs the job. `end` has the shell's commands after all ranks have started.
    fn run_until(&self, end: &str, steps: u32, slow: i32, factor: f64) -> Output {
        let program = harness::compile("nccl-harness-fast", &["-O2"]);
        let script = format!(
            "for rank in 0 1 2 3; do RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=4 {} {} 5 train {steps} 4 {slow} {factor} \
             >/dev/null & pids=\"$pids $!\"; done; {end}",
            program.display(),
            elf::release().display(),
        );
        let run = self.path("run");
        self.paceline(&[
            "run",
            "--quiet",
            "--run-dir",
            run.to_str().unwrap(),
            "--",
            "sh",
            "-c",
            &script,
        ])
    }

    fn paceline(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline-under-test"));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["PACELINE_", "SLURM_", "TORCHELASTIC_", "NCCL_"]
                .iter()
                .any(|start| name.starts_with(start))
            {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .current_dir(self.place.path())
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("NCCL_PROFILER_PLUGIN", "none")
            .env("PACELINE_NCCL_SAMPLE", "1")
            .env("PACELINE_NCCL_BUDGET_PPM", "1000000000")
            .env("PACELINE_STEPS_AFTER", "1");
        command.output().unwrap()
    }

    fn report(&self) -> String {
        fs::read_to_string(self.path("run/report.json")).unwrap_or_default()
    }

    fn journal(&self) -> String {
        fs::read_to_string(self.path("run/journal.ndjson")).unwrap_or_default()
    }
}

/// Creates a file on drop, even if a test fails.
struct Enough(std::path::PathBuf);

impl Drop for Enough {
    fn drop(&mut self) {
        fs::write(&self.0, "").unwrap_or_default();
    }
}

/// Returns the rank, the signals and the slowdown of each verdict about a slow rank.
fn stragglers(report: &str) -> Vec<(u64, String, f64)> {
    let report: Value = serde_json::from_str(report).unwrap();
    let verdicts = report["verdicts"].as_array().unwrap();
    verdicts
        .iter()
        .filter(|verdict| verdict["finding"] == "straggler")
        .map(|verdict| {
            let rank = verdict["subject"]["rank"].as_u64().unwrap_or(u64::MAX);
            let ratio = verdict["slowdown_ratio"].as_f64().unwrap_or(0.0);
            (rank, verdict["signals"].to_string(), ratio)
        })
        .collect()
}

/// Steps, the slow rank and its slowdown must be derived from collectives alone. There is no hook and no step in any
/// log, and the ranks have four different GPU clocks.
#[test]
fn a_slow_rank_is_named_without_a_hook() {
    let job = Job::new();
    let output = job.run(400, 2, 1.3);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let steps = job.journal().matches(r#""event":{"step":{"#).count();
    let found = stragglers(&job.report());
    println!("{steps} steps, {found:?}");
    assert!(steps > 4 * 200, "{steps} steps");
    assert_eq!(found.len(), 1, "{found:?}");
    let (rank, signals, ratio) = &found[0];
    assert_eq!((*rank, signals.contains("S1")), (2, true), "{found:?}");
    assert!((ratio - 1.3).abs() < 0.05, "how much is told as well: {ratio}");
}

/// Without a slow rank there must be no verdict, and all 400 steps must be numbered correctly.
#[test]
fn an_even_job_names_nobody() {
    let job = Job::new();
    let output = job.run(400, -1, 1.0);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(stragglers(&job.report()), []);
    let journal = job.journal();
    let last = journal
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|line| line["frame"]["event"]["step"]["step"].as_u64())
        .max();
    assert!(last.is_some_and(|last| (398..=401).contains(&last)), "{last:?}");
}

/// GPU times can be switched off and on during training, for one rank and for all.
#[test]
fn switched_while_it_trains() {
    let job = Job::new();
    std::thread::scope(|scope| {
        let enough = Enough(job.path("enough"));
        let end = format!(
            "while [ ! -e '{}' ]; do sleep 0.1; done; kill $pids; wait",
            enough.0.display()
        );
        let job = &job;
        scope.spawn(move || job.run_until(&end, 1_000_000, -1, 1.0));
        let states = |args: &[&str]| {
            let run = job.path("run");
            let mut words = vec!["profiler"];
            words.extend(args);
            words.extend(["--json", "--run-dir", run.to_str().unwrap()]);
            let output = job.paceline(&words);
            let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let ranks = told["ranks"].as_array().cloned().unwrap_or_default();
            let state = |rank: &Value| {
                (
                    rank["rank"].as_u64(),
                    rank["state"].to_string(),
                    rank["one_of"].as_u64(),
                )
            };
            ranks.iter().map(state).collect::<Vec<_>>()
        };
        let wait = |wanted: [(&str, Option<u64>); 4]| {
            let wanted: Vec<_> = (0..)
                .zip(wanted)
                .map(|(rank, (state, one_of))| (Some(rank), format!("{state:?}"), one_of))
                .collect();
            let began = Instant::now();
            let mut now = states(&[]);
            while now != wanted && began.elapsed() < Duration::from_secs(120) {
                std::thread::sleep(Duration::from_millis(50));
                now = states(&[]);
            }
            assert_eq!(now, wanted);
        };
        let always = ("one-of", Some(1));
        wait([always; 4]);
        assert_eq!(states(&["off", "--rank", "1"]).len(), 1);
        wait([always, ("never", None), always, always]);
        states(&["sample", "16"]);
        wait([("one-of", Some(16)); 4]);
        states(&["on"]);
        wait([always; 4]);
        states(&["stop"]);
        wait([("stopped", None); 4]);
    });
    let gone = job.paceline(&["profiler", "--run-dir", job.path("run").to_str().unwrap()]);
    assert_eq!(gone.status.code(), Some(3), "nobody trains any more");
}
