//! Starts a Slurm cluster for one test, and checks what its jobs leave behind.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use paceline_health::event::Event;
use paceline_health::frame::Entry;
use serde_json::Value;
use tempfile::TempDir;

/// Timeout for any operation on a busy machine with two cores.
const PATIENCE: Duration = Duration::from_secs(150);
/// The file system in which Paceline creates its ring directories.
const MEMORY: &str = "/dev/shm";

/// Nodes n1, n2, ... with separate addresses, and a shared working directory for jobs.
pub struct Cluster {
    dir: TempDir,
    /// The words to put before Slurm's commands.
    inside: Vec<String>,
    conf: String,
}

impl Cluster {
    pub fn of(nodes: u32) -> Cluster {
        Cluster::tracked_by(nodes, "linuxproc")
    }

    /// Starts a cluster. `proctrack` is how Slurm tracks the processes of a step (ProctrackType).
    pub fn tracked_by(nodes: u32, proctrack: &str) -> Cluster {
        Cluster::with(nodes, proctrack, |_| String::new())
    }

    /// Starts a cluster. `extra` returns more lines for slurm.conf, given the path of the jobs' directory.
    pub fn with(nodes: u32, proctrack: &str, extra: impl Fn(&Path) -> String) -> Cluster {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        let paceline = env!("CARGO_BIN_EXE_paceline-under-test");
        symlink(paceline, dir.path().join("bin/paceline")).unwrap();
        let home = dir.path().join("slurm");
        let up = setup("up", &home)
            .env("NODES", nodes.to_string())
            .env("PROCTRACK", proctrack)
            .env("SLURM_EXTRA", extra(dir.path()))
            .env("CGROUP", "ConstrainRAMSpace=yes")
            // Lets a job whose prolog fails on one node start on another instead of being held.
            .env("SCHED", "nohold_on_prolog_fail")
            .output()
            .unwrap();
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        let env = fs::read_to_string(home.join("env")).unwrap();
        let inside = env
            .lines()
            .find_map(|line| line.strip_prefix("export IN_CLUSTER="))
            .unwrap();
        Cluster {
            inside: inside
                .replace('\\', "")
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
            conf: home.join("slurm.conf").display().to_string(),
            dir,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Reads a file. A missing file counts as empty.
    pub fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(name)).unwrap_or_default()).into_owned()
    }

    /// Returns one of Slurm's commands, with a time limit, in the jobs' directory.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut all: Vec<&str> = self.inside.iter().map(String::as_str).collect();
        all.extend(words);
        self.bare(&all)
    }

    /// Returns the words to put before a command that runs on a node without Slurm, in its network and with its host
    /// name.
    pub fn node(&self, number: u32) -> Vec<String> {
        let network = self
            .inside
            .last()
            .map(|space| space.replace("br", &number.to_string()));
        let hosts = self.path("slurm/hosts").display().to_string();
        let enter = format!("hostname n{number}; mount --bind {hosts} /etc/hosts; exec \"$@\"");
        [
            "nsenter",
            &network.unwrap(),
            "unshare",
            "--uts",
            "--mount",
            "sh",
            "-c",
            &enter,
            "sh",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// Returns a command with the time limit, directory and environment of this cluster's jobs.
    pub fn bare(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE.as_secs().to_string()).args(words);
        let ours = |name: &str| {
            ["PACELINE_", "SLURM", "TORCHELASTIC_", "MASTER_", "OMPI_", "PMIX_"]
                .iter()
                .any(|start| name.starts_with(start))
        };
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(ours) {
                command.env_remove(name);
            }
        }
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("SLURM_CONF", &self.conf)
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            // Gives the test its own key, in a simulated shared home directory.
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("OMP_NUM_THREADS", "1")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, words: &[&str]) -> Ran {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(words).output().unwrap();
        Ran {
            code: status.code(),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// Submits a batch script and returns the job's ID. Its output goes to `out`.
    pub fn sbatch(&self, options: &[&str], script: &str) -> String {
        fs::write(self.path("job.sh"), format!("#!/bin/bash\n{script}\n")).unwrap();
        let mut words = vec!["sbatch", "--parsable", "--output=out", "--open-mode=append"];
        words.extend(options);
        words.push("job.sh");
        let ran = self.run(&words);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stdout.trim().to_owned()
    }

    /// Polls until `found` returns a result.
    pub fn until<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(value) = found() {
                return value;
            }
            let logs = || self.run(&["squeue"]).stdout + &self.read("out");
            assert!(
                began.elapsed() < PATIENCE,
                "waited in vain for {what}\n{}",
                logs()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Starts a requeued job without Slurm's delay of two minutes. It retries, because a node's slurmd rejects a job
    /// within a second of its last end there.
    pub fn start_requeued(&self, job: &str) {
        self.until("the requeue", || {
            let shown = self.run(&["scontrol", "show", "job", job]).stdout;
            (shown.contains("JobState=PENDING") && shown.contains("Restarts=1")).then_some(())
        });
        std::thread::sleep(Duration::from_secs(2));
        let ran = self.run(&["scontrol", "update", &format!("jobid={job}"), "StartTime=now"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }

    /// Waits for the end of a job and returns its state.
    pub fn until_over(&self, job: &str) -> String {
        let over = [
            "COMPLETED",
            "FAILED",
            "CANCELLED",
            "TIMEOUT",
            "NODE_FAIL",
            "PREEMPTED",
        ];
        self.until("the job's end", || {
            let shown = self.run(&["scontrol", "show", "job", job]).stdout;
            let state = shown
                .split("JobState=")
                .nth(1)?
                .split_whitespace()
                .next()?
                .to_owned();
            over.contains(&&*state).then_some(state)
        })
    }

    /// The report in a run directory.
    pub fn report(&self, run_dir: &str) -> Value {
        let text = self.read(&format!("{run_dir}/report.json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{run_dir}: {error}\n{}", self.read("out")))
    }

    /// The journal in a run directory.
    pub fn journal(&self, run_dir: &str) -> Vec<Entry> {
        let text = self.read(&format!("{run_dir}/journal.ndjson"));
        let entry = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        text.lines().map(entry).collect()
    }

    /// Returns the processes of this cluster's jobs: trainers, launchers and sidecars. All of them have its
    /// environment.
    pub fn ours(&self) -> Vec<String> {
        let mark = format!("XDG_CONFIG_HOME={}\0", self.path("config").display());
        let is_ours = |process: &Path| {
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&mark)
        };
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|process| is_ours(process))
            .map(|process| {
                let line = fs::read(process.join("cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).replace('\0', " ")
            })
            .collect()
    }

    /// Waits until no process of ours is left, and no ring directory except those in `before`.
    pub fn nothing_is_left(&self, before: &[PathBuf]) {
        self.until("everything of ours to go", || {
            let rings = ring_dirs().into_iter().filter(|dir| !before.contains(dir));
            (self.ours().is_empty() && rings.count() == 0).then_some(())
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let down = setup("down", &self.path("slurm")).status();
        if !std::thread::panicking() {
            assert!(down.is_ok_and(|status| status.success()));
        }
    }
}

fn setup(verb: &str, home: &Path) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("setup/slurm.sh");
    let mut command = Command::new(script);
    command.arg(verb).arg(home).stdin(Stdio::null());
    command
}

/// The result of a command.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Returns the existing ring directories. Other jobs on this machine may have some.
pub fn ring_dirs() -> Vec<PathBuf> {
    let entries = fs::read_dir(MEMORY).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let is_ours = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"paceline-"))
    };
    paths.filter(is_ours).collect()
}

/// A training script of tests/trainers.
pub fn trainer(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("trainers").join(name);
    assert!(path.exists(), "{}", path.display());
    path.to_str().unwrap().to_owned()
}

/// The placement of ranks and sidecars.
pub struct Seating {
    /// Each rank with its node.
    pub ranks: Vec<(u32, String)>,
    /// The node of each sidecar that was ever started.
    pub sidecars: Vec<String>,
}

impl Seating {
    /// Reads the placement from the journal.
    pub fn of(journal: &[Entry]) -> Seating {
        let (mut ranks, mut sidecars) = (Vec::new(), Vec::new());
        for Entry { frame, .. } in journal {
            let node = frame.node.as_str().to_owned();
            match &frame.event {
                Event::Attach(attach) => ranks.push((attach.rank.0, node)),
                Event::Agent(_) => sidecars.push(node),
                _ => {}
            }
        }
        ranks.sort();
        ranks.dedup();
        sidecars.sort();
        Seating { ranks, sidecars }
    }

    pub fn node_of(&self, rank: u32) -> &str {
        let found = self.ranks.iter().find(|(known, _)| *known == rank);
        found.map_or("nowhere", |(_, node)| node)
    }
}

/// Returns the first straggler verdict, or null if there is none.
pub fn straggler(report: &Value) -> &Value {
    let verdicts = report["verdicts"].as_array().into_iter().flatten();
    let mut slow = verdicts.filter(|verdict| verdict["finding"] == "straggler");
    slow.next().unwrap_or(&Value::Null)
}
