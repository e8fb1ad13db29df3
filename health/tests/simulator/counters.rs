//! Every cause changes its own counters, on the affected GPUs and ranks only.

use std::collections::BTreeMap;

use paceline_health::event::{Event, GpuSignal, HostSignal, Reading};
use paceline_health::{Frame, Time};

use super::{run, self_times};

const TEXT: &str = "nodes=2 gpus=4 tp=2 steps=600 host=on seed=4";
/// The fault starts at this step, which is between `WELL_S` and `ILL_S` seconds after the first frame.
const FROM: &str = "from=200";
const ILL_S: f64 = 60.0;
const WELL_S: f64 = 40.0;

/// Increase per second of each counter of each GPU or rank, and the last value of each gauge, in a given span of time.
struct Seen {
    gpus: BTreeMap<(usize, GpuSignal), f64>,
    hosts: BTreeMap<(String, Option<u32>, HostSignal), f64>,
}

fn is_gauge(signal: GpuSignal) -> bool {
    !matches!(
        signal,
        GpuSignal::ThrottleThermalSwNs
            | GpuSignal::ThrottleThermalHwNs
            | GpuSignal::ThrottlePowerNs
            | GpuSignal::ThrottleBrakeNs
            | GpuSignal::EccCorrected
            | GpuSignal::EccUncorrected
            | GpuSignal::PcieReplays
            | GpuSignal::NvlinkCrcErrors
            | GpuSignal::NvlinkReplays
            | GpuSignal::NvlinkRecoveries
    )
}

fn see(frames: &[(Time, Frame)], world: &paceline_health::sim::World, span: std::ops::Range<f64>) -> Seen {
    let mut gpus: BTreeMap<(usize, GpuSignal), Vec<f64>> = BTreeMap::new();
    let mut hosts: BTreeMap<(String, Option<u32>, HostSignal), Vec<f64>> = BTreeMap::new();
    let ids: Vec<_> = (0..world.spec().ranks())
        .map(|rank| world.gpus().gpu(rank))
        .collect();
    for (at, frame) in frames {
        if !span.contains(&at.as_secs_f64()) {
            continue;
        }
        match &frame.event {
            Event::Gpu(reading) => {
                let index = ids
                    .iter()
                    .position(|id| *id == reading.gpu)
                    .expect("a GPU of the world");
                for (signal, reading) in &reading.readings {
                    let value = reading.value().expect("read");
                    gpus.entry((index, *signal)).or_default().push(value);
                }
            }
            Event::Host(reading) => {
                for (signal, value) in &reading.readings {
                    let key = (frame.node.to_string(), reading.rank.map(|rank| rank.0), *signal);
                    let Reading::Value(value) = value else {
                        panic!("{value:?}")
                    };
                    hosts.entry(key).or_default().push(*value);
                }
            }
            _ => {}
        }
    }
    let rate = |values: &Vec<f64>| (values[values.len() - 1] - values[0]) / (values.len() - 1) as f64;
    let middle = |values: &Vec<f64>| super::median(values.clone());
    Seen {
        gpus: gpus
            .iter()
            .map(|(key, values)| {
                (
                    *key,
                    if is_gauge(key.1) {
                        middle(values)
                    } else {
                        rate(values)
                    },
                )
            })
            .collect(),
        hosts: hosts
            .iter()
            .map(|(key, values)| (key.clone(), rate(values)))
            .collect(),
    }
}

/// Returns the counters before and after the onset of a fault on rank 5 (or on its node).
fn before_and_after(fault: &str) -> (Seen, Seen) {
    let (frames, world) = run(TEXT, &[&format!("{fault} {FROM}")]);
    let after = see(&frames, &world, ILL_S..ILL_S + 60.0);
    (see(&frames, &world, 5.0..WELL_S), after)
}

/// Counters identify the cause of each fault on the affected GPU, for every variant of the fault, and on no other GPU.
#[test]
fn gpu_counters_tell_the_cause() {
    use GpuSignal as S;
    type Tells = fn(&dyn Fn(GpuSignal) -> f64) -> bool;
    let table: [(&str, Tells); 6] = [
        ("thermal", |v| {
            v(S::ThrottleThermalSwNs) > 0.5e9 && v(S::MarginC) <= 0.0 && v(S::SmClockMhz) < 1600.0
        }),
        ("power", |v| {
            let capped = v(S::ThrottlePowerNs) > 0.5e9 || v(S::ThrottleBrakeNs) > 0.5e9;
            capped && v(S::SmClockMhz) < 1600.0 && v(S::MarginC) > 10.0 && v(S::ThrottleThermalSwNs) == 0.0
        }),
        ("clock-stuck", |v| {
            v(S::SmClockMhz) < 1600.0 && v(S::ThrottlePowerNs) < 0.2e9 && v(S::ThrottleThermalSwNs) == 0.0
        }),
        ("ecc", |v| {
            let counted = v(S::EccUncorrected) > 0.02 || v(S::EccCorrected) > 5.0;
            (counted || v(S::RemapPending) == 1.0) && v(S::SmClockMhz) > 1900.0
        }),
        ("pcie", |v| {
            let narrow = v(S::PcieWidth) < v(S::PcieWidthMax) || v(S::PcieGen) < v(S::PcieGenMax);
            narrow && v(S::PcieReplays) > 0.5 && v(S::SmClockMhz) > 1900.0
        }),
        ("nvlink", |v| {
            v(S::NvlinkCrcErrors) > 2.0 && v(S::NvlinkRecoveries) > 0.05
        }),
    ];
    for (cause, _) in table {
        let (before, after) = before_and_after(&format!("slow rank=5 factor=1.3 cause={cause}"));
        for (named, tells) in table {
            let tells = |seen: &Seen, gpu: usize| tells(&|signal| seen.gpus[&(gpu, signal)]);
            for gpu in 0..8 {
                assert!(!tells(&before, gpu), "{cause}: {named} of GPU {gpu} before");
                assert_eq!(
                    tells(&after, gpu),
                    gpu == 5 && named == cause,
                    "{cause}: {named} of GPU {gpu}"
                );
            }
        }
    }
}

