//! Subcommands of one or two files each. Larger ones have their own folders: `run`, `top`, `report`, `evaluate`,
//! `preflight`, `config`, `doctor`, `demo`, `slurm`, `kube`.

pub(crate) mod explain;
pub(crate) mod gpus;
pub(crate) mod help;
pub(crate) mod inject;
pub(crate) mod notify;
pub(crate) mod profiler;
pub(crate) mod replay;
pub(crate) mod simulate;
pub(crate) mod why;
