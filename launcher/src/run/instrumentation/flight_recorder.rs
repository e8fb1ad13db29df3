//! Where PyTorch's flight recorder writes when its watchdog ends a job that hangs: into the run directory, unless the
//! user has said where.

use std::fs;
use std::path::Path;

use super::environment::Variable;
use crate::run::{Plan, RUN_LINK};

/// What the names of the dumps begin with; PyTorch adds the rank.
pub(crate) const PREFIX: &str = "flight-recorder-rank-";
/// PyTorch's variable, and its older name. They say where; whether anything is recorded is PyTorch's default, so they
/// cost nothing.
const VARIABLES: [&str; 2] = ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"];

/// What names the place to the command.
pub(crate) fn variables(plan: &Plan, ring_dir: &Path) -> Vec<Variable> {
    if VARIABLES.iter().any(|name| std::env::var_os(name).is_some()) {
        return Vec::new();
    }
    // Where the run directory cannot be written, another one is taken.
    let taken = fs::read_link(ring_dir.join(RUN_LINK)).ok();
    let Some(run_dir) = taken.or_else(|| std::path::absolute(&plan.run_dir).ok()) else {
        return Vec::new();
    };
    let prefix = run_dir.join(PREFIX).into_os_string();
    VARIABLES.map(|name| (name, prefix.clone())).to_vec()
}
