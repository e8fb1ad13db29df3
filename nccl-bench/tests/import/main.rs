//! Tests the import of files in the format of nccl-tests, valid and invalid.

#![allow(clippy::unwrap_used)] // A test that cannot continue fails.

use paceline_nccl_bench::collective::Collective;
use paceline_nccl_bench::dtype::Dtype;
use paceline_nccl_bench::import::{file, read};
use paceline_nccl_bench::measure::Report;

const TEXT: &str = include_str!("all_reduce.txt");
const SLURM: &str = include_str!("alltoall_slurm.txt");
const PER_ITERATION: &str = include_str!("per_iteration.txt");
const JSON: &str = include_str!("all_reduce.json");

fn error(text: &str, collective: Option<Collective>) -> String {
    read(text, collective).unwrap_err().to_string()
}

#[test]
fn the_table() {
    let report = read(TEXT, None).unwrap();
    assert_eq!(
        (report.collective, report.dtype),
        (Collective::AllReduce, Dtype::F32)
    );
    assert_eq!(
        (report.version.as_str(), report.about.details["nccl"].as_str()),
        ("nccl-tests 2.17.1", "2.27.3")
    );
    assert_eq!(
        (report.about.transport.as_str(), report.about.simulated),
        ("nccl", false)
    );
    let rank = &report.ranks[1];
    assert_eq!((rank.rank, rank.host.as_str(), rank.pid), (1, "node-a", 4712));
    assert_eq!(rank.device, "[0000:2a:00] NVIDIA H100 80GB HBM3");
    let sizes: Vec<u64> = report.results.iter().map(|row| row.size).collect();
    assert_eq!(sizes, [8 << 20, 16 << 20, 32 << 20]);
    let last = &report.results[2];
    let out = last.out_of_place.as_ref().unwrap();
    assert_eq!(
        (out.time, out.alg_bw, out.bus_bw, out.nwrong),
        (1167.9, 28.73, 28.73, None)
    );
    assert_eq!((last.count, last.redop.as_str(), last.root), (8388608, "sum", -1));
    assert_eq!(
        report.results[1].in_place.as_ref().unwrap().nwrong,
        Some(1_000_000),
        "1e+06"
    );
    assert!(
        out.ranks.is_empty() && out.slowest_rank.is_none(),
        "what is not in it is not known"
    );
}

#[test]
fn a_table_of_slurm_and_of_an_older_version() {
    assert!(error(SLURM, None).contains("does not name its collective"));
    let report = read(SLURM, Some(Collective::AllToAll)).unwrap();
    assert_eq!((report.version.as_str(), report.ranks.len()), ("nccl-tests", 2));
    assert_eq!(
        (report.ranks[1].host.as_str(), report.ranks[1].device.as_str()),
        ("node-b", "[0x18] NVIDIA A100-SXM4-80GB")
    );
    let row = &report.results[0];
    assert_eq!(row.out_of_place.as_ref().unwrap().bus_bw, 4.75);
    assert_eq!(row.in_place.as_ref().unwrap().nwrong, None);
}

#[test]
fn a_table_with_times_of_iterations() {
    let report = read(PER_ITERATION, None).unwrap();
    assert_eq!(
        (report.collective, report.dtype),
        (Collective::AllGather, Dtype::Bf16)
    );
    let row = &report.results[0];
    let (out, inn) = (row.out_of_place.as_ref().unwrap(), row.in_place.as_ref().unwrap());
    assert_eq!((out.bus_bw, out.p99), (45.87, 29.0));
    assert_eq!((inn.time, inn.bus_bw, inn.p99), (19.5, 47.05, 27.5));
}

#[test]
fn json() {
    let report = read(JSON, Some(Collective::AllReduce)).unwrap();
    assert_eq!(
        (report.version.as_str(), report.ranks.len()),
        ("nccl-tests 2.17.1", 2)
    );
    assert_eq!(report.ranks[0].device, "[0000:18:00] NVIDIA H100 80GB HBM3");
    let (first, second) = (&report.results[0], &report.results[1]);
    let out = first.out_of_place.as_ref().unwrap();
    assert_eq!(
        (out.time, out.nwrong, out.p50, out.p99),
        (62.051, Some(0), 61.9, 70.0)
    );
    assert_eq!((first.root, first.in_place.as_ref().unwrap().nwrong), (-1, None));
    assert!(second.out_of_place.is_none());
    assert_eq!(second.in_place.as_ref().unwrap().nwrong, Some(3));
    assert_eq!(
        error(JSON, Some(Collective::Broadcast)),
        "the file has all-reduce, not broadcast"
    );
}

#[test]
fn our_own_report_comes_back_as_it_went() {
    let report = read(TEXT, None).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    std::fs::write(&path, serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(file(&path, None).unwrap(), report);
    let none = Report {
        results: Vec::new(),
        ..report
    };
    assert!(error(&serde_json::to_string(&none).unwrap(), None).contains("no rows of results"));
}

#[test]
fn broken_lines_are_named() {
    let check = |from: &str, to: &str, expected: &str| {
        assert!(TEXT.contains(from), "{from}");
        assert_eq!(error(&TEXT.replacen(from, to, 1), None), expected);
    };
    check(
        "  135.32       0\n",
        "\n",
        "line 13: 11 columns in the place of 13",
    );
    check(
        "62.05  135.19",
        "62.05  nan",
        "line 13: out-of-place algbw is NaN",
    );
    check(
        "62.05  135.19",
        "62.05  13x.19",
        "line 13: out-of-place algbw is 13x.19, which is not a number",
    );
    check("    97.12", "   -97.12", "line 15: in-place time is -97.12");
    check(
        "4194304     float",
        "4194304    double",
        "line 15: type double is not one of float, half, bfloat16, int32",
    );
    check(
        "33554432       8388608",
        "33554432       many",
        "line 16: count is many, which is not a number",
    );
}

#[test]
fn broken_json_is_named() {
    let check = |from: &str, to: &str, expected: &str| {
        assert!(JSON.contains(from), "{from}");
        let error = error(&JSON.replacen(from, to, 1), None);
        assert!(error.contains(expected), "{error}");
    };
    check("\"time\": 62.051", "\"time\": nan", "line 15 column");
    check(
        "\"time\": 62.051",
        "\"time\": \"fast\"",
        "invalid type: string \"fast\", expected f64 at line 15",
    );
    check(
        "\"count\": 4194304, \"type\": \"float\"",
        "\"count\": 4194304, \"type\": \"double\"",
        "results[1].type: type double",
    );
    check(
        "\"root\": \"    -1\"",
        "\"root\": \"x\"",
        "results[0].root: x is not a number",
    );
    check(
        "\"bus_bw\": 172.75",
        "\"bus_bw\": -172.75",
        "results[1].in_place: negative",
    );
    check("\"results\"", "\"rows\"", "missing field `results`");
}

#[test]
fn what_is_no_result_at_all() {
    for text in [
        "",
        "hello\n",
        "# nccl-tests version 2.17.1\n# Collective test starting: all_reduce_perf\n",
    ] {
        assert!(error(text, None).contains("no rows of results"), "{text}");
    }
    assert!(error("{", None).contains("line 1"));
    assert!(
        file(std::path::Path::new("/nonexistent"), None)
            .unwrap_err()
            .to_string()
            .contains("No such file")
    );
}
