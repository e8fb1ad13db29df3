//! The preflight's results from before the job, as gauges in base units. They are exposed for as long as the job runs.

use std::collections::BTreeMap;

use paceline_health::event::Bench;
use paceline_health::id::NodeId;
use paceline_health::preflight::{Metric, Section};
use paceline_health::verdict::Severity;

use super::format::families::{Families, gauges};

/// The measurements of each node.
pub(super) type Benches = BTreeMap<NodeId, Bench>;

/// Stores a node's measurements.
pub(super) fn observe(benches: &mut Benches, bench: &Bench) {
    benches.insert(bench.node.clone(), bench.clone());
}

/// Adds the overall result, for jobs of any size.
pub(super) fn summary(out: &mut Families<'_>, section: &Section) {
    let outcome = serde_json::to_value(section.told.outcome).ok();
    let outcome = outcome
        .as_ref()
        .and_then(|name| name.as_str())
        .unwrap_or("unknown");
    let labels = [
        section.told.mode.to_string(),
        outcome.to_owned(),
        section.told.policy.to_string(),
    ];
    gauges(
        out,
        "paceline_preflight_info",
        "The preflight before the job, and its outcome.",
        ["mode", "outcome", "policy"],
        [(labels, 1.0)],
    );
    gauges(
        out,
        "paceline_preflight_duration_seconds",
        "Duration of the preflight.",
        [],
        [([], section.told.seconds)],
    );
    let nodes = [
        ("expected", f64::from(section.told.nodes)),
        ("left_out", section.told.left_out.len() as f64),
    ];
    gauges(
        out,
        "paceline_preflight_nodes",
        "Nodes that the preflight expected, and nodes that it excluded from the job.",
        ["state"],
        nodes.map(|(state, count)| ([state.to_owned()], count)),
    );
    let count = |severity| {
        section
            .findings
            .iter()
            .filter(|noted| noted.severity == severity)
            .count()
    };
    let found = [Severity::Warning, Severity::Critical];
    gauges(
        out,
        "paceline_preflight_findings",
        "Findings of the preflight, by severity.",
        ["severity"],
        found.map(|severity| ([severity.name().to_owned()], count(severity) as f64)),
    );
}

