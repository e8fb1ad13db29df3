//! How much of a job the metrics page shows, and under whose names.

use clap::{Args, ValueEnum};

use super::MAX_RANK_SERIES;

/// What was typed of it.
#[derive(Args, Clone, Debug, Default)]
pub struct MetricsOptions {
    /// Level of detail of the metrics page.
    #[arg(
        long,
        env = "PACELINE_METRICS",
        value_enum,
        default_value_t,
        value_name = "DETAIL"
    )]
    pub metrics: Detail,
    /// Also expose the readings under another exporter's names and labels, for existing dashboards.
    #[arg(long, env = "PACELINE_METRICS_COMPAT", value_enum, value_name = "EXPORTER")]
    pub metrics_compat: Option<Compat>,
}

/// What has series of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Detail {
    /// As gpu up to 512 ranks, as summary above.
    #[default]
    Auto,
    /// The job, its nodes, and ranks that were found slow.
    Summary,
    /// And every rank.
    Rank,
    /// And every GPU and network port.
    Gpu,
}

/// Whose names are there too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compat {
    /// NVIDIA's dcgm-exporter.
    Dcgm,
}

/// What a page shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    detail: Detail,
    /// GPUs also as dcgm-exporter shows them.
    pub(super) as_dcgm: bool,
}

impl MetricsOptions {
    /// What they mean.
    pub fn shown(&self) -> Shown {
        Shown {
            detail: self.metrics,
            as_dcgm: self.metrics_compat == Some(Compat::Dcgm),
        }
    }
}

impl Shown {
    /// All there is.
    #[cfg(test)]
    pub(in crate::sink) fn gpu() -> Shown {
        Shown {
            detail: Detail::Gpu,
            as_dcgm: false,
        }
    }

    /// Whether every rank of so many has series.
    pub(super) fn has_ranks(self, ranks: usize) -> bool {
        match self.detail {
            Detail::Auto => ranks <= MAX_RANK_SERIES,
            Detail::Summary => false,
            Detail::Rank | Detail::Gpu => true,
        }
    }

    /// Whether every GPU and port of a job of so many ranks has.
    pub(super) fn has_gpus(self, ranks: usize) -> bool {
        self.detail != Detail::Rank && self.has_ranks(ranks)
    }
}
