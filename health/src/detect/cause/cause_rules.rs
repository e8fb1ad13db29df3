//! One rule per cause. Lost time alone does not name a cause: the counters in its rule must confirm it. Each rule
//! excludes the conditions that look similar (a high temperature at full clock, a power cap on every GPU, an idle link,
//! lifetime error totals).
//!
//! If several rules match, the first in the order of [`CAUSE_RULES`] wins. The order is: causes tied to a phase of the
//! step, then the driver's own reasons for a low clock, then errors of GPU memory and links (which do not lower the
//! clock), then host counters, and last a low clock without any reason.
//!
//! A moving counter alone is not a cause. A counter of seconds must explain most of the suspect's excess over its
//! peers; if it explains less, the cause is listed as contributing.

use super::facts::{Fact, Facts};
use crate::event::Signal;
use crate::policy::{CauseThresholds, Thresholds};
use crate::verdict::Cause;

/// Input of the rules: the suspect's counters and excess time, and its peers' counters.
#[derive(Clone, Copy, Debug)]
pub struct CauseInput<'a> {
    pub own: &'a Facts,
    /// Medians of the peers' facts.
    pub peers: &'a Facts,
    /// Self-time in excess of the peers', as a share of step time and as a share of the peers' self-time.
    pub excess_ratio: f64,
    pub slower_ratio: f64,
    /// Shares of the excess self-time in the data phase and in garbage collection.
    pub data_share: f64,
    pub gc_share: f64,
    /// True if transfers within the node, or transfers that leave it, are slow. `None` if they were not observed.
    pub inside_is_slow: Option<bool>,
    pub outside_is_slow: Option<bool>,
    pub limits: &'a Thresholds,
}

