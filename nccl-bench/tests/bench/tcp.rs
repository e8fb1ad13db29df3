//! Tests every collective over real sockets, and checks that wrong, late and missing ranks are detected.

use std::time::{Duration, Instant};

use paceline_nccl_bench::collective::{Collective, Plan};
use paceline_nccl_bench::dtype::Dtype;
use paceline_nccl_bench::measure::RankTimes;
use paceline_nccl_bench::net::{Seat, loopback};
use paceline_nccl_bench::transport::tcp::schedule::Algorithm;
use paceline_nccl_bench::transport::tcp::{Tcp, TcpOptions};
use paceline_nccl_bench::transport::{Deadline, Transport, TransportError};

use crate::{each, long};

/// Runs `ranks` threads, each as one rank of a group.
fn ranks<R: Send>(ranks: usize, algorithm: Option<Algorithm>, of_one: impl Fn(Tcp) -> R + Sync) -> Vec<R> {
    each(loopback(ranks, None).unwrap(), |place| {
        let seat = Seat::take(place).unwrap();
        of_one(Tcp::join(seat, TcpOptions { algorithm }, &long("join")).unwrap())
    })
}

/// Sizes in elements: one, fewer than ranks, odd, and several socket chunks with a remainder.
const SIZES: [u64; 5] = [1, 3, 257, 4_099, 300_007];

#[test]
fn every_result_is_right() {
    for n in 1..=5 {
        for algorithm in Algorithm::ALL {
            ranks(n, Some(algorithm), |mut tcp| {
                for collective in Collective::ALL {
                    for dtype in Dtype::ALL {
                        for elements in SIZES {
                            let bytes = elements * dtype.size() as u64;
                            let Ok(plan) = Plan::new(collective, dtype, bytes, n) else {
                                continue;
                            };
                            check(&mut tcp, &plan);
                            if collective.in_place() {
                                check(&mut tcp, &plan.in_place());
                            }
                        }
                    }
                }
            });
        }
    }
}

fn check(tcp: &mut Tcp, plan: &Plan) {
    tcp.prepare(plan, &long("prepare")).unwrap();
    // The result is also correct after the first run.
    assert_eq!(tcp.run(2, &long("run")).unwrap().len(), 2);
    assert_eq!(
        tcp.verify(&long("verify")).unwrap(),
        0,
        "rank {}: {plan:?}",
        tcp.rank()
    );
}

#[test]
fn other_roots_and_more_ranks_than_a_power_of_two() {
    for n in [6, 7, 9] {
        ranks(n, None, |mut tcp| {
            for root in [1, n - 1] {
                let plan = Plan::new(Collective::Broadcast, Dtype::F32, 100_000, n).unwrap();
                check(&mut tcp, &Plan { root, ..plan });
            }
            for bytes in [1 << 10, 1 << 20] {
                check(
                    &mut tcp,
                    &Plan::new(Collective::AllReduce, Dtype::Bf16, bytes, n).unwrap(),
                );
            }
        });
    }
}

#[test]
fn times_come_to_rank_0_in_order() {
    let gathered = ranks(3, None, |mut tcp| {
        let mine = RankTimes {
            rank: tcp.rank(),
            times: vec![tcp.rank() as f64],
            nwrong: None,
        };
        tcp.gather(mine, &long("gather")).unwrap()
    });
    let order: Vec<usize> = gathered[0]
        .as_ref()
        .unwrap()
        .iter()
        .map(|times| times.rank)
        .collect();
    assert_eq!(order, [0, 1, 2]);
    assert!(gathered[1].is_none() && gathered[2].is_none());
}

#[test]
fn ranks_that_mean_different_things_do_not_measure() {
    let errors = ranks(3, None, |mut tcp| {
        let bytes = if tcp.rank() == 2 { 2048 } else { 1024 };
        let plan = Plan::new(Collective::AllReduce, Dtype::F32, bytes, 3).unwrap();
        tcp.prepare(&plan, &long("prepare")).unwrap_err()
    });
    for error in errors {
        assert_eq!(error.peer(), Some(2), "{error}");
        assert!(error.to_string().contains("another plan"), "{error}");
    }
}

/// Returns the errors of the other ranks if rank 2 of 4 runs `fault` instead of taking part.
fn with_fault(fault: impl Fn(Tcp) + Sync, limit: Duration) -> Vec<TransportError> {
    let errors = ranks(4, Some(Algorithm::Ring), |mut tcp| {
        let plan = Plan::new(Collective::AllReduce, Dtype::F32, 8 << 20, 4).unwrap();
        tcp.prepare(&plan, &long("prepare")).unwrap();
        if tcp.rank() == 2 {
            fault(tcp);
            return None;
        }
        Some(tcp.run(1000, &Deadline::new("8M all-reduce", limit)).unwrap_err())
    });
    errors.into_iter().flatten().collect()
}

#[test]
fn a_rank_that_dies_in_the_middle_is_named_by_all() {
    let began = Instant::now();
    let die = |mut tcp: Tcp| drop(tcp.run(3, &long("run")).unwrap());
    let errors = with_fault(die, Duration::from_secs(20));
    assert_eq!(errors.len(), 3);
    for error in errors {
        assert_eq!(error.peer(), Some(2), "{error}");
        assert!(error.to_string().starts_with("8M all-reduce: "), "{error}");
    }
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "nobody waited for the deadline"
    );
}

#[test]
fn a_rank_that_hangs_is_named_by_all_at_the_deadline() {
    let began = Instant::now();
    let hang = |_tcp: Tcp| std::thread::sleep(Duration::from_secs(6));
    let errors = with_fault(hang, Duration::from_secs(1));
    for error in errors {
        assert_eq!(error.peer(), Some(2), "{error}");
        assert!(
            error
                .to_string()
                .contains("not done within 1.0 s waiting for rank 2"),
            "{error}"
        );
    }
    assert!(began.elapsed() < Duration::from_secs(12));
}

#[test]
fn a_rank_that_stops_says_so() {
    let stop = |mut tcp: Tcp| tcp.abort();
    for error in with_fault(stop, Duration::from_secs(20)) {
        assert_eq!(error.peer(), Some(2), "{error}");
        assert!(error.to_string().contains("it was ordered to stop"), "{error}");
    }
}
