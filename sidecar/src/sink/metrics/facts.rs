//! What families can be made of, away from where it was gathered and while that goes on.

use paceline_health::report::Report;

use super::format::families::{Families, gauges};
use super::{Metrics, Shown, Transport, refused};

/// What somebody knows at one moment.
pub trait Facts: Send + Sync {
    /// All of it, a family after another.
    fn families(&self, out: &mut Families<'_>);
}

/// What the aggregator of a job knows.
#[derive(Clone, Debug)]
pub struct JobFacts {
    /// What it has counted.
    pub metrics: Metrics,
    /// What the detector says.
    pub report: Report,
    /// What was lost on the way.
    pub transport: Transport,
    /// How much of it is told.
    pub shown: Shown,
}

impl Facts for JobFacts {
    fn families(&self, out: &mut Families<'_>) {
        self.metrics
            .families(&self.report, &self.transport, self.shown, out);
    }
}

/// What a relay knows: its peers, and nothing of what they say.
#[derive(Clone, Debug)]
pub struct RelayFacts {
    /// Connections that were not let in or were cut, by reason.
    pub turned: Vec<(&'static str, u64)>,
    /// Links of nodes and relays that it carries.
    pub links: usize,
}

impl Facts for RelayFacts {
    fn families(&self, out: &mut Families<'_>) {
        refused(out, &self.turned);
        let help = "Connections of nodes and relays that this relay forwards now.";
        gauges(out, "paceline_relay_links", help, [], [([], self.links as f64)]);
    }
}

/// What a job may say, for tests of the ways out.
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

    /// Of two ranks, one with a GPU that was ill.
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

    /// Of so many, each of which made a step.
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
