//! Tests causes of a slow rank that are on its host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::job::{Ended, torchrun};

/// A control group that gets a tenth of a CPU until it is dropped.
struct Quota(PathBuf);

impl Quota {
    /// Returns `None` if the control group cannot be created, for example without privileges.
    fn new() -> Option<Quota> {
        // Version 2 of control groups, or version 1 on older machines.
        [
            ("/sys/fs/cgroup", "cpu.max", "10000 100000"),
            ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "10000"),
        ]
        .into_iter()
        .find_map(|(root, file, limit)| {
            let is_cgroup = Path::new(root).join("cgroup.procs").exists();
            let group = Quota(Path::new(root).join(format!("paceline-test-{}", std::process::id())));
            let made = is_cgroup && fs::create_dir(&group.0).is_ok();
            // The file exists only if the controller is enabled.
            (made && group.0.join(file).exists() && fs::write(group.0.join(file), limit).is_ok())
                .then_some(group)
        })
    }

    fn door(&self) -> String {
        self.0.join("cgroup.procs").display().to_string()
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // Ignores the error, because the directory may not exist.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Busy loops on one CPU that run until they are dropped.
struct Neighbours(Vec<Child>);

impl Neighbours {
    fn on(cpu: &str) -> Neighbours {
        let busy = |_| {
            let mut loops = Command::new("taskset");
            loops.args(["-c", cpu, "sh", "-c", "while :; do :; done"]);
            loops.stdin(Stdio::null()).spawn().unwrap()
        };
        Neighbours((0..4).map(busy).collect())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Ignores the error, because the process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn run(held: &str) -> Ended {
    let args = format!("--steps 120 --sleep-ms 60 --spin-ms 10 --held-rank 2 {held}");
    torchrun(&[], 4, "ddp.py", &args).run().ok()
}

/// Checks that the verdict on rank 2 has lack of CPU as its cause. Its peers do not lack CPU.
fn wants_cpu(ended: &Ended) {
    ended.names_only(2, 120);
    let report = ended.report();
    let verdicts = report["verdicts"].as_array().unwrap();
    let verdict = verdicts
        .iter()
        .find(|verdict| verdict["finding"] == "straggler")
        .unwrap();
    assert_eq!(verdict["cause"], "cpu-contention", "{verdict}");
    assert_eq!(verdict["provenance"], "live");
    let evidence = verdict["evidence"].as_array().unwrap();
    let wanted = evidence
        .iter()
        .find(|piece| piece["what"] == "cpu_contention_ratio");
    let number = |key: &str| wanted.and_then(|wanted| Value::as_f64(&wanted[key])).unwrap();
    assert!(number("value") > number("peers") + 0.05, "{verdict}");
}

/// Limits the CPU by a quota if a control group can be created. Otherwise it starts busy loops on the only CPU that the
/// rank may use.
#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_rank_that_gets_less_cpu() {
    if let Some(quota) = Quota::new() {
        return wants_cpu(&run(&format!("--held-in {}", quota.door())));
    }
    let _neighbours = Neighbours::on("1");
    wants_cpu(&run("--held-on 1"));
}