/// Adds the measurements of each node and GPU.
pub(super) fn families(out: &mut Families<'_>, section: &Section, benches: &Benches) {
    let of_nodes = |metric: Metric| {
        let (_, scale) = metric.base_unit();
        benches.values().filter_map(move |bench| {
            let value = bench.values.get(&metric)? * scale;
            Some((bench.node.to_string(), value))
        })
    };
    let of_gpus = |metric: Metric| {
        let (_, scale) = metric.base_unit();
        benches.values().flat_map(move |bench| {
            bench.of_gpus.iter().filter_map(move |(gpu, values)| {
                let value = values.get(&metric)? * scale;
                Some((bench.node.to_string(), gpu.to_string(), value))
            })
        })
    };
    let busbw = [
        // If both variants were measured, expose only the one through host memory.
        ("local", Metric::LocalBusbwHost, None),
        ("local", Metric::LocalBusbw, Some(Metric::LocalBusbwHost)),
        ("pair", Metric::PairBusbw, None),
    ];
    let busbw = busbw.into_iter().flat_map(|(scope, metric, better)| {
        let has_better = move |node: &str| {
            let bench = benches.iter().find(|(name, _)| name.as_str() == node);
            bench.is_some_and(|(_, bench)| better.is_some_and(|better| bench.values.contains_key(&better)))
        };
        let values = of_nodes(metric).filter(move |(node, _)| !has_better(node));
        values.map(move |(node, value)| (["all_reduce".to_owned(), scope.to_owned(), node], value))
    });
    let (_, scale) = Metric::AllBusbw.base_unit();
    let all = section.told.values.get(&Metric::AllBusbw).map(|value| {
        let labels = ["all_reduce".to_owned(), "all".to_owned(), String::new()];
        (labels, value * scale)
    });
    gauges(
        out,
        "paceline_preflight_busbw_bytes_per_second",
        "Bus bandwidth of all-reduce inside a node, with the best of its partners, and over all nodes.",
        ["op", "scope", "node"],
        busbw.chain(all),
    );
    let plain = [
        (
            "paceline_preflight_pair_latency_seconds",
            "Round trip between a node and the best of its partners.",
            Metric::PairLatency,
        ),
        (
            "paceline_preflight_pair_loss_ratio",
            "Share of retransmitted segments between a node and the best of its partners.",
            Metric::PairLoss,
        ),
        (
            "paceline_preflight_cpu_gemm_flops_per_second",
            "Matrix multiplication on the CPU of a node without GPUs.",
            Metric::CpuGemm,
        ),
        (
            "paceline_preflight_cpu_memory_bytes_per_second",
            "Copies in the memory of a node without GPUs.",
            Metric::CpuMemory,
        ),
    ];
    for (name, help, metric) in plain {
        let values = of_nodes(metric).map(|(node, value)| ([node], value));
        gauges(out, name, help, ["node"], values);
    }
    let gpus = [
        (
            "paceline_preflight_gemm_flops_per_second",
            "Matrix multiplication on a GPU.",
            Metric::Gemm,
        ),
        (
            "paceline_preflight_gpu_memory_bytes_per_second",
            "Copies inside a GPU's memory.",
            Metric::GpuMemory,
        ),
    ];
    for (name, help, metric) in gpus {
        let values = of_gpus(metric).map(|(node, gpu, value)| ([node, gpu], value));
        gauges(out, name, help, ["node", "gpu_uuid"], values);
    }
    let copies = [
        ("to_gpu", Metric::HostToDevice),
        ("from_gpu", Metric::DeviceToHost),
    ];
    let copies = copies.into_iter().flat_map(|(direction, metric)| {
        of_gpus(metric).map(move |(node, gpu, value)| ([node, gpu, direction.to_owned()], value))
    });
    gauges(
        out,
        "paceline_preflight_host_copy_bytes_per_second",
        "Copies between the host and a GPU.",
        ["node", "gpu_uuid", "direction"],
        copies,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_health::event::Preflight;
    use paceline_health::preflight::Outcome;
    use prometheus::TextEncoder;

    #[test]
    fn figures_are_in_base_units_and_absent_ones_are_not_zero() {
        let bench = Bench {
            node: "n1".into(),
            there: true,
            model: "H100".into(),
            gpus: 1,
            values: BTreeMap::from([(Metric::Gemm, 700.0), (Metric::PairBusbw, 48.0)]),
            of_gpus: BTreeMap::from([(
                "GPU-a".into(),
                BTreeMap::from([(Metric::Gemm, 700.0), (Metric::HostToDevice, 55.0)]),
            )]),
        };
        let section = Section {
            told: Preflight {
                mode: "quick".into(),
                outcome: Outcome::Ok,
                nodes: 2,
                values: BTreeMap::from([(Metric::AllBusbw, 46.0)]),
                policy: "warn".into(),
                ..Preflight::default()
            },
            simulated: false,
            rows: BTreeMap::new(),
            findings: Vec::new(),
            problems: Vec::new(),
        };
        let mut benches = Benches::new();
        observe(&mut benches, &bench);
        let mut page = String::new();
        let mut write = |family: &_| {
            let one = std::slice::from_ref(family);
            TextEncoder::new().encode_utf8(one, &mut page).unwrap();
        };
        let mut out = Families(&mut write);
        summary(&mut out, &section);
        families(&mut out, &section, &benches);
        for line in [
            r#"paceline_preflight_info{mode="quick",outcome="ok",policy="warn"} 1"#,
            r#"paceline_preflight_nodes{state="left_out"} 0"#,
            r#"paceline_preflight_findings{severity="critical"} 0"#,
            r#"paceline_preflight_gemm_flops_per_second{gpu_uuid="GPU-a",node="n1"} 700000000000000"#,
            r#"paceline_preflight_host_copy_bytes_per_second{direction="to_gpu",gpu_uuid="GPU-a",node="n1"} 55000000000"#,
            r#"paceline_preflight_busbw_bytes_per_second{node="n1",op="all_reduce",scope="pair"} 48000000000"#,
            r#"paceline_preflight_busbw_bytes_per_second{node="",op="all_reduce",scope="all"} 46000000000"#,
        ] {
            assert!(
                page.lines().any(|found| found == line),
                "{line} is not on\n{page}"
            );
        }
        assert_eq!(super::super::tests::is_in_the_contract(&page), 7);
        assert!(
            !page.contains("latency") && !page.contains("gpu_memory"),
            "{page}"
        );
    }
}
