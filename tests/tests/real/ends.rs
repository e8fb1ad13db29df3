//! Tests how jobs end and start, and what the report says about it: which rank died first and why, which left early,
//! and what still worked.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::job::{Ended, torchrun};

fn end(ended: &Ended) -> Value {
    ended.report()["end"].clone()
}

fn findings(report: &Value, finding: &str) -> Vec<Value> {
    let verdicts = report["verdicts"].as_array().unwrap();
    let found = verdicts.iter().filter(|verdict| verdict["finding"] == finding);
    found.cloned().collect()
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_rank_that_raises_is_named_with_its_exception() {
    let ended = torchrun(&[], 3, "ends.py", "raise").run();
    let report = ended.report();
    let died = findings(&report, "rank-died");
    assert_eq!(died.len(), 1, "{report}");
    assert_eq!(died[0]["subject"]["rank"], 1);
    assert_eq!(died[0]["severity"], "critical");
    let says = died[0]["says"].as_str().unwrap();
    assert!(
        says.starts_with("ValueError: batch 20 is empty (ends.py:"),
        "{says}"
    );
    assert_eq!(died[0]["unresolved_at_exit"], true);
    assert_eq!(
        (&end(&ended)["rank"], &end(&ended)["reason"]),
        (&1.into(), &"error".into())
    );
    assert!(ended.stderr.contains("unresolved at exit"), "{}", ended.stderr);
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn the_end_names_who_left_first_with_which_code() {
    // The end in the report, and the number of ranks that have died.
    for (how, reason, code, says, died) in [
        ("exit", "error", 7, "sys.exit(7)", 1),
        ("return", "error", 0, "it ended normally after step 19", 0),
        ("kill", "killed", 137, "SIGKILL", 1),
    ] {
        let ended = torchrun(&[], 3, "ends.py", how).run();
        let (report, end) = (ended.report(), end(&ended));
        assert_eq!(end["rank"], 1, "{how}: {end}");
        assert_eq!(end["reason"], reason, "{how}: {end}");
        assert_eq!(end["code"], code, "{how}: {end}");
        assert!(end["says"].as_str().unwrap().contains(says), "{how}: {end}");
        let found = findings(&report, "rank-died");
        assert_eq!(found.len(), died, "{how}: {report}");
        assert!(
            found.iter().all(|verdict| verdict["subject"]["rank"] == 1),
            "{found:?}"
        );
    }
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn sizes_that_differ_are_said() {
    let ended = torchrun(&[], 2, "ends.py", "mismatch").run();
    let end = end(&ended);
    assert_eq!(end["kind"], "collective_mismatch", "{end}\n{}", ended.stderr);
    assert!(
        end["says"].as_str().unwrap().contains("op.preamble.length"),
        "{end}"
    );
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn an_end_in_order_has_no_finding_of_it() {
    let ended = torchrun(&[], 3, "ends.py", "ok").run().ok();
    let report = ended.report();
    assert_eq!(report["end"]["reason"], "success");
    for finding in ["rank-died", "ranks-missing"] {
        assert!(findings(&report, finding).is_empty(), "{report}");
    }
}

/// A hanging job is ended from outside, so the hang must stay unresolved.
#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_hang_that_is_ended_is_unresolved() {
    let job = torchrun(&[], 3, "ends.py", "hang");
    let settings = "[detector.silence]\nsuspect_min_s = 2\nconfirmed_min_s = 3\nunknown_p99_s = 0.2\n";
    std::fs::write(job.dir.path().join("paceline.toml"), settings).unwrap();
    let running = job.start();
    let verdicts = running.dir.path().join("run/verdicts.ndjson");
    running.until("the hang", || {
        let text = std::fs::read_to_string(&verdicts).unwrap_or_default();
        text.contains("rank-silent").then_some(())
    });
    signal(running.child.id(), "INT");
    let ended = running.wait();
    let report = ended.report();
    assert_eq!(report["end"]["reason"], "stopped", "{}", report["end"]);
    let silent = findings(&report, "rank-silent");
    assert_eq!(silent.len(), 1, "{report}");
    assert_eq!(silent[0]["subject"]["rank"], 1);
    assert_eq!(silent[0]["state"], "raised", "{}", silent[0]);
    assert_eq!(silent[0]["unresolved_at_exit"], true);
    assert!(findings(&report, "rank-died").is_empty(), "{report}");
}

/// While one rank is late, the state of all ranks must be known before the first step.
#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_rank_that_loads_is_seen_and_not_missing() {
    let job = torchrun(&[], 3, "ends.py", "late");
    // Allows for a busy machine, where ranks that import torch in parallel are ready seconds apart.
    let settings = "[detector.arrivals]\nwarning_s = 8\ncritical_s = 10\n";
    std::fs::write(job.dir.path().join("paceline.toml"), settings).unwrap();
    let running = job.start();
    let journal = running.dir.path().join("run/journal.ndjson");
    running.until("two ranks that join", || {
        let text = std::fs::read_to_string(&journal).unwrap_or_default();
        (text.matches("\"stage\":\"joining\"").count() >= 2).then_some(())
    });
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(12) {
        std::thread::sleep(Duration::from_millis(100));
    }
    // Ranks end one after the other, and none of them may count as missing.
    signal(running.child.id(), "TERM");
    let ended = running.wait();
    let report = ended.report();
    assert!(findings(&report, "ranks-missing").is_empty(), "{report}");
    assert_eq!(report["coverage"]["ranks_seen"], 3, "{}", report["coverage"]);
    let notes = report["coverage"]["notes"].to_string();
    assert!(
        notes.contains("rank 1 running, not yet in init_process_group"),
        "{notes}"
    );
    assert!(!ended.stderr.contains("No rank was observed"), "{}", ended.stderr);
    // The line must be printed while the job runs, and only once.
    let live = "paceline: before the first step: rank 1 running, not yet in init_process_group; ranks 0, 2 waiting in";
    assert_eq!(ended.stderr.matches(live).count(), 1, "{}", ended.stderr);
}

/// Weights are updated without an optimizer, so no step is detected. The report must explain why and what to do.
#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_loop_without_an_optimizer_is_said_with_the_remedy() {
    // The job runs long enough for the line to appear.
    let ended = torchrun(&[], 2, "ends.py", "by-hand --steps 250").run().ok();
    let report = ended.report();
    assert_eq!(report["steps"], 0);
    let notes = report["coverage"]["notes"].to_string();
    assert!(
        notes.contains("2 processes compute gradients") && notes.contains("call paceline.step()"),
        "{notes}"
    );
    assert!(!notes.contains("JAX"), "{notes}");
    let line = ended
        .stderr
        .lines()
        .find(|line| line.starts_with("paceline: hook of"));
    assert!(
        line.is_some_and(|line| line.contains("call paceline.step()")),
        "while it ran: {}",
        ended.stderr
    );
}

fn signal(pid: u32, name: &str) {
    let status = std::process::Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}
