//! Additions to the command's environment. They never replace the user's values.

use std::ffi::OsString;
use std::path::Path;

use super::{flight_recorder, hook, plugin};
use crate::run::Plan;

/// A variable and its value.
pub(crate) type Variable = (&'static str, OsString);

/// Returns all additions. Without a `ring_dir`, the command runs unmonitored. `python` is the path of the hook. Without
/// a ring directory the hook does nothing, but `import paceline` works.
pub(crate) fn additions(plan: &Plan, ring_dir: Option<&Path>, python: Option<&Path>) -> Vec<Variable> {
    let mut added: Vec<Variable> = Vec::new();
    if let Some(ring_dir) = ring_dir {
        added.push(("PACELINE_RING_DIR", ring_dir.into()));
        added.extend(plugin::offer(plan));
        added.extend(flight_recorder::variables(plan, ring_dir));
    }
    if let Some(python) = python {
        let before = std::env::var_os("PYTHONPATH");
        added.push(("PYTHONPATH", hook::python_path(python, before.as_deref())));
    }
    added.push(("PACELINE_JOB", (&plan.job).into()));
    added.push(("PACELINE_NODE", (&plan.node).into()));
    added.extend(to_the_page(plan));
    added.extend(plan.env.iter().cloned());
    added
}

/// Returns the variables by which a tracker in the trainer gets access to the job's page.
fn to_the_page(plan: &Plan) -> Vec<Variable> {
    let page = &plan.settings.page;
    let token = page.token_file.as_ref();
    let cert = page.tls.as_ref().map(|(cert, _)| cert);
    let all = [("PACELINE_HTTP_TOKEN_FILE", token), ("PACELINE_HTTP_CERT", cert)];
    all.into_iter()
        .filter_map(|(name, path)| Some((name, path?.as_os_str().to_owned())))
        .filter(|(name, path)| std::env::var_os(name).as_ref() != Some(path))
        .collect()
}
