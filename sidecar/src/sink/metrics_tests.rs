use std::collections::BTreeSet;
use std::sync::Arc;

use paceline_health::event::{
    Access, Attach, Beat, GpuAccess, GpuReading, GpuSignal, Phases, Pulse, Reading,
};
use paceline_health::verdict::Severity;
use paceline_health::{Detector, Policy, Provenance};

use super::*;

pub(super) fn frame(event: Event) -> Frame {
    Frame {
        v: 1,
        node: "n1".into(),
        agent: 1,
        seq: 1,
        provenance: Provenance::Sim,
        event,
    }
}

fn attach(rank: u32) -> Event {
    Event::Attach(Attach {
        rank: Rank(rank),
        local_rank: rank,
        world_size: 2,
        restart: 0,
        pid: 7,
        gpu: Some("GPU-a".into()),
        role: Arc::from(""),
        framework: Arc::from("demo"),
    })
}

pub(super) fn report() -> Report {
    Detector::new(Policy::default()).report()
}

impl Metrics {
    /// Returns the page for the current state.
    pub(super) fn page(&self, report: &Report, transport: &Transport, shown: Shown) -> String {
        Format::Text.page(&JobFacts {
            metrics: self.clone(),
            report: report.clone(),
            transport: transport.clone(),
            shown,
        })
    }
}

#[test]
fn the_page_has_what_was_seen() {
    let mut metrics = Metrics::default();
    let phases = Phases {
        compute_ns: 30_000_000,
        wait_ns: 10_000_000,
        ..Phases::default()
    };
    let step = Step {
        rank: Rank(1),
        restart: 0,
        step: 3,
        kind: paceline_health::event::StepKind::Train,
        dur_ns: 40_000_000,
        phases: Some(phases),
        micro_batches: 1,
        tokens: 0,
        signal: paceline_health::event::Signal::S2,
        sum_sq: 0,
        expert_tokens: 0,
    };
    let readings = [
        (GpuSignal::SmClockMhz, Reading::Value(1500.0)),
        (GpuSignal::ThrottlePowerNs, Reading::Value(2e9)),
    ];
    let gpu = GpuReading {
        gpu: "GPU-a".into(),
        pci: "0000:01:00.0".into(),
        model: "Simulated".into(),
        readings: readings.into(),
    };
    let pulse = |alive| Pulse {
        rank: Rank(1),
        restart: 0,
        step: 4,
        phase: paceline_health::event::Phase::Wait,
        idle_ns: 0,
        alive,
    };
    let beat = |cpu_ns| {
        Event::Beat(Beat {
            ranks: vec![pulse(false)],
            cpu_ns,
            rss_bytes: 9_000_000,
            plugin_ns: cpu_ns / 10,
            ..Beat::default()
        })
    };
    for event in [
        attach(1),
        Event::Step(step),
        Event::Step(step),
        Event::Gpu(gpu),
        beat(3_000_000_000),
    ] {
        metrics.observe(&frame(event), 1_000.5);
    }
    // The sidecar was restarted. Its CPU time starts over, but the counter does not.
    metrics.observe(
        &Frame {
            agent: 2,
            ..frame(beat(500_000_000))
        },
        1_001.0,
    );
    let page = metrics.page(
        &report(),
        &Transport {
            duplicates: 5,
            unreadable: 0,
            ways: Ways {
                turned: vec![("key", 3)],
                pushes: vec![("sent", 2)],
            },
        },
        Shown::default(),
    );
    for wanted in [
        "# TYPE paceline_step_duration_seconds histogram",
        "paceline_step_duration_seconds_bucket{le=\"0.05\"} 2",
        "paceline_step_phase_seconds_total{phase=\"compute\"} 0.06",
        "paceline_collective_wait_seconds_total{rank=\"1\"} 0.02",
        "paceline_last_step_timestamp_seconds{rank=\"1\"} 1000.5",
        "paceline_rank_info{gpu_uuid=\"GPU-a\",local_rank=\"1\",node=\"n1\",rank=\"1\"} 1",
        "paceline_rank_up{rank=\"1\"} 0",
        "paceline_gpu_sm_clock_hertz{gpu_uuid=\"GPU-a\"} 1500000000",
        "paceline_gpu_throttled_seconds_total{gpu_uuid=\"GPU-a\",reason=\"power\"} 2",
        "provenance=\"sim\"",
        "paceline_sidecar_cpu_seconds_total{node=\"n1\"} 3.5",
        "paceline_nccl_plugin_seconds_total{node=\"n1\"} 0.35",
        "paceline_sidecar_resident_bytes{node=\"n1\"} 9000000",
        "paceline_transport_dropped_total{reason=\"duplicate\"} 5",
        "paceline_connections_refused_total{reason=\"key\"} 3",
        "paceline_otlp_pushes_total{outcome=\"sent\"} 2",
        "paceline_build_info{version=",
    ] {
        assert!(page.contains(wanted), "no {wanted} in\n{page}");
    }
    assert!(is_in_the_contract(&page) > 12);
    let forbidden = ["{pod=", "{job=", "instance=", "namespace="];
    assert!(
        forbidden.iter().all(|label| !page.contains(label)),
        "labels that Prometheus owns"
    );
}

