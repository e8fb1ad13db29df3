//! One schedule: nodes, the aggregator, the network, and failures, all from one seed. Time is a number.

use paceline_sidecar::aggregator::journal::segments::Limits;
use paceline_sidecar::sink::status::StatusStream;
use paceline_sidecar::uplink::wire::encode;

use super::chance::Chance;
use super::check;
use super::hub::Hub;
use super::node::{Link, Node};
use super::trouble::Trouble;
use super::wire::{MS, Weather, Wire};

const TICK_NS: u64 = 20 * MS;
/// Timeout of a connection attempt.
const DIAL_NS: u64 = 2_000 * MS;
/// After the failures end, everything must arrive within this time.
const CALM_NS: u64 = 30_000 * MS;

pub struct World {
    pub chance: Chance,
    pub now_ns: u64,
    pub weather: Weather,
    pub nodes: Vec<Node>,
    /// Offset of each node's CLOCK_MONOTONIC.
    offsets: Vec<u64>,
    /// Each node's wall clock, the source of its sidecars' numbers; may be stepped.
    pub wall_ns: Vec<u64>,
    pub wires: Vec<Wire>,
    /// By node: disconnected upstream, or downstream, until then.
    pub cut_up_ns: Vec<u64>,
    pub cut_down_ns: Vec<u64>,
    pub hub: Hub,
    /// Messages that the aggregator reads per tick.
    pub reads: usize,
    pub trouble: Trouble,
    disk_full_until_ns: u64,
}

impl World {
    pub fn new(seed: u64, status: StatusStream) -> World {
        let mut chance = Chance::new(seed);
        let count = chance.between(1, 4) as u32;
        let weather = Weather::draw(&mut chance);
        let spool_bytes = chance.pick(&[4 << 20, 4 << 20, 256 << 10, 24 << 10]);
        let step_every_ns = chance.pick(&[100, 200, 400]) * MS;
        let wall_ns: Vec<u64> = (0..count)
            .map(|i| 1_790_000_000_000_000_000 + u64::from(i))
            .collect();
        let offsets = (0..count).map(|_| chance.between(0, 1 << 40)).collect();
        let node = |number: u32| {
            let agent = wall_ns[number as usize] ^ u64::from(number + 1);
            Node::new(number, count, agent, spool_bytes, step_every_ns)
        };
        let nodes = (0..count).map(node).collect();
        let trouble = Trouble::draw(&mut chance, &mut Chance::new(!seed));
        // Drawn separately: schedules from before segments stay the same.
        let segment_bytes = Chance::new(seed ^ 0x5e9).pick(&[1 << 40, 6_000, 60_000]);
        // Also separately.
        let bound_bytes = Chance::new(seed ^ 0xb0d).pick(&[u64::MAX, u64::MAX, u64::MAX, 60_000, 200_000]);
        let reads = chance.pick(&[1, 4, 1_000, 1_000]);
        World {
            now_ns: 0,
            weather,
            nodes,
            offsets,
            wall_ns,
            wires: Vec::new(),
            cut_up_ns: vec![0; count as usize],
            cut_down_ns: vec![0; count as usize],
            hub: Hub::new(
                status,
                Limits {
                    segment_bytes,
                    bound_bytes,
                },
            ),
            reads,
            trouble,
            disk_full_until_ns: 0,
            chance,
        }
    }

    pub fn run(mut self) {
        let storm_ns = self.chance.between(3_000, 15_000) * MS;
        while self.now_ns < storm_ns {
            Trouble::strike(&mut self);
            self.tick();
        }
        self.calm();
        self.settle("what came of the storm");
        for i in 0..self.nodes.len() {
            let now_ns = self.node_now(i);
            self.nodes[i].leave(now_ns);
        }
        self.settle("the end");
        check::world(&self);
        check::opened_again(self);
    }

    /// All events so far must arrive.
    fn settle(&mut self, what: &str) {
        let by_ns = self.now_ns + CALM_NS;
        let goals: Vec<u64> = self.nodes.iter().map(|node| node.uplink.last_seq()).collect();
        let waits = |world: &World| {
            let mut pairs = world.nodes.iter().zip(&goals);
            pairs
                .find(|(node, goal)| !node.has_settled(**goal))
                .map(|(node, _)| node.name.clone())
        };
        while let Some(name) = waits(self) {
            self.tick();
            assert!(
                self.now_ns < by_ns,
                "{what} does not arrive: {}",
                self.state_of(&name)
            );
        }
    }

    fn state_of(&self, name: &str) -> String {
        let node = self.nodes.iter().find(|node| node.name == name).unwrap();
        let (settled, last, up) = (node.uplink.settled(), node.uplink.last_seq(), node.uplink.is_up());
        format!("{settled} of {last} of {name}, up: {up}, {:?}", node.link)
    }

    /// Ends all failures.
    fn calm(&mut self) {
        self.weather = self.weather.calm();
        self.cut_up_ns.fill(0);
        self.cut_down_ns.fill(0);
        self.reads = 1_000;
        self.hub.stalled_until_ns = 0;
        self.disk_full_until_ns = 0;
        self.disk_recovers();
        self.nodes.iter_mut().for_each(|node| node.stopped_until_ns = 0);
        // A full disk is tried again after five seconds.
        let by_ns = self.now_ns + 6_000 * MS;
        while self.now_ns < by_ns {
            self.tick();
        }
        for i in 0..self.nodes.len() {
            assert!(
                self.nodes[i].dead_until_ns.is_none(),
                "nobody is dead for so long"
            );
        }
    }

