//! A closed row as the space axis sees it: each rank beside its peers, and what the job would have won.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::roster::Roster;
use super::rows::{Row, Sample};
use super::tally::Tally;
use crate::id::Rank;
use crate::stats;
use crate::time::Time;

/// One rank's place in a row beside its peers.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    pub rank: Rank,
    pub sample: Sample,
    pub self_s: f64,
    /// ln(self-time / median of its peers).
    pub x: f64,
    pub peers_self_s: f64,
}

/// What a row says of all ranks together.
pub struct Scene {
    /// The slowest self-time, whose, and the next one.
    slowest: (f64, Option<Rank>),
    second: f64,
    /// The shortest wait is the transfer; the median of what the others wait beyond it.
    transfer_s: f64,
    typical_wait_s: f64,
    pub dur_s: f64,
}

impl Scene {
    pub fn of(row: &Row) -> Scene {
        let mut scene = Scene {
            slowest: (0.0, None),
            second: 0.0,
            transfer_s: f64::INFINITY,
            typical_wait_s: 0.0,
            dur_s: 0.0,
        };
        for (rank, sample) in &row.samples {
            let own = sample.self_s.unwrap_or(0.0);
            if own > scene.slowest.0 {
                scene.second = scene.slowest.0;
                scene.slowest = (own, Some(*rank));
            } else {
                scene.second = scene.second.max(own);
            }
            scene.transfer_s = scene.transfer_s.min(sample.wait_s);
            scene.dur_s = scene.dur_s.max(sample.dur_s);
        }
        let mut waits: Vec<f64> = row
            .samples
            .values()
            .map(|sample| sample.wait_s - scene.transfer_s)
            .collect();
        scene.typical_wait_s = stats::median(&mut waits).unwrap_or(0.0);
        scene
    }

    /// The rank's tally with this row in it.
    pub fn add(&self, tally: &Tally, at: Time, step: u64, place: &Placed) -> Tally {
        let slowest = self.slowest.1 == Some(place.rank);
        let without = self.second.max(place.peers_self_s);
        // Waiting for a rank that is slower still is no sign of innocence.
        let explained = self.slowest.0 - place.self_s;
        Tally {
            step,
            at,
            entry: place.sample.entry,
            rows: tally.rows + 1,
            x: tally.x + place.x,
            self_s: tally.self_s + place.self_s,
            peers_self_s: tally.peers_self_s + place.peers_self_s,
            wait_s: tally.wait_s + place.sample.wait_s - self.transfer_s - explained,
            peers_wait_s: tally.peers_wait_s + self.typical_wait_s,
            gain_s: tally.gain_s
                + if slowest {
                    (place.self_s - without).max(0.0)
                } else {
                    0.0
                },
            dur_s: tally.dur_s + self.dur_s,
        }
    }
}

/// The samples of a row by role, with ln of their self-time; those without phases are left out.
pub fn by_role(row: &Row, roster: &Roster) -> BTreeMap<Arc<str>, Vec<(Rank, Sample, f64)>> {
    let mut roles: BTreeMap<Arc<str>, Vec<(Rank, Sample, f64)>> = BTreeMap::new();
    for (rank, sample) in &row.samples {
        if let (Some(member), Some(own)) = (roster.member(*rank), sample.self_s) {
            roles
                .entry(member.role.clone())
                .or_default()
                .push((*rank, *sample, own.ln()));
        }
    }
    roles
}

/// Puts each member beside the median of its peers; also the role's level.
pub fn place(mut members: Vec<(Rank, Sample, f64)>) -> (f64, Vec<Placed>) {
    members.sort_unstable_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0)));
    let sorted: Vec<f64> = members.iter().map(|member| member.2).collect();
    let placed = members
        .iter()
        .enumerate()
        .map(|(index, (rank, sample, own))| {
            let peers = stats::median_without(&sorted, index).unwrap_or(*own);
            Placed {
                rank: *rank,
                sample: *sample,
                self_s: own.exp(),
                x: own - peers,
                peers_self_s: peers.exp(),
            }
        })
        .collect();
    (sorted[sorted.len() / 2], placed)
}
