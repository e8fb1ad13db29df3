//! Failures of Paceline must cost the job nothing, and failures of the job must keep their exit code.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use crate::job::{Ended, torchrun};

const JOB: &str = "--steps 120 --sleep-ms 40 --slow-rank 2 --slow-pct 25";

fn undisturbed_ms() -> f64 {
    torchrun(&[], 4, "ddp.py", JOB).run().ok().median_step_ms()
}

fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill")
        .arg(format!("-{signal}"))
        .arg(pid.to_string())
        .status()
        .unwrap();
    assert!(status.success());
}

/// Checks that the median step is as fast as undisturbed, within the difference of two undisturbed runs on a shared
/// machine.
fn as_fast(ended: &Ended, undisturbed_ms: f64) {
    let ratio = ended.median_step_ms() / undisturbed_ms;
    assert!(
        (0.9..1.1).contains(&ratio),
        "median step {ratio} of the undisturbed"
    );
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn the_sidecar_is_killed_in_the_middle() {
    let undisturbed = undisturbed_ms();
    let running = torchrun(&[], 4, "ddp.py", JOB).start();
    running.until_journal(200);
    let [sidecar] = running.sidecars()[..] else {
        panic!("{:?}", running.sidecars())
    };
    kill(sidecar, "KILL");
    let next = running.until("another sidecar", || {
        running.sidecars().into_iter().find(|pid| *pid != sidecar)
    });
    assert_ne!(next, sidecar);
    let ended = running.wait().ok();
    as_fast(&ended, undisturbed);
    ended.names_only(2, 120);
    assert!(
        ended.gaps().iter().any(|gap| gap.contains("restarted")),
        "{:?}",
        ended.gaps()
    );
    // The ring kept the records while there was no reader.
    assert_eq!(
        ended.report()["coverage"]["steps_ratio"],
        1.0,
        "{}",
        ended.report()["coverage"]
    );
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn every_sidecar_is_killed_until_the_end() {
    let running = torchrun(&[], 4, "ddp.py", "--steps 100 --sleep-ms 40").start();
    running.until_journal(100);
    let mut running = running;
    while running.child.try_wait().unwrap().is_none() {
        for pid in running.sidecars() {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let ended = running.wait().ok();
    assert!(!ended.gaps().is_empty(), "{}", ended.report());
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn the_disk_is_full() {
    let small = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=320k", "tmpfs"])
        .arg(small.path())
        .status();
    assert!(
        mounted.is_ok_and(|status| status.success()),
        "mounting a small disk needs root"
    );
    let run_dir = small.path().join("run");
    let options = ["--run-dir", run_dir.to_str().unwrap()];
    let ended = torchrun(
        &options,
        4,
        "ddp.py",
        "--steps 400 --sleep-ms 10 --slow-rank 2 --slow-pct 60",
    )
    .run();
    let report = std::fs::read_to_string(run_dir.join("report.json"));
    let journal = std::fs::metadata(run_dir.join("journal.ndjson")).map(|meta| meta.len());
    let unmounted = Command::new("umount").arg(small.path()).status().unwrap();
    assert!(unmounted.success());
    let ended = ended.ok();
    let report: serde_json::Value = serde_json::from_str(&report.unwrap()).unwrap();
    assert!(
        report["coverage"]["journal_lost"].as_u64().unwrap() > 0,
        "{journal:?} {report}\n{}",
        ended.stderr
    );
    assert_eq!(report["verdicts"][0]["subject"]["rank"], 2, "{report}");
    assert_eq!(report["steps"], 400);
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn the_port_is_taken() {
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    let ended = torchrun(&["--aggregator", &address], 4, "ddp.py", JOB).run().ok();
    ended.names_only(2, 120);
    let notes = ended.report()["coverage"]["notes"].to_string();
    assert!(notes.contains(&address), "{notes}");
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn the_hook_cannot_find_its_ring() {
    // The later value wins, so the trainers look for rings in a directory that does not exist.
    let mut command = vec![
        "env".to_owned(),
        "PACELINE_RING_DIR=/nonexistent/rings".to_owned(),
    ];
    let torchrun = crate::job::torch().join("bin/torchrun");
    command.extend([
        torchrun.to_str().unwrap().to_owned(),
        "--standalone".into(),
        "--nproc-per-node=4".into(),
    ]);
    command.push(crate::job::trainer("ddp.py"));
    command.extend("--steps 60 --sleep-ms 40".split(' ').map(str::to_owned));
    let ended = crate::job::paceline(&[], &command).run().ok();
    let report = ended.report();
    assert_eq!(report["coverage"]["ranks_seen"], 0);
    assert!(
        report["coverage"]["notes"]
            .to_string()
            .contains("no rank attached"),
        "{report}"
    );
    assert!(!ended.stderr.contains("Traceback"), "{}", ended.stderr);
}

/// One rank does not enter a collective, and its peers wait until their timeout.
#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_collective_times_out_and_whoever_was_missing_is_named() {
    let args = "--steps 100000 --sleep-ms 20 --hang-at 100 --fault-rank 1 --timeout-s 12";
    let job = torchrun(&[], 3, "ddp.py", args);
    // Sets a short limit to keep the test short.
    let settings = "[detector.silence]\nsuspect_min_s = 3\n";
    std::fs::write(job.dir.path().join("paceline.toml"), settings).unwrap();
    let ended = job.run();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let end = ended.report()["end"].clone();
    assert_eq!(end["reason"], "collective-timeout", "{end}");
    assert_eq!(end["missing"]["rank"], 1, "{end}");
    // The ranks that waited report the timeout, but they are not its cause.
    assert_ne!(end["rank"], 1, "{end}");
    assert!(
        ended
            .stderr
            .contains("a collective timed out waiting for rank 1 on"),
        "{}",
        ended.stderr
    );
}

/// Returns the exit code of the same job without Paceline.
fn bare_code(args: &str) -> Option<i32> {
    let torchrun = crate::job::torch().join("bin/torchrun");
    let mut command = Command::new(torchrun);
    command
        .args(["--standalone", "--nproc-per-node=2"])
        .arg(crate::job::trainer("ddp.py"));
    command.args(args.split_whitespace()).env("OMP_NUM_THREADS", "1");
    let output = command.output().unwrap();
    output.status.code()
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn failures_come_out_as_they_went_in() {
    for args in [
        "--steps 20 --sleep-ms 10 --fail-at 10 --fail-rank 1 --exit-code 3",
        "--steps 20 --sleep-ms 10 --fail-at 10 --fail-rank 1 --die-signal SEGV",
        // Does what the kernel does to a worker that exceeds the memory limit.
        "--steps 20 --sleep-ms 10 --fail-at 10 --fail-rank 1 --die-signal KILL",
    ] {
        let ended = torchrun(&[], 2, "ddp.py", args).run();
        assert_eq!(ended.status.code(), bare_code(args), "{args}\n{}", ended.stderr);
        assert_eq!(ended.status.signal(), None);
        assert!(Path::new(&ended.dir.path().join("run/report.json")).exists());
        assert_eq!(
            ended.report()["exits"][0]["code"].as_i64(),
            ended.status.code().map(i64::from)
        );
    }
}
