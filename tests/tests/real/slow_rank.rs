//! Tests slow ranks. The script does not use Paceline, and the verdict must name its slow rank and no other.

use crate::job::{Ended, naming, torchrun};

fn run(script: &str, args: &str) -> Ended {
    torchrun(&[], 4, script, args).run().ok()
}

/// Runs the script and checks that rank 2 is named. `pct` is the added percentage of each rank's sleep per step, which
/// is 40 ms unless `more` changes it.
fn names_rank_2(script: &str, pct: u32, by_step: u64, more: &str) {
    let steps = by_step + 20;
    let args = format!("--steps {steps} --sleep-ms 40 --slow-rank 2 --slow-pct {pct} {more}");
    let ended = naming(2, by_step, || run(script, &args));
    let report = ended.report();
    assert_eq!(report["verdicts"][0]["provenance"], "live");
    assert_eq!(report["coverage"]["ranks_seen"], 4, "{report}");
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn ddp_10_percent_within_150_steps() {
    names_rank_2("ddp.py", 10, 150, "");
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn ddp_25_percent_within_30_steps() {
    names_rank_2("ddp.py", 25, 30, "");
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn nobody_slow_1000_steps_nobody_named() {
    let ended = run("ddp.py", "--steps 1000 --sleep-ms 40");
    ended.accuses_only(&[]);
    assert_eq!(ended.report()["steps"], 1000);
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn gradient_accumulation() {
    names_rank_2("ddp.py", 25, 30, "--accum 2");
    names_rank_2("ddp.py", 25, 30, "--accum 2 --naive-accum");
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn hugging_face_trainer() {
    names_rank_2("hf_trainer.py", 25, 30, "");
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn lightning() {
    names_rank_2("lightning_ddp.py", 25, 30, "");
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_loop_that_calls_all_reduce_itself() {
    names_rank_2("allreduce_loop.py", 25, 30, "");
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn fsdp() {
    names_rank_2("fsdp.py", 30, 30, FSDP);
}

/// Uses a longer sleep for `fully_shard`, which itself needs about 20 ms per step, with variations where four ranks
/// share two cores. Relative to the longer sleep that is little, and a quarter of the step is 30 % of the sleep.
const FSDP: &str = "--sleep-ms 120";

#[test]
#[ignore = "needs PyTorch and three minutes: tests/run long"]
fn long_10_percent_of_others() {
    names_rank_2("hf_trainer.py", 10, 150, "");
    names_rank_2("lightning_ddp.py", 10, 150, "");
    names_rank_2("allreduce_loop.py", 10, 150, "");
    names_rank_2("fsdp.py", 12, 150, FSDP);
}
