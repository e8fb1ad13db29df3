//! Which signals are read, from which model, how often.

use std::collections::BTreeSet;
use std::time::Duration;

use paceline_health::event::{Event, GpuSignal, Missing, Reading};

use crate::stage::{Stage, gpu, holders, is_reading, unsupported};

const S: Duration = Duration::from_secs(1);

/// The first full reading of GPU 0.
fn first(scenario: &str) -> paceline_health::event::GpuReading {
    let mut stage = Stage::new(scenario);
    let (_, event) = stage.expect(3 * S, |event| matches!(event, Event::Gpu(_)));
    match event {
        Event::Gpu(reading) => reading,
        _ => unreachable!("as expected"),
    }
}

#[test]
fn an_h100() {
    let reading = first("gpus = 1\nprofile = \"h100\"");
    assert_eq!(reading.gpu, gpu(0));
    assert_eq!(
        (&*reading.pci, &*reading.model),
        ("0000:18:00.0", "NVIDIA H100 80GB HBM3")
    );
    for (signal, wanted) in [
        (GpuSignal::TemperatureC, 48.0),
        (GpuSignal::MarginC, 39.0),
        (GpuSignal::MemoryTemperatureC, 52.0),
        (GpuSignal::SmClockMhz, 1980.0),
        (GpuSignal::MemoryClockMaxMhz, 2619.0),
        (GpuSignal::PowerW, 612.3),
        (GpuSignal::PowerLimitW, 700.0),
        (GpuSignal::EnergyJ, 5e6),
        (GpuSignal::UtilizationRatio, 0.98),
        (GpuSignal::MemoryTotalBytes, 80.0 * f64::from(1 << 30)),
        (GpuSignal::PcieWidthMax, 16.0),
        (GpuSignal::EccEnabled, 1.0),
        (GpuSignal::EccUncorrected, 0.0),
        (GpuSignal::RemapBanks, 640.0),
        (GpuSignal::SramThresholdExceeded, 0.0),
        (GpuSignal::NvlinkUp, 18.0),
        (GpuSignal::NvlinkSentBytes, 4e9 * 1024.0),
        (GpuSignal::FabricState, 3.0),
        (GpuSignal::FabricHealth, 0.0),
        (GpuSignal::RecoveryAction, 0.0),
    ] {
        assert_eq!(
            reading.readings.get(&signal),
            Some(&Reading::Value(wanted)),
            "{signal:?}"
        );
    }
    for signal in [
        GpuSignal::RetiredPagesDoubleBit,
        GpuSignal::NvlinkErrors,
        GpuSignal::MemoryMarginC,
    ] {
        assert_eq!(reading.readings.get(&signal), Some(&unsupported()), "{signal:?}");
    }
}

#[test]
fn each_model_says_what_it_has() {
    let of = |profile: &str| first(&format!("gpus = 1\nprofile = \"{profile}\"")).readings;
    let (a100, h200, b200) = (of("a100"), of("h200"), of("b200"));
    assert_eq!(
        a100[&GpuSignal::MarginC],
        Reading::Value(87.0 - 48.0),
        "where it slows down, less its heat"
    );
    assert_eq!(a100[&GpuSignal::MemoryMarginC], Reading::Value(95.0 - 52.0));
    assert_eq!(a100[&GpuSignal::FabricState], unsupported());
    assert_eq!(
        a100[&GpuSignal::NvlinkUp],
        Reading::Value(12.0),
        "asked link by link"
    );
    assert_eq!(a100[&GpuSignal::SmActiveRatio], unsupported());
    assert_eq!(
        h200[&GpuSignal::MemoryTotalBytes],
        Reading::Value(141.0 * f64::from(1 << 30))
    );
    assert_eq!(b200[&GpuSignal::NvlinkErrors], Reading::Value(0.0));
    assert_eq!(
        b200[&GpuSignal::NvlinkRecoveries],
        Reading::Value(0.0),
        "it counts them per link"
    );
    assert_eq!(b200[&GpuSignal::NvlinkCrcErrors], unsupported());
    let signals =
        |of: &std::collections::BTreeMap<GpuSignal, Reading>| of.keys().copied().collect::<BTreeSet<_>>();
    let gpm = |signal: &GpuSignal| {
        format!("{signal:?}").ends_with("ActiveRatio") || *signal == GpuSignal::SmOccupancyRatio
    };
    // Rates are available with the second sample; if unsupported, that is known at once.
    let all = signals(&a100);
    assert_eq!(
        signals(&b200),
        all.iter().copied().filter(|signal| !gpm(signal)).collect()
    );
}

#[test]
fn throttling_is_read_where_each_driver_counts_it() {
    for driver in ["575.51.03", "580.65.06", "580.82.07", "590.44.01"] {
        let reading = first(&format!(
            "driver = \"{driver}\"\ngpus = 1\n[gpu.0]\nthrottle_thermal_sw_ns = 7\nthrottle_thermal_hw_ns = 8\n\
             throttle_brake_ns = 9\nthrottle_power_ns = 10"
        ));
        let wanted = [
            (GpuSignal::ThrottleThermalSwNs, 7.0),
            (GpuSignal::ThrottleThermalHwNs, 8.0),
            (GpuSignal::ThrottleBrakeNs, 9.0),
            (GpuSignal::ThrottlePowerNs, 10.0),
        ];
        for (signal, value) in wanted {
            assert_eq!(
                reading.readings.get(&signal),
                Some(&Reading::Value(value)),
                "{driver}: {signal:?}"
            );
        }
    }
}

