//! The simulator's events. They are generated somewhat ahead of time, so that generating them does not delay sending.

use std::collections::BTreeMap;
use std::io;
use std::thread;

use paceline_health::Time;
use paceline_health::event::Event;
use paceline_health::frame::AGGREGATOR;
use paceline_health::id::NodeId;
use paceline_health::sim::World;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::LoadOptions;

/// The time span of a chunk, virtual nanoseconds. The events in it are sent together.
const CHUNK_NS: u64 = 5_000_000;
/// Maximum number of chunks generated ahead, which cover four seconds.
const AHEAD: usize = 800;
/// Interval between readings, which are taken about once a second.
const READ_NS: u64 = 1_000_000_000;

/// The events of one moment.
#[derive(Debug)]
pub struct Chunk {
    /// The time in the simulated world.
    pub at: Time,
    /// The events, with the numbers of their nodes.
    pub events: Vec<(u32, Event)>,
}

/// The generated events (see the module documentation).
#[derive(Debug)]
pub struct Feed(Receiver<Chunk>);

impl Feed {
    /// Starts generating the events of the nodes in `options.part`.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub fn start(world: World, options: &LoadOptions) -> io::Result<Feed> {
        let (sender, receiver) = channel(AHEAD);
        let (part, slow_every) = (options.part, options.slow_every);
        thread::Builder::new()
            .name("feed".into())
            .spawn(move || make(world, part, slow_every, &sender))?;
        Ok(Feed(receiver))
    }

    /// Returns the next chunk, or `None` when the job is over.
    pub async fn next(&mut self) -> Option<Chunk> {
        self.0.recv().await
    }
}

fn make(world: World, (rest, parts): (u32, u32), slow_every: u32, sender: &Sender<Chunk>) {
    let numbers: BTreeMap<NodeId, u32> = (0..world.spec().nodes)
        .map(|number| (NodeId::from(format!("node{number}").as_str()), number))
        .collect();
    let mut chunk = Chunk {
        at: Time::ZERO,
        events: Vec::new(),
    };
    for (at, frame) in world {
        // Skip the simulated aggregator's own events, because the real aggregator sends its own.
        if frame.agent == AGGREGATOR {
            continue;
        }
        let Some(number) = numbers.get(&frame.node).copied() else {
            continue;
        };
        if number % parts != rest || is_thinned(&frame.event, at, number, slow_every) {
            continue;
        }
        if at.0 >= chunk.at.0 + CHUNK_NS {
            let full = std::mem::replace(
                &mut chunk,
                Chunk {
                    at,
                    events: Vec::new(),
                },
            );
            // The receiver is gone.
            if sender.blocking_send(full).is_err() {
                return;
            }
        }
        chunk.events.push((number, frame.event));
    }
    let _ = sender.blocking_send(chunk);
}

/// Returns true if a reading is left out. For each node, one reading in `slow_every` is kept, and the nodes are spread
/// over different seconds.
fn is_thinned(event: &Event, at: Time, number: u32, slow_every: u32) -> bool {
    let is_slow = matches!(event, Event::Gpu(_) | Event::Host(_) | Event::Port(_));
    is_slow && !(at.0 / READ_NS + u64::from(number)).is_multiple_of(u64::from(slow_every.max(1)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_health::sim::WorldSpec;

    use super::*;
    use crate::guard::Key;

    #[test]
    fn parts_make_the_whole_and_readings_are_thinned() {
        let spec = || WorldSpec::parse("nodes=4 gpus=2 steps=100").unwrap();
        let said = |part, slow_every| {
            let options = LoadOptions {
                address: ([127, 0, 0, 1], 1).into(),
                relays: Vec::new(),
                key: Key::from_bytes([1; 32]),
                job: "j".into(),
                speed: 1.0,
                part,
                slow_every,
                join: Duration::ZERO,
                acked: None,
            };
            let mut feed = Feed::start(World::new(spec()).unwrap(), &options).unwrap();
            let mut events = Vec::new();
            while let Some(chunk) = feed.0.blocking_recv() {
                assert!(chunk.events.iter().all(|(node, _)| node % part.1 == part.0));
                events.extend(chunk.events);
            }
            events
        };
        let all = said((0, 1), 1);
        assert_eq!(said((0, 2), 1).len() + said((1, 2), 1).len(), all.len());
        let readings = |events: &[(u32, Event)]| {
            events
                .iter()
                .filter(|(_, event)| matches!(event, Event::Gpu(_)))
                .count()
        };
        let (many, few) = (readings(&all), readings(&said((0, 1), 10)));
        assert!(few * 8 <= many && many <= few * 13, "{few} of {many}");
    }
}
