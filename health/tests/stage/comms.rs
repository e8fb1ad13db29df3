//! Communicators of a script: who is in which, and what they took.

use std::collections::BTreeMap;

use datadriven::TestCase;
use paceline_health::event::{Comm, Group};
use paceline_health::id::Rank;

use super::hand::take;

/// Members by communicator.
#[derive(Default)]
pub struct Groups(BTreeMap<u64, Vec<u32>>);

impl Groups {
    /// `group comm=7 ranks=(0,1) [name=dp]`
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

    /// What the communicators named in the script took in a step, each line `comm=7 transfer=5 [bytes=1000]`: who is
    /// late makes the others wait for it. Transfers vary by 4 % in a way that repeats.
    pub fn meet(&self, case: &TestCase, step: u64, selfs: &[Option<f64>]) -> Result<Vec<Comm>, String> {
        let mut met = Vec::new();
        for line in case.input.lines() {
            let (mut comm, mut transfer, mut bytes) = (None, 5.0, 1 << 20);
            for word in line.split_whitespace() {
                let bad = || format!("{word}: comm=, transfer= or bytes= is needed");
                let (key, value) = word.split_once('=').ok_or_else(bad)?;
                match key {
                    "comm" => comm = Some(value.parse::<u64>().map_err(|_| bad())?),
                    "transfer" => transfer = value.parse::<f64>().map_err(|_| bad())?,
                    "bytes" => bytes = value.parse::<u64>().map_err(|_| bad())?,
                    _ => return Err(bad()),
                }
            }
            let comm = comm.ok_or("comm= is missing")?;
            let members = self.0.get(&comm).ok_or("a communicator that nobody made")?;
            let own = |rank: &u32| selfs.get(*rank as usize).copied().flatten();
            let last = members.iter().filter_map(own).fold(0.0, f64::max);
            let phase = (step.wrapping_mul(53) + 17 * comm) % 101;
            let took = transfer * (1.0 + 0.08 * (phase as f64 / 100.0 - 0.5));
            met.extend(members.iter().filter_map(|rank| {
                Some(Comm {
                    rank: Rank(*rank),
                    restart: 0,
                    step,
                    comm,
                    collectives: 1,
                    bytes,
                    dur_ns: ((took + last - own(rank)?) * 1e6).round() as u64,
                    exposed_ns: None,
                    unfit: 0,
                    gpu: false,
                })
            }));
        }
        Ok(met)
    }
}
