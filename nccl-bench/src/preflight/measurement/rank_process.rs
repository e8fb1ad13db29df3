//! One NCCL rank in a separate process. If NCCL or a driver hangs, the hang ends with the process and cannot affect the
//! process that starts the job. The rank receives orders on standard input, and reports progress and results on
//! standard output.

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use paceline_seal::Key;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::all_reduce::{Busbw, Effort, all_reduce};
use crate::net::{Meeting, meet, sealed};
use crate::preflight::message::DATA;
use crate::preflight::transport_choice::Team;
use crate::transport::nccl::id::{hex, unhex};
use crate::transport::nccl::{Id, NcclTransport, Options, ids};
use crate::transport::tcp::{Tcp, TcpOptions};
use crate::transport::{Deadline, Transport, TransportError};

/// Orders to a rank, one per line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Sent to the first rank. It must open a listener and create ids for the communicators.
    Open {
        nccl_lib: Option<PathBuf>,
        /// The address to listen on, with any port.
        listen: IpAddr,
        ids: usize,
        limit: Duration,
    },
    /// Sent to all ranks. They must join and measure.
    Go(Box<Go>),
}

/// The parameters of [`Order::Go`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Go {
    pub(super) rank: usize,
    pub(super) team: Team,
    /// The address of the first rank.
    pub(super) master: SocketAddr,
    pub(super) group: u64,
    /// The job's key, in hexadecimal.
    pub(super) key: String,
    /// Id of the communicator of all ranks, followed by the ids of each rail.
    pub(super) ids: Vec<Id>,
    pub(super) nccl_lib: Option<PathBuf>,
    pub(super) cuda_lib: Option<PathBuf>,
    pub(super) effort: Effort,
    pub(super) phase: String,
    pub(super) limit: Duration,
}

/// Messages of a rank, one per line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// The first rank's port, and the ids that it created.
    Opened { port: u16, ids: Vec<Id> },
    /// The stage that the rank starts.
    At(Stage),
    /// The final result. Only ranks that report results include them.
    Done(Result<Vec<Busbw>, Broke>),
}

/// The stage that a rank has reached. Among ranks that wait for each other, the one that is behind is the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Stage {
    /// The rank's process was started.
    Start,
    /// The rank connects to the other ranks.
    Meet,
    /// The rank opens its GPU.
    Open,
    /// The rank joins NCCL's communicator.
    Join,
    /// The rank measures over all ranks.
    Measure,
    /// The rank measures over a rail.
    Rail,
}

impl Stage {
    pub(super) fn words(self) -> &'static str {
        match self {
            Stage::Start => "starting",
            Stage::Meet => "finding the other ranks",
            Stage::Open => "opening its GPU",
            Stage::Join => "joining NCCL's communicator",
            Stage::Measure => "the all-reduce",
            Stage::Rail => "the all-reduce of its rail",
        }
    }
}

/// Why a rank failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Broke {
    pub(super) what: String,
    /// The rank at fault.
    pub(super) peer: Option<usize>,
}

/// Runs the process.
pub fn main() -> ExitCode {
    // If this call fails, the rank still ends at its deadline.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let mut listener = None;
    for line in io::stdin().lock().lines() {
        let order = line.ok().and_then(|line| serde_json::from_str(&line).ok());
        let said = match order {
            Some(Order::Open {
                nccl_lib,
                listen,
                ids: count,
                limit,
            }) => {
                let deadline = Deadline::new("ids for NCCL", limit);
                let opened = TcpListener::bind((listen, 0))
                    .and_then(|bound| Ok((bound.local_addr()?.port(), bound)))
                    .map_err(|error| deadline.local("listening", error));
                let opened = opened.and_then(|(port, bound)| {
                    listener = Some(bound);
                    let ids = ids(nccl_lib.as_deref(), count, &deadline)?;
                    Ok(Word::Opened { port, ids })
                });
                opened.unwrap_or_else(|error| Word::Done(Err(broke(&error))))
            }
            Some(Order::Go(go)) => {
                let done = measure(&go, listener.take());
                // If a result was already reported, the reader ignores this one.
                say(&Word::Done(done.map_err(|error| broke(&error))));
                return ExitCode::SUCCESS;
            }
            None => return ExitCode::FAILURE,
        };
        say(&said);
    }
    ExitCode::SUCCESS
}