    pub fn node_now(&self, node: usize) -> u64 {
        self.now_ns + self.offsets[node]
    }

    pub fn fill_disk(&mut self, room: usize, keeps_halves: bool, until_ns: u64) {
        let mut disk = self.hub.disk.lock().unwrap();
        (disk.room, disk.keeps_halves) = (Some(room), keeps_halves);
        drop(disk);
        self.hub.was_hurt = true;
        self.disk_full_until_ns = until_ns;
    }

    fn disk_recovers(&mut self) {
        let mut disk = self.hub.disk.lock().unwrap();
        (disk.room, disk.keeps_halves) = (None, false);
    }

    /// The connection ends at both ends, and messages in flight are lost.
    pub fn cut(&mut self, wire: usize) {
        let wire = &mut self.wires[wire];
        wire.there = false;
        wire.up.lose_all();
        wire.down.lose_all();
        wire.told_ns = Some(self.now_ns);
    }

    /// All of the aggregator's ends close, with or without notice to the other ends.
    pub fn hub_closes(&mut self, told: bool) {
        for wire in self.wires.iter_mut().filter(|wire| wire.there) {
            wire.there = false;
            wire.told_ns = told.then_some(self.now_ns);
        }
    }

    fn tick(&mut self) {
        self.now_ns += TICK_NS;
        if self.now_ns >= self.disk_full_until_ns && self.disk_full_until_ns > 0 {
            self.disk_full_until_ns = 0;
            self.disk_recovers();
        }
        self.hub.tick(self.now_ns, &mut self.chance);
        if self.now_ns >= self.hub.stalled_until_ns {
            self.hub_reads();
        }
        for node in 0..self.nodes.len() {
            self.node_lives(node);
        }
        check::bounds(self);
    }

    /// Takes messages from each connection in turn.
    fn hub_reads(&mut self) {
        let mut left = self.reads;
        let first = self.chance.below(self.wires.len().max(1));
        for turn in 0..self.wires.len() {
            let at = (first + turn) % self.wires.len();
            while left > 0 && self.wires[at].there && self.now_ns >= self.cut_up_ns[self.wires[at].node] {
                let Some(bytes) = self.wires[at].up.take(self.now_ns) else {
                    break;
                };
                left -= 1;
                for down in self.hub.answer(&bytes, self.now_ns) {
                    let World {
                        wires,
                        weather,
                        chance,
                        ..
                    } = self;
                    wires[at].down.put(encode(&down), self.now_ns, weather, chance);
                }
            }
        }
    }

    fn node_lives(&mut self, i: usize) {
        let now_ns = self.node_now(i);
        if self.nodes[i]
            .dead_until_ns
            .is_some_and(|until| self.now_ns >= until)
        {
            let agent = (self.wall_ns[i] + self.now_ns) ^ (i as u64 + 1);
            self.nodes[i].start_again(agent, now_ns);
        }
        let World { nodes, chance, .. } = self;
        nodes[i].work(now_ns, chance);
        if self.nodes[i].dead_until_ns.is_some() || now_ns < self.nodes[i].stopped_until_ns {
            return;
        }
        match self.nodes[i].link {
            Link::Away { until_ns } if now_ns >= until_ns => self.dial(i),
            Link::Away { .. } => {}
            Link::On(wire) => self.on_wire(i, wire),
        }
    }

    fn dial(&mut self, i: usize) {
        let now_ns = self.node_now(i);
        let open = self.now_ns >= self.cut_up_ns[i].max(self.cut_down_ns[i]) && self.hub.is_listening();
        if open {
            self.wires.push(Wire::new(i));
            let wire = self.wires.len() - 1;
            self.nodes[i].connected(wire, now_ns);
            self.on_wire(i, wire);
        } else {
            // Refused at once, or no answer.
            let waited = if self.hub.is_listening() { DIAL_NS } else { 0 };
            self.nodes[i].stay_away(now_ns + waited);
        }
    }

    fn on_wire(&mut self, i: usize, at: usize) {
        let now_ns = self.node_now(i);
        let hears = self.now_ns >= self.cut_down_ns[i];
        while hears && let Some(bytes) = self.wires[at].down.take(self.now_ns) {
            self.nodes[i].hear(&bytes, now_ns);
        }
        let is_told = hears && self.wires[at].told_ns.is_some_and(|told| self.now_ns >= told);
        if is_told || self.nodes[i].uplink.is_stuck(now_ns) {
            self.hang_up(at, true);
            return self.nodes[i].lose_link(now_ns);
        }
        while let Some(bytes) = self.nodes[i].uplink.poll_send(now_ns) {
            let World {
                wires,
                weather,
                chance,
                now_ns,
                ..
            } = self;
            // Messages to a lost machine are lost.
            if wires[at].there {
                wires[at].up.put(bytes, *now_ns, weather, chance);
            }
        }
    }

    /// The node's end closes. `drains`: its kernel may still send buffered data.
    pub fn hang_up(&mut self, at: usize, drains: bool) {
        let drains = drains && self.chance.hits(500_000);
        let wire = &mut self.wires[at];
        wire.here = false;
        wire.down.lose_all();
        if !drains {
            wire.up.lose_all();
        }
    }
}
