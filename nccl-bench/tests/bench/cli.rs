//! Tests the program: ranks as processes, output, and exit codes.

use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use paceline_nccl_bench::measure::Report;

fn bench() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline-nccl-bench"));
    for name in [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PACELINE_KEY_FILE",
    ] {
        command.env_remove(name);
    }
    command
}

fn run(words: &str) -> Output {
    bench().args(words.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn local_ranks_measure_and_verify() {
    for collective in [
        "all-reduce",
        "reduce-scatter",
        "all-gather",
        "broadcast",
        "all-to-all",
    ] {
        let words =
            format!("{collective} --transport tcp --ranks 3 -b 1K -e 64K -n 4 -w 1 -d bfloat16 --json");
        let output = run(&words);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: Report = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((report.ranks.len(), report.results.len()), (3, 4));
        for row in &report.results {
            let out = row.out_of_place.as_ref().unwrap();
            assert_eq!((out.nwrong, out.ranks.len()), (Some(0), 3));
            assert!(
                out.ranks.iter().all(|rank| rank.times.len() == 4),
                "every rank's times are kept"
            );
            assert!(out.time > 0.0 && out.p50 <= out.p99);
            assert_eq!(row.in_place.is_some(), collective != "all-to-all");
        }
        assert!(
            report
                .ranks
                .iter()
                .all(|place| place.pid > 0 && !place.host.is_empty())
        );
    }
}

#[test]
fn the_table_has_the_columns_of_nccl_tests() {
    let output = run("--transport tcp --ranks 2 -b 8 -e 32 -f 2 -n 3");
    let table = text(&output.stdout);
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 3, "{table}");
    assert_eq!(rows[0][..5], ["8", "2", "float", "sum", "-1"]);
    // The columns are twice time, algbw, busbw and #wrong, and then twice p50, p99 and slowest rank.
    assert_eq!((rows[0].len(), rows[0][8], rows[0][12]), (19, "0", "0"));
    assert!(table.contains("# Out of bounds values : 0 OK"));
    assert!(table.contains("# Avg bus bandwidth"));
    // The JSON has the field names of nccl-tests' file.
    let output = run("--transport tcp --ranks 2 -b 8 -e 8 -n 3 --json");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema_version"], 1);
    for field in ["size", "count", "type", "redop", "root"] {
        assert!(!json["results"][0][field].is_null(), "{field}");
    }
    for field in ["time", "alg_bw", "bus_bw", "nwrong"] {
        assert!(json["results"][0]["in_place"][field].is_number(), "{field}");
    }
}

#[test]
fn mistakes_are_told_once_and_exit_with_64() {
    let check = |words: &str, right: &str| {
        let output = run(words);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{words}: {error}");
        assert!(error.contains(right), "{words}: {error}");
        assert_eq!(error.matches(right).count(), 1, "{words}: {error}");
        assert!(output.stdout.is_empty());
    };
    check("--transport tcp -b 0", "0 bytes cannot be measured");
    check(
        "--transport tcp --ranks 2 -b 6",
        "6 bytes are not a whole number of float elements of 4 bytes",
    );
    check(
        "all-gather --transport tcp --ranks 4 -b 8",
        "for each of 4 ranks: all-gather needs 16",
    );
    check(
        "--transport tcp -b 8 -e 4",
        "the largest size (4 bytes) is below the smallest (8)",
    );
    check("--transport tcp -e 1000000G", "of memory; this host has");
    check("--transport tcp -b 1X", "`X` is not a unit of size");
    check("--transport tcp -f 1", "`1` is not a number above 1");
    check("--transport smoke", "invalid value 'smoke'");
    check(
        "--transport tcp --ranks 2 --root 2 broadcast",
        "--root 2: there are 2 ranks, from 0",
    );
    check("--transport tcp --rank 1", "--rank needs --master or --peers");
    check("all-smoke", "invalid value 'all-smoke'");
    check(
        "--transport tcp --rank 0 --peers 10.0.0.1:1 --key-file /nowhere",
        "/nowhere",
    );
}

#[test]
fn ranks_that_are_told_their_places_need_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let key = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
        path
    };
    let right = key("right", "a key that is long enough for anybody, and then some\n");
    let wrong = key(
        "wrong",
        "another key that is long enough, but it is another one\n",
    );
    let start = |rank: usize, address: &str, key: &std::path::Path| {
        let mut command = bench();
        command.args([
            "--transport",
            "tcp",
            "-b",
            "1K",
            "-e",
            "4K",
            "-n",
            "2",
            "--join-timeout",
            "4",
        ]);
        command.args([
            "--ranks",
            "2",
            "--rank",
            &rank.to_string(),
            "--master",
            address,
            "--key-file",
        ]);
        command
            .arg(key)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let both = |other: &std::path::Path| -> Vec<Output> {
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let ranks = [start(1, &free, other), start(0, &free, &right)];
        ranks
            .into_iter()
            .map(|rank| rank.wait_with_output().unwrap())
            .collect()
    };
    for output in both(&right) {
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    for output in both(&wrong) {
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{error}");
        assert!(
            error.contains("rendezvous: ") && error.contains("rank"),
            "{error}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_missing_library_is_said_and_nothing_takes_its_place() {
    let output = run("--ranks 2 --nccl-lib /nowhere/libnccl.so.2 -b 1K -e 1K");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("/nowhere/libnccl.so.2"), "{error}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = run(&format!(
        "--transport tcp --ranks 2 --rank 0 --master {free} --join-timeout 1"
    ));
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(
        error.contains("rendezvous: not done within 1.0 s waiting for rank 1"),
        "{error}"
    );
}

#[test]
fn a_simulated_fabric_is_measured_and_says_so() {
    let output = run("--transport sim --sim nodes=2 -b 1M -e 1G -f 4 -n 5");
    // A script's words are separated by blanks. `run` also splits there, like a shell without quotes.
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("all-reduce over sim, simulated"), "{table}");
    assert!(
        table.contains("Rank   15 ") && table.contains("simulated H100, GPU 7"),
        "{table}"
    );

    let simulated = |script: &str, collective: &str| -> Report {
        let words = [
            "--transport",
            "sim",
            "--sim",
            script,
            collective,
            "-b",
            "4G",
            "-e",
            "4G",
            "-n",
            "5",
            "--json",
        ];
        let output = bench().args(words).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&json["simulated"], &json["transport"]),
            (&true.into(), &"sim".into())
        );
        serde_json::from_value(json).unwrap()
    };
    let busbw = |script: &str, collective: &str| {
        let report = simulated(script, collective);
        let timing = report.results[0].out_of_place.clone().unwrap();
        // A simulation verifies nothing, so there is no number of wrong elements.
        assert_eq!((timing.nwrong, timing.ranks.len()), (None, report.ranks.len()));
        assert!(timing.ranks.iter().all(|rank| rank.times.len() == 5));
        (timing.bus_bw, timing.slowest_rank)
    };
    for collective in [
        "all-reduce",
        "reduce-scatter",
        "all-gather",
        "broadcast",
        "all-to-all",
    ] {
        let (well, _) = busbw("nodes=4", collective);
        assert!((300.0..345.0).contains(&well), "{collective}: {well}");
    }
    let (half, _) = busbw("nodes=4 half-nic=3", "all-reduce");
    assert!((150.0..172.0).contains(&half), "{half}");
    let (inside, slowest) = busbw("nodes=1 slow-gpu=1.4x1.5", "all-reduce");
    assert!(inside > 450.0 && slowest == Some(3), "{inside} {slowest:?}");
    // The same words give the same numbers.
    assert_eq!(
        simulated("nodes=2 seed=7", "all-reduce"),
        simulated("nodes=2 seed=7", "all-reduce")
    );
}

