//! Communicators of a script: their members and times.

use std::collections::BTreeMap;

use datadriven::TestCase;
use paceline_health::event::{ALL_GATHER, Collective, Collectives, Comm, FunctionSum, Group, REDUCE_SCATTER};
use paceline_health::id::Rank;

use super::script::take;

/// The members of each communicator.
#[derive(Default)]
pub struct Groups(BTreeMap<u64, Vec<u32>>);

impl Groups {
    /// Handles the command `group comm=7 ranks=(0,1) [name=dp]`
    pub fn make(&mut self, case: &mut TestCase) -> Result<Vec<Group>, String> {
        let comm: u64 = take(case, "comm")?.ok_or("comm= is missing")?;
        let name: String = take(case, "name")?.unwrap_or_default();
        let ranks: Vec<u32> = case.take_args("ranks").map_err(|error| error.to_string())?;
        let of = |rank: &u32| Group {
            rank: Rank(*rank),
            restart: 0,
            comm,
            size: ranks.len() as u32,
            name: name.as_str().into(),
        };
        let members = ranks.iter().map(of).collect();
        self.0.insert(comm, ranks);
        Ok(members)
    }

    /// Reads the communicators' times in a step, one communicator per line: `comm=7 transfer=5 [bytes=1000]`. Members
    /// wait for late ones. Transfers vary by 4 % in a repeating pattern. With `gpu=4`, there are 4 collectives, which
    /// are timed by the GPU and reported one by one on request, unless `alone=no`. With `beside=fsdp`, they overlap
    /// with compute, and there are two all-gathers for each reduce-scatter. `beside=older` is the same, but only their
    /// sum is reported.
    pub fn meet(
        &self,
        case: &TestCase,
        step: u64,
        work: &Work<'_>,
        asked: &[u64],
    ) -> Result<Vec<Did>, String> {
        let mut met = Vec::new();
        for line in case.input.lines() {
            let line: Line = line.parse()?;
            let members = self.0.get(&line.comm).ok_or("a communicator that nobody made")?;
            let phase = (step.wrapping_mul(53) + 17 * line.comm) % 101;
            let took = line.transfer * (1.0 + 0.08 * (phase as f64 / 100.0 - 0.5));
            let is_asked = line.is_told_alone && asked.contains(&line.comm);
            let times = work.times(members, line.gpu.max(1) as usize, took);
            for (rank, each_ms) in times {
                let each_ns: Vec<u64> = each_ms.iter().map(|ms| (ms * 1e6).round() as u64).collect();
                met.extend(is_asked.then(|| Did::Each(line.each(rank, step, &each_ns))));
                met.push(Did::Sum(line.sum(rank, step, &each_ns)));
            }
        }
        Ok(met)
    }
}

/// A rank's report on a communicator.
pub enum Did {
    Sum(Comm),
    Each(Collectives),
}

/// Work of the ranks in a step, in milliseconds, and the collective before which their excess work happens. By default,
/// this is the first collective.
pub struct Work<'a> {
    pub own: &'a [Option<f64>],
    pub turns: &'a [usize],
}

impl Work<'_> {
    fn turn(&self, rank: u32) -> usize {
        self.turns.get(rank as usize).copied().unwrap_or(0)
    }

    fn excess(&self, members: &[u32]) -> Vec<(u32, f64)> {
        let own = |rank: &u32| Some((*rank, self.own.get(*rank as usize).copied().flatten()?));
        let all: Vec<(u32, f64)> = members.iter().filter_map(own).collect();
        let least = all.iter().map(|(_, own)| *own).fold(f64::INFINITY, f64::min);
        all.into_iter().map(|(rank, own)| (rank, own - least)).collect()
    }

    /// Returns the delay of the collective with the number `turn`, counted from 0.
    fn late(&self, excess: &[(u32, f64)], turn: usize) -> f64 {
        let of_turn = excess.iter().filter(|(rank, _)| self.turn(*rank) == turn);
        of_turn.map(|(_, excess)| *excess).fold(0.0, f64::max)
    }

    /// Returns the duration of the step for all ranks, which wait for each other.
    pub fn together(&self) -> f64 {
        let members: Vec<u32> = (0..self.own.len() as u32).collect();
        let excess = self.excess(&members);
        let least = self.own.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let turns = self.turns.iter().copied().max().unwrap_or(0);
        let late: f64 = (0..=turns).map(|turn| self.late(&excess, turn)).sum();
        if least.is_finite() { least + late } else { 0.0 }
    }

    /// Returns the time of each member in each collective.
    fn times(&self, members: &[u32], collectives: usize, transfer: f64) -> Vec<(u32, Vec<f64>)> {
        let excess = self.excess(members);
        let late: Vec<f64> = (0..collectives).map(|turn| self.late(&excess, turn)).collect();
        let of = |(rank, excess): &(u32, f64)| {
            let own = |turn: usize| if self.turn(*rank) == turn { *excess } else { 0.0 };
            let each = (0..collectives).map(|turn| transfer / collectives as f64 + late[turn] - own(turn));
            (*rank, each.collect())
        };
        excess.iter().map(of).collect()
    }
}

