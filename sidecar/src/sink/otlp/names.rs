//! OpenTelemetry's names for the page's GPU metrics (<https://opentelemetry.io/docs/specs/semconv/hardware/gpu/>, and
//! `common`, `temperature` and `network` beside it; all of these are still in development). Metrics without a name
//! there use our own.

use crate::sink::metrics::format::units::unit;

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A current value.
    Gauge,
    /// A monotonic counter.
    Counter,
    /// A sum over its attributes that can go up and down.
    UpDown,
}

/// A family of the page that has another name in OpenTelemetry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hardware {
    /// The name on the page.
    pub family: &'static str,
    /// The name in OpenTelemetry.
    pub name: &'static str,
    pub help: &'static str,
    pub unit: &'static str,
    pub kind: Kind,
    /// Constant attributes.
    pub fixed: &'static [(&'static str, &'static str)],
    /// A label of the page that becomes an attribute, if there is one.
    pub label: Option<Label>,
}

/// See [`Hardware::label`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    pub page: &'static str,
    pub attribute: &'static str,
    /// Label values with another name in OpenTelemetry. All other values are prefixed with `start`.
    pub values: &'static [(&'static str, &'static str)],
    pub start: &'static str,
}

const GPU: (&str, &str) = ("hw.type", "gpu");
const DIRECTION: Option<Label> = Some(Label {
    page: "direction",
    attribute: "network.io.direction",
    values: &[("sent", "transmit"), ("received", "receive")],
    start: "",
});
const TEMPERATURE: Hardware = Hardware {
    family: "paceline_gpu_temperature_celsius",
    name: "hw.temperature",
    help: "Temperature in degrees Celsius.",
    unit: "Cel",
    kind: Kind::Gauge,
    fixed: &[("hw.sensor_location", "gpu")],
    label: None,
};
const ERRORS: Hardware = Hardware {
    family: "paceline_gpu_ecc_errors_total",
    name: "hw.errors",
    help: "Errors of the component, by type.",
    unit: "{error}",
    kind: Kind::Counter,
    fixed: &[GPU],
    label: error("kind", ""),
};

const fn error(page: &'static str, start: &'static str) -> Option<Label> {
    Some(Label {
        page,
        attribute: "error.type",
        values: &[],
        start,
    })
}

const fn gpu(family: &'static str, name: &'static str, unit: &'static str, kind: Kind) -> Hardware {
    Hardware {
        family,
        name,
        help: "",
        unit,
        kind,
        fixed: &[GPU],
        label: None,
    }
}

const HARDWARE: [Hardware; 13] = [
    TEMPERATURE,
    Hardware {
        family: "paceline_gpu_memory_temperature_celsius",
        fixed: &[("hw.sensor_location", "memory")],
        ..TEMPERATURE
    },
    Hardware {
        help: "Power draw of the component.",
        ..gpu("paceline_gpu_power_watts", "hw.power", "W", Kind::Gauge)
    },
    Hardware {
        help: "Energy that the component used.",
        ..gpu(
            "paceline_gpu_energy_joules_total",
            "hw.energy",
            "J",
            Kind::Counter,
        )
    },
    Hardware {
        help: "Share of time with a kernel.",
        fixed: &[GPU, ("hw.gpu.task", "general")],
        ..gpu(
            "paceline_gpu_utilization_ratio",
            "hw.gpu.utilization",
            "1",
            Kind::Gauge,
        )
    },
    Hardware {
        help: "GPU memory in use.",
        ..gpu(
            "paceline_gpu_memory_used_bytes",
            "hw.gpu.memory.usage",
            "By",
            Kind::UpDown,
        )
    },
    Hardware {
        help: "Total GPU memory.",
        ..gpu(
            "paceline_gpu_memory_size_bytes",
            "hw.gpu.memory.limit",
            "By",
            Kind::UpDown,
        )
    },
    Hardware {
        help: "Bytes that the GPU received and sent over PCIe.",
        label: DIRECTION,
        ..gpu("paceline_gpu_pcie_bytes_total", "hw.gpu.io", "By", Kind::Counter)
    },
    Hardware {
        help: "Bytes that were received and sent over all NVLinks.",
        fixed: &[("hw.type", "network"), ("hw.name", "nvlink")],
        label: DIRECTION,
        ..gpu(
            "paceline_gpu_nvlink_bytes_total",
            "hw.network.io",
            "By",
            Kind::Counter,
        )
    },
    ERRORS,
    Hardware {
        family: "paceline_gpu_pcie_replays_total",
        fixed: &[GPU, ("error.type", "pcie_replay")],
        label: None,
        ..ERRORS
    },
    Hardware {
        family: "paceline_gpu_nvlink_errors_total",
        label: error("kind", "nvlink_"),
        ..ERRORS
    },
    Hardware {
        family: "paceline_gpu_xid_errors_total",
        label: error("xid", "xid_"),
        ..ERRORS
    },
];

