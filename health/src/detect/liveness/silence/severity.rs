//! Severity of a silence.

use super::Heard;
use crate::event::Phase;
use crate::policy::SilenceThresholds;
use crate::time::Time;
use crate::verdict::Severity;

/// Returns info for a suspected silence and critical for a confirmed one. Checkpoints and evaluations may be slow, so
/// only a confirmed silence is reported for them.
pub(super) fn severity(heard: &Heard, now: Time, p99: f64, limits: &SilenceThresholds) -> Option<Severity> {
    let is_slow = matches!(heard.pulse.phase, Phase::Checkpoint | Phase::Evaluation);
    let patience = if is_slow { limits.patience_ratio } else { 1.0 };
    let idle = heard.idle_s(now);
    if idle >= patience * (limits.confirmed_p99 * p99).max(limits.confirmed_min_s) {
        Some(Severity::Critical)
    } else if !is_slow && idle >= (limits.suspect_p99 * p99).max(limits.suspect_min_s) {
        Some(Severity::Info)
    } else {
        None
    }
}
