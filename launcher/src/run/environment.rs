//! What the command finds in its environment besides what was there: added, and never in the place of anything of the
//! user's.

use std::ffi::OsString;
use std::path::Path;

use super::{Plan, hook, plugin};

/// A variable and its value.
pub(crate) type Variable = (&'static str, OsString);

/// All of them. `rings`: the ring directory and the hook's, when there are any; without, the command runs unwatched.
pub(crate) fn additions(plan: &Plan, rings: Option<(&Path, &Path)>) -> Vec<Variable> {
    let mut added: Vec<Variable> = Vec::new();
    if let Some((ring_dir, python)) = rings {
        let before = std::env::var_os("PYTHONPATH");
        added.push(("PACELINE_RING_DIR", ring_dir.into()));
        added.push(("PYTHONPATH", hook::python_path(python, before.as_deref())));
        added.extend(plugin::offer(plan));
    }
    added.push(("PACELINE_JOB", (&plan.job).into()));
    added.push(("PACELINE_NODE", (&plan.node).into()));
    added.extend(plan.env.iter().cloned());
    added
}