fn say(word: &Word) {
    let line = serde_json::to_string(word).unwrap_or_default() + "\n";
    let mut out = io::stdout().lock();
    // A reader that has closed the pipe kills this process anyway.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

fn broke(error: &TransportError) -> Broke {
    Broke {
        what: error.to_string(),
        peer: error.peer(),
    }
}

fn measure(go: &Go, listener: Option<TcpListener>) -> Result<Vec<Busbw>, TransportError> {
    let deadline = Deadline::new(go.phase.as_str(), go.limit);
    let ranks = go.team.ranks();
    let wrong = |what: &str| TransportError::Unsupported {
        transport: "nccl",
        what: what.to_owned(),
    };
    let (_, gpu) = go
        .team
        .place_of(go.rank)
        .ok_or_else(|| wrong("a rank that no node has"))?;
    let key = unhex(&go.key)
        .map(Key::from_bytes)
        .ok_or_else(|| wrong("an invalid key"))?;
    let (id, rail_ids) = go
        .ids
        .split_first()
        .ok_or_else(|| wrong("a communicator without an id"))?;
    say(&Word::At(Stage::Meet));
    let meeting = Meeting {
        rank: go.rank,
        ranks,
        master: go.master,
        listener,
        group: go.group,
        handshake: Some(sealed(key, DATA)),
    };
    // Use half of the time, so that a missing rank is detected while there is still time to report it.
    let soon = Deadline::new(go.phase.as_str(), go.limit / 2);
    let mut side = Tcp::join(meet(meeting, &soon)?, TcpOptions::default(), &soon)?;
    let options = Options {
        nccl_lib: go.nccl_lib.clone(),
        cuda_lib: go.cuda_lib.clone(),
        local_rank: gpu,
        share: false,
        id: Some(id.clone()),
    };
    say(&Word::At(Stage::Open));
    let opened = crate::transport::nccl::gpu(&options, &deadline);
    if opened.is_err() {
        side.abort();
    }
    let _held = opened?;
    say(&Word::At(Stage::Join));
    let mut nccl = NcclTransport::open(Box::new(side), &options, &deadline)?;
    // All ranks are connected. From here on they measure together.
    nccl.barrier(&deadline)?;
    say(&Word::At(Stage::Measure));
    let measured = over_all(&mut nccl, go, &deadline)
        .and_then(|busbw| Ok([busbw, over_rails(&mut nccl, go, rail_ids, gpu, &deadline)?].concat()));
    // Report before the cleanup, which may take a while. Other ranks should notice the abort only after its reason was
    // reported.
    let told = measured.as_ref().map_err(broke).cloned();
    say(&Word::Done(told));
    if measured.is_err() {
        nccl.abort();
    }
    measured
}

fn over_all(nccl: &mut NcclTransport, go: &Go, deadline: &Deadline) -> Result<Vec<Busbw>, TransportError> {
    let gathered = all_reduce(nccl, go.team.ranks(), go.effort, deadline)?;
    Ok(gathered.iter().map(|gathered| gathered.of_all()).collect())
}

/// Measures all rails at the same time, as in training. Each rank measures with the ranks of the same GPU on other
/// nodes.
fn over_rails(
    nccl: &mut NcclTransport,
    go: &Go,
    ids: &[Id],
    gpu: u32,
    deadline: &Deadline,
) -> Result<Vec<Busbw>, TransportError> {
    let Some(rails) = go.team.rails() else {
        return Ok(Vec::new());
    };
    let Some(id) = ids.get(gpu as usize) else {
        return Ok(Vec::new());
    };
    say(&Word::At(Stage::Rail));
    let nodes = go.team.gpus.len();
    nccl.regroup(id, (go.rank / rails as usize, nodes), deadline)?;
    let Some(gathered) = all_reduce(nccl, nodes, go.effort, deadline)? else {
        return Ok(Vec::new());
    };
    let of_rail = |rail: u32| gathered.busbw(|rank| rank % rails as usize == rail as usize, Some(rail));
    Ok((0..rails).map(of_rail).collect())
}

/// Returns the key in the format of an order.
pub(super) fn key_text(key: &Key) -> String {
    hex(key.bytes())
}
