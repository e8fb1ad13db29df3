//! `straggler`, the space axis: a rank whose self-time stays above that of its peers of the same role.
//!
//! Wall step time names nobody, since all wait for the slowest; self-time is what a rank spends outside waiting.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::claim::{Body, Claim, Detail, Outcome};
use super::cusum::{Alarm, Bar};
use super::gpus::Gpus;
use super::noise::{self, Noise, WarmUp};
use super::roster::Roster;
use super::rows::{Row, Sample};
use super::scene::{Placed, Scene, by_role, place};
use super::tally::Tally;
use super::track::{Raised, Track, evidence, lost, outcome, waits_less_than_peers};
use crate::event::{Signal, StepKind};
use crate::frame::Provenance;
use crate::id::{GpuId, Rank};
use crate::policy::Thresholds;
use crate::time::Time;
use crate::verdict::{Cause, Finding, Severity};

/// GPUs of peers that are looked at for a cause.
const CAUSE_PEERS: usize = 64;

/// What the rule may look at.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub at: Time,
    pub roster: &'a Roster,
    pub gpus: &'a Gpus,
    pub limits: &'a Thresholds,
}

/// The rule.
#[derive(Debug, Default)]
pub struct StragglerRule {
    tracks: BTreeMap<Rank, Track>,
    roles: BTreeMap<Arc<str>, Role>,
    provenance: Provenance,
    out: VecDeque<Claim>,
}

/// What is known of the ranks of one role together.
#[derive(Debug, Default)]
struct Role {
    warm_up: WarmUp,
    noise: Noise,
}

impl StragglerRule {
    /// A new group of ranks begins: what was said of the old one ends. `roster` still holds the old one.
    pub fn clear(&mut self, at: Time, roster: &Roster) {
        for (rank, track) in std::mem::take(&mut self.tracks) {
            if let Some(raised) = track.raised {
                self.end(
                    at,
                    rank,
                    outcome(&track.tally, &raised.start, raised.few_peers, roster),
                    roster,
                );
            }
        }
        self.roles.clear();
    }

    /// Where the step times came from.
    pub fn trust(&mut self, provenance: Provenance) {
        self.provenance = self.provenance.max(provenance);
    }

    /// The next claim.
    pub fn poll(&mut self) -> Option<Claim> {
        self.out.pop_front()
    }

    /// Takes a closed row; `view.at` is when it closed.
    pub fn row(&mut self, view: &View<'_>, row: &Row) {
        if row.kind != StepKind::Train {
            return;
        }
        let scene = Scene::of(row);
        for (role, members) in by_role(row, view.roster) {
            self.role(view, row.step, &role, members, &scene);
        }
    }

    /// Whether any rank's phases were ever known.
    pub fn has_phases(&self) -> bool {
        !self.tracks.is_empty()
    }

    /// Looks for a cause of what is open, when a GPU was read.
    pub fn reading(&mut self, view: &View<'_>, gpu: &GpuId) {
        let trains_on_it = |rank| {
            view.roster
                .member(rank)
                .is_some_and(|member| member.gpu.as_ref() == Some(gpu))
        };
        let open: Vec<Rank> = self
            .tracks
            .iter()
            .filter(|(_, track)| {
                track
                    .raised
                    .as_ref()
                    .is_some_and(|raised| raised.cause == Cause::Unknown)
            })
            .map(|(rank, _)| *rank)
            .filter(|rank| trains_on_it(*rank))
            .collect();
        for rank in open {
            self.claim(view, rank, false);
        }
    }

    /// What there is to say of an open incident up to now.
    pub fn outcome_now(&self, rank: Rank, roster: &Roster) -> Option<Outcome> {
        let track = self.tracks.get(&rank)?;
        let raised = track.raised.as_ref()?;
        Some(outcome(&track.tally, &raised.start, raised.few_peers, roster))
    }