#[test]
fn a_lost_gpu_has_no_readings() {
    let mut metrics = Metrics::default();
    let reading = || {
        let readings = [
            (GpuSignal::TemperatureC, Reading::Value(61.0)),
            (GpuSignal::ThrottleBrakeNs, Reading::Value(3e9)),
        ];
        Event::Gpu(GpuReading {
            gpu: "GPU-a".into(),
            pci: "0000:01:00.0".into(),
            model: "Simulated".into(),
            readings: readings.into(),
        })
    };
    let access = |state| {
        Event::GpuAccess(GpuAccess {
            gpu: Some("GPU-a".into()),
            pci: "0000:01:00.0".into(),
            state,
            text: "".into(),
            for_ns: 0,
        })
    };
    let temperature = "paceline_gpu_temperature_celsius{gpu_uuid=\"GPU-a\"} 61";
    let brake = "paceline_gpu_throttled_seconds_total{gpu_uuid=\"GPU-a\",reason=\"brake\"} 3";
    // The reading that follows the loss was taken before the loss.
    for (event, state, is_read) in [
        (reading(), None, true),
        (access(Access::Readable), Some("readable"), true),
        (access(Access::Lost), Some("lost"), false),
        (reading(), Some("lost"), false),
        (access(Access::NoEvents), Some("no_events"), false),
        (reading(), Some("no_events"), true),
    ] {
        metrics.observe(&frame(event), 1.0);
        let page = metrics.page(&report(), &Transport::default(), Shown::default());
        let told: Vec<_> = page
            .lines()
            .filter(|line| line.starts_with("paceline_gpu_access{"))
            .collect();
        let wanted =
            state.map(|state| format!("paceline_gpu_access{{gpu_uuid=\"GPU-a\",state=\"{state}\"}} 1"));
        assert_eq!(told, wanted.iter().collect::<Vec<_>>());
        for line in [temperature, brake] {
            assert_eq!(page.contains(line), is_read, "{state:?}: {page}");
        }
        assert!(page.contains("model=\"Simulated\""), "{page}");
    }
}

/// A rank that has not returned yet does not lower the count of restarts.
#[test]
fn restarts_are_counted_by_who_knows_most() {
    let mut metrics = Metrics::default();
    let page = |metrics: &Metrics| metrics.page(&report(), &Transport::default(), Shown::default());
    assert!(!page(&metrics).contains("paceline_restarts_total"));
    for (rank, restart, told) in [(0, 0, 0), (1, 0, 0), (1, 2, 2), (0, 2, 2)] {
        let Event::Attach(attach) = attach(rank) else {
            unreachable!()
        };
        metrics.observe(&frame(Event::Attach(Attach { restart, ..attach })), 1.0);
        let page = page(&metrics);
        assert!(
            page.contains(&format!("\npaceline_restarts_total {told}\n")),
            "{page}"
        );
        is_in_the_contract(&page);
    }
}

#[test]
fn a_large_job_has_no_series_per_rank() {
    let mut metrics = Metrics::default();
    (0..=MAX_RANK_SERIES as u32).for_each(|rank| metrics.observe(&frame(attach(rank)), 1.0));
    let page = metrics.page(&report(), &Transport::default(), Shown::default());
    assert!(
        !page.contains("rank=") && page.contains("paceline_steps_total"),
        "{page}"
    );
    // Slow ranks are still listed. All ranks are listed on request.
    let page = |words: &[&str], report: &Report| metrics.page(report, &Transport::default(), shown(words));
    let count = |page: &str| page.matches("\npaceline_rank_up{").count();
    let mut report = report();
    let verdict = crate::sink::notify::tests::verdict(1, 7, Severity::Warning, State::Raised);
    report.verdicts = vec![verdict];
    assert!(page(&[], &report).contains("paceline_rank_info{gpu_uuid=\"GPU-a\",local_rank=\"7\""));
    assert_eq!(count(&page(&[], &report)), 1);
    assert_eq!(count(&page(&["--metrics", "summary"], &report)), 1);
    assert_eq!(count(&page(&["--metrics", "rank"], &report)), MAX_RANK_SERIES + 1);
}

/// Returns the page options for these arguments.
pub(super) fn shown(words: &[&str]) -> Shown {
    use clap::{Args, FromArgMatches};
    let typed = MetricsOptions::augment_args(clap::Command::new("t"));
    let typed = typed.get_matches_from(std::iter::once(&"t").chain(words));
    MetricsOptions::from_arg_matches(&typed).unwrap().shown()
}

