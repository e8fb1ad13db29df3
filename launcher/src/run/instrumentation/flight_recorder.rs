//! Sets the path to which PyTorch's flight recorder writes when its watchdog ends a hanging job. It is the run
//! directory, unless the user has set another path.

use std::fs;
use std::path::Path;

use super::environment::Variable;
use crate::run::{Plan, RUN_LINK};

/// Prefix of the names of the dumps. PyTorch appends the rank.
pub(crate) const PREFIX: &str = "flight-recorder-rank-";
/// PyTorch's variable, and its older name. They set only the path. Recording is on by default in PyTorch, so setting
/// them costs nothing.
const VARIABLES: [&str; 2] = ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"];

/// Returns the variables with the path, for the command.
pub(crate) fn variables(plan: &Plan, ring_dir: &Path) -> Vec<Variable> {
    if VARIABLES.iter().any(|name| std::env::var_os(name).is_some()) {
        return Vec::new();
    }
    // Read the link, because another directory is used if the run directory is not writable.
    let taken = fs::read_link(ring_dir.join(RUN_LINK)).ok();
    let Some(run_dir) = taken.or_else(|| std::path::absolute(&plan.run_dir).ok()) else {
        return Vec::new();
    };
    let prefix = run_dir.join(PREFIX).into_os_string();
    VARIABLES.map(|name| (name, prefix.clone())).to_vec()
}
