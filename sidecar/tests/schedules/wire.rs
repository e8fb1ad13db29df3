//! One connection as seen by its two ends. A stream delivers in order or not at all, like TCP: a lost message is late,
//! and delays the following ones. A schedule may also have single messages that are lost, duplicated and reordered
//! individually, unlike any stream: the protocol does not depend on order.

use super::chance::Chance;

pub const MS: u64 = 1_000_000;

/// Network conditions during a schedule.
#[derive(Clone, Debug)]
pub struct Weather {
    pub is_stream: bool,
    /// One-way delay, milliseconds.
    pub delay_ms: (u64, u64),
    /// Millionths of the messages.
    pub loss: u64,
    pub doubled: u64,
    pub overtaking: u64,
}

impl Weather {
    pub fn draw(chance: &mut Chance) -> Weather {
        let is_stream = chance.hits(700_000);
        let rough = |chance: &mut Chance| chance.pick(&[0, 0, 10_000, 50_000, 300_000]);
        Weather {
            is_stream,
            delay_ms: chance.pick(&[(0, 1), (0, 20), (1, 80), (20, 400), (100, 900)]),
            loss: rough(chance),
            doubled: rough(chance),
            overtaking: rough(chance),
        }
    }

    pub fn calm(&self) -> Weather {
        Weather {
            delay_ms: (0, 1),
            loss: 0,
            doubled: 0,
            overtaking: 0,
            ..self.clone()
        }
    }
}

/// One direction.
#[derive(Debug, Default)]
pub struct Lane {
    flying: Vec<(u64, Vec<u8>)>,
    last_due_ns: u64,
}

impl Lane {
    pub fn put(&mut self, bytes: Vec<u8>, now_ns: u64, weather: &Weather, chance: &mut Chance) {
        let (least, most) = weather.delay_ms;
        let mut due_ns = now_ns + chance.between(least * MS, most * MS);
        let is_lost = chance.hits(weather.loss);
        if weather.is_stream {
            // The kernel retransmits it.
            due_ns += if is_lost { (200 * MS) << chance.below(3) } else { 0 };
            due_ns = due_ns.max(self.last_due_ns);
            self.last_due_ns = due_ns;
            return self.flying.push((due_ns, bytes));
        }
        due_ns += if chance.hits(weather.overtaking) {
            chance.between(0, 3_000 * MS)
        } else {
            0
        };
        if chance.hits(weather.doubled) {
            let again_ns = due_ns + chance.between(0, 3_000 * MS);
            self.flying.push((again_ns, bytes.clone()));
        }
        if !is_lost {
            self.flying.push((due_ns, bytes));
        }
    }

    /// The next message that has arrived.
    pub fn take(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        let first = (0..self.flying.len()).min_by_key(|i| (self.flying[*i].0, *i))?;
        (self.flying[first].0 <= now_ns).then(|| self.flying.remove(first).1)
    }

    pub fn bytes(&self) -> usize {
        self.flying.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    pub fn lose_all(&mut self) {
        self.flying.clear();
    }
}

/// One connection of a node.
#[derive(Debug)]
pub struct Wire {
    pub node: usize,
    pub up: Lane,
    pub down: Lane,
    /// The node's end is open; a closed end sends and receives nothing, but earlier messages may still arrive.
    pub here: bool,
    /// The aggregator's end is open.
    pub there: bool,
    /// When the node is notified that the other end has closed; never, if it vanished.
    pub told_ns: Option<u64>,
}

impl Wire {
    pub fn new(node: usize) -> Wire {
        Wire {
            node,
            up: Lane::default(),
            down: Lane::default(),
            here: true,
            there: true,
            told_ns: None,
        }
    }
}
