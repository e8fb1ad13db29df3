//! The data that rules can read in addition to a closed step.

use super::cause::causes::{Causes, Scope};
use super::comm::communicators::Comms;
use super::members::roster::Roster;
use super::step::plan::Plan;
use super::step::waits::Waits;
use crate::id::JobId;
use crate::policy::Thresholds;
use crate::time::Time;
use crate::verdict::Cause;

/// The parts of the detector that rules can read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub at: Time,
    pub job: &'a JobId,
    pub roster: &'a Roster,
    pub plan: &'a Plan,
    pub causes: &'a Causes,
    pub comms: &'a Comms,
    pub waits: &'a Waits,
    pub limits: &'a Thresholds,
    /// Causes of open rotating-straggler findings.
    pub rotating: [Option<Cause>; 3],
}

impl<'a> View<'a> {
    /// Returns the data with which the counters of a suspect may be compared.
    pub fn scope(&self) -> Scope<'a> {
        Scope {
            roster: self.roster,
            plan: self.plan,
            comms: self.comms,
            limits: self.limits,
        }
    }
}

/// Creates a [`View`] of a detector's state. It is a macro because a method would also borrow the rules that read the
/// view, which are fields of the detector.
macro_rules! view {
    ($detector:expr, $at:expr) => {
        $crate::detect::view::View {
            at: $at,
            job: &$detector.job,
            roster: &$detector.roster,
            plan: &$detector.plan,
            causes: &$detector.causes,
            comms: &$detector.comms,
            waits: &$detector.waits,
            limits: &$detector.policy.detector,
            rotating: $detector.job_rules.rotating(),
        }
    };
}
pub(super) use view;
