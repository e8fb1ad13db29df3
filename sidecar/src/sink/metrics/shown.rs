//! The level of detail of the metrics page, and the names it uses.

use clap::{Args, ValueEnum};

use super::MAX_RANK_SERIES;

/// The command-line options of the metrics, unparsed.
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

/// The contents of a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    detail: Detail,
    /// True if GPUs are also shown under dcgm-exporter's names.
    pub(super) as_dcgm: bool,
}

impl MetricsOptions {
    /// Parses the options.
    pub fn shown(&self) -> Shown {
        Shown {
            detail: self.metrics,
            as_dcgm: self.metrics_compat == Some(Compat::Dcgm),
        }
    }
}

impl Shown {
    /// Returns full detail.
    #[cfg(test)]
    pub(in crate::sink) fn gpu() -> Shown {
        Shown {
            detail: Detail::Gpu,
            as_dcgm: false,
        }
    }

    /// Returns true if every rank has series, in a job of this many ranks.
    pub(super) fn has_ranks(self, ranks: usize) -> bool {
        match self.detail {
            Detail::Auto => ranks <= MAX_RANK_SERIES,
            Detail::Summary => false,
            Detail::Rank | Detail::Gpu => true,
        }
    }

    /// Returns true if every GPU and port has series, in a job of this many ranks.
    pub(super) fn has_gpus(self, ranks: usize) -> bool {
        self.detail != Detail::Rank && self.has_ranks(ranks)
    }
}