#[test]
fn a_simulation_that_makes_no_sense() {
    let check = |words: &[&str], code: i32, right: &str| {
        let output = bench().args(words).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(right) && output.stdout.is_empty(), "{error}");
    };
    check(
        &["--transport", "sim", "--sim", "half-nic=9"],
        64,
        "--sim: \"HalfNic(9)\": there is no such node",
    );
    check(
        &["--transport", "tcp", "--sim", "nodes=2"],
        64,
        "--sim goes with --transport sim",
    );
    check(
        &["--transport", "sim", "--ranks", "33"],
        3,
        "sim cannot do 33 ranks on 32 GPUs",
    );
    check(&["--transport", "sim", "--rank", "1"], 64, "takes no --rank");
    let absent = ["--transport", "sim", "--sim", "nodes=2 absent=2"];
    check(&absent, 3, "waiting for rank 8");
}

#[test]
fn the_words_of_nccl_tests_are_understood() {
    let output = run("all_reduce_perf -g 2 -b 8 -e 8 -n 2 -w 1 -o sum -d float -T 30 --transport tcp");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("Rank    1 "), "-g is so many ranks");
    let output = run("-o prod --transport tcp");
    assert_eq!(output.status.code(), Some(64));
    assert!(
        text(&output.stderr).contains("invalid value 'prod' for '--op <OP>'"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_was_measured_before_a_failure_is_printed() {
    // The second size exceeds the time limit.
    let output = run("--transport tcp --ranks 2 -b 1K -e 64M -f 65536 -n 1000 -w 0 -c 0 -T 2 --out-of-place");
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(
        table.lines().any(|line| line.trim_start().starts_with("1024 ")),
        "{table}"
    );
}

#[test]
fn without_nccl_it_says_what_can_be_done() {
    let output = run("--nccl-lib /nonexistent/libnccl.so.2");
    assert_eq!(output.status.code(), Some(3));
    let error = text(&output.stderr);
    assert!(
        error.contains("libnccl.so.2 is missing") && error.contains("hint: --transport tcp"),
        "{error}"
    );
}

#[test]
fn what_all_ranks_miss_is_said_once() {
    let output = run("--transport nccl --ranks 3 --nccl-lib /nowhere/libnccl.so");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
    assert!(said.contains("/nowhere/libnccl.so"), "{said}");
}
