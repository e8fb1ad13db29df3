//! Tests that times are measured on blocking communicators, and that blocked calls are ended in time by another thread.

use std::time::{Duration, Instant};

use paceline_nccl_bench::collective::{Collective, Plan};
use paceline_nccl_bench::dtype::Dtype;
use paceline_nccl_bench::transport::{Deadline, Transport};

use crate::stage::{Counts, LONG, Stage, play};

/// Interval of checks on a communicator while waiting for the GPU (`lane.rs`).
const LOOK: Duration = Duration::from_millis(20);
const ITERATIONS: u32 = 300;

fn plan(collective: Collective) -> Plan {
    Plan::new(collective, Dtype::F32, 4096, 2).unwrap()
}

#[test]
fn iterations_are_queued_on_a_communicator_that_blocks_and_is_asked_nothing() {
    for collective in [Collective::AllReduce, Collective::AllToAll] {
        let (began, stage) = (Instant::now(), Stage::new(""));
        let seen = stage.ranks(2, move |mut nccl| {
            let deadline = Deadline::new("run", LONG);
            nccl.prepare(&plan(collective), &deadline)?;
            nccl.run(ITERATIONS, &deadline)
        });
        assert!(
            seen.into_iter()
                .all(|times| times.unwrap().len() == ITERATIONS as usize)
        );
        let looks = began.elapsed().as_millis() / LOOK.as_millis() + 1;
        let counts = stage.counts();
        let Counts { async_errors, .. } = counts;
        let expected = Counts {
            blocking: 2,
            non_blocking: 0,
            group_threads: 0,
            async_errors,
        };
        assert_eq!(counts, expected, "{collective}");
        // The number of checks depends on the time, not on the number of iterations.
        assert!(
            u128::from(async_errors) <= 2 * looks,
            "{collective}: {async_errors}"
        );
    }
}

#[test]
fn joining_ranks_of_which_one_never_comes_ends_in_time() {
    let began = Instant::now();
    let stage = Stage::new("[rank.1]\ninit_hang = true");
    let options = vec![stage.options(0), stage.options(1)];
    for seen in play(options, Duration::from_secs(1), |_| Ok(())) {
        let error = seen.unwrap_err().to_string();
        assert_eq!(error, "join: not done within 1.0 s in ncclCommInitRankConfig");
    }
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[test]
fn a_call_that_does_not_return_is_ended_by_an_abort_from_outside() {
    let stage = Stage::new("[rank.1]\ncall_hang = true");
    let seen = stage.ranks(2, |mut nccl| {
        let deadline = Deadline::new("all-reduce", Duration::from_secs(1));
        nccl.prepare(&plan(Collective::AllReduce), &deadline)?;
        let error = nccl.run(2, &deadline).unwrap_err().to_string();
        // The call has returned the buffers, so its thread was not abandoned.
        let deadline = Deadline::new("prepare", LONG);
        nccl.prepare(&plan(Collective::AllReduce), &deadline)?;
        // An aborted communicator is not used again.
        assert!(nccl.run(1, &deadline).is_err());
        Ok(error)
    });
    let errors: Vec<String> = seen.into_iter().map(Result::unwrap).collect();
    assert_eq!(errors[1], "all-reduce: not done within 1.0 s in ncclAllReduce");
    let waited = errors[0] == "all-reduce: not done within 1.0 s";
    assert!(
        waited || errors[0].contains("remote process exited"),
        "{errors:?}"
    );
}
