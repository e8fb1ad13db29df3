//! Communicators: their members, and the time of a rank in each during a step, including waits.

use super::timeline::{Own, Roads, SHARDS, Timeline};
use crate::event::{Collective, Collectives, Comm, Group, Want};
use crate::id::Rank;
use crate::sim::chance::Chance;
use crate::sim::spec::layout::Layout;

/// Number of buckets in which gradients are reduced.
const BUCKETS: u32 = 8;
/// Size of the gradients of the whole model, and of the activations of a micro-batch, in bytes.
const GRADIENTS: u64 = 4 << 30;
const ACTIVATIONS: u64 = 32 << 20;

/// The purpose of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Tensor,
    Context,
    Expert,
    Pipeline,
    World,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Data,
        Kind::Tensor,
        Kind::Context,
        Kind::Expert,
        Kind::Pipeline,
        Kind::World,
    ];

    fn name(self) -> &'static str {
        match self {
            Kind::Data => "dp",
            Kind::Tensor => "tp",
            Kind::Context => "cp",
            Kind::Expert => "ep",
            Kind::Pipeline => "pp",
            Kind::World => "world",
        }
    }

    /// Returns the number and size of a rank's communicator of this kind.
    fn of(self, layout: &Layout, rank: u32) -> (u32, u32) {
        let (stage, block) = (layout.stage(), layout.block());
        match self {
            Kind::Data => (rank / stage * layout.tp + rank % layout.tp, layout.dp * layout.cp),
            Kind::Tensor => (rank / layout.tp, layout.tp),
            Kind::Context => (rank / block * layout.tp + rank % layout.tp, layout.cp),
            Kind::Expert => (rank / layout.cell() * block + rank % block, layout.ep),
            Kind::Pipeline => (rank % stage, layout.pp),
            // If the data-parallel group is the whole world, no separate communicator is created for the world.
            Kind::World if layout.tp * layout.pp == 1 => (0, 1),
            Kind::World => (0, stage * layout.pp),
        }
    }

    fn id(self, number: u32) -> u64 {
        Chance::of(0x636f_6d6d, &[self as u64, u64::from(number)]).bits()
    }
}

/// Returns the communicators of a rank.
pub(crate) fn groups(layout: &Layout, rank: u32, restart: u32) -> Vec<Group> {
    let group = |kind: &Kind| {
        let (number, size) = kind.of(layout, rank);
        (size > 1).then(|| Group {
            rank: Rank(rank),
            restart,
            comm: kind.id(number),
            size,
            name: kind.name().into(),
        })
    };
    Kind::ALL.iter().filter_map(group).collect()
}

/// A simulated step.
pub(crate) struct Ran<'a> {
    pub layout: &'a Layout,
    pub timeline: &'a Timeline,
    pub own: &'a [Own],
    pub roads: &'a Roads,
    pub sharded: bool,
    pub by_gpu: bool,
    /// Share of each micro-batch, for one replica after another.
    pub shares: &'a [f64],
    pub meet_s: f64,
}

