//! Scripted counters. Any signal can be given by its name, in its own unit. The usual ones have short names.

use std::collections::BTreeMap;

use datadriven::TestCase;
use paceline_health::event::{Event, GpuReading, GpuSignal, HostReading, Missing, Reading};
use paceline_health::id::Rank;
use serde::de::DeserializeOwned;

use super::script::{gpu, pci, take};

/// Handles the command `reading gpu=0 temperature=60 margin=27 clock=1980 throttled=12.5 [any_signal=5]`. `throttled`
/// is in seconds since driver load. `unsupported` is a missing value.
pub fn gpu_reading(case: &mut TestCase) -> Result<Event, String> {
    let rank = take(case, "gpu")?.ok_or("gpu= is missing")?;
    let mut readings = BTreeMap::new();
    for (key, signal, scale) in [
        ("temperature", GpuSignal::TemperatureC, 1.0),
        ("margin", GpuSignal::MarginC, 1.0),
        ("clock", GpuSignal::SmClockMhz, 1.0),
        ("throttled", GpuSignal::ThrottleThermalSwNs, 1e9),
    ] {
        if let Some(value) = take::<f64>(case, key)? {
            readings.insert(signal, Reading::Value(value * scale));
        }
    }
    others(case, &mut readings)?;
    Ok(Event::Gpu(GpuReading {
        gpu: gpu(rank),
        pci: pci(rank),
        model: "test".into(),
        readings,
    }))
}

/// Handles the command `host [node=node1] [rank=3] run_queue_ns=5e8`. Each signal is given by its name.
pub fn host_reading(case: &mut TestCase) -> Result<Event, String> {
    let rank = take(case, "rank")?.map(Rank);
    let mut readings = BTreeMap::new();
    others(case, &mut readings)?;
    Ok(Event::Host(HostReading { rank, readings }))
}

/// Parses all remaining arguments as signals by name.
pub fn others<S: DeserializeOwned + Ord>(
    case: &mut TestCase,
    readings: &mut BTreeMap<S, Reading>,
) -> Result<(), String> {
    let keys: Vec<String> = case.args.keys().cloned().collect();
    for key in keys {
        let signal =
            serde_json::from_str(&format!("\"{key}\"")).map_err(|error| format!("{key}: {error}"))?;
        let text: String = take(case, &key)?.unwrap_or_default();
        let reading = match text.parse() {
            Ok(value) => Reading::Value(value),
            Err(_) if text == "unsupported" => Reading::Missing(Missing::Unsupported),
            Err(_) => return Err(format!("{key}={text}: a number is needed")),
        };
        readings.insert(signal, reading);
    }
    Ok(())
}
