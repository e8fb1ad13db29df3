//! Critical-path gain: how much shorter a step would be with its slow ranks at their peers' speed.

use super::open_straggler::{FAR, OpenStraggler};
use crate::detect::step::history::Kept;
use crate::detect::step::matrix::{RankStep, StepMatrix};
use crate::detect::step::path::Path;
use crate::detect::step::plan::Plan;
use crate::id::Rank;

/// Adds how much shorter this step would have been with all stragglers at their peers' speed. The gain is divided among
/// them in proportion to what each alone would have cost. `ranks` is the highest rank plus one.
pub fn share_gain(all: &mut [OpenStraggler], matrix: &StepMatrix<'_>, ranks: usize) {
    let mut path = matrix.path();
    let mut factors = vec![(usize::MAX, 1.0_f64); ranks];
    for (index, raised) in all.iter().enumerate() {
        let lately = raised.account.x_lately();
        for rank in &raised.members {
            if let Ok(place) = matrix
                .rank_steps
                .binary_search_by_key(rank, |rank_step| rank_step.rank)
            {
                factors[rank.0 as usize] = (index, factor(matrix.rank_steps[place].x, lately));
            }
        }
    }
    let of = |rank_step: &RankStep| factors[rank_step.rank.0 as usize];
    let actual = matrix.step_s(&mut path, |rank_step| rank_step.self_s);
    let restored = matrix.step_s(&mut path, |rank_step| rank_step.self_s / of(rank_step).1);
    let gain = (actual - restored).max(0.0);
    if let [only] = all {
        only.account.won(gain);
        return;
    }
    let alone: Vec<f64> = (0..all.len())
        .map(|index| {
            let own = |rank_step: &RankStep| match of(rank_step) {
                (whose, _) if whose == index => rank_step.self_s,
                (_, factor) => rank_step.self_s / factor,
            };
            (matrix.step_s(&mut path, own) - restored).max(0.0)
        })
        .collect();
    let sum: f64 = alone.iter().sum();
    for (raised, alone) in all.iter_mut().zip(&alone) {
        raised
            .account
            .won(if sum > 0.0 { gain * alone / sum } else { 0.0 });
    }
}

/// Returns how many times as fast as a slow rank its peers were in a step. This is the recent ratio, or that of the
/// step itself if the rank was far slower still in it. `x` and `lately` are ln of self-time over the peers'.
fn factor(x: f64, lately: f64) -> f64 {
    (if x > lately + FAR { x } else { lately }).exp()
}

/// Returns how many seconds shorter a kept step would have been if `members`, slower by `x` on average, had been as
/// fast as their peers.
pub fn gain_kept(members: &[Rank], x: f64, kept: &Kept, plan: &Plan) -> f64 {
    let mut path = Path::new(plan, kept.micro_batches, &kept.roles);
    let known = |rank: usize| {
        let own = f64::from(*kept.self_s.get(rank)?);
        let place = plan.place(Rank(rank as u32))?;
        (!own.is_nan()).then_some((*place, own))
    };
    let actual = path.step_s((0..kept.self_s.len()).filter_map(known));
    let restored = path.step_s((0..kept.self_s.len()).filter_map(|rank| {
        let (place, own) = known(rank)?;
        let slow = members.binary_search(&Rank(rank as u32)).is_ok();
        let here = f64::from(kept.x[rank]);
        Some((place, if slow { own / factor(here, x) } else { own }))
    }));
    (actual - restored).max(0.0)
}