impl Ran<'_> {
    /// Returns a rank's sums by communicator.
    pub fn comms(&self, rank: u32, restart: u32, step: u64) -> impl Iterator<Item = Comm> + '_ {
        Kind::ALL.iter().filter_map(move |kind| {
            let (number, size) = kind.of(self.layout, rank);
            let (seconds, collectives, bytes) = self.spent(*kind, rank);
            if size > 1 && *kind == Kind::Data && self.timeline.beside_layers > 0 {
                return Some(self.beside(rank, restart, step, kind.id(number)));
            }
            let dur_ns = (seconds.max(0.0) * 1e9).round() as u64;
            let are_messages = self.by_gpu && *kind == Kind::Pipeline;
            (size > 1).then(|| Comm {
                rank: Rank(rank),
                restart,
                step,
                comm: kind.id(number),
                collectives,
                bytes,
                dur_ns,
                exposed_ns: self.by_gpu.then_some(dur_ns),
                unfit: collectives * u32::from(are_messages),
                gpu: self.by_gpu,
                functions: Vec::new(),
            })
        })
    }

    /// Returns a rank's sums in the communicator of its replicas, if its collectives overlap with compute.
    fn beside(&self, rank: u32, restart: u32, step: u64, comm: u64) -> Comm {
        let (functions, dur_ns, collectives) = self.timeline.sums(self.timeline.cell_of(rank));
        let (_, _, bytes) = self.spent(Kind::Data, rank);
        Comm {
            rank: Rank(rank),
            restart,
            step,
            comm,
            collectives,
            bytes,
            dur_ns,
            exposed_ns: None,
            unfit: 0,
            gpu: true,
            functions,
        }
    }

    /// Returns the single exchanges of a rank's layers in a tensor-parallel group, if the group is requested. The first
    /// one of each micro-batch includes the wait, because the rank enters it after its work.
    pub fn alone(&self, rank: u32, restart: u32, step: u64, wants: &[Want]) -> Option<Collectives> {
        let layout = self.layout;
        let (number, size) = Kind::Tensor.of(layout, rank);
        let comm = Kind::Tensor.id(number);
        let is_this = |want: &Want| want.comm == comm && want.restart == restart && step <= want.until;
        let is_only = layout.cp * layout.ep == 1 && size > 1;
        if !self.by_gpu || !is_only || !wants.iter().any(is_this) {
            return None;
        }
        let cell = self.timeline.cell_of(rank);
        let (micro, layers) = (layout.micro as usize, 4 * SHARDS);
        let first = (rank - rank % size) as usize;
        let peers = &self.own[first..first + size as usize];
        let own = &self.own[rank as usize];
        let shares = cell % layout.pipelines() as usize * micro;
        let exchange = self.roads.exchange[cell] / (micro * layers) as f64;
        let began = own.lag + own.write + own.data;
        let mut each = Vec::with_capacity(micro * layers);
        for index in 0..micro {
            let work = |own: &Own| own.in_micro(index, self.shares[shares + index]);
            let late = peers.iter().map(work).fold(0.0, f64::max) - work(own);
            let begin = if index == 0 {
                self.timeline.begin[cell] - began
            } else {
                0.0
            };
            each.extend((0..layers).map(|layer| {
                let wait = if layer == 0 { late + begin } else { 0.0 };
                let place = (index * layers + layer) as u64;
                Collective {
                    function: 1,
                    sequence: step * (micro * layers) as u64 + place,
                    bytes: ACTIVATIONS,
                    dur_ns: ((exchange + wait).max(0.0) * 1e9).round() as u64,
                }
            }));
        }
        Some(Collectives {
            rank: Rank(rank),
            restart,
            step,
            comm,
            each,
            left_out: 0,
        })
    }

    /// Returns the seconds in a communicator, and the number of collectives and bytes. The seconds of all communicators
    /// of a rank add up to its wait.
    fn spent(&self, kind: Kind, rank: u32) -> (f64, u32, u64) {
        let (layout, line) = (self.layout, self.timeline);
        let (cell, group) = (line.cell_of(rank), line.group_of(rank));
        let micro = layout.micro;
        let model = GRADIENTS / u64::from(layout.tp * layout.pp);
        let bubble = line.end[cell] - line.begin[cell] - line.busy[cell];
        let layers = SHARDS as u32;
        match kind {
            Kind::Data if self.sharded => {
                let reduction = line.reduced[group] - line.end[cell];
                (bubble + reduction, 3 * layers, 3 * model)
            }
            Kind::Data => (line.reduced[group] - line.end[cell], BUCKETS, model),
            Kind::Tensor | Kind::Context | Kind::Expert => {
                let bytes = ACTIVATIONS * u64::from(4 * layers * micro);
                (self.inside(kind, rank, cell), 4 * layers * micro, bytes)
            }
            Kind::Pipeline => (bubble, 4 * micro, ACTIVATIONS * u64::from(2 * micro)),
            Kind::World => (self.meet_s - line.reduced[group], 1, 4),
        }
    }

    /// Returns the seconds in the exchanges of one axis inside the layers. Ranks synchronize on the tensor axis first.
    /// A cell's remaining wait is attributed to its outermost axis.
    fn inside(&self, kind: Kind, rank: u32, cell: usize) -> f64 {
        let layout = self.layout;
        let work = |own: &Own| own.compute + own.extra;
        let own = &self.own[rank as usize];
        let used = [layout.tp, layout.cp, layout.ep]
            .iter()
            .filter(|size| **size > 1)
            .count();
        let exchange = self.roads.exchange[cell] / used.max(1) as f64;
        let outermost = match (layout.ep > 1, layout.cp > 1) {
            (true, _) => Kind::Expert,
            (_, true) => Kind::Context,
            _ => Kind::Tensor,
        };
        let first = (rank - rank % layout.tp) as usize;
        let peers = &self.own[first..first + layout.tp as usize];
        let tensor = peers.iter().map(work).fold(0.0, f64::max) - work(own);
        let began = own.lag + own.write + own.data;
        let all = self.timeline.begin[cell] - began + self.timeline.busy[cell] - work(own);
        let rest = all - tensor - exchange * used as f64;
        let met = if kind == Kind::Tensor { tensor } else { 0.0 };
        met + exchange + if kind == outermost { rest } else { 0.0 }
    }
}
