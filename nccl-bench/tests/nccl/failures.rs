//! Tests failures. They must be reported with their cause and in time, and must never cause a hang.

use std::time::{Duration, Instant};

use paceline_nccl_bench::collective::{Collective, Plan};
use paceline_nccl_bench::dtype::Dtype;
use paceline_nccl_bench::transport::nccl::{NcclTransport, Options};
use paceline_nccl_bench::transport::{Deadline, Transport, TransportError};

use crate::stage::{LONG, Stage, play};

fn plan() -> Plan {
    Plan::new(Collective::AllReduce, Dtype::F32, 4096, 2).unwrap()
}

fn one_run(mut nccl: NcclTransport) -> Result<(), TransportError> {
    let deadline = Deadline::new("all-reduce of 4 KiB", Duration::from_secs(1));
    nccl.prepare(&plan(), &deadline)?;
    nccl.run(2, &deadline)?;
    Ok(())
}

/// Returns the error of a single rank.
fn alone(options: Options) -> String {
    play(vec![options], Duration::from_secs(2), |_| Ok(()))
        .remove(0)
        .unwrap_err()
        .to_string()
}

#[test]
fn what_is_missing_is_named_and_where_it_was_looked_for() {
    let check = |scenario: &str, symbol: Option<&str>, expected: &[&str]| {
        let mut stage = Stage::new(scenario);
        if let Some(symbol) = symbol {
            stage = stage.without(symbol);
        }
        let error = alone(stage.options(0));
        for text in expected {
            assert!(error.contains(text), "{scenario} {symbol:?}: {error}");
        }
    };
    check(
        "",
        Some("ncclCommAbort"),
        &[
            "nccl: ncclCommAbort is missing",
            "libfake.so has no function ncclCommAbort",
        ],
    );
    check(
        "",
        Some("cuEventQuery"),
        &["libfake.so has no function cuEventQuery"],
    );
    check(
        "nccl = 21210",
        None,
        &["NCCL 2.14.0 or later is missing", "libfake.so is version 2.12.10"],
    );
    check("nccl = 2708", None, &["is version 2.7.8"]);
    // An old version is reported as old, not as a missing function.
    check(
        "nccl = 2708",
        Some("ncclCommInitRankConfig"),
        &["is version 2.7.8"],
    );
    check("gpus = 0", None, &["a GPU is missing", "no CUDA-capable device"]);
    check(
        "[call]\ncuInit = 100",
        None,
        &["a GPU is missing", "cuInit: no CUDA-capable device is detected"],
    );
    check("[call]\ncuInit = 803", None, &["join: cuInit: error 803 (803)"]);
    check(
        "[call]\ncuDevicePrimaryCtxRetain = 2",
        None,
        &["cuDevicePrimaryCtxRetain: out of memory (CUDA_ERROR_OUT_OF_MEMORY)"],
    );
    check(
        "[call]\ncuMemAllocHost_v2 = 2",
        None,
        &["cuMemAllocHost: out of memory"],
    );
    check(
        "[call]\nncclGetUniqueId = 2",
        None,
        &[
            "join: ncclGetUniqueId: unhandled system error",
            "as the scenario has it (2)",
        ],
    );
    check(
        "[call]\nncclCommInitRankConfig = 5",
        None,
        &["ncclCommInitRankConfig: invalid usage"],
    );

    let stage = Stage::new("");
    let absent = Options {
        nccl_lib: Some("/nonexistent/libnccl.so.2".into()),
        ..stage.options(0)
    };
    let error = alone(absent);
    assert!(
        error.contains("libnccl.so.2 is missing") && error.contains("/nonexistent/libnccl.so.2"),
        "{error}"
    );
    let error = alone(stage.options(2));
    assert_eq!(
        error,
        "nccl: a GPU for local rank 2 is missing: the CUDA driver shows 2 to this process"
    );
    // NCCL's errors are reported even without ncclGetLastError, which was added in a later version.
    let error = alone(
        Stage::new("[call]\nncclGetUniqueId = 2")
            .without("ncclGetLastError")
            .options(0),
    );
    assert!(
        error.ends_with("unhandled system error (run with NCCL_DEBUG=INFO for details) (2)"),
        "{error}"
    );
}

#[test]
fn one_rank_without_a_library_is_heard_by_the_others() {
    let stage = Stage::new("");
    let absent = Options {
        nccl_lib: Some("/nonexistent/libnccl.so.2".into()),
        ..stage.options(1)
    };
    let seen = play(vec![stage.options(0), absent], LONG, |_| Ok(()));
    let errors: Vec<String> = seen
        .into_iter()
        .map(|seen| seen.unwrap_err().to_string())
        .collect();
    assert!(errors[0].contains("join: rank 1: it said so"), "{errors:?}");
    assert!(errors[1].contains("libnccl.so.2 is missing"), "{errors:?}");
}

#[test]
fn ranks_with_different_versions_are_told_before_they_hang() {
    let (old, new) = (Stage::new("nccl = 22703"), Stage::new("nccl = 23007"));
    for error in play(vec![old.options(0), new.options(1)], LONG, |_| Ok(())) {
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("different versions of NCCL: 2.27.3 to 2.30.7"),
            "{error}"
        );
    }
}

