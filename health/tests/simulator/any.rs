//! Tests that, for any layout with any two slow ranks, time is conserved, no wait is negative, and no fault saves time.

use proptest::prelude::*;

use super::{comms, run, steps};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn time_is_conserved_and_no_fault_wins_any(
        (tp, pp, cp, dp) in (1u32..3, 1u32..5, 1u32..3, 1u32..4),
        micro in 1u32..9,
        packed in prop::sample::select(vec![0.0, 0.05]),
        fsdp in any::<bool>(),
        ranks in (0.0..1.0f64, 0.0..1.0f64),
        factors in (1.0..3.0f64, 1.0..3.0f64),
        cause in prop::sample::select(vec!["none", "data-loading", "pcie", "gc", "thermal"]),
        seed in 0u64..1000,
    ) {
        let world = tp * pp * cp * dp;
        let framework = if fsdp && pp == 1 { "fsdp" } else { "ddp" };
        let text = format!(
            "nodes=1 gpus={world} tp={tp} pp={pp} cp={cp} micro={micro} packed={packed} framework={framework} \
             seed={seed} steps=30 comms=on readings=off checkpoint-every=7 gc-every=11"
        );
        let rank = |share: f64| (share * f64::from(world)) as u32;
        let faults = [
            format!("slow rank={} factor={} cause={cause} from=5", rank(ranks.0), factors.0),
            format!("slow rank={} factor={} until=20", rank(ranks.1), factors.1),
        ];
        let (frames, done) = run(&text, &[&faults[0], &faults[1]]);
        let all = steps(&frames);
        prop_assert_eq!(all.len(), 30 * world as usize);
        for step in &all {
            let phases = step.phases.expect("phases");
            let sum = phases.data_ns + phases.compute_ns + phases.wait_ns + phases.optimizer_ns
                + phases.checkpoint_ns;
            prop_assert!(sum.abs_diff(step.dur_ns) <= 4, "{}: {:?}", text, step);
        }
        // Waits per communicator are never negative, because otherwise they would not add up to the wait.
        for step in all.iter().filter(|step| world > 1 && step.step % 5 == 0) {
            let own = comms(&frames).into_iter().filter(|comm| (comm.rank, comm.step) == (step.rank, step.step));
            let waited: u64 = own.map(|comm| comm.dur_ns).sum();
            prop_assert!(waited.abs_diff(step.phases.expect("phases").wait_ns) <= 10, "{}: {:?}", text, step);
        }
        for truth in done.truth() {
            prop_assert!(truth.lost_gpu_s >= -1e-9, "{:?}", truth);
            prop_assert!(truth.lost_gpu_s <= done.lost_gpu_s() + 1e-9, "{:?}", truth);
        }
    }
}
