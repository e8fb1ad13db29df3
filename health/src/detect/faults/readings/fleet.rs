//! Conditions that show only in comparison with the other GPUs: a power cap that limits one GPU and not its peers, and
//! clocks and limits that are set differently.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Look, ReadingParts};
use crate::detect::faults::ledger::Part;
use crate::detect::faults::window::{Streak, Window};
use crate::event::GpuSignal;
use crate::fault::{Remedy, When};
use crate::verdict::{Cause, Finding, Severity};

/// With fewer GPUs than this, they are not compared.
const MIN_GPUS: usize = 4;
/// A value counts as the common one if at least this many times as many GPUs have it as have this GPU's value.
const MAJORITY: usize = 3;
/// Number of consecutive readings in which a setting must differ from the common one.
const APART: u32 = 3;
/// Settings that should be equal on GPUs of one model.
const ALIKE: [(&str, GpuSignal, &str); 2] = [
    ("clock_set", GpuSignal::SmClockSetMhz, "sm_clock_set_mhz"),
    ("power_limit", GpuSignal::PowerLimitW, "power_limit_w"),
];

/// What is known about all GPUs together.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Fleet {
    /// Number of GPUs with a power counter, and number of those limited by the power cap.
    gpus: usize,
    capped: usize,
    /// Number of GPUs by value, for each model and setting.
    values: BTreeMap<Arc<str>, BTreeMap<GpuSignal, Counts>>,
}

/// Number of GPUs by value of a setting.
type Counts = BTreeMap<i64, usize>;

/// What is known about one GPU in comparison with the others.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Member {
    power: Window,
    counted: bool,
    capped: bool,
    /// Number of readings in a row in which this GPU was one of few at the power cap. One reading is not enough,
    /// because GPUs that reach the cap together do not reach it in the same instant.
    lonely: Streak,
    settings: BTreeMap<GpuSignal, i64>,
    /// Number of readings in a row in which a setting differed from the common one. One reading is not enough, because
    /// GPUs whose settings are changed together are not read in the same instant.
    apart: BTreeMap<GpuSignal, Streak>,
}

impl Fleet {
    /// Takes one reading of one GPU.
    pub fn take(&mut self, look: &Look<'_>, member: &mut Member, parts: &mut ReadingParts) {
        if let Some(slowed) = look.value(GpuSignal::ThrottlePowerNs) {
            parts.report(
                Finding::GpuThrottled,
                "power_cap",
                self.power(look, member, slowed),
            );
        }
        for (name, signal, what) in ALIKE {
            if let Some(value) = look.value(signal) {
                let part = self.alike(look, member, (signal, what), value.round() as i64);
                parts.report(Finding::GpuConfig, name, part);
            }
        }
    }

    fn power(&mut self, look: &Look<'_>, member: &mut Member, slowed: f64) -> Option<Part> {
        let limits = look.context.limits;
        let span = Duration::from_secs_f64(limits.throttle_window_s);
        let rise = member.power.per_span(look.context.at, slowed, span);
        let ratio = rise / 1e9 / limits.throttle_window_s;
        let capped = ratio >= limits.throttle_power_ratio;
        self.gpus += usize::from(!std::mem::replace(&mut member.counted, true));
        match (std::mem::replace(&mut member.capped, capped), capped) {
            (false, true) => self.capped += 1,
            (true, false) => self.capped -= 1,
            _ => {}
        }
        let few = self.capped as f64 <= (limits.throttle_power_peers_ratio * self.gpus as f64).max(1.0);
        let readings = member.lonely.push(capped && few && self.gpus >= MIN_GPUS);
        (readings >= limits.clear_readings).then(|| {
            let mut part = look
                .part(Severity::Warning, "The power cap limits it and not its peers")
                .asks(Remedy::Diagnose, When::JobEnd)
                .shows("power_capped_ratio", ratio.min(1.0));
            part.cause = Cause::Power;
            part
        })
    }

    fn alike(
        &mut self,
        look: &Look<'_>,
        member: &mut Member,
        (signal, what): (GpuSignal, &str),
        value: i64,
    ) -> Option<Part> {
        let model = &look.reading.model;
        let settings = match self.values.get_mut(model) {
            Some(settings) => settings,
            None => self.values.entry(model.clone()).or_default(),
        };
        let counts = settings.entry(signal).or_default();
        let before = member.settings.insert(signal, value);
        if before != Some(value) {
            *counts.entry(value).or_default() += 1;
            if let Some(count) = before.and_then(|before| counts.get_mut(&before)) {
                *count -= 1;
            }
            counts.retain(|_, count| *count > 0);
        }
        let own = counts.get(&value).copied().unwrap_or(0);
        let (other, count) = counts.iter().max_by_key(|(_, count)| **count)?;
        let differs = *other != value && *count >= MAJORITY * own && own + count >= MIN_GPUS;
        let readings = member.apart.entry(signal).or_default().push(differs);
        (readings >= APART).then(|| {
            let mut part = look.part(Severity::Warning, "Its settings differ from its peers'");
            part.evidence
                .push((what.to_owned(), value as f64, Some(*other as f64)));
            part.more = "Bring its settings to those of the others before the next job.".to_owned();
            part
        })
    }
}
