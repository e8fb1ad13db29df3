//! Failures in a schedule: some kinds of all, each with a random frequency.

use super::chance::Chance;
use super::node::Link;
use super::wire::MS;
use super::world::World;

/// All kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection is reset.
    Reset,
    /// The aggregator's end of a connection vanishes without notice.
    HalfOpen,
    /// A node is disconnected, in one direction or both.
    Partition,
    /// The same for every second node.
    PartitionOfHalf,
    /// A sidecar is stopped for a while, and reads nothing.
    SidecarStops,
    SidecarDies,
    /// A node loses power and comes back.
    NodeDies,
    /// The aggregator reads nothing for a while.
    AggregatorStalls,
    AggregatorDies,
    /// The aggregator's machine loses power: unsynced data is lost, and peers get no notice.
    AggregatorLosesPower,
    /// Another machine takes over, without the journal.
    AggregatorMoves,
    DiskFull,
    /// Partial writes cannot be truncated.
    DiskKeepsHalves,
    /// A node's wall clock is stepped by up to an hour.
    ClockStep,
    /// A node returns with another address.
    NewAddress,
    /// A burst of telemetry.
    Burst,
    /// The aggregator dies, and its journal has a damaged byte when it is read again.
    Damage,
}

const KINDS: [Kind; 16] = [
    Kind::Reset,
    Kind::HalfOpen,
    Kind::Partition,
    Kind::PartitionOfHalf,
    Kind::SidecarStops,
    Kind::SidecarDies,
    Kind::NodeDies,
    Kind::AggregatorStalls,
    Kind::AggregatorDies,
    Kind::AggregatorLosesPower,
    Kind::AggregatorMoves,
    Kind::DiskFull,
    Kind::DiskKeepsHalves,
    Kind::ClockStep,
    Kind::NewAddress,
    Kind::Burst,
];

/// Drawn separately, so that older seeds keep their schedules.
const LATER_KINDS: [Kind; 1] = [Kind::Damage];

/// Failures in this schedule, and their frequency, in millionths per tick.
#[derive(Clone, Debug)]
pub struct Trouble(pub Vec<(Kind, u64)>);

impl Trouble {
    pub fn draw(chance: &mut Chance, later: &mut Chance) -> Trouble {
        let count = chance.between(0, 5);
        let draw = |chance: &mut Chance| (chance.pick(&KINDS), chance.pick(&[1_000, 5_000, 20_000]));
        let mut kinds: Vec<(Kind, u64)> = (0..count).map(|_| draw(chance)).collect();
        for kind in LATER_KINDS {
            if later.hits(100_000) {
                kinds.push((kind, later.pick(&[1_000, 5_000])));
            }
        }
        Trouble(kinds)
    }

    pub fn has(&self, kind: Kind) -> bool {
        self.0.iter().any(|(own, _)| *own == kind)
    }

    /// The failures of one tick.
    pub fn strike(world: &mut World) {
        for (kind, millionths) in world.trouble.0.clone() {
            if world.chance.hits(millionths) {
                let node = world.chance.below(world.nodes.len());
                strike(world, kind, node);
            }
        }
        for node in 0..world.nodes.len() {
            let now_ns = world.node_now(node);
            let fails = !world.nodes[node].faulted && world.chance.hits(1_000);
            if fails && world.nodes[node].can_speak(now_ns) {
                world.nodes[node].fault(now_ns);
            }
        }
    }
}

fn strike(world: &mut World, kind: Kind, node: usize) {
    let now_ns = world.now_ns;
    let while_ns = world.chance.between(20, 6_000) * MS;
    let on = match world.nodes[node].link {
        Link::On(wire) => Some(wire),
        Link::Away { .. } => None,
    };
    match kind {
        Kind::Reset => on.into_iter().for_each(|wire| world.cut(wire)),
        Kind::NewAddress => {
            // The old connection is not closed: its address is gone.
            if let Some(wire) = on {
                world.hang_up(wire, false);
                let now_ns = world.node_now(node);
                world.nodes[node].lose_link(now_ns);
            }
        }
        Kind::HalfOpen => on.into_iter().for_each(|wire| world.wires[wire].there = false),
        Kind::Partition => partition(world, node, now_ns + while_ns),
        Kind::PartitionOfHalf => (0..world.nodes.len())
            .step_by(2)
            .for_each(|node| partition(world, node, now_ns + while_ns)),
        Kind::SidecarStops => world.nodes[node].stopped_until_ns = world.node_now(node) + while_ns,
        Kind::SidecarDies => die(world, node, on, true, while_ns),
        Kind::NodeDies => die(world, node, on, false, while_ns),
        Kind::AggregatorStalls => world.hub.stalled_until_ns = now_ns + while_ns,
        Kind::AggregatorDies => {
            world.hub.kill(now_ns + while_ns);
            world.hub_closes(true);
        }
        Kind::AggregatorLosesPower => {
            let World { hub, chance, .. } = world;
            hub.cut_power(now_ns, now_ns + while_ns, chance);
            world.hub_closes(false);
        }
        Kind::Damage => {
            world.hub.kill(now_ns + while_ns);
            world.hub_closes(true);
            let World { hub, chance, .. } = world;
            hub.damage(chance);
        }
        Kind::AggregatorMoves => {
            world.hub.move_away(now_ns + while_ns);
            world.hub_closes(false);
        }
        Kind::DiskFull | Kind::DiskKeepsHalves => {
            let room = world.chance.below(2_000);
            world.fill_disk(room, kind == Kind::DiskKeepsHalves, now_ns + while_ns);
        }
        Kind::ClockStep => {
            let by_ns = world.chance.between(0, 3_600_000) * MS;
            let wall_ns = &mut world.wall_ns[node];
            *wall_ns = if while_ns.is_multiple_of(2) {
                *wall_ns + by_ns
            } else {
                *wall_ns - by_ns
            };
        }
        Kind::Burst => {
            let (count, now_ns) = (world.chance.between(10, 3_000), world.node_now(node));
            if world.nodes[node].can_speak(now_ns) {
                world.nodes[node].burst(count, now_ns);
            }
        }
    }
}

fn partition(world: &mut World, node: usize, until_ns: u64) {
    let ways = world.chance.between(1, 3);
    if ways & 1 != 0 {
        world.cut_up_ns[node] = until_ns;
    }
    if ways & 2 != 0 {
        world.cut_down_ns[node] = until_ns;
    }
}

fn die(world: &mut World, node: usize, on: Option<usize>, drains: bool, while_ns: u64) {
    if let Some(wire) = on {
        world.hang_up(wire, drains);
    }
    let until_ns = world.now_ns + while_ns;
    let node = &mut world.nodes[node];
    node.uplink.broken();
    node.link = Link::Away { until_ns: u64::MAX };
    node.dead_until_ns = Some(until_ns);
}
