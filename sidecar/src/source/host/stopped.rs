//! Time in which a CPU quota was used up, of whoever the quota holds.

use std::collections::BTreeMap;

use paceline_health::event::{Missing, Reading};

use super::cgroup::{Groups, Quota};
use super::files::Files;
use super::grown::Grown;

/// What each quota counts, read once a round: ranks may share one.
pub type Round = BTreeMap<Quota, Result<f64, Missing>>;

/// See the module.
#[derive(Debug, Default)]
pub struct Stopped {
    quota: Option<Quota>,
    sum: Grown<Quota>,
}

impl Stopped {
    /// Looks whose quota it is.
    pub fn look(&mut self, files: &mut Files, groups: &Groups) {
        self.quota = groups.quota(files);
    }

    /// The time since it was first read, nanoseconds.
    pub fn read(&mut self, files: &mut Files, round: &mut Round) -> Reading {
        let Some(quota) = &self.quota else {
            return Reading::Missing(Missing::Unsupported);
        };
        let count = round
            .entry(quota.clone())
            .or_insert_with(|| quota.throttled_ns(files));
        match count {
            Ok(now) => {
                self.sum.take(quota.clone(), *now);
                self.sum.reading()
            }
            Err(missing) => Reading::Missing(missing.clone()),
        }
    }
}
