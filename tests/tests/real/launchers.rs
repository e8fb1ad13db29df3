//! Tests launchers other than torchrun. The variables that they set for workers must be sufficient.

use serde_json::Value;

use crate::job::{Ended, paceline, torch, trainer};

const JOB: &str = "--steps 80 --sleep-ms 40 --slow-rank 1 --slow-pct 60";

fn run(words: &[&str]) -> Ended {
    let mut command = vec![torch().join("bin").join(words[0]).display().to_string()];
    command.extend(words[1..].iter().map(|word| (*word).to_owned()));
    command.push(trainer("ddp.py"));
    command.extend(JOB.split_whitespace().map(str::to_owned));
    paceline(&[], &command).run().ok()
}

/// Checks that both ranks are identified, that all of their steps are recorded, and that the slow one is named.
fn is_watched(ended: &Ended) {
    let report = ended.report();
    let coverage = &report["coverage"];
    assert_eq!(
        (&report["world_size"], &report["steps"]),
        (&Value::from(2), &Value::from(80)),
        "{report}"
    );
    assert_eq!(
        (&coverage["ranks_seen"], &coverage["steps_ratio"]),
        (&Value::from(2), &Value::from(1.0)),
        "{report}"
    );
    ended.names_only(1, 80);
    assert_eq!(report["end"]["reason"], "success", "{report}");
}

fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// Uses the launcher's mode for several GPUs, although the script uses none.
#[test]
#[ignore = "needs PyTorch: tests/run"]
fn accelerate_launch() {
    let port = free_port();
    let words = "accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no";
    let words: Vec<&str> = words
        .split_whitespace()
        .chain(["--main_process_port", &port])
        .collect();
    is_watched(&run(&words));
}
