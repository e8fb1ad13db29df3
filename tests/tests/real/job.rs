//! Starts a real job under `paceline run` and reads its output.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Timeout for a job on a busy machine with two cores.
const PATIENCE: Duration = Duration::from_secs(240);

/// Returns the path of the virtual environment with PyTorch.
pub fn torch() -> PathBuf {
    let home = std::env::var_os("PACELINE_TORCH").expect("PACELINE_TORCH is set by tests/run: run that");
    let home = PathBuf::from(home);
    assert!(
        home.join("bin/torchrun").exists(),
        "no torchrun in {}: run tests/run",
        home.display()
    );
    home
}

/// Returns the path of a training script in tests/trainers.
pub fn trainer(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("trainers").join(name);
    assert!(path.exists(), "{}", path.display());
    path.to_str().unwrap().to_owned()
}

/// A job to be run with Paceline.
pub struct Job {
    pub dir: TempDir,
    command: Command,
}

/// A running job.
pub struct Running {
    pub dir: TempDir,
    pub child: Child,
}

/// A finished job.
pub struct Ended {
    pub dir: TempDir,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Prepares `paceline run [options] -- torchrun --standalone --nproc-per-node=RANKS SCRIPT ARGS`.
pub fn torchrun(options: &[&str], ranks: u32, script: &str, args: &str) -> Job {
    let torchrun = torch().join("bin/torchrun");
    let ranks = format!("--nproc-per-node={ranks}");
    let mut command = vec![
        torchrun.to_str().unwrap().to_owned(),
        "--standalone".to_owned(),
        ranks,
    ];
    command.push(trainer(script));
    command.extend(args.split_whitespace().map(str::to_owned));
    paceline(options, &command)
}

/// Prepares `paceline run [options] -- COMMAND`, with a separate run directory.
pub fn paceline(options: &[&str], command: &[String]) -> Job {
    let dir = TempDir::new().unwrap();
    let mut paceline = Command::new(env!("CARGO_BIN_EXE_paceline-under-test"));
    let path = format!(
        "{}:{}",
        torch().join("bin").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    paceline
        .env("PATH", path)
        .env("OMP_NUM_THREADS", "1")
        .env("PYTHONWARNINGS", "ignore");
    // Model libraries must not access the network.
    paceline
        .env("HF_HUB_OFFLINE", "1")
        .env("TOKENIZERS_PARALLELISM", "false");
    paceline.arg("run").args(options);
    if !options.contains(&"--run-dir") {
        paceline.arg("--run-dir").arg(dir.path().join("run"));
    }
    paceline.arg("--").args(command);
    paceline.current_dir(dir.path()).stdin(Stdio::null());
    Job {
        dir,
        command: paceline,
    }
}

impl Job {
    /// Starts the job.
    pub fn start(mut self) -> Running {
        self.command
            .stdout(std::fs::File::create(self.dir.path().join("stdout")).unwrap());
        self.command
            .stderr(std::fs::File::create(self.dir.path().join("stderr")).unwrap());
        Running {
            child: self.command.spawn().unwrap(),
            dir: self.dir,
        }
    }

    /// Runs the job to its end.
    pub fn run(self) -> Ended {
        self.start().wait()
    }
}

impl Running {
    /// Returns the job's standard output so far.
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stdout")).unwrap()
    }

    /// Polls until `found` returns a result.
    pub fn until<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(value) = found() {
                return value;
            }
            assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the journal has `lines` lines.
    pub fn until_journal(&self, lines: usize) {
        let journal = self.dir.path().join("run/journal.ndjson");
        self.until("the journal", || {
            let text = std::fs::read_to_string(&journal).unwrap_or_default();
            (text.lines().count() >= lines).then_some(())
        });
    }

    /// Returns the process IDs of this job's sidecars.
    pub fn sidecars(&self) -> Vec<u32> {
        let run_dir = self.dir.path().join("run");
        let is_sidecar = |pid: &u32| {
            let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let cmdline = String::from_utf8_lossy(&cmdline).replace('\0', " ");
            cmdline.contains(" sidecar ") && cmdline.contains(run_dir.to_str().unwrap())
        };
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(is_sidecar)
            .collect()
    }

    /// Waits for the end of the job.
    pub fn wait(mut self) -> Ended {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if begin.elapsed() > PATIENCE {
                let _ = self.child.kill();
                panic!("the job does not end: {}", self.stdout());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let read = |name: &str| {
            String::from_utf8_lossy(&std::fs::read(self.dir.path().join(name)).unwrap()).into_owned()
        };
        let (stdout, stderr) = (read("stdout"), read("stderr"));
        Ended {
            dir: self.dir,
            status,
            stdout,
            stderr,
        }
    }
}

/// Runs a job that must get a verdict on `rank` only, at the latest at `step`. If the verdict is missing, the job is
/// run once more, because other load on the machine may hide a few milliseconds. Another verdict fails at once.
pub fn naming(rank: u64, step: u64, run: impl Fn() -> Ended) -> Ended {
    let mut ended = run();
    if !ended.has_named(rank, step) && ended.stragglers().iter().all(|(found, _)| *found == rank) {
        eprintln!("once more: {:?}\n{}", ended.stragglers(), ended.stderr);
        ended = run();
    }
    ended.names_only(rank, step);
    ended
}

impl Ended {
    /// Returns the content of report.json.
    pub fn report(&self) -> Value {
        let path = self.dir.path().join("run/report.json");
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}{}", path.display(), self.stdout, self.stderr));
        serde_json::from_str(&text).unwrap()
    }

    /// Fails with all output unless the job ended well. One failure is tolerated: PyTorch 2.15 with gloo sometimes
    /// aborts at interpreter exit, after the work is done and with this message, even without Paceline.
    pub fn ok(self) -> Ended {
        let torch_at_exit = self
            .stderr
            .contains("terminate called without an active exception");
        assert!(
            self.status.success() || torch_at_exit,
            "{}\n{}\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Returns the ranks with a straggler verdict of any severity, and the step at which each verdict was raised.
    pub fn stragglers(&self) -> Vec<(u64, u64)> {
        let report = self.report();
        let verdicts = report["verdicts"].as_array().unwrap().clone();
        verdicts
            .iter()
            .filter(|verdict| verdict["finding"] == "straggler")
            .map(|verdict| {
                (
                    verdict["subject"]["rank"].as_u64().unwrap(),
                    verdict["raised_step"].as_u64().unwrap(),
                )
            })
            .collect()
    }

    /// Fails unless `rank` and no other rank was named, at the latest at `step`.
    pub fn names_only(&self, rank: u64, step: u64) {
        self.accuses_only(&[rank]);
        assert!(
            self.has_named(rank, step),
            "rank and step: {:?}\n{}\n{}",
            self.stragglers(),
            self.stderr,
            self.report()
        );
    }

    /// Fails if a rank other than `ranks` has a straggler verdict. tests/run does not retry after this message.
    pub fn accuses_only(&self, ranks: &[u64]) {
        let wrong = self
            .stragglers()
            .into_iter()
            .find(|(rank, _)| !ranks.contains(rank));
        assert_eq!(wrong, None, "wrongly accused\n{}\n{}", self.stderr, self.report());
    }

    fn has_named(&self, rank: u64, step: u64) -> bool {
        matches!(self.stragglers().as_slice(), [(found, sure)] if *found == rank && *sure <= step)
    }

    /// Returns the median step that the script printed, in milliseconds.
    pub fn median_step_ms(&self) -> f64 {
        let after = self.stdout.split("median step ").nth(1);
        let after = after.unwrap_or_else(|| panic!("no median step in {}\n{}", self.stdout, self.stderr));
        after.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Returns every gap in the report's coverage, as text.
    pub fn gaps(&self) -> Vec<String> {
        let report = self.report();
        report["coverage"]["gaps"]
            .as_array()
            .unwrap()
            .iter()
            .map(Value::to_string)
            .collect()
    }
}
