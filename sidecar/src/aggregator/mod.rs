//! One per job: fixes the order and the time of all frames in the journal, folds them, tells what comes out.
//!
//! [`core`] is the fold with its files and takes the time as a number; [`server`] is the thread around it.

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

/// Told at the end that the report stands in this directory, before anybody is waited for: whoever ends us may not wait so long.
#[derive(Clone)]
pub struct Reported(pub Arc<dyn Fn(&Path) + Send + Sync>);

impl fmt::Debug for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reported")
    }
}

/// What an aggregator is started with.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The job.
    pub job: JobId,
    /// The node it runs on.
    pub node: NodeId,
    /// Where the journal and the report go.
    pub run_dir: PathBuf,
    /// Values that replace those of the policy tables.
    pub policy: Vec<(String, f64)>,
    /// What may be done about findings, and who is told.
    pub remedy: RemedyPlan,
    /// Reads the files again that say so, if there are any.
    pub reload: Option<control::Reload>,
    /// Who is told that the report stands.
    pub reported: Option<Reported>,
    /// How the journal is kept.
    pub journal: journal::segments::Limits,
    /// By which ways metrics leave, beside the page.
    pub doors: DoorPlan,
}