#[test]
fn host_counters_tell_the_cause() {
    use HostSignal as S;
    for (fault, told) in [
        (
            "slow rank=5 factor=1.3 cause=data-loading",
            vec![(Some(5), S::DiskWaitNs), (None, S::DiskWaitNs)],
        ),
        (
            "slow rank=5 factor=1.3 cause=cpu-contention",
            vec![(Some(5), S::RunQueueNs), (None, S::RunQueueNs)],
        ),
        (
            "slow node=1 factor=4 cause=network",
            vec![(None, S::NetRetransmits), (None, S::NetErrors)],
        ),
        (
            "link node=1 factor=4",
            vec![(None, S::NetRetransmits), (None, S::NetErrors)],
        ),
        ("slow rank=5 factor=1.3 cause=gc", vec![]),
    ] {
        let (before, after) = before_and_after(fault);
        for (key, rate) in &after.hosts {
            let (node, rank, signal) = key;
            // Healthy mean rates vary by a factor of a few. A cause raises them at least tenfold.
            let grown = *rate > 8.0 * before.hosts[key].max(0.02);
            let side = [S::MajorFaults, S::CpuThrottledNs].contains(signal);
            let expected = node == "node1" && told.contains(&(*rank, *signal));
            assert!(
                grown == expected || (side && node == "node1"),
                "{fault}: {key:?} {rate} was {}",
                before.hosts[key]
            );
        }
    }
}

/// The excess of a slow rank is in the phase that belongs to its cause.
#[test]
fn the_excess_sits_in_the_phase_of_its_cause() {
    for (cause, data, gc) in [
        ("none", 0.0, 0.0),
        ("data-loading", 1.0, 0.0),
        ("pcie", 0.5, 0.0),
        ("gc", 0.0, 1.0),
        ("cpu-contention", 0.0, 0.0),
    ] {
        let (frames, _) = run(
            "gpus=8 steps=200 readings=off",
            &[&format!("slow rank=5 factor=1.5 cause={cause} from=100")],
        );
        let (before, after) = (self_times(&frames, 20..100), self_times(&frames, 101..201));
        assert!((after[&5] / before[&5] - 1.5).abs() < 0.01, "{cause}: {after:?}");
        let phase = |from: u64, of: fn(&paceline_health::event::Phases) -> u64| {
            let all = super::steps(&frames);
            let own = all
                .iter()
                .filter(|step| step.rank.0 == 5 && (from..from + 80).contains(&step.step));
            super::median(
                own.map(|step| of(&step.phases.expect("phases")) as f64 / 1e9)
                    .collect(),
            )
        };
        let excess = after[&5] - before[&5];
        let grown =
            |of: fn(&paceline_health::event::Phases) -> u64| (phase(110, of) - phase(15, of)) / excess;
        assert!(
            (grown(|p| p.data_ns) - data).abs() < 0.03,
            "{cause}: data {}",
            grown(|p| p.data_ns)
        );
        assert!(
            (grown(|p| p.gc_ns) - gc).abs() < 0.03,
            "{cause}: gc {}",
            grown(|p| p.gc_ns)
        );
    }
}

/// Even on healthy GPUs, not all counters are zero. There are lifetime totals, a power cap on every rank, and a bus
/// that slows down when idle.
#[test]
fn healthy_counters_have_innocent_noise() {
    let (frames, world) = run("nodes=4 gpus=8 steps=800 host=on", &[]);
    let seen = see(&frames, &world, 5.0..100.0);
    let of = |signal| (0..32).map(move |gpu| (gpu, signal));
    assert!(of(GpuSignal::ThrottlePowerNs).all(|key| (1e6..1e8).contains(&seen.gpus[&key])));
    let readings = || {
        frames.iter().filter_map(|(_, frame)| match &frame.event {
            Event::Gpu(reading) => Some(&reading.readings),
            _ => None,
        })
    };
    let value = |map: &BTreeMap<GpuSignal, Reading>, signal| map[&signal].value().expect("read");
    assert!(readings().any(|map| value(map, GpuSignal::EccCorrected) > 0.0));
    assert!(readings().any(|map| value(map, GpuSignal::NvlinkCrcErrors) > 0.0));
    let idle = |map: &&BTreeMap<GpuSignal, Reading>| {
        value(map, GpuSignal::PcieGen) < value(map, GpuSignal::PcieGenMax)
    };
    assert!(readings().filter(idle).count() > 10);
    assert!(
        readings()
            .filter(idle)
            .all(|map| value(map, GpuSignal::UtilizationRatio) < 0.1)
    );
    assert!(seen.hosts.values().all(|rate| *rate >= 0.0));
}
