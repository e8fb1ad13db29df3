//! Network ports that are down, lose their link, run below their rate, or count errors. Each node has one finding, with
//! a part for each problem of each port. The finding has no cost of its own, because slow-link accounts for the cost to
//! the job; this finding is the hardware alarm.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ledger::{Ledger, Part};
use super::window::{Since, Window};
use super::{FaultContext, FaultRule};
use crate::event::{PortLink, PortReading, PortSignal};
use crate::fault::{Remedy, When};
use crate::id::NodeId;
use crate::policy::PortThresholds;
use crate::time::Time;
use crate::verdict::{Finding, Severity};

/// Maximum number of ports kept. No job has more.
const MAX_PORTS: usize = 1 << 18;
/// A rate counts as usual on the other nodes if at least this many times as many ports have it as have this port's
/// rate.
const MAJORITY: usize = 3;
const GIGA: f64 = 1e9;

/// The state of all network ports.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Ports {
    ports: BTreeMap<(NodeId, Arc<str>), Port>,
    /// Number of ports by their rate in Gbit/s, for each name and kind of port. They are comparable because the nodes
    /// of a job are wired alike.
    alike: BTreeMap<(Arc<str>, PortLink), BTreeMap<i64, usize>>,
}

/// One port.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Port {
    up: Option<bool>,
    was_up: bool,
    /// The rate in Gbit/s: now, and the maximum in this job.
    rate: Option<f64>,
    best: f64,
    /// The rate under which this port is counted in [`Ports::alike`].
    counted: Option<i64>,
    down: Lasts,
    slow: Lasts,
    flaps: Window,
    errors: Window,
    /// The active problems, each with the time since which its reason is gone.
    holding: BTreeMap<Cow<'static, str>, Since>,
}

/// A condition that counts only after it has lasted for a while.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Lasts(Since);

impl Lasts {
    /// Returns when the condition started to hold, once it has held for long enough.
    fn holds(&mut self, at: Time, so: bool, seconds: f64) -> Option<Time> {
        let since = self.0.holds(at, so)?;
        (at.since(since) >= Duration::from_secs_f64(seconds)).then_some(since)
    }
}

impl FaultRule {
    /// Takes one reading of one port.
    pub(super) fn port(&mut self, context: &FaultContext<'_>, reading: &PortReading) {
        let key = (context.node.clone(), reading.port.clone());
        let Ports { ports, alike } = &mut self.ports;
        if ports.len() >= MAX_PORTS && !ports.contains_key(&key) {
            return;
        }
        let port = ports.entry(key).or_default();
        let others = alike.entry((reading.port.clone(), reading.link)).or_default();
        port.take(reading);
        port.count_among(others);
        let usual = port.usual(others);
        let limits = context.ports;
        for (trouble, part) in [
            ("down", Some(port.down(context, limits, usual))),
            ("flaps", port.flaps(context, limits, reading)),
            ("rate", Some(port.slow(context, limits, usual))),
            ("errors", port.errors(context, limits, reading)),
        ] {
            // A value that was not read proves nothing, so the problem neither starts nor ends.
            if let Some(part) = part {
                port.report(context, &mut self.ledger, &reading.port, trouble, part);
            }
        }
    }
}

impl Port {
    fn take(&mut self, reading: &PortReading) {
        let value = |signal| reading.readings.get(&signal).map(|reading| reading.value());
        if let Some(up) = value(PortSignal::Up) {
            self.up = up.map(|up| up > 0.5);
            self.was_up |= self.up == Some(true);
        }
        if let Some(rate) = value(PortSignal::RateBps) {
            self.rate = rate.map(|rate| rate / GIGA);
        }
        if self.up == Some(true) {
            self.best = self.best.max(self.rate.unwrap_or(0.0));
        }
    }

    /// Returns the rate at which the port can carry data now.
    fn carries(&self) -> Option<f64> {
        match self.up {
            Some(false) => Some(0.0),
            _ => self.rate,
        }
    }

    fn count_among(&mut self, others: &mut BTreeMap<i64, usize>) {
        let now = self.carries().map(|rate| rate.round() as i64);
        if now == self.counted {
            return;
        }
        if let Some(count) = self.counted.and_then(|before| others.get_mut(&before)) {
            *count -= 1;
        }
        others.retain(|_, count| *count > 0);
        if let Some(now) = now {
            *others.entry(now).or_default() += 1;
        }
        self.counted = now;
    }