/// One cause, with the condition on its counters, the share of the excess that they explain, and its evidence.
pub struct CauseRule {
    pub cause: Cause,
    pub signal: Signal,
    /// Returns the share of the excess that this cause explains, or `None` if its counters do not measure time.
    pub explains: fn(&CauseInput<'_>) -> Option<f64>,
    pub shows: fn(&CauseInput<'_>) -> bool,
    pub evidence: &'static [Fact],
}

/// All rules. The first one that matches names the cause.
pub const CAUSE_RULES: [CauseRule; 10] = [
    CauseRule {
        cause: Cause::Pcie,
        signal: Signal::S3,
        explains: not_computed,
        shows: pcie,
        evidence: &[
            Fact::PcieGen,
            Fact::PcieGenMax,
            Fact::PcieLanes,
            Fact::PcieLanesMax,
            Fact::PcieReplays,
            Fact::Busy,
        ],
    },
    CauseRule {
        cause: Cause::GcPause,
        signal: Signal::S2,
        explains: |input| Some(share(input.gc_share)),
        shows: |input| input.gc_share >= input.causes().contributing_share,
        evidence: &[],
    },
    CauseRule {
        cause: Cause::DataLoading,
        signal: Signal::S2,
        explains: |input| Some(share(input.data_share)),
        // Wait until the GPU counters are known, because the PCIe counters among them may show a more specific cause.
        shows: |input| {
            input.data_share >= input.causes().contributing_share && input.gpu_is_known().unwrap_or(true)
        },
        evidence: &[Fact::DiskWait, Fact::MajorFaultRate],
    },
    CauseRule {
        cause: Cause::Thermal,
        signal: Signal::S3,
        explains: clock,
        shows: thermal,
        evidence: &[Fact::SmClock, Fact::Thermal, Fact::Temperature, Fact::Margin],
    },
    CauseRule {
        cause: Cause::Power,
        signal: Signal::S3,
        explains: clock,
        shows: power,
        evidence: &[
            Fact::SmClock,
            Fact::PowerCap,
            Fact::PowerBrake,
            Fact::Power,
            Fact::PowerLimit,
        ],
    },
    CauseRule {
        cause: Cause::Nvlink,
        signal: Signal::S3,
        explains: not_computed,
        shows: nvlink,
        evidence: &[Fact::NvlinkErrors, Fact::NvlinkRecoveries],
    },
    CauseRule {
        cause: Cause::Network,
        signal: Signal::S4,
        explains: not_computed,
        shows: network,
        evidence: &[Fact::NetErrorRate, Fact::NetRate],
    },
    CauseRule {
        cause: Cause::Ecc,
        signal: Signal::S3,
        explains: not_computed,
        shows: ecc,
        evidence: &[
            Fact::EccUncorrected,
            Fact::EccCorrectedRate,
            Fact::RemapPending,
            Fact::RemapFailed,
        ],
    },
    CauseRule {
        cause: Cause::CpuContention,
        signal: Signal::S4,
        explains: waiting_for_cpu,
        shows: contention,
        evidence: &[Fact::Contention, Fact::MajorFaultRate, Fact::SmClock],
    },
    CauseRule {
        cause: Cause::ClockStuck,
        signal: Signal::S3,
        explains: clock,
        shows: clock_stuck,
        evidence: &[
            Fact::SmClock,
            Fact::SmClockSet,
            Fact::Thermal,
            Fact::PowerCap,
            Fact::Temperature,
        ],
    },
];

impl CauseRule {
    /// Returns true if another matching cause limits the clock for more of the time and therefore replaces this one.
    pub fn yields(&self, input: &CauseInput<'_>) -> bool {
        self.cause == Cause::Thermal && power(input) && input.held_back() > input.own_or_zero(Fact::Thermal)
    }

    /// Returns true if this cause explains most of the excess, or if the explained share cannot be computed.
    pub fn is_cause(&self, input: &CauseInput<'_>) -> bool {
        let enough = |share| share >= input.causes().explained_share;
        (self.shows)(input) && (self.explains)(input).is_none_or(enough)
    }

    /// Returns the share of the excess that this cause explains, if the share is worth reporting but is not most of the
    /// excess.
    pub fn contribution(&self, input: &CauseInput<'_>) -> Option<f64> {
        let share = (self.explains)(input).filter(|_| (self.shows)(input))?;
        let limits = input.causes();
        (limits.contributing_share..limits.explained_share)
            .contains(&share)
            .then_some(share)
    }
}

/// Returns `None` for counters that count errors and retries instead of the time that these take.
fn not_computed(_: &CauseInput<'_>) -> Option<f64> {
    None
}

/// Returns the share of the excess that a low clock explains. Work slows down at most in proportion to the clock; it
/// may slow down less, because part of the work waits for memory.
fn clock(input: &CauseInput<'_>) -> Option<f64> {
    let (own, peers) = input.both(Fact::SmClock)?;
    (own > 0.0 && input.slower_ratio > 0.0).then(|| share((peers / own - 1.0) / input.slower_ratio))
}

/// Returns the share of the excess that is CPU wait beyond the peers'. A rank that works longer also waits longer for a
/// CPU. That part of the wait is left out, because it does not make the rank slow.
fn waiting_for_cpu(input: &CauseInput<'_>) -> Option<f64> {
    let own = input.own.of(Fact::Contention)?;
    let usual = input.usual_contention();
    (input.excess_ratio > 0.0).then(|| share((own - usual) / input.excess_ratio))
}

/// Caps a share at the whole excess. Without the cap it could be larger, because waits of threads overlap and a clock
/// ratio can predict more time than was lost.
fn share(of_excess: f64) -> f64 {
    of_excess.clamp(0.0, 1.0)
}

impl CauseInput<'_> {
    fn causes(&self) -> &CauseThresholds {
        &self.limits.causes
    }

    fn both(&self, fact: Fact) -> Option<(f64, f64)> {
        Some((self.own.of(fact)?, self.peers.of(fact)?))
    }

    /// Returns true if there have been enough readings since the slowdown began to compare shares of time, or `None` if
    /// the GPU was never read. A few readings are not enough, because peers are read at other moments, and a change
    /// that begins everywhere at once must not look like a difference between ranks.
    fn gpu_is_known(&self) -> Option<bool> {
        Some(self.own.gpu_readings? >= self.causes().min_readings as usize)
    }

    fn host_is_known(&self) -> Option<bool> {
        Some(self.own.host_readings? >= self.causes().min_readings as usize)
    }

    /// Returns true if readings that have not arrived yet may reveal a cause.
    pub fn is_early(&self) -> bool {
        self.gpu_is_known() == Some(false) || self.host_is_known() == Some(false)
    }

    /// Returns the share of time that the peers would wait for a CPU if they worked as long as this rank.
    fn usual_contention(&self) -> f64 {
        self.peers.of(Fact::Contention).unwrap_or(0.0) * (1.0 + self.slower_ratio.max(0.0))
    }

    fn is_busy(&self) -> Option<bool> {
        Some(self.own.of(Fact::Busy)? >= self.causes().busy_ratio)
    }

    fn own_or_zero(&self, fact: Fact) -> f64 {
        self.own.of(fact).unwrap_or(0.0)
    }

    /// Returns true if the clock is below `ratio` times the peers' clock.
    fn clock_is_under(&self, ratio: f64) -> bool {
        self.both(Fact::SmClock)
            .is_some_and(|(own, peers)| own < ratio * peers)
    }

    /// Returns how much larger this rank's share of time under the power cap or brake is than the peers' share.
    fn held_back(&self) -> f64 {
        [Fact::PowerCap, Fact::PowerBrake]
            .into_iter()
            .filter_map(|fact| self.both(fact))
            .map(|(own, peers)| own - peers)
            .fold(0.0, f64::max)
    }

    /// Returns true if an error counter is at least `least` and far above the peers' counter.
    fn stands_out(&self, fact: Fact, least: f64) -> bool {
        let peers = self.peers.of(fact).unwrap_or(0.0);
        self.own
            .of(fact)
            .is_some_and(|own| own >= least && own > self.causes().error_ratio * peers)
    }
}

/// Returns true if a thermal reason was active or no thermal margin is left, *and* the clock is below the peers'. Warm
/// GPUs at full clock are not slow because of heat.
fn thermal(input: &CauseInput<'_>) -> bool {
    let limits = &input.limits.thermal;
    let active = input
        .own
        .of(Fact::Thermal)
        .is_some_and(|share| share >= limits.throttled_ratio);
    let no_margin = input.own.of(Fact::Margin).is_some_and(|margin| margin <= 0.0);
    (active || no_margin) && input.clock_is_under(limits.clock_ratio)
}

/// Returns true if the power cap or the brake limits this GPU more than its peers, or its power limit is lower, *and*
/// its clock is below theirs. A cap on every rank is normal at full load.
fn power(input: &CauseInput<'_>) -> bool {
    let limits = input.causes();
    let lower_limit = input
        .both(Fact::PowerLimit)
        .is_some_and(|(own, peers)| own < limits.power_limit_ratio * peers);
    input.gpu_is_known() == Some(true)
        && (input.held_back() >= limits.power_points || lower_limit)
        && input.clock_is_under(limits.power_clock_ratio)
}

/// Returns true if the clock is low without a known reason although the GPU is cool and busy.
fn clock_stuck(input: &CauseInput<'_>) -> bool {
    let limits = input.causes();
    let Some(thermal) = input.own.of(Fact::Thermal) else {
        // The GPU does not report clock reasons, so a missing reason proves nothing.
        return false;
    };
    let cool = thermal < input.limits.thermal.throttled_ratio
        && input.own.of(Fact::Margin).is_none_or(|margin| margin > 0.0);
    cool && input.gpu_is_known() == Some(true)
        && input.held_back() < limits.power_points
        && input.is_busy().unwrap_or(true)
        && input.clock_is_under(limits.stuck_clock_ratio)
}

/// Returns true if there are new uncorrectable errors, a pending or failed remap, or corrected errors at a rate far
/// above the peers'. Lifetime totals are not used, because they may be old.
fn ecc(input: &CauseInput<'_>) -> bool {
    let limits = input.causes();
    let is_set = |fact| {
        input.own.of(fact).is_some_and(|set| set >= 1.0) && input.peers.of(fact).is_none_or(|set| set < 1.0)
    };
    let corrected = input.own.of(Fact::EccCorrectedRate).is_some_and(|rate| {
        let peers = input.peers.of(Fact::EccCorrectedRate).unwrap_or(0.0);
        rate >= limits.ecc_corrected_per_s && rate >= limits.ecc_corrected_ratio * peers
    });
    input.stands_out(Fact::EccUncorrected, 1.0)
        || is_set(Fact::RemapPending)
        || is_set(Fact::RemapFailed)
        || corrected
}

/// Returns true if the data phase grew *and* either the busy GPU's PCIe link runs below its own maximum and below its
/// peers' links, or the link's replays are far above the peers'. Readings of an idle GPU do not count, because an idle
/// link drops to a lower generation by itself.
fn pcie(input: &CauseInput<'_>) -> bool {
    let limits = input.causes();
    let is_under = |now, best| {
        let (Some(own), Some(most)) = (input.own.of(now), input.own.of(best)) else {
            return false;
        };
        own < most && input.peers.of(now).is_none_or(|peers| own < peers)
    };
    let degraded = is_under(Fact::PcieGen, Fact::PcieGenMax) || is_under(Fact::PcieLanes, Fact::PcieLanesMax);
    let repeats = input.stands_out(Fact::PcieReplays, limits.pcie_replays);
    input.data_share >= limits.pcie_phase_share && (degraded || repeats)
}

/// Returns true if the GPU's NVLinks count errors. If transfers within the node were observed, they must be slow too.
fn nvlink(input: &CauseInput<'_>) -> bool {
    let limits = input.causes();
    input.inside_is_slow != Some(false)
        && (input.stands_out(Fact::NvlinkErrors, limits.nvlink_errors)
            || input.stands_out(Fact::NvlinkRecoveries, 1.0))
}

/// Returns true if transfers that leave the node are slow *and* its ports count errors or run below the peers' rate.
/// Waiting time does not count as transfer time.
fn network(input: &CauseInput<'_>) -> bool {
    input.outside_is_slow == Some(true) && ports_fail(input.own, input.peers, input.causes())
}

/// Returns true if a node's ports count errors or run below the rate of other nodes' ports.
pub fn ports_fail(own: &Facts, peers: &Facts, limits: &CauseThresholds) -> bool {
    let usual = peers.of(Fact::NetErrorRate).unwrap_or(0.0);
    let errors = own
        .of(Fact::NetErrorRate)
        .is_some_and(|rate| rate >= limits.net_errors_per_s && rate > limits.error_ratio * usual);
    let slower = own.of(Fact::NetRate).zip(peers.of(Fact::NetRate));
    errors || slower.is_some_and(|(own, peers)| own < limits.net_rate_ratio * peers)
}

/// Returns true if the rank waits for a CPU more than its peers would for as much work, and its clock is not below
/// theirs.
fn contention(input: &CauseInput<'_>) -> bool {
    let limits = input.causes();
    let least = input.usual_contention() + limits.contention_points;
    input.host_is_known() == Some(true)
        && input.own.of(Fact::Contention).is_some_and(|own| own >= least)
        && !(input.clock_is_under(limits.stuck_clock_ratio) && input.is_busy().unwrap_or(true))
}