/// In Prometheus, quantiles that were counted elsewhere are a summary. Those of ranks are gauges whose label is not
/// named `quantile`, because only a summary may have a label of that name.
#[test]
fn percentiles_are_a_summary_and_of_ranks_gauges() {
    let mut detector = Detector::new(Policy::default());
    let mut metrics = Metrics::default();
    let spec = paceline_health::sim::spec::WorldSpec {
        gpus_per_node: 2,
        steps: 30,
        ..Default::default()
    };
    for (at, frame) in paceline_health::sim::World::new(spec).unwrap() {
        metrics.observe(&frame, 1.0);
        detector.observe(at, &frame);
    }
    let report = detector.report();
    let page = metrics.page(&report, &Transport::default(), Shown::default());
    let step = report.times.parts[0];
    let self_time = report.times.ranks[1].parts[&paceline_health::report::Part::Own];
    for wanted in [
        "# TYPE paceline_step_seconds summary".to_owned(),
        format!(
            "paceline_step_seconds{{phase=\"step\",quantile=\"0.99\"}} {}",
            step.p99_s
        ),
        format!("paceline_step_seconds_sum{{phase=\"step\"}} {}", step.sum_s),
        format!("paceline_step_seconds_count{{phase=\"step\"}} {}", step.samples),
        "paceline_step_seconds_count{phase=\"compute\"}".to_owned(),
        "# TYPE paceline_rank_step_median_seconds gauge".to_owned(),
        format!(
            "paceline_rank_step_p99_seconds{{phase=\"self\",rank=\"1\"}} {}",
            self_time.p99_s
        ),
    ] {
        assert!(page.contains(&wanted), "no {wanted} in\n{page}");
    }
    is_in_the_contract(&page);
}

#[test]
fn a_relay_shows_its_links_and_whom_it_turned_away() {
    let page = Format::Text.page(&RelayFacts {
        turned: vec![("key", 3)],
        links: 2,
    });
    assert!(page.contains("\npaceline_relay_links 2\n"), "{page}");
    assert!(
        page.contains("paceline_connections_refused_total{reason=\"key\"} 3"),
        "{page}"
    );
}

/// Returns, for each family on a page, its type, its help, and the labels of its samples.
fn families(page: &str) -> BTreeMap<&str, (&str, &str, BTreeSet<&str>)> {
    let mut families: BTreeMap<&str, (&str, &str, BTreeSet<&str>)> = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            families.entry(name).or_default().1 = help;
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            families.entry(name).or_default().0 = kind;
        } else if let Some((name, rest)) = line.split_once('{') {
            let name = name
                .trim_end_matches("_bucket")
                .trim_end_matches("_sum")
                .trim_end_matches("_count");
            let labels = rest
                .split("=\"")
                .map(|part| part.rsplit([',', '"']).next().unwrap_or_default());
            let labels =
                labels.filter(|label| !["", "le", "quantile"].contains(label) && !label.contains('}'));
            families.entry(name).or_default().2.extend(labels);
        }
    }
    families
}

/// Performed and refused remedies are counted by kind.
#[test]
fn remedies_by_outcome() {
    let mut report = paceline_health::Detector::new(Policy::default()).report();
    report.remedies = serde_json::from_value(serde_json::json!({
        "counts": [{ "response": "requeue", "outcome": "act", "count": 1 },
                   { "response": "signal", "outcome": "cool-down", "count": 3 }],
        "latest": [],
    }))
    .unwrap();
    let page = Metrics::default().page(&report, &Transport::default(), Shown::default());
    is_in_the_contract(&page);
    assert!(
        page.contains("paceline_remedies_total{outcome=\"act\",response=\"requeue\"} 1\n"),
        "{page}"
    );
    assert!(
        page.contains("paceline_remedies_total{outcome=\"cool-down\",response=\"signal\"} 3\n"),
        "{page}"
    );
}

/// Asserts that the families on the page match docs/metrics.md.
pub(super) fn is_in_the_contract(page: &str) -> usize {
    let contract = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md"));
    let found = families(page);
    for (name, (kind, help, labels)) in &found {
        let row = contract
            .lines()
            .find_map(|line| line.strip_prefix(&format!("| `{name}` | ")));
        let cells: Vec<&str> = row
            .unwrap_or_else(|| panic!("{name}"))
            .split('|')
            .map(str::trim)
            .collect();
        let told: BTreeSet<&str> = cells[1].split(", ").filter(|label| !label.is_empty()).collect();
        assert_eq!((*kind, *help), (cells[0], cells[2]), "{name}");
        assert_eq!(*labels, told, "{name}");
    }
    found.len()
}
