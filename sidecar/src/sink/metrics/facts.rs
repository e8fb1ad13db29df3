//! The data for families, detached from the place where it is collected, so that collection can continue meanwhile.

use paceline_health::report::Report;

use super::format::families::{Families, gauges};
use super::{Metrics, Shown, Transport, refused};

/// Facts of one moment.
pub trait Facts: Send + Sync {
    /// Adds all families, one after another.
    fn families(&self, out: &mut Families<'_>);
}

/// The facts of a job's aggregator.
#[derive(Clone, Debug)]
pub struct JobFacts {
    /// Counters.
    pub metrics: Metrics,
    /// The detector's report.
    pub report: Report,
    /// Transport losses.
    pub transport: Transport,
    /// The level of detail.
    pub shown: Shown,
}

impl Facts for JobFacts {
    fn families(&self, out: &mut Families<'_>) {
        self.metrics
            .families(&self.report, &self.transport, self.shown, out);
    }
}

/// The facts of a relay. It counts its peers and knows nothing about the contents of their messages.
#[derive(Clone, Debug)]
pub struct RelayFacts {
    /// The number of connections that were rejected or cut, by reason.
    pub turned: Vec<(&'static str, u64)>,
    /// The number of links of nodes and relays through this relay.
    pub links: usize,
}

impl Facts for RelayFacts {
    fn families(&self, out: &mut Families<'_>) {
        refused(out, &self.turned);
        let help = "Connections of nodes and relays that this relay forwards now.";
        gauges(out, "paceline_relay_links", help, [], [([], self.links as f64)]);
    }
}

/// Sample facts, for tests of the exports.
#[cfg(test)]
pub(in crate::sink) mod samples {
    use paceline_health::event::{
        Agent, Attach, Event, FaultSource, GpuFault, GpuFaultKind, GpuReading, GpuSignal, Reading, Signal,
        Step, StepKind,
    };
    use paceline_health::id::Rank;
    use paceline_health::report::Report;

    use super::super::tests::{frame, report};
    use super::super::{Metrics, Shown};
    use super::JobFacts;

    /// Returns the facts of two ranks. One of them has a GPU that had faults.
    pub(in crate::sink) fn facts() -> JobFacts {
        let mut facts = facts_of_ranks(2);
        let readings = [
            (GpuSignal::TemperatureC, 61.0),
            (GpuSignal::MemoryTemperatureC, 72.0),
            (GpuSignal::SmClockMhz, 1500.0),
            (GpuSignal::UtilizationRatio, 0.5),
            (GpuSignal::MemoryUsedBytes, 1e9),
            (GpuSignal::PcieSentBytes, 5e9),
            (GpuSignal::PcieReplays, 4.0),
            (GpuSignal::EccUncorrected, 2.0),
        ];
        let reading = GpuReading {
            gpu: "GPU-a".into(),
            pci: "0000:01:00.0".into(),
            model: "H200".into(),
            readings: readings
                .map(|(signal, value)| (signal, Reading::Value(value)))
                .into(),
        };
        let fault = GpuFault {
            gpu: Some("GPU-a".into()),
            pci: "0000:01:00.0".into(),
            kind: GpuFaultKind::Xid,
            xid: 79,
            count: 1,
            seen_by: FaultSource::Kernel,
            text: "".into(),
        };
        for event in [Event::Gpu(reading), Event::GpuFault(fault)] {
            facts.metrics.observe(&frame(event), 1_000.0);
        }
        facts
    }

    /// Returns the facts of this many ranks, with one step each.
    pub(in crate::sink) fn facts_of_ranks(ranks: u32) -> JobFacts {
        let mut metrics = Metrics::default();
        let agent = Agent {
            paceline: "0".into(),
            sources: Vec::new(),
            unix_ms: 900_000,
            rack: Default::default(),
            versions: Default::default(),
        };
        metrics.observe(&frame(Event::Agent(agent)), 1_000.0);
        for rank in 0..ranks {
            let attach = Attach {
                rank: Rank(rank),
                local_rank: rank,
                world_size: ranks,
                restart: 0,
                pid: 7,
                gpu: None,
                role: "".into(),
                framework: "demo".into(),
            };
            let step = Step {
                rank: Rank(rank),
                restart: 0,
                step: 1,
                kind: StepKind::Train,
                dur_ns: 40_000_000,
                phases: None,
                micro_batches: 1,
                tokens: 0,
                signal: Signal::S2,
                sum_sq: 0,
                expert_tokens: 0,
            };
            for event in [Event::Attach(attach), Event::Step(step)] {
                metrics.observe(&frame(event), 1_000.0);
            }
        }
        JobFacts {
            metrics,
            report: Report {
                began_unix_ms: Some(900_000),
                ..report()
            },
            transport: Default::default(),
            shown: Shown::gpu(),
        }
    }
}
