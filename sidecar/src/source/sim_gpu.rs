//! Simulated GPUs. Once a second, sends the readings that NVML would return, marked as simulated.

use paceline_health::Provenance;
use paceline_health::event::Event;
use paceline_health::sim::telemetry::gpu::GpuScript;

use super::{Send, Source};

const READ_EVERY_NS: u64 = 1_000_000_000;

/// The source; see the module.
#[derive(Debug)]
pub struct SimGpu {
    script: GpuScript,
    origin_ns: u64,
    next_ns: u64,
}

impl SimGpu {
    /// Plays `script`. Its time began at `origin_ns` on CLOCK_MONOTONIC.
    pub fn new(script: GpuScript, origin_ns: u64) -> SimGpu {
        SimGpu {
            script,
            origin_ns,
            next_ns: 0,
        }
    }
}

impl Source for SimGpu {
    fn name(&self) -> &'static str {
        "sim-gpu"
    }

    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>) {
        if now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + READ_EVERY_NS;
        let t = now_ns.saturating_sub(self.origin_ns) as f64 / 1e9;
        for gpu in 0..self.script.gpus() {
            send(Provenance::Sim, Event::Gpu(self.script.reading(gpu, t)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_once_a_second_and_says_simulated() {
        let script = GpuScript::parse("gpus=2 heat=gpu1@5s").unwrap();
        let mut source = SimGpu::new(script.clone(), 1_000);
        let mut seen = Vec::new();
        for now in [1_000, 500_001_000, 1_000_001_000] {
            source.poll(now, &mut |provenance, event| {
                seen.push((provenance, event));
                1
            });
        }
        let wanted: Vec<_> = [0.0, 1.0]
            .iter()
            .flat_map(|t| [0, 1].map(|gpu| (Provenance::Sim, Event::Gpu(script.reading(gpu, *t)))))
            .collect();
        assert_eq!(seen, wanted);
    }
}
