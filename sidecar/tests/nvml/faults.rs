//! XIDs and other events, and faults visible in readings.

use std::time::Duration;

use paceline_health::event::{Access, Event, FaultSource, GpuFaultKind, GpuSignal, Reading};
use paceline_sidecar::source::Source;

use crate::stage::{Stage, fault, gpu, is_access, is_reading};

const S: Duration = Duration::from_secs(1);

#[test]
fn every_kind_of_event() {
    let mut stage = Stage::new("gpus = 2");
    stage.wait(S);
    let kinds = [
        ("xid = 48", GpuFaultKind::Xid, 48),
        ("kind = 1", GpuFaultKind::EccCorrected, 0),
        ("kind = 2", GpuFaultKind::EccUncorrected, 0),
        ("kind = 0x200", GpuFaultKind::EccStorm, 0),
        ("kind = 0x400", GpuFaultKind::MemoryRetired, 0),
        ("kind = 0x800", GpuFaultKind::MemoryRetirementFailed, 0),
        ("kind = 0x1000", GpuFaultKind::Poison, 0),
        ("kind = 0x2000", GpuFaultKind::PoisonFatal, 0),
        ("kind = 0x4000", GpuFaultKind::Unavailable, 0),
        ("kind = 0x8000", GpuFaultKind::RecoveryAction, 0),
        ("xid = 95", GpuFaultKind::Xid, 95),
    ];
    let mut scenario = String::from("gpus = 2\n");
    for (told, kind, xid) in kinds {
        scenario += &format!("[[event]]\ngpu = 1\n{told}\n");
        stage.play(&scenario);
        let (took, event) = stage.expect(2 * S, |event| fault(event).is_some());
        let fault = fault(&event).unwrap();
        assert_eq!(
            (fault.gpu.as_ref(), fault.kind, fault.xid),
            (Some(&gpu(1)), kind, xid)
        );
        assert_eq!(
            (&*fault.pci, fault.count, fault.seen_by),
            ("0000:2a:00.0", 1, FaultSource::Nvml)
        );
        assert!(took < S, "{took:?}");
    }
}

#[test]
fn a_burst_is_counted_and_not_repeated() {
    let mut stage = Stage::new("gpus = 1");
    stage.wait(S);
    stage.play("gpus = 1\n[[event]]\ngpu = 0\nxid = 45\ncount = 10000");
    stage.wait(4 * S);
    let faults: Vec<u32> = stage
        .seen
        .iter()
        .filter_map(|(_, event)| Some(fault(event)?.count))
        .collect();
    assert_eq!(faults.iter().sum::<u32>(), 10_000, "none is lost: {faults:?}");
    assert!(faults.len() <= 5, "{faults:?}");
}

#[test]
fn faults_are_kept_apart_by_instance_and_told_to_a_new_journal() {
    let mut stage = Stage::new("gpus = 1");
    stage.wait(S);
    let event = |instance: u32| format!("[[event]]\ngpu = 0\nxid = 45\ngpu_instance = {instance}\n");
    stage.play(&format!("gpus = 1\n{}{}", event(1), event(2)));
    let texts = |stage: &mut Stage| {
        stage.wait(2 * S);
        let new = std::mem::take(&mut stage.seen);
        stage.next = 0;
        let faults = new.iter().filter_map(|(_, event)| fault(event));
        let mut texts: Vec<_> = faults
            .map(|fault| (fault.text.to_string(), fault.count))
            .collect();
        texts.sort();
        texts
    };
    let both = [1, 2].map(|instance| (format!("GPU instance {instance}"), 1));
    assert_eq!(texts(&mut stage), both);
    assert_eq!(texts(&mut stage), []);
    stage.source.introduce(&mut |_, _| 0);
    assert_eq!(texts(&mut stage), both);
}

#[test]
fn events_of_a_lost_gpu_still_say_which_it_is() {
    let mut stage = Stage::new("gpus = 2");
    stage.wait(S);
    stage.play("gpus = 2\n[gpu.1]\nfail = \"gpu_is_lost\"\n[[event]]\ngpu = 1\nxid = 48");
    let (_, event) = stage.expect(3 * S, |event| fault(event).is_some());
    assert_eq!(fault(&event).unwrap().gpu, Some(gpu(1)));
}

#[test]
fn a_gpu_without_events_is_read_and_says_so() {
    let mut stage = Stage::new("gpus = 2\n[gpu.0]\ncalls = { nvmlDeviceRegisterEvents = \"not_supported\" }");
    stage.expect(3 * S, |event| is_access(event, Some(&gpu(0)), Access::NoEvents));
    stage.expect(
        3 * S,
        |event| matches!(event, Event::Gpu(reading) if reading.gpu == gpu(0)),
    );
}

#[test]
fn faults_that_only_show_in_readings_are_told_within_two_seconds() {
    let cases = [
        ("recovery_action = 1", GpuSignal::RecoveryAction, 1.0),
        ("ecc_uncorrected = 2", GpuSignal::EccUncorrected, 2.0),
        ("remap_pending = 1", GpuSignal::RemapPending, 1.0),
        ("remap_failed = 1", GpuSignal::RemapFailed, 1.0),
        (
            "remapped_uncorrectable = 512",
            GpuSignal::RowsRemappedUncorrectable,
            512.0,
        ),
        ("pcie_width = 8", GpuSignal::PcieWidth, 8.0),
        ("pcie_replays = 6", GpuSignal::PcieReplays, 6.0),
        ("nvlink_crc_data = 3", GpuSignal::NvlinkCrcErrors, 3.0),
        ("nvlink_replays = 4", GpuSignal::NvlinkReplays, 4.0),
        ("nvlink_recoveries = 1", GpuSignal::NvlinkRecoveries, 1.0),
        ("nvlink_up = 17", GpuSignal::NvlinkUp, 17.0),
        ("clock_reasons = 0x80", GpuSignal::ClockReasons, 128.0),
        ("throttle_brake_ns = 5e8", GpuSignal::ThrottleBrakeNs, 5e8),
    ];
    let mut stage = Stage::new("gpus = 1");
    stage.wait(S);
    for (change, signal, wanted) in cases {
        stage.play(&format!("gpus = 1\n[gpu.0]\n{change}"));
        let wanted = Reading::Value(wanted);
        let (took, _) = stage.expect(3 * S, |event| is_reading(event, &gpu(0), signal, &wanted));
        assert!(took < 2 * S, "{change}: {took:?}");
    }
}

#[test]
fn a_counter_that_runs_can_be_made_a_rate() {
    let mut stage = Stage::new("gpus = 1\n[gpu.0]\necc_corrected = { at = 100, per_s = 17700 }");
    stage.wait(4 * S);
    let counts: Vec<(Duration, f64)> = stage
        .readings(&gpu(0))
        .iter()
        .filter_map(|(at, of)| Some((*at, of.readings.get(&GpuSignal::EccCorrected)?.value()?)))
        .collect();
    let ((first, low), (last, high)) = (counts[0], *counts.last().unwrap());
    let rate = (high - low) / (last - first).as_secs_f64();
    assert!((rate / 17_700.0 - 1.0).abs() < 0.2, "{rate}");
}
