//! Records the claims of the rules as incidents.

use crate::detect::Detector;

impl Detector {
    pub(crate) fn record_claims(&mut self) {
        let origin = self.origin.unwrap_or_default();
        self.incidents.is_alone = self.roster.world_size == 1;
        while let Some(mut claim) = self
            .straggler
            .poll()
            .or_else(|| self.links.poll())
            .or_else(|| self.silence.poll())
            .or_else(|| self.unreachable.poll())
            .or_else(|| self.arrivals.poll())
            .or_else(|| self.job_rules.poll())
        {
            if self.withholds(&claim) {
                self.withhold(claim);
                continue;
            }
            self.explains_no_more(&claim);
            self.preflight.support(&mut claim, self.job_rules.first_step());
            self.incidents.record(claim, origin, &self.policy);
        }
        self.book_faults();
    }
}
