//! Readings by driver: each number and name that the reader uses must be in the driver's own header.
//!
//! The fake library answers for each driver according to that driver's nvml.h (tests/fake-nvml/tables/nvml.tsv). Here
//! the source of each signal is given by its name in nvml.h, never by number, and every field has a unique value: a
//! wrong number in the product reads another field's value.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nvml_wrapper_sys::bindings::NvmlLib;
use paceline_fake_nvml::drivers::{self, Driver, Kind};
use paceline_fake_nvml::profile::{FIELDS, OTHER_FIELDS, POWER_SMOOTHING};
use paceline_health::event::GpuFaultKind as Fault;
use paceline_health::event::{Event, GpuReading, GpuSignal as Signal, Reading};

use crate::stage::{Stage, fault, install, unsupported};

const S: Duration = Duration::from_secs(1);
const KIB: f64 = 1024.0;

/// Signals, the fields that are summed, and the factor from the field's unit to the signal's.
const BY_FIELD: [(Signal, &[&str], f64); 38] = [
    (Signal::EccEnabled, &["DEV_ECC_CURRENT"], 1.0),
    (Signal::EccEnabledPending, &["DEV_ECC_PENDING"], 1.0),
    (Signal::EccCorrected, &["DEV_ECC_SBE_VOL_TOTAL"], 1.0),
    (Signal::EccUncorrected, &["DEV_ECC_DBE_VOL_TOTAL"], 1.0),
    (Signal::EccCorrectedAggregate, &["DEV_ECC_SBE_AGG_TOTAL"], 1.0),
    (Signal::EccUncorrectedAggregate, &["DEV_ECC_DBE_AGG_TOTAL"], 1.0),
    (Signal::RetiredPagesSingleBit, &["DEV_RETIRED_SBE"], 1.0),
    (Signal::RetiredPagesDoubleBit, &["DEV_RETIRED_DBE"], 1.0),
    (Signal::RetiredPagesPending, &["DEV_RETIRED_PENDING"], 1.0),
    (
        Signal::NvlinkCrcErrors,
        &[
            "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
            "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        ],
        1.0,
    ),
    (
        Signal::NvlinkReplays,
        &["DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"],
        1.0,
    ),
    (
        Signal::NvlinkRecoveries,
        &[
            "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
            "DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
        ],
        1.0,
    ),
    (Signal::ThrottlePowerNs, &["DEV_PERF_POLICY_POWER"], 1.0),
    (Signal::ThrottleSyncNs, &["DEV_PERF_POLICY_SYNC_BOOST"], 1.0),
    (Signal::MemoryTemperatureC, &["DEV_MEMORY_TEMP"], 1.0),
    (Signal::EnergyJ, &["DEV_TOTAL_ENERGY_CONSUMPTION"], 1e-3),
    (Signal::NvlinkCount, &["DEV_NVLINK_LINK_COUNT"], 1.0),
    (Signal::PcieReplays, &["DEV_PCIE_REPLAY_COUNTER"], 1.0),
    (Signal::NvlinkSentBytes, &["DEV_NVLINK_THROUGHPUT_DATA_TX"], KIB),
    (
        Signal::NvlinkReceivedBytes,
        &["DEV_NVLINK_THROUGHPUT_DATA_RX"],
        KIB,
    ),
    (Signal::RowsRemappedCorrectable, &["DEV_REMAPPED_COR"], 1.0),
    (Signal::RowsRemappedUncorrectable, &["DEV_REMAPPED_UNC"], 1.0),
    (Signal::RemapPending, &["DEV_REMAPPED_PENDING"], 1.0),
    (Signal::RemapFailed, &["DEV_REMAPPED_FAILURE"], 1.0),
    (Signal::NvlinkUp, &["DEV_NVLINK_GET_STATE"], 1.0),
    (Signal::PowerW, &["DEV_POWER_AVERAGE"], 1e-3),
    (Signal::PowerInstantW, &["DEV_POWER_INSTANT"], 1e-3),
    (Signal::PowerLimitDefaultW, &["DEV_POWER_DEFAULT_LIMIT"], 1e-3),
    (Signal::PowerLimitW, &["DEV_POWER_CURRENT_LIMIT"], 1e-3),
    (Signal::PcieSentBytes, &["DEV_PCIE_COUNT_TX_BYTES"], 1.0),
    (Signal::PcieReceivedBytes, &["DEV_PCIE_COUNT_RX_BYTES"], 1.0),
    (
        Signal::NvlinkErrors,
        &[
            "DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
            "DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
            "DEV_NVLINK_COUNT_RCV_ERRORS",
            "DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
        ],
        1.0,
    ),
    (
        Signal::NvlinkRecoveriesFailed,
        &["DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"],
        1.0,
    ),
    (
        Signal::NvlinkSymbolErrors,
        &["DEV_NVLINK_COUNT_SYMBOL_ERRORS"],
        1.0,
    ),
    (Signal::RecoveryAction, &["DEV_GET_GPU_RECOVERY_ACTION"], 1.0),
    (
        Signal::ThrottleThermalSwNs,
        &["DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN"],
        1.0,
    ),
    (
        Signal::ThrottleThermalHwNs,
        &["DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN"],
        1.0,
    ),
    (
        Signal::ThrottleBrakeNs,
        &["DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN"],
        1.0,
    ),
];

/// Signals from a function that not every driver has, and the values of the fake's H100.
const BY_FUNCTION: [(Signal, &str, f64); 5] = [
    (Signal::MarginC, "nvmlDeviceGetMarginTemperature", 39.0),
    (
        Signal::SramThresholdExceeded,
        "nvmlDeviceGetSramEccErrorStatus",
        0.0,
    ),
    (Signal::FabricState, "nvmlDeviceGetGpuFabricInfoV", 3.0),
    (Signal::FabricStatus, "nvmlDeviceGetGpuFabricInfoV", 0.0),
    (Signal::FabricHealth, "nvmlDeviceGetGpuFabricInfoV", 0.0),
];

/// Signals that are the same for every driver of the table.
const ALWAYS: [(Signal, f64); 15] = [
    (Signal::TemperatureC, 48.0),
    (Signal::SmClockMhz, 1980.0),
    (Signal::SmClockMaxMhz, 1980.0),
    (Signal::SmClockSetMhz, 1980.0),
    (Signal::MemoryClockMhz, 2619.0),
    (Signal::MemoryClockMaxMhz, 2619.0),
    (Signal::UtilizationRatio, 0.98),
    (Signal::MemoryBusyRatio, 0.41),
    (Signal::ClockReasons, 0.0),
    (Signal::PcieGen, 5.0),
    (Signal::PcieGenMax, 5.0),
    (Signal::PcieWidth, 16.0),
    (Signal::PcieWidthMax, 16.0),
    (Signal::RemapBanksLow, 0.0),
    (Signal::RemapBanks, 640.0),
];

/// Signals that are not tested here.
const LEFT_OUT: [Signal; 5] = [
    Signal::MemoryUsedBytes,
    Signal::MemoryTotalBytes,
    Signal::MemoryMarginC,
    Signal::RemapBanksNone,
    Signal::ReadNs,
];

/// A version for every driver of the table, and a newer one.
fn versions() -> impl Iterator<Item = String> {
    let of_table = drivers::all().iter();
    of_table
        .map(|driver| format!("{driver}.01"))
        .chain(["999.1".into()])
}

/// A unique value for the item of each field. The state of links is the number of active ones, of 17.
fn values() -> BTreeMap<&'static str, f64> {
    let items = (0_u32..).zip(FIELDS);
    let mut values: BTreeMap<&str, f64> = items
        .map(|(at, (_, item, _))| (*item, f64::from(100_003 + 1_009 * at)))
        .collect();
    values.insert("nvlink_count", 17.0);
    values.insert("nvlink_up", 11.0);
    values.insert(POWER_SMOOTHING.1, 7_000_001.0);
    values.insert(OTHER_FIELDS, 9_000_001.0);
    values
}