#[test]
fn a_collective_that_hangs_ends_by_the_deadline_and_the_communicator_is_aborted() {
    let began = Instant::now();
    let stage = Stage::new("[rank.1]\nhang = true");
    let seen = stage.ranks(2, one_run).into_iter();
    let errors: Vec<String> = seen.map(|seen| seen.unwrap_err().to_string()).collect();
    let late = "all-reduce of 4 KiB: not done within 1.0 s";
    // The other rank notices the first abort, unless it has aborted itself.
    let is_known = |error: &String| error == late || error.contains("remote process exited");
    assert!(
        errors.iter().any(|error| error == late) && errors.iter().all(is_known),
        "{errors:?}"
    );
    // If the abort had no effect, this would take five seconds.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[test]
fn what_nccl_says_later_ends_the_wait_at_once() {
    let began = Instant::now();
    let stage = Stage::new("[rank.1]\ndelay_ms = 20\nasync_error = 6");
    let seen = stage.ranks(2, |mut nccl| {
        let deadline = Deadline::new("all-reduce", LONG);
        nccl.prepare(&plan(), &deadline)?;
        nccl.run(500, &deadline)?;
        Ok(())
    });
    let errors: Vec<String> = seen
        .into_iter()
        .map(|seen| seen.unwrap_err().to_string())
        .collect();
    // One of these errors is from the rank with the error, and the other from the rank that lost its peer.
    for error in errors {
        assert!(
            error.contains("remote process exited or there was a network error"),
            "{error}"
        );
        assert!(error.starts_with("all-reduce: "), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[test]
fn calls_that_fail_are_named() {
    for (call, code, expected) in [
        ("ncclAllReduce", 1, "ncclAllReduce: unhandled cuda error"),
        (
            "cuMemAlloc_v2",
            2,
            "cuMemAlloc: out of memory (CUDA_ERROR_OUT_OF_MEMORY)",
        ),
        ("cuEventRecord", 400, "cuEventRecord: invalid resource handle"),
        (
            "cuEventQuery",
            214,
            "cuEventQuery: uncorrectable ECC error encountered (CUDA_ERROR_ECC_UNCORRECTABLE)",
        ),
        ("cuEventElapsedTime", 1, "cuEventElapsedTime: invalid argument"),
    ] {
        let stage = Stage::new(&format!("[call]\n{call} = {code}"));
        let seen = stage.ranks(2, one_run);
        let errors: Vec<String> = seen
            .into_iter()
            .map(|seen| seen.unwrap_err().to_string())
            .collect();
        assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
    }
    let stage = Stage::new("[call]\nncclGroupEnd = 3");
    let seen = stage.ranks(2, |mut nccl| {
        let deadline = Deadline::new("all-to-all", LONG);
        nccl.prepare(
            &Plan::new(Collective::AllToAll, Dtype::F32, 4096, 2).unwrap(),
            &deadline,
        )?;
        nccl.verify(&deadline)
    });
    assert!(seen.iter().all(|seen| {
        seen.as_ref()
            .unwrap_err()
            .to_string()
            .contains("all-to-all: ncclGroupEnd: internal error")
    }));
}

#[test]
fn the_same_on_several_ranks_is_told_by_the_first_of_them() {
    let (well, ill) = (Stage::new("gpus = 4"), Stage::new("gpus = 2"));
    let options = |stage: &Stage| {
        let mut options: Vec<Options> = (0..4).map(|rank| stage.options(rank)).collect();
        // Ranks 1 to 3 lack the same GPU, but rank 0 does not.
        options
            .iter_mut()
            .skip(1)
            .for_each(|options| options.local_rank = 3);
        options
    };
    let seen = play(options(&ill), LONG, |_| Ok(()));
    let own = |error: &TransportError| matches!(error, TransportError::Missing { .. });
    let told: Vec<bool> = seen.iter().map(|seen| own(seen.as_ref().unwrap_err())).collect();
    assert_eq!(told, [false, true, false, false]);
    // The other ranks' errors refer to the first one.
    let referred = seen[3].as_ref().unwrap_err().to_string();
    assert!(
        referred.contains("rank 1: ") && referred.contains("GPU"),
        "{referred}"
    );
    let mut two = options(&well);
    two.truncate(2);
    two[0].local_rank = 7;
    two[1].local_rank = 8;
    let seen = play(two, LONG, |_| Ok(()));
    assert!(
        seen.iter().all(|seen| own(seen.as_ref().unwrap_err())),
        "each has its own"
    );
}

#[test]
fn what_cannot_be_done_is_said() {
    let stage = Stage::new("");
    let seen = stage.ranks(1, |mut nccl| {
        let deadline = Deadline::new("prepare", LONG);
        let early = nccl.run(1, &deadline).unwrap_err().to_string();
        assert_eq!(early, "nccl cannot do a run before it is prepared");
        let plan = Plan::new(Collective::AllToAll, Dtype::F32, 4096, 1)
            .unwrap()
            .in_place();
        let error = nccl.prepare(&plan, &deadline).unwrap_err().to_string();
        assert_eq!(error, "nccl cannot do all-to-all in place");
        // The plan needs more memory than the GPU has.
        nccl.prepare(
            &Plan::new(Collective::AllReduce, Dtype::F32, 1 << 32, 1).unwrap(),
            &deadline,
        )
    });
    let error = seen[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("out of memory"), "{error}");
}