    /// Returns the rate of the same port on most other nodes, if that rate is higher than this port's.
    fn usual(&self, others: &BTreeMap<i64, usize>) -> Option<f64> {
        let own = self.counted?;
        let like_it = others.get(&own).copied().unwrap_or(0);
        let (rate, count) = others.iter().max_by_key(|(_, count)| **count)?;
        (*rate > own && *count >= MAJORITY * like_it).then_some(*rate as f64)
    }

    /// Reports a port that is down although it was up before or is up on other nodes. A port that was never connected
    /// is no problem.
    fn down(
        &mut self,
        context: &FaultContext<'_>,
        limits: &PortThresholds,
        usual: Option<f64>,
    ) -> Option<Part> {
        let missed = self.was_up || usual.is_some();
        let down = self.up == Some(false) && missed;
        let since = self.down.holds(context.at, down, limits.down_s)?;
        let why = if self.was_up {
            "has lost its link"
        } else {
            "is down, and up on the other nodes"
        };
        let part = Part::new(context, Severity::Critical, why)
            .asks(Remedy::Inspect, When::NextCheckpoint)
            .shows("port_up", 0.0);
        Some(Part { since, ..part })
    }

    /// Reports a port that loses its link. Returns `None` if the counter was not read.
    fn flaps(
        &mut self,
        context: &FaultContext<'_>,
        limits: &PortThresholds,
        reading: &PortReading,
    ) -> Option<Option<Part>> {
        let span = Duration::from_secs_f64(limits.flap_window_s);
        let downs = reading.readings.get(&PortSignal::LinkDowns)?.value()?;
        let (rise, _) = self.flaps.push(context.at, downs, span);
        let often = rise >= f64::from(limits.flaps_critical);
        Some((rise > 0.0).then(|| {
            let part = if often {
                Part::new(context, Severity::Critical, "loses its link repeatedly")
                    .asks(Remedy::Inspect, When::JobEnd)
            } else {
                // A single loss may have any cause, so it requires no action on the node.
                Part::new(context, Severity::Warning, "lost its link for a moment")
            };
            part.shows("link_downs", rise)
        }))
    }

    /// Reports a port that runs below its own best rate, or below the same port of the other nodes.
    fn slow(
        &mut self,
        context: &FaultContext<'_>,
        limits: &PortThresholds,
        usual: Option<f64>,
    ) -> Option<Part> {
        let wanted = usual.unwrap_or(0.0).max(self.best);
        let rate = self.rate.filter(|_| self.up != Some(false));
        let slow = rate.is_some_and(|rate| rate < wanted);
        let since = self.slow.holds(context.at, slow, limits.slow_s)?;
        let mut part = Part::new(context, Severity::Warning, "runs below its rate");
        if self.best >= wanted {
            part = part.asks(Remedy::Inspect, When::JobEnd);
        }
        let shown = ("port_rate_gbps".to_owned(), rate?, Some(wanted));
        part.evidence.push(shown);
        Some(Part { since, ..part })
    }

    /// Reports a port that counts errors. Returns `None` if the counters were not read.
    fn errors(
        &mut self,
        context: &FaultContext<'_>,
        limits: &PortThresholds,
        reading: &PortReading,
    ) -> Option<Option<Part>> {
        let span = Duration::from_secs_f64(limits.errors_window_s);
        let errors = reading.readings.get(&PortSignal::Errors)?.value()?;
        let (rise, _) = self.errors.push(context.at, errors, span);
        Some(
            (rise > limits.errors)
                .then(|| Part::new(context, Severity::Warning, "counts errors").shows("port_errors", rise)),
        )
    }

    /// Keeps a problem active while its reason lasts, and for a while after.
    fn report(
        &mut self,
        context: &FaultContext<'_>,
        ledger: &mut Ledger,
        port: &Arc<str>,
        trouble: &'static str,
        part: Option<Part>,
    ) {
        let (subject, name) = (context.node_subject(), format!("{port} {trouble}"));
        if let Some(mut part) = part {
            self.holding.insert(Cow::Borrowed(trouble), Since::default());
            part.why = format!("Port {port} {}", part.why);
            part.more = "Check its cable, transceiver and switch port.".to_owned();
            return ledger.hold(context, Finding::NetworkPort, &subject, &name, part);
        }
        let Some(gone) = self.holding.get_mut(trouble) else {
            return;
        };
        let since = gone.holds(context.at, true).unwrap_or(context.at);
        if context.at.since(since) >= Duration::from_secs_f64(context.ports.clear_s) {
            self.holding.remove(trouble);
            ledger.drop_part(context.at, Finding::NetworkPort, &subject, &name);
        }
    }
}