    fn role(
        &mut self,
        view: &View<'_>,
        step: u64,
        role: &Arc<str>,
        members: Vec<(Rank, Sample, f64)>,
        scene: &Scene,
    ) {
        let table = &view.limits.straggler;
        let peers = members.len() - 1;
        let (level, placed) = place(members);
        let known = self.roles.entry(role.clone()).or_default();
        let steady = known.warm_up.is_over(level, table.warm_up_max_steps);
        let mut before = Vec::with_capacity(placed.len());
        for place in &placed {
            let track = self.tracks.entry(place.rank).or_default();
            if track.tally.rows == 0 {
                track.born = Tally {
                    step: step.saturating_sub(1),
                    at: view.at,
                    entry: place.sample.entry,
                    ..Tally::default()
                };
            }
            before.push(track.tally);
            if !steady {
                track.warm_up.push((place.x, track.tally));
                let surplus = track.warm_up.len().saturating_sub(noise::SETTLED_ROWS - 1);
                track.warm_up.drain(..surplus);
            }
            track.window.push(place.x, table.noise_window_steps);
            track.tally = scene.add(&track.tally, view.at, step, place);
        }
        if !steady || peers == 0 {
            return;
        }
        let stride = placed.len().div_ceil(noise::POOLED_RANKS);
        let pooled = placed
            .iter()
            .step_by(stride)
            .filter_map(|place| self.tracks.get(&place.rank));
        let measure = || noise::pool(pooled.map(|track| &track.window), table);
        let Some(spread) = known.noise.spread(measure) else {
            return;
        };
        let bar = Bar::new(table, view.roster.world_size as usize, scene.dur_s, &spread);
        for (place, before) in placed.iter().zip(&before) {
            self.test(view, place, before, &bar);
        }
        self.decide(view, step, &placed, &bar, peers < table.min_peers as usize);
    }

    /// Feeds the rank's test; a slow rank's clearing test instead.
    fn test(&mut self, view: &View<'_>, place: &Placed, before: &Tally, bar: &Bar) {
        let Some(track) = self.tracks.get_mut(&place.rank) else {
            return;
        };
        for (x, before) in std::mem::take(&mut track.warm_up) {
            track.tested_from.get_or_insert(before);
            track.cusum.observe(bar, x, &before);
        }
        track.tested_from.get_or_insert(*before);
        let Some(raised) = &track.raised else {
            track.cusum.observe(bar, place.x, before);
            return;
        };
        if let Some(end) = track.cusum.recovers(bar, raised.alternative, place.x, before) {
            let outcome = outcome(&end, &raised.start, raised.few_peers, view.roster);
            track.raised = None;
            track.cusum.reset();
            self.end(view.at, place.rank, outcome, view.roster);
        }
    }

    /// Raises, or makes worse, what the tests have found.
    fn decide(&mut self, view: &View<'_>, step: u64, placed: &[Placed], bar: &Bar, few_peers: bool) {
        let mut alarms: Vec<(Rank, Alarm)> = Vec::new();
        for Placed { rank, .. } in placed {
            let Some(track) = self.tracks.get(rank) else {
                continue;
            };
            match &track.raised {
                Some(raised) if self.severity(*rank, view.limits) > Some(raised.severity) => {
                    self.claim(view, *rank, true);
                }
                Some(_) => {}
                None => alarms.extend(track.cusum.alarm(bar).map(|alarm| (*rank, alarm))),
            }
        }
        if alarms.is_empty() {
            return;
        }
        let onsets = self.onsets(bar);
        for (rank, Alarm { start, alternative }) in alarms {
            let Some(track) = self.tracks.get_mut(&rank) else {
                continue;
            };
            if !waits_less_than_peers(track, &start, view.limits)
                || is_correlated(&onsets, start.step, placed.len(), view.limits)
            {
                continue;
            }
            let start = track.onset(start, alternative);
            track.cusum.reset();
            let (severity, cause) = (Severity::Info, Cause::Unknown);
            track.raised = Some(Raised {
                start,
                alternative,
                severity,
                step,
                cause,
                few_peers,
            });
            self.claim(view, rank, true);
        }
    }

