//! Tests the program with one process per rank, as on a node with GPUs.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use paceline_nccl_bench::measure::Report;

use crate::stage::Stage;

fn bench(stage: &Stage, ranks: &str, more: &[&str]) -> Output {
    command(stage, ranks, more).output().unwrap()
}

fn command(stage: &Stage, ranks: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline-nccl-bench"));
    command
        .args([
            "--ranks",
            ranks,
            "-b",
            "64K",
            "-e",
            "64K",
            "-n",
            "3",
            "-w",
            "1",
            "--nccl-lib",
        ])
        .arg(stage.library());
    command.env("PACELINE_CUDA_LIB", stage.library()).args(more);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn ranks_of_several_processes_meet_and_are_verified() {
    let stage = Stage::new("gpus = 2\n[rank.1]\ndelay_ms = 5");
    for collective in [
        "all-reduce",
        "reduce-scatter",
        "all-gather",
        "broadcast",
        "all-to-all",
    ] {
        let output = bench(&stage, "2", &[collective, "--json"]);
        assert!(output.status.success(), "{collective}: {}", said(&output));
        let report: Report = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (
                report.about.transport.as_str(),
                report.about.details["nccl"].as_str()
            ),
            ("nccl", "2.30.7")
        );
        let devices: Vec<&str> = report.ranks.iter().map(|rank| rank.device.as_str()).collect();
        assert!(
            devices[0].contains("0000:18:00.0") && devices[1].contains("0000:28:00.0"),
            "{devices:?}"
        );
        let timing = report.results[0].out_of_place.as_ref().unwrap();
        assert_eq!((timing.nwrong, timing.ranks.len()), (Some(0), 2), "{collective}");
        assert!(
            timing.time > 4000.0 && timing.ranks.iter().all(|rank| rank.times.len() == 3),
            "{timing:?}"
        );
    }
}

#[test]
fn two_processes_share_a_gpu_when_told_so() {
    let stage = Stage::new("gpus = 1");
    let refused = bench(&stage, "2", &[]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(
        said(&refused).contains("a GPU for local rank 1 is missing: the CUDA driver shows 1"),
        "{}",
        said(&refused)
    );
    let shared = bench(&stage, "2", &["--share-gpus", "--json"]);
    assert!(shared.status.success(), "{}", said(&shared));
    let report: Report = serde_json::from_slice(&shared.stdout).unwrap();
    assert_eq!(report.ranks[0].device, report.ranks[1].device);
}

#[test]
fn wrong_results_are_counted_and_fail() {
    let output = bench(&Stage::new("[rank.1]\nwrong = true"), "2", &[]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("# Out of bounds values : 2 FAILED"), "{table}");
}

#[test]
fn a_rank_that_dies_in_a_collective_is_told_in_time() {
    let began = Instant::now();
    let output = bench(&Stage::new("[rank.1]\ndie = true"), "2", &["--timeout", "20"]);
    assert!(!output.status.success());
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let text = said(&output);
    assert!(
        text.contains("remote process exited or there was a network error"),
        "{text}"
    );
}

#[test]
fn a_collective_that_hangs_ends_by_the_timeout() {
    let output = bench(&Stage::new("[rank.1]\nhang = true"), "2", &["--timeout", "2"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        said(&output).contains("not done within 2.0 s"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_rank_that_never_joins_is_waited_for_no_longer_than_said() {
    let began = Instant::now();
    let output = bench(
        &Stage::new("[rank.1]\ninit_hang = true"),
        "2",
        &["--join-timeout", "3"],
    );
    assert_eq!(output.status.code(), Some(3));
    // The joining thread never returns, and the process ends without it.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let text = said(&output);
    assert!(text.contains("in ncclCommInitRankConfig"), "{text}");
}

#[test]
fn a_communicator_that_the_environment_keeps_from_blocking_is_refused() {
    let stage = Stage::new("");
    let mut command = command(&stage, "2", &[]);
    let output = command.env("NCCL_COMM_BLOCKING", "0").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = said(&output);
    assert!(
        text.contains("nccl cannot do a nonblocking communicator"),
        "{text}"
    );
    assert!(text.contains("unset NCCL_COMM_BLOCKING"), "{text}");
}
