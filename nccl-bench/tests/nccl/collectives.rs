//! Tests successful runs of every collective, type and buffer layout, both timed and verified.

use std::time::Duration;

use paceline_nccl_bench::collective::{Collective, Plan};
use paceline_nccl_bench::dtype::Dtype;
use paceline_nccl_bench::measure::RankTimes;
use paceline_nccl_bench::transport::{Deadline, Transport};

use crate::stage::{LONG, Stage};

#[test]
fn every_collective_of_every_type_comes_out_right() {
    for ranks in 1..=3 {
        let stage = Stage::new("gpus = 3");
        let seen = stage.ranks(ranks, move |mut nccl| {
            let deadline = Deadline::new("verify", LONG);
            let mut wrong = Vec::new();
            for collective in Collective::ALL {
                for (dtype, bytes) in Dtype::ALL.into_iter().zip([24, 1500, 8192, 100_000]) {
                    let plan = Plan::new(collective, dtype, bytes, ranks).unwrap();
                    let mut plans = vec![plan];
                    plans.extend(collective.in_place().then(|| plan.in_place()));
                    for plan in plans {
                        nccl.prepare(&plan, &deadline)?;
                        let times = nccl.run(3, &deadline)?;
                        assert_eq!(times.len(), 3);
                        wrong.push((plan, nccl.verify(&deadline)?));
                        nccl.barrier(&deadline)?;
                    }
                }
            }
            Ok(wrong)
        });
        for (rank, wrong) in seen.into_iter().enumerate() {
            let wrong = wrong.unwrap();
            assert_eq!(wrong.len(), 4 * 9);
            for (plan, wrong) in wrong {
                assert_eq!(wrong, 0, "rank {rank} of {ranks}: {plan:?}");
            }
        }
    }
}

#[test]
fn a_broadcast_has_any_root() {
    let seen = Stage::new("gpus = 3").ranks(3, |mut nccl| {
        let deadline = Deadline::new("verify", LONG);
        let plan = Plan {
            root: 2,
            ..Plan::new(Collective::Broadcast, Dtype::F32, 4096, 3).unwrap()
        };
        nccl.prepare(&plan, &deadline)?;
        nccl.verify(&deadline)
    });
    assert!(seen.into_iter().all(|wrong| wrong.unwrap() == 0));
}

#[test]
fn large_buffers_pass_the_stage_in_parts() {
    let seen = Stage::new("").ranks(2, |mut nccl| {
        let deadline = Deadline::new("verify", LONG);
        nccl.prepare(
            &Plan::new(Collective::AllReduce, Dtype::Bf16, 17_000_002, 2).unwrap(),
            &deadline,
        )?;
        nccl.verify(&deadline)
    });
    assert!(seen.into_iter().all(|wrong| wrong.unwrap() == 0));
}

#[test]
fn the_time_is_the_gpus_and_each_iterations_own() {
    let stage = Stage::new("[rank.1]\ndelay_ms = 30");
    let seen = stage.ranks(2, |mut nccl| {
        let deadline = Deadline::new("run", LONG);
        nccl.prepare(
            &Plan::new(Collective::AllReduce, Dtype::F32, 1024, 2).unwrap(),
            &deadline,
        )?;
        let times = nccl.run(4, &deadline)?;
        let times = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
        let (rank, nwrong) = (nccl.rank(), Some(nccl.verify(&deadline)?));
        let all = nccl.gather(RankTimes { rank, times, nwrong }, &deadline)?;
        Ok((nccl.about(), nccl.device(), all))
    });
    let mut seen = seen.into_iter().map(Result::unwrap);
    let (about, device, all) = seen.next().unwrap();
    let all = all.unwrap();
    assert_eq!(all.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [0, 1]);
    for rank in &all {
        // All ranks wait for the slow rank. If one host records an event late, the next iteration is shorter.
        let sum: f64 = rank.times.iter().sum();
        assert!(rank.times.len() == 4 && sum > 110e3, "{rank:?}");
        assert!(rank.times.iter().all(|time| *time > 5e3), "{rank:?}");
    }
    assert_eq!((about.transport.as_str(), about.simulated), ("nccl", false));
    assert_eq!(
        (
            about.details["nccl"].as_str(),
            about.details["cuda_driver"].as_str()
        ),
        ("2.30.7", "13.0")
    );
    assert_eq!(
        device,
        "NVIDIA H100 80GB HBM3 0000:18:00.0 GPU-fa4e0000-0000-4000-8000-000000000000"
    );
    let (_, device, all) = seen.next().unwrap();
    assert!(device.contains("0000:28:00.0") && all.is_none(), "{device}");
}

#[test]
fn a_wrong_result_is_that_ranks_and_nobody_elses() {
    let stage = Stage::new("[rank.1]\nwrong = true");
    let seen = stage.ranks(2, |mut nccl| {
        let deadline = Deadline::new("verify", LONG);
        let mut wrong = Vec::new();
        for collective in Collective::ALL {
            nccl.prepare(&Plan::new(collective, Dtype::F32, 4096, 2).unwrap(), &deadline)?;
            // Output of an earlier run must not count as a result.
            nccl.run(1, &deadline)?;
            wrong.push(nccl.verify(&deadline)?);
        }
        Ok(wrong)
    });
    let seen: Vec<Vec<u64>> = seen.into_iter().map(Result::unwrap).collect();
    assert_eq!(seen, [[0; 5], [1; 5]]);
}

#[test]
fn two_ranks_share_a_gpu_where_that_is_allowed() {
    let share = |scenario: &str| {
        let stage = Stage::new(scenario);
        let options = (0..2).map(|rank| paceline_nccl_bench::transport::nccl::Options {
            share: true,
            ..stage.options(rank)
        });
        let seen = crate::stage::play(options.collect(), Duration::from_secs(5), |mut nccl| {
            let deadline = Deadline::new("verify", LONG);
            nccl.prepare(
                &Plan::new(Collective::AllReduce, Dtype::F32, 4096, 2).unwrap(),
                &deadline,
            )?;
            Ok((nccl.device(), nccl.verify(&deadline)?))
        });
        seen.into_iter()
            .map(|seen| seen.map_err(|error| error.to_string()))
            .collect::<Vec<_>>()
    };
    let old = share("gpus = 1\nnccl = 22907");
    assert!(
        old[1]
            .as_ref()
            .unwrap_err()
            .contains("NCCL 2.29.7 is older than 2.30.0"),
        "{old:?}"
    );
    let unset = share("gpus = 1");
    assert!(
        unset[1]
            .as_ref()
            .unwrap_err()
            .contains("without NCCL_MULTI_RANK_GPU_ENABLE=1"),
        "{unset:?}"
    );
    // The variable applies to the whole process, so the bench's own tests cover the program that is started with it.
}