/// Their fields 251 to 253 are missing, or about power smoothing, which a wrong reader takes for 0 ns of throttling.
#[test]
fn throttling_of_older_drivers_is_policy_time_and_clock_reasons() {
    for driver in ["535.104.05", "550.163.01", "570.124.06"] {
        let reading = first(&format!(
            "driver = \"{driver}\"\ngpus = 1\n[gpu.0]\npolicy_thermal_ns = 7\nthrottle_thermal_hw_ns = 8\n\
             throttle_brake_ns = 9\nclock_reasons = 192"
        ));
        let counted = &reading.readings[&GpuSignal::ThrottleThermalSwNs];
        assert_eq!(*counted, Reading::Value(7.0), "{driver}");
        // Summed from the first reading on: neither unsupported nor the values of the fields of later drivers (8 and
        // 9).
        for signal in [GpuSignal::ThrottleThermalHwNs, GpuSignal::ThrottleBrakeNs] {
            let summed = reading.readings[&signal].value();
            let is_time = |ns: f64| ns == 0.0 || (1e3..3e9).contains(&ns);
            assert!(summed.is_some_and(is_time), "{driver}: {signal:?} {summed:?}");
        }
    }
}

#[test]
fn a_value_none_and_an_error_are_three_things() {
    let reading = first(
        "gpus = 1\n[gpu.0]\nmargin = -3\necc_uncorrected = \"not_supported\"\nremap_pending = \"unknown\"\n\
         calls = { nvmlDeviceGetSramEccErrorStatus = \"no_permission\" }",
    );
    let error = |name: &str| Reading::Missing(Missing::Error(name.into()));
    assert_eq!(
        reading.readings[&GpuSignal::MarginC],
        Reading::Value(-3.0),
        "past it"
    );
    assert_eq!(reading.readings[&GpuSignal::EccUncorrected], unsupported());
    assert_eq!(reading.readings[&GpuSignal::RemapPending], error("unknown"));
    assert_eq!(
        reading.readings[&GpuSignal::SramThresholdExceeded],
        error("no_permission")
    );
}

#[test]
fn what_matters_every_second_the_rest_when_it_changes_and_all_every_ten() {
    let mut stage = Stage::new("gpus = 1");
    stage.wait(Duration::from_millis(12_500));
    let counts: Vec<usize> = stage
        .readings(&gpu(0))
        .iter()
        .map(|(_, of)| of.readings.len())
        .collect();
    assert!((12..=14).contains(&counts.len()), "{counts:?}");
    assert!(counts[0] > 40 && counts[10] > 40, "{counts:?}");
    assert!(counts[1..10].iter().all(|count| *count == 9), "{counts:?}");
    let readings = stage.readings(&gpu(0));
    assert_eq!(
        readings[10].1.readings[&GpuSignal::TensorActiveRatio],
        Reading::Value(0.5425)
    );
    let cost = readings[10].1.readings[&GpuSignal::ReadNs].value().unwrap();
    assert!(cost > 1e3 && cost < 1e9, "{cost} ns");
}

#[test]
fn instances_of_a_gpu_have_memory_of_their_own_and_share_its_heat() {
    let mut stage = Stage::new("gpus = 1\n[gpu.0]\nmig = 2\ntemperature = 77");
    let instance = paceline_health::id::GpuId::from("GPU-fa4e0000-0000-5000-0001-000000000000");
    // With its rank's name for it: by the bytes of its UUID.
    let half = Reading::Value(40.0 * f64::from(1 << 30));
    stage.expect(3 * S, |event| {
        is_reading(event, &instance, GpuSignal::MemoryTotalBytes, &half)
            && is_reading(event, &instance, GpuSignal::TemperatureC, &Reading::Value(77.0))
    });
    stage.play("gpus = 1\n[gpu.0]\nmig = 2\ntemperature = 84");
    stage.expect(3 * S, |event| {
        is_reading(event, &instance, GpuSignal::TemperatureC, &Reading::Value(84.0))
    });
    let (_, reading) = *stage.readings(&instance).first().unwrap();
    assert_eq!(
        (&*reading.pci, &*reading.model),
        ("0000:18:00.0", "NVIDIA H100 80GB HBM3 MIG 3g.40gb")
    );
}

#[test]
fn who_holds_a_gpu() {
    let mut stage = Stage::new(&format!(
        "gpus = 1\n[gpu.0]\nprocesses = [{}]",
        std::process::id()
    ));
    let (_, event) = stage.expect(3 * S, |event| holders(event).is_some());
    let process = &holders(&event).unwrap().processes[0];
    assert_eq!(
        (process.pid, process.used_bytes),
        (std::process::id(), Some(1 << 30))
    );
}

#[test]
fn sixteen_gpus() {
    let mut stage = Stage::new("gpus = 16\nprofile = \"a100\"");
    stage.wait(3 * S);
    for index in 0..16 {
        assert!(stage.readings(&gpu(index)).len() >= 2, "GPU {index}");
    }
    assert_eq!(&*stage.readings(&gpu(15))[0].1.pci, "0001:db:00.0");
}