fn first(scenario: &str) -> GpuReading {
    let mut stage = Stage::new(scenario);
    let (_, event) = stage.expect(5 * S, |event| matches!(event, Event::Gpu(_)));
    match event {
        Event::Gpu(reading) => reading,
        _ => unreachable!("as expected"),
    }
}

/// The sum of those fields that this driver defines; `None` if it defines none.
fn sum(driver: Driver, names: &[&str], values: &BTreeMap<&str, f64>) -> Option<f64> {
    let defined = names.iter().filter_map(|name| {
        let name = format!("NVML_FI_{name}");
        driver.number(Kind::Field, &name)?;
        let (_, item, _) = FIELDS.iter().find(|(known, ..)| *known == name).unwrap();
        Some(values[item])
    });
    defined.reduce(|sum, more| sum + more)
}

#[test]
fn every_field_is_what_the_drivers_header_says() {
    let values = values();
    let items: String = values
        .iter()
        .map(|(item, value)| format!("{item} = {value}\n"))
        .collect();
    for version in versions() {
        let driver = Driver::of(&version);
        let read = first(&format!("driver = \"{version}\"\ngpus = 1\n[gpu.0]\n{items}"));
        let mut wanted: BTreeMap<Signal, Reading> = BTreeMap::new();
        for (signal, names, unit) in BY_FIELD {
            let reading = match (sum(driver, names, &values), signal) {
                (Some(sum), _) => Reading::Value(sum * unit),
                // Drivers without counters: one value for heat, and sums by clock reason, which are zero here.
                (None, Signal::ThrottleThermalSwNs) => Reading::Value(values["policy_thermal_ns"]),
                (None, Signal::ThrottleThermalHwNs | Signal::ThrottleBrakeNs) => Reading::Value(0.0),
                (None, _) => unsupported(),
            };
            wanted.insert(signal, reading);
        }
        for (signal, function, value) in BY_FUNCTION {
            let declared = driver.declares(function).then_some(Reading::Value(value));
            wanted.insert(signal, declared.unwrap_or_else(unsupported));
        }
        wanted.extend(ALWAYS.map(|(signal, value)| (signal, Reading::Value(value))));
        for (signal, reading) in &wanted {
            let found = read.readings.get(signal);
            let same = match (found, reading) {
                (Some(Reading::Value(found)), Reading::Value(value)) => {
                    (found - value).abs() < 1e-6 * value.abs() + 1e-9
                }
                _ => found == Some(reading),
            };
            assert!(same, "{version}: {signal:?} is {found:?}, not {reading:?}");
        }
        let known: BTreeSet<Signal> = wanted.keys().copied().chain(LEFT_OUT).collect();
        let unknown: Vec<&Signal> = read
            .readings
            .keys()
            .filter(|signal| !known.contains(signal))
            .collect();
        assert!(
            unknown.is_empty(),
            "{version}: no source is named here for {unknown:?}"
        );
    }
}

