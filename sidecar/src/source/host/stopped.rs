//! Time during which a CPU quota was exhausted, summed over all processes under the quota.

use std::collections::BTreeMap;

use paceline_health::event::{Missing, Reading};

use super::cgroup::{Groups, Quota};
use super::files::Files;
use super::grown::Grown;

/// The counter of each quota. It is read only once per round, because several ranks may share a quota.
pub type Round = BTreeMap<Quota, Result<f64, Missing>>;

/// The throttled time; see the module.
#[derive(Debug, Default)]
pub struct Stopped {
    quota: Option<Quota>,
    sum: Grown<Quota>,
}

impl Stopped {
    /// Finds the quota that applies to these groups.
    pub fn look(&mut self, files: &mut Files, groups: &Groups) {
        self.quota = groups.quota(files);
    }

    /// Returns the throttled time since the first read, in nanoseconds.
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
