//! Collectives over TCP, for hosts without GPUs and for the host network of those with GPUs.
//!
//! `schedule` defines the sends and receives of a rank, `engine` runs them, and `sum` adds elements. A link is opened
//! when a schedule first needs it.

mod engine;
pub mod schedule;
pub mod sum;

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use engine::{Buffers, Engine, Patience};
use schedule::{Algorithm, Schedule, choose, input, result, schedule, space};

use crate::collective::Plan;
use crate::measure::{RankPlace, RankTimes};
use crate::net::{Control, Purpose, Seat, Wire};
use crate::pattern;
use crate::transport::{About, Deadline, Transport, TransportError};

/// Size limit, in bytes, up to which a waiting rank keeps polling even if others need its core.
const SMALL: u64 = 1 << 20;
/// Polling time before sleeping. Waking up takes about a tenth of this time.
const AWAKE: Duration = Duration::from_micros(500);

/// Options.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpOptions {
    /// Algorithm to use instead of the fastest one.
    pub algorithm: Option<Algorithm>,
}

/// One rank of the transport.
pub struct Tcp {
    options: TcpOptions,
    seat: Seat,
    control: Control,
    /// True if this host has more ranks than cores.
    is_crowded: bool,
    links: BTreeMap<usize, Wire>,
    ready: Option<Ready>,
}

/// The prepared plan.
struct Ready {
    plan: Plan,
    schedule: Schedule,
    buffers: Buffers,
}

