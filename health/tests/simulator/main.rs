//! Tests of the simulator. Events are complete and consistent, and every cost is the difference between two worlds. The
//! detector is not involved.

mod any;
mod costs;
mod counters;
mod layouts;
mod scenes;

use std::collections::BTreeMap;

use paceline_health::event::{Comm, Event, Step};
use paceline_health::sim::{World, WorldSpec};
use paceline_health::{Frame, Time};

/// Creates a world from its text and faults.
fn world(text: &str, faults: &[&str]) -> World {
    let mut spec = WorldSpec::parse(text).expect(text);
    spec.faults = faults.iter().map(|fault| fault.parse().expect(fault)).collect();
    World::new(spec).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Runs a world. Returns all of its frames, and the world at its end.
fn run(text: &str, faults: &[&str]) -> (Vec<(Time, Frame)>, World) {
    let mut world = world(text, faults);
    (world.by_ref().collect(), world)
}

fn steps(frames: &[(Time, Frame)]) -> Vec<Step> {
    let step = |(_, frame): &(Time, Frame)| match frame.event {
        Event::Step(step) => Some(step),
        _ => None,
    };
    frames.iter().filter_map(step).collect()
}

fn comms(frames: &[(Time, Frame)]) -> Vec<Comm> {
    let comm = |(_, frame): &(Time, Frame)| match &frame.event {
        Event::Comm(comm) => Some(comm.clone()),
        _ => None,
    };
    frames.iter().filter_map(comm).collect()
}

/// Returns the sum of a rank's step durations, in seconds.
fn wall(frames: &[(Time, Frame)], rank: u32) -> f64 {
    let own = steps(frames).into_iter().filter(|step| step.rank.0 == rank);
    own.map(|step| step.dur_ns as f64 / 1e9).sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the median self-time of each rank over the steps of `span`, seconds.
fn self_times(frames: &[(Time, Frame)], span: std::ops::Range<u64>) -> BTreeMap<u32, f64> {
    let mut all: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for step in steps(frames).iter().filter(|step| span.contains(&step.step)) {
        let own = step.self_time().expect("phases");
        all.entry(step.rank.0).or_default().push(own);
    }
    all.into_iter()
        .map(|(rank, times)| (rank, median(times)))
        .collect()
}