    /// The steps after which ranks became slow or lean to it, in order.
    fn onsets(&self, bar: &Bar) -> Vec<u64> {
        let onset = |track: &Track| match &track.raised {
            Some(raised) => Some(raised.start.step),
            None => track.cusum.leaning(bar).map(|start| start.step),
        };
        let mut onsets: Vec<u64> = self.tracks.values().filter_map(onset).collect();
        onsets.sort_unstable();
        onsets
    }

    fn end(&mut self, at: Time, rank: Rank, outcome: Outcome, roster: &Roster) {
        if let Some(subject) = roster.subject(rank) {
            let body = Body::Over(outcome);
            self.out.push_back(Claim {
                finding: Finding::Straggler,
                subject,
                at,
                body,
            });
        }
    }

    fn severity(&self, rank: Rank, limits: &Thresholds) -> Option<Severity> {
        let track = self.tracks.get(&rank)?;
        let raised = track.raised.as_ref()?;
        let impact = track.tally.impact_since(&raised.start);
        let severity = if impact >= limits.impact.critical_ratio {
            Severity::Critical
        } else if impact >= limits.impact.warning_ratio {
            Severity::Warning
        } else {
            Severity::Info
        };
        // With fewer peers than the test wants, nobody is woken.
        Some(if raised.few_peers {
            severity.min(Severity::Warning)
        } else {
            severity
        })
    }

    /// Says what holds of a raised rank now. Unless `always`, only when a cause has been found.
    fn claim(&mut self, view: &View<'_>, rank: Rank, always: bool) {
        let View {
            at,
            roster,
            gpus,
            limits,
        } = *view;
        let severity = self.severity(rank, limits);
        let (Some(track), Some(subject), Some(severity)) =
            (self.tracks.get_mut(&rank), roster.subject(rank), severity)
        else {
            return;
        };
        let Some(raised) = track.raised.as_mut() else {
            return;
        };
        let thermal = thermal(rank, roster, gpus, raised.start.at, limits);
        if thermal.is_none() && !always {
            return;
        }
        raised.severity = raised.severity.max(severity);
        let mut evidence = evidence(&track.tally, &raised.start, raised.few_peers);
        let mut signals = vec![Signal::S2];
        let mut provenance = self.provenance;
        if let Some(thermal) = thermal {
            raised.cause = Cause::Thermal;
            evidence.extend(thermal.evidence);
            signals.push(Signal::S3);
            provenance = provenance.max(thermal.provenance);
        }
        let detail = Detail {
            severity: raised.severity,
            since: raised.start.at,
            since_step: Some(raised.start.step + 1),
            step: Some(raised.step),
            cause: raised.cause,
            signals,
            provenance,
            slowdown_ratio: Some(track.tally.slowdown_since(&raised.start)),
            impact_ratio: Some(track.tally.impact_since(&raised.start)),
            lost_rank_s: lost(&track.tally, &raised.start, roster),
            evidence,
        };
        let body = Body::Holds(Box::new(detail));
        self.out.push_back(Claim {
            finding: Finding::Straggler,
            subject,
            at,
            body,
        });
    }
}

/// Whether so many ranks became slow together that no single one is to blame.
fn is_correlated(onsets: &[u64], onset: u64, ranks: usize, limits: &Thresholds) -> bool {
    let table = &limits.straggler;
    let before = onsets.partition_point(|step| *step + table.correlated_steps < onset);
    let up_to = onsets.partition_point(|step| *step <= onset + table.correlated_steps);
    let together = up_to - before;
    together >= table.correlated_min_ranks as usize && together as f64 > table.correlated_ratio * ranks as f64
}

fn thermal(
    rank: Rank,
    roster: &Roster,
    gpus: &Gpus,
    since: Time,
    limits: &Thresholds,
) -> Option<super::gpus::Thermal> {
    let member = roster.member(rank)?;
    let peers = roster
        .members()
        .filter(|(_, peer)| peer.role == member.role)
        .filter_map(|(_, peer)| peer.gpu.as_ref())
        .take(CAUSE_PEERS);
    gpus.thermal(member.gpu.as_ref()?, peers, since, &limits.thermal)
}
