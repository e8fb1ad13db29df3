//! One rank over NCCL, in a process of its own: what hangs in it, in NCCL or in a driver, ends with it, and nothing of it
//! is left in the process that starts the job. It is told what to do on its standard input, and says on its standard
//! output where it stands and what came of it.

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

/// What a rank is told, one a line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// To the first: be found, and make ids for the communicators.
    Open {
        nccl_lib: Option<PathBuf>,
        /// The address on which it listens, of any port.
        listen: IpAddr,
        ids: usize,
        limit: Duration,
    },
    /// To all: join and measure.
    Go(Box<Go>),
}

/// See [`Order::Go`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Go {
    pub(super) rank: usize,
    pub(super) team: Team,
    /// Where the first listens.
    pub(super) master: SocketAddr,
    pub(super) group: u64,
    /// The job's key, in hexadecimal digits.
    pub(super) key: String,
    /// Of all ranks; behind it, of each rail.
    pub(super) ids: Vec<Id>,
    pub(super) nccl_lib: Option<PathBuf>,
    pub(super) cuda_lib: Option<PathBuf>,
    pub(super) effort: Effort,
    pub(super) phase: String,
    pub(super) limit: Duration,
}

/// What a rank says, one a line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// Where it is found, and the ids that it made.
    Opened { port: u16, ids: Vec<Id> },
    /// What it begins with.
    At(Stage),
    /// What came of it; of figures, those that are its to tell.
    Done(Result<Vec<Busbw>, Broke>),
}

/// How far a rank has come. Of ranks that wait for each other the one that is behind is the one to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Stage {
    /// Its process was started.
    Start,
    /// It looks for the others.
    Meet,
    /// It opens its GPU.
    Open,
    /// It joins NCCL's communicator.
    Join,
    /// It measures over all ranks.
    Measure,
    /// It measures over a rail.
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

/// Why a rank gave up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Broke {
    pub(super) what: String,
    /// The rank that it blames.
    pub(super) peer: Option<usize>,
}

/// The whole of such a process.
pub fn main() -> ExitCode {
    // Without it the rank ends when its deadline passes.
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
                // Of those that said it already the second word is not heard.
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
    // Who does not listen any more ends this process anyway.
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
    // A rank that never comes is told while there is time to tell it.
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
    // All are there: from here on they measure together.
    nccl.barrier(&deadline)?;
    say(&Word::At(Stage::Measure));
    let measured = over_all(&mut nccl, go, &deadline)
        .and_then(|busbw| Ok([busbw, over_rails(&mut nccl, go, rail_ids, gpu, &deadline)?].concat()));
    // The word first: what ends behind it may take a while, nobody waits for it, and what others see of an abort comes
    // after what is told of its reason.
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

/// All rails at once, as training uses them: each rank with those of the same GPU on the other nodes.
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

/// The key, as a rank is told it.
pub(super) fn key_text(key: &Key) -> String {
    hex(key.bytes())
}