impl Tcp {
    /// Joins the group that `seat` belongs to.
    pub fn join(mut seat: Seat, options: TcpOptions, deadline: &Deadline) -> Result<Tcp, TransportError> {
        let mut control = Control::open(&mut seat, deadline)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Tcp {
            options,
            is_crowded: control.ranks_here(deadline)? > cores,
            seat,
            control,
            links: BTreeMap::new(),
            ready: None,
        })
    }

    fn try_prepare(&mut self, plan: &Plan, deadline: &Deadline) -> Result<(), TransportError> {
        let algorithm = self.options.algorithm.unwrap_or_else(|| choose(plan));
        let rank = self.seat.rank;
        let schedule = schedule(plan, rank, algorithm);
        for peer in schedule.peers() {
            if !self.links.contains_key(&peer) {
                self.links
                    .insert(peer, self.seat.connect(peer, Purpose::Data(0), deadline)?);
            }
        }
        let buffers = Buffers {
            dtype: Some(plan.dtype),
            input: (!plan.in_place).then(|| vec![0; plan.send_elements() * plan.dtype.size()]),
            input_at: input(plan, rank).at,
            output: vec![0; space(plan)],
        };
        let ready = self.ready.insert(Ready {
            plan: *plan,
            schedule,
            buffers,
        });
        ready.fill(rank);
        Ok(())
    }

    /// Checks that all ranks have the same plan, because bytes would be misinterpreted otherwise.
    fn compare(&mut self, plan: &Plan, deadline: &Deadline) -> Result<(), TransportError> {
        let mine = format!("{plan:?} {:?}", self.options.algorithm);
        let Some(all) = self.control.collect(mine.clone().into_bytes(), deadline)? else {
            return self.control.share(Vec::new(), deadline).map(|_| ());
        };
        match all.iter().position(|other| other != mine.as_bytes()) {
            None => self.control.share(Vec::new(), deadline).map(|_| ()),
            Some(peer) => Err(TransportError::Garbage {
                phase: deadline.phase().to_owned(),
                peer,
                what: format!(
                    "another plan: {}, not {mine}",
                    String::from_utf8_lossy(&all[peer])
                ),
            }),
        }
    }

    /// Runs the prepared plan once.
    fn once(&mut self, deadline: &Deadline) -> Result<Vec<Duration>, TransportError> {
        self.repeat(1, deadline)
    }

    fn repeat(&mut self, iterations: u32, deadline: &Deadline) -> Result<Vec<Duration>, TransportError> {
        let is_crowded = self.is_crowded;
        let Some(ready) = &mut self.ready else {
            return Err(TransportError::Unsupported {
                transport: "tcp",
                what: "a run before it is prepared".into(),
            });
        };
        let patience = patience(&ready.plan, is_crowded);
        let mut engine = Engine::new(&ready.schedule, &mut ready.buffers, self.links.values());
        let mut times = Vec::with_capacity(iterations as usize);
        for _ in 0..iterations {
            let began = Instant::now();
            engine.run(patience, deadline)?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    /// Closes the links, so that peers notice the failure, and determines which rank failed first.
    fn fail(&mut self, error: TransportError, deadline: &Deadline) -> TransportError {
        self.close();
        self.control.settle(error, deadline)
    }

    fn close(&mut self) {
        for link in self.links.values() {
            // The link may be closed already.
            let _ = link.stream().shutdown(Shutdown::Both);
        }
        self.ready = None;
    }
}

impl Ready {
    fn fill(&mut self, rank: usize) {
        let own = pattern::input(&self.plan, rank);
        match &mut self.buffers.input {
            Some(input) => *input = own,
            None => {
                let at = input(&self.plan, rank).at;
                self.buffers.output[at..at + own.len()].copy_from_slice(&own);
            }
        }
    }
}

impl Transport for Tcp {
    fn about(&self) -> About {
        let mut details = BTreeMap::new();
        if let Some(algorithm) = self.options.algorithm {
            details.insert("algorithm".to_owned(), format!("{algorithm:?}").to_lowercase());
        }
        About {
            transport: "tcp".to_owned(),
            simulated: false,
            details,
        }
    }

    fn rank(&self) -> usize {
        self.seat.rank
    }

    fn ranks(&self) -> usize {
        self.seat.ranks
    }

    fn prepare(&mut self, plan: &Plan, deadline: &Deadline) -> Result<(), TransportError> {
        self.ready = None;
        self.compare(plan, deadline)
            .and_then(|()| self.try_prepare(plan, deadline))
            .map_err(|error| self.fail(error, deadline))
    }

    fn run(&mut self, iterations: u32, deadline: &Deadline) -> Result<Vec<Duration>, TransportError> {
        self.repeat(iterations, deadline)
            .map_err(|error| self.fail(error, deadline))
    }

    fn verify(&mut self, deadline: &Deadline) -> Result<u64, TransportError> {
        let rank = self.seat.rank;
        if let Some(ready) = &mut self.ready {
            ready.buffers.output.fill(0xA5); // The output of an earlier run must not look correct.
            ready.fill(rank);
        }
        self.once(deadline).map_err(|error| self.fail(error, deadline))?;
        let wrong = |ready: &Ready| {
            let output = &ready.buffers.output[result(&ready.plan, rank).range()];
            pattern::wrong(&ready.plan, rank, output)
        };
        Ok(self.ready.as_ref().map_or(0, wrong))
    }

    fn agree(&mut self, value: u64, deadline: &Deadline) -> Result<u64, TransportError> {
        self.control.agree(value, deadline).inspect_err(|_| self.close())
    }

    fn gather(
        &mut self,
        mine: RankTimes,
        deadline: &Deadline,
    ) -> Result<Option<Vec<RankTimes>>, TransportError> {
        self.control
            .gather_json(&mine, deadline)
            .inspect_err(|_| self.close())
    }

    fn places(
        &mut self,
        mine: RankPlace,
        deadline: &Deadline,
    ) -> Result<Option<Vec<RankPlace>>, TransportError> {
        self.control
            .gather_json(&mine, deadline)
            .inspect_err(|_| self.close())
    }

    fn abort(&mut self) {
        // Send the reason first, so that peers see more than the end of the connection.
        self.control.abort("it was ordered to stop");
        self.close();
    }
}

/// Returns how to wait for data. A small transfer ends before a sleeping rank would wake up, so ranks keep polling. In
/// a large one, a rank sleeps to leave the core to other ranks, if there are any (docs/measurements/allreduce.md has
/// the figures).
fn patience(plan: &Plan, is_crowded: bool) -> Patience {
    let sleeps = is_crowded && plan.bytes() > SMALL;
    Patience {
        awake: if sleeps { Duration::ZERO } else { AWAKE },
    }
}