/// Returns the family's entry among OpenTelemetry's hardware metrics, if it has one.
pub(super) fn hardware(family: &str) -> Option<&'static Hardware> {
    HARDWARE.iter().find(|hardware| hardware.family == family)
}

/// Returns our own name in OpenTelemetry, and the unit. For example, `paceline_step_duration_seconds` is
/// `paceline.step_duration` in `s`. A Prometheus that receives OTLP converts it back to the page's name. Returns `None`
/// if the family belongs to another exporter.
pub(super) fn own(family: &str, is_counter: bool) -> Option<(String, &'static str)> {
    let name = family.strip_prefix("paceline_")?;
    let name = if is_counter {
        name.strip_suffix("_total").unwrap_or(name)
    } else {
        name
    };
    let Some(unit) = unit(name) else {
        return Some((format!("paceline.{name}"), ""));
    };
    let name = name.strip_suffix(unit.word).unwrap_or(name);
    Some((format!("paceline.{}", name.trim_end_matches('_')), unit.ucum))
}

impl Label {
    /// Returns the attribute value for a label value of the page.
    pub(super) fn value(&self, page: &str) -> String {
        let known = self.values.iter().find(|(known, _)| *known == page);
        known.map_or_else(
            || format!("{}{page}", self.start),
            |(_, there)| (*there).to_owned(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn our_own_names() {
        for (family, is_counter, wanted) in [
            (
                "paceline_step_duration_seconds",
                false,
                Some(("paceline.step_duration", "s")),
            ),
            ("paceline_goodput_ratio", false, Some(("paceline.goodput", "1"))),
            ("paceline_steps_total", true, Some(("paceline.steps", ""))),
            (
                "paceline_sidecar_cpu_seconds_total",
                true,
                Some(("paceline.sidecar_cpu", "s")),
            ),
            (
                "paceline_fabric_port_rate_bytes_per_second",
                false,
                Some(("paceline.fabric_port_rate", "By/s")),
            ),
            ("paceline_job_info", false, Some(("paceline.job_info", ""))),
            ("DCGM_FI_DEV_GPU_TEMP", false, None),
        ] {
            let named = own(family, is_counter);
            let named = named.as_ref().map(|(name, unit)| (name.as_str(), *unit));
            assert_eq!(named, wanted, "{family}");
        }
    }

    /// Checks for the documented metrics that names stay unique and that every renamed family exists.
    #[test]
    fn each_family_of_the_contract_has_a_name_of_its_own() {
        let contract = include_str!("../../../../docs/metrics.md");
        let rows = contract
            .lines()
            .filter_map(|line| line.strip_prefix("| `paceline_"));
        let mut names = BTreeSet::new();
        let mut renamed = 0;
        for row in rows {
            let (family, rest) = row.split_once('`').unwrap();
            let family = format!("paceline_{family}");
            let (name, _) = own(&family, rest.contains("| counter |")).unwrap();
            assert!(names.insert(name), "{family}");
            renamed += usize::from(hardware(&family).is_some());
        }
        assert_eq!(renamed, HARDWARE.len());
    }
}
