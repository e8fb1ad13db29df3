//! The command line of `paceline run`.

use std::ffi::OsString;

use clap::Args;
use paceline_sidecar::remedy::RemedyOptions;

use crate::cli::SettingArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "The command sees PACELINE_RING_DIR, PACELINE_JOB, PACELINE_NODE and a PYTHONPATH with the \
hook's directory in front. It gets stdin, stdout, stderr and signals as if it had been started alone; its exit code \
is returned (128 + n for a signal, 127 not found, 126 not executable).\n\nExample: paceline run -- torchrun \
--nproc-per-node=8 train.py"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    #[command(flatten)]
    pub(crate) gate: crate::preflight::GateArgs,
    #[command(flatten, next_help_heading = "When something is found")]
    pub(crate) remedy: RemedyOptions,
    /// Only say what would be set and started.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