#[test]
fn a_function_that_the_header_does_not_declare_is_not_found() {
    for version in versions() {
        let dir = tempfile::tempdir().unwrap();
        let library = install(dir.path(), &format!("driver = \"{version}\"\ngpus = 1"));
        // SAFETY: the library is the fake, whose functions have the signatures of the header.
        let library = unsafe { NvmlLib::new(&library) }.unwrap();
        let driver = Driver::of(&version);
        for (function, found) in [
            ("nvmlInit_v2", library.nvmlInit_v2.is_ok()),
            (
                "nvmlDeviceGetTemperature",
                library.nvmlDeviceGetTemperature.is_ok(),
            ),
            (
                "nvmlDeviceGetTemperatureV",
                library.nvmlDeviceGetTemperatureV.is_ok(),
            ),
            (
                "nvmlDeviceGetMarginTemperature",
                library.nvmlDeviceGetMarginTemperature.is_ok(),
            ),
            (
                "nvmlDeviceGetSramEccErrorStatus",
                library.nvmlDeviceGetSramEccErrorStatus.is_ok(),
            ),
            (
                "nvmlDeviceGetGpuFabricInfoV",
                library.nvmlDeviceGetGpuFabricInfoV.is_ok(),
            ),
        ] {
            assert_eq!(found, driver.declares(function), "{version}: {function}");
        }
    }
}

#[test]
fn every_event_is_what_the_drivers_header_says() {
    let kinds = [
        ("nvmlEventTypeSingleBitEccError", Fault::EccCorrected),
        ("nvmlEventTypeDoubleBitEccError", Fault::EccUncorrected),
        ("nvmlEventTypeXidCriticalError", Fault::Xid),
        ("nvmlEventTypeSingleBitEccErrorStorm", Fault::EccStorm),
        ("nvmlEventTypeDramRetirementEvent", Fault::MemoryRetired),
        (
            "nvmlEventTypeDramRetirementFailure",
            Fault::MemoryRetirementFailed,
        ),
        ("nvmlEventTypeNonFatalPoisonError", Fault::Poison),
        ("nvmlEventTypeFatalPoisonError", Fault::PoisonFatal),
        ("nvmlEventTypeGpuUnavailableError", Fault::Unavailable),
        ("nvmlEventTypeGpuRecoveryAction", Fault::RecoveryAction),
    ];
    for version in versions() {
        let driver = Driver::of(&version);
        let mut scenario = format!("driver = \"{version}\"\ngpus = 1\n");
        // Each event occurs a different number of times, so the order of delivery does not matter.
        let mut missing = Vec::new();
        for (count, (name, kind)) in (1_u32..).zip(kinds) {
            if let Some(bit) = driver.number(Kind::Event, name) {
                scenario += &format!("[[event]]\ngpu = 0\nkind = {bit}\ncount = {count}\n");
                missing.push((kind, count));
            }
        }
        assert!(missing.iter().any(|(kind, _)| *kind == Fault::Xid), "{version}");
        let mut stage = Stage::new(&scenario);
        while !missing.is_empty() {
            let (_, event) = stage.expect(5 * S, |event| fault(event).is_some());
            let found = fault(&event).unwrap();
            let of_kind = missing.iter_mut().find(|(kind, _)| *kind == found.kind);
            let (_, left) = of_kind.unwrap_or_else(|| panic!("{version}: {found:?}"));
            let rest = left.checked_sub(found.count);
            *left = rest.unwrap_or_else(|| panic!("{version}: too many of {found:?}"));
            missing.retain(|(_, left)| *left > 0);
        }
    }
}

/// NVML_NVLINK_MAX_LINKS is 36 since driver 610.
#[test]
fn all_links_of_a_gpu_with_more_than_18_are_counted() {
    for (version, up) in [("610.43.02", 36.0), ("610.43.02", 35.0), ("999.1", 36.0)] {
        let links = format!("nvlink_count = 36\nnvlink_up = {up}");
        let read = first(&format!("driver = \"{version}\"\ngpus = 1\n[gpu.0]\n{links}"));
        assert_eq!(
            read.readings[&Signal::NvlinkCount],
            Reading::Value(36.0),
            "{version}"
        );
        assert_eq!(read.readings[&Signal::NvlinkUp], Reading::Value(up), "{version}");
    }
}