/// One line of a script.
struct Line {
    comm: u64,
    transfer: f64,
    bytes: u64,
    /// Number of collectives timed by the GPU. 0 if they are timed by the host.
    gpu: u32,
    is_told_alone: bool,
    /// If present, the collectives overlap with compute. They are reported by function if true, and as by older
    /// sidecars if false.
    beside: Option<bool>,
}

impl std::str::FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Line, String> {
        let mut comm = None;
        let mut line = Line {
            comm: 0,
            transfer: 5.0,
            bytes: 1 << 20,
            gpu: 0,
            is_told_alone: true,
            beside: None,
        };
        for word in text.split_whitespace() {
            let bad = || {
                format!("{word}: comm=, transfer=, bytes=, gpu=, alone=no or beside=fsdp or older is needed")
            };
            let (key, value) = word.split_once('=').ok_or_else(bad)?;
            match key {
                "comm" => comm = Some(value.parse().map_err(|_| bad())?),
                "transfer" => line.transfer = value.parse().map_err(|_| bad())?,
                "bytes" => line.bytes = value.parse().map_err(|_| bad())?,
                "gpu" => line.gpu = value.parse().map_err(|_| bad())?,
                "alone" if value == "no" => line.is_told_alone = false,
                "beside" if value == "fsdp" => line.beside = Some(true),
                "beside" if value == "older" => line.beside = Some(false),
                _ => return Err(bad()),
            }
        }
        line.comm = comm.ok_or("comm= is missing")?;
        Ok(line)
    }
}

impl Line {
    fn sum(&self, rank: u32, step: u64, each_ns: &[u64]) -> Comm {
        let dur_ns = each_ns.iter().sum();
        Comm {
            rank: Rank(rank),
            restart: 0,
            step,
            comm: self.comm,
            collectives: self.gpu.max(1),
            bytes: self.bytes,
            dur_ns,
            exposed_ns: (self.gpu > 0 && self.beside.is_none()).then_some(dur_ns),
            unfit: 0,
            gpu: self.gpu > 0,
            functions: match self.beside {
                Some(true) => functions(each_ns),
                _ => Vec::new(),
            },
        }
    }

    fn each(&self, rank: u32, step: u64, each_ns: &[u64]) -> Collectives {
        let count = each_ns.len() as u64;
        let one = |(place, dur_ns): (u64, &u64)| Collective {
            function: 1,
            sequence: step * count + place,
            bytes: self.bytes / count,
            dur_ns: *dur_ns,
        };
        Collectives {
            rank: Rank(rank),
            restart: 0,
            step,
            comm: self.comm,
            each: (0..).zip(each_ns).map(one).collect(),
            left_out: 0,
        }
    }
}

/// Returns sums by function, for collectives that begin a millisecond apart.
fn functions(each_ns: &[u64]) -> Vec<FunctionSum> {
    let mut of: BTreeMap<u8, Vec<(u64, u64)>> = BTreeMap::new();
    let mut begin_ns = 0;
    for (place, dur_ns) in each_ns.iter().enumerate() {
        let function = if place % 3 == 2 {
            REDUCE_SCATTER
        } else {
            ALL_GATHER
        };
        of.entry(function).or_default().push((begin_ns, *dur_ns));
        begin_ns += dur_ns + 1_000_000;
    }
    of.into_iter()
        .map(|(function, each)| FunctionSum::of(function, &each))
        .collect()
}
