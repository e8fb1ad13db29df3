//! The aggregator, one per job. It assigns order and time to all frames in the journal, folds them, and publishes the
//! results.
//!
//! [`core`] folds the frames, writes the files, and receives the time as a number. [`server`] runs it in a thread.

pub mod clock;
pub mod control;
pub mod core;
pub mod inject;
pub mod journal;
pub mod place;
pub mod server;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_health::id::{JobId, NodeId};

pub use self::core::Aggregator;

use crate::remedy::RemedyPlan;
use crate::sink::doors::DoorPlan;

/// A function that is called at the end with the report's directory. It is called before waiting for receivers of
/// notifications, because the process may be killed during that wait.
#[derive(Clone)]
pub struct Reported(pub Arc<dyn Fn(&Path) + Send + Sync>);

impl fmt::Debug for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reported")
    }
}

/// Parameters of an aggregator.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The job.
    pub job: JobId,
    /// The node that the aggregator runs on.
    pub node: NodeId,
    /// The directory of the journal and the report.
    pub run_dir: PathBuf,
    /// Values that replace those of the policy tables.
    pub policy: Vec<(String, f64)>,
    /// Allowed actions on findings, and receivers of notifications.
    pub remedy: RemedyPlan,
    /// Rereads the policy's configuration files, if there are any.
    pub reload: Option<control::Reload>,
    /// A function that is called when the report is complete.
    pub reported: Option<Reported>,
    /// Limits of the journal.
    pub journal: journal::segments::Limits,
    /// Exports of metrics in addition to the metrics page.
    pub doors: DoorPlan,
}
