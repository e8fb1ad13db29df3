//! Supervises the NCCL ranks of this node. It starts them, sends orders, collects messages, and stops them at the
//! deadline.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::all_reduce::Busbw;
use super::rank_process::{Broke, Go, Order, Stage, Word};
use crate::preflight::message::Opened;
use crate::transport::Deadline;

/// Time by which a rank's deadline is before ours. A rank then reports its own error, which is more informative than
/// our timeout.
const MARGIN: Duration = Duration::from_millis(600);
/// Time after a failure in which the other ranks can report their errors.
const GRACE: Duration = Duration::from_millis(1500);
/// Time for ranks to exit by themselves, and again after they are killed.
const LEAVING: Duration = Duration::from_millis(500);
/// Limit of warnings that are kept from a rank's standard error.
const LINES: usize = 20;

/// How to start ranks.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The program and its first arguments. If empty, there are no NCCL ranks.
    pub command: Vec<OsString>,
    /// NCCL's library.
    pub nccl_lib: Option<PathBuf>,
    /// The CUDA driver's library.
    pub cuda_lib: Option<PathBuf>,
}

/// The result of all ranks of a node.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The results of the group's first rank, if that rank is on this node.
    pub(super) busbw: Result<Vec<Busbw>, Broke>,
    /// The network that NCCL reports.
    pub(super) network: Option<String>,
}

/// A process that is killed when this is dropped.
pub(in crate::preflight) struct Rank {
    /// The process, or `None` after it was abandoned.
    child: Option<Child>,
    stdin: ChildStdin,
    words: Receiver<(usize, Word)>,
    heard: Arc<Mutex<Heard>>,
}

/// Output of a rank on standard error.
#[derive(Debug, Default)]
struct Heard {
    network: Option<String>,
    lines: Vec<String>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        // The process may have exited already. If it is stuck in a driver, it exits later, so a thread waits for it.
        let _ = child.kill();
        let reap = move || drop(child.wait());
        let _ = thread::Builder::new().name("rank-end".into()).spawn(reap);
    }
}

/// Stops all ranks. Finished ranks get some time to release their GPUs, and all ranks get some time to exit, because
/// the next phase uses the same GPUs.
fn end(mut ranks: Vec<Rank>, are_done: bool) {
    let until = Instant::now() + LEAVING;
    let gone = |rank: &mut Rank| {
        let child = rank.child.as_mut();
        child.is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    };
    for (is_killed, until) in [(false, until), (true, until + LEAVING)] {
        if is_killed {
            let children = ranks.iter_mut().filter_map(|rank| rank.child.as_mut());
            children.for_each(|child| drop(child.kill()));
        }
        while (is_killed || are_done) && !ranks.iter_mut().all(gone) && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Launch {
    /// Starts a rank without orders. Its messages are labeled with the number `of`.
    fn start(&self, of: usize, words: Option<Sender<(usize, Word)>>, is_first: bool) -> io::Result<Rank> {
        let none = || {
            io::Error::new(
                io::ErrorKind::NotFound,
                "there is no program to measure over NCCL",
            )
        };
        let (program, rest) = self.command.split_first().ok_or_else(none)?;
        let mut command = Command::new(program);
        command.args(rest);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Only one rank logs its network, but all ranks log warnings.
        command.env("NCCL_DEBUG", if is_first { "INFO" } else { "WARN" });
        command
            .env("NCCL_DEBUG_SUBSYS", "INIT")
            .env("NCCL_DEBUG_FILE", "/dev/stderr");
        // The port of the RAS service and the profiler plugin are left to the job.
        command
            .env("NCCL_RAS_ENABLE", "0")
            .env_remove("NCCL_PROFILER_PLUGIN");
        let mut child = command.spawn()?;
        let missing = || io::Error::other("a requested pipe is missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let (out, err) = child.stdout.take().zip(child.stderr.take()).ok_or_else(missing)?;
        let (sender, receiver) = channel();
        let sender = words.unwrap_or(sender);
        let heard = Arc::<Mutex<Heard>>::default();
        let rank = Rank {
            child: Some(child),
            stdin,
            words: receiver,
            heard: Arc::clone(&heard),
        };
        thread::Builder::new().name("rank-out".into()).spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // A library may write to standard output too, so lines that are not messages are skipped.
                if let Ok(word) = serde_json::from_str(&line)
                    && sender.send((of, word)).is_err()
                {
                    return;
                }
            }
            // This message is ignored if the rank has sent its final message before.
            let what = format!("the process of rank {of} ended");
            let _ = sender.send((of, Word::Done(Err(Broke { what, peer: Some(of) }))));
        })?;
        thread::Builder::new().name("rank-err".into()).spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                heard.lock().unwrap_or_else(PoisonError::into_inner).take(line);
            }
        })?;
        Ok(rank)
    }
}

impl Heard {
    fn take(&mut self, line: String) {
        if let Some((_, network)) = line.split_once("Using network ") {
            self.network = Some(network.trim().to_owned());
        }
        if line.contains("NCCL WARN") && self.lines.len() < LINES {
            self.lines.push(line);
        }
    }
}

impl Rank {
    fn tell(&mut self, order: &Order) -> io::Result<()> {
        let line = serde_json::to_string(order).map_err(io::Error::other)? + "\n";
        self.stdin.write_all(line.as_bytes())?;
        self.stdin.flush()
    }

    /// Starts the first rank of a group, and returns what the other ranks need to join.
    pub(super) fn open(
        launch: &Launch,
        listen: IpAddr,
        ids: usize,
        deadline: &Deadline,
    ) -> Result<(Rank, Opened), Broke> {
        let failed = |what: String| Broke {
            what: format!("{}: {what}", deadline.phase()),
            peer: Some(0),
        };
        let limit = deadline.remaining().unwrap_or_default();
        let order = Order::Open {
            nccl_lib: launch.nccl_lib.clone(),
            listen,
            ids,
            limit,
        };
        let mut rank = launch
            .start(0, None, true)
            .map_err(|error| failed(error.to_string()))?;
        rank.tell(&order).map_err(|error| failed(error.to_string()))?;
        match rank.words.recv_timeout(limit) {
            Ok((_, Word::Opened { port, ids })) => Ok((rank, Opened { port, ids })),
            Ok((_, Word::Done(Err(broke)))) => Err(broke),
            Ok(_) => Err(failed("the first rank sent an unexpected message".into())),
            Err(RecvTimeoutError::Timeout) => Err(failed("no id for NCCL was made in time".into())),
            Err(RecvTimeoutError::Disconnected) => Err(failed("the first rank ended".into())),
        }
    }
}

/// Runs the ranks of `node`, including the group's first rank if it is given. `go` has the parameters that all ranks
/// have in common.
pub(super) fn run(
    launch: &Launch,
    mut first: Option<Rank>,
    node: usize,
    go: &Go,
    deadline: &Deadline,
) -> Outcome {
    let begin = go.team.first_of(node);
    let count = go.team.gpus.get(node).map_or(0, |gpus| *gpus as usize);
    let (sender, words) = channel();
    let mut ranks: Vec<Rank> = Vec::new();
    let mut failed = None;
    for rank in begin..begin + count {
        let started = match first.take() {
            Some(first) => Ok(first),
            None => launch.start(rank, Some(sender.clone()), rank == begin),
        };
        let told = started.and_then(|mut started| {
            let limit = deadline.remaining().unwrap_or_default().saturating_sub(MARGIN);
            let go = Go {
                rank,
                limit,
                ..go.clone()
            };
            started.tell(&Order::Go(Box::new(go)))?;
            Ok(started)
        });
        match told {
            Ok(started) => ranks.push(started),
            Err(error) => {
                failed = Some(Broke {
                    what: format!("{}: rank {rank} cannot be started: {error}", deadline.phase()),
                    peer: Some(rank),
                });
                break;
            }
        }
    }
    drop(sender);
    let busbw = match failed {
        Some(broke) => Err(broke),
        None => Listening::new(begin, count, deadline).until_done(&ranks, &words),
    };
    let heard = |rank: &Rank| {
        let heard = rank.heard.lock().unwrap_or_else(PoisonError::into_inner);
        (heard.network.clone(), heard.lines.clone())
    };
    let network = ranks.first().and_then(|rank| heard(rank).0);
    let busbw = busbw.map_err(|mut broke| {
        // Add one warning of NCCL to the error.
        if let Some(line) = ranks.iter().find_map(|rank| heard(rank).1.into_iter().next()) {
            broke.what = format!("{} (NCCL: {})", broke.what, line.trim());
        }
        broke
    });
    end(ranks, busbw.is_ok());
    Outcome { busbw, network }
}

/// State of the running ranks, while their messages are received.
struct Listening<'a> {
    begin: usize,
    stages: Vec<Stage>,
    done: Vec<Option<Result<Vec<Busbw>, Broke>>>,
    until: Instant,
    deadline: &'a Deadline,
}

impl Listening<'_> {
    fn new(begin: usize, count: usize, deadline: &Deadline) -> Listening<'_> {
        Listening {
            begin,
            stages: vec![Stage::Start; count],
            done: vec![None; count],
            until: deadline.at(),
            deadline,
        }
    }

    fn until_done(mut self, ranks: &[Rank], words: &Receiver<(usize, Word)>) -> Result<Vec<Busbw>, Broke> {
        while self.done.contains(&None) {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // The group's first rank was started earlier and has a separate channel.
            let own = ranks.first().map(|first| first.words.try_iter());
            own.into_iter().flatten().for_each(|(_, word)| self.take(0, word));
            match words.recv_timeout(left.min(Duration::from_millis(20))) {
                Ok((rank, word)) => self.take(rank - self.begin, word),
                Err(RecvTimeoutError::Timeout) => {}
                // All other ranks have ended, but the first rank may still send messages.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(5)),
            }
        }
        self.conclude()
    }

    fn take(&mut self, at: usize, word: Word) {
        match word {
            Word::At(stage) => {
                if let Some(known) = self.stages.get_mut(at) {
                    *known = stage;
                }
            }
            Word::Done(done) => {
                if done.is_err() {
                    self.until = self.until.min(Instant::now() + GRACE);
                }
                // Keep the rank's first final message, because it is closest to the cause.
                if let Some(known) = self.done.get_mut(at) {
                    known.get_or_insert(done);
                }
            }
            Word::Opened { .. } => {}
        }
    }

    /// Returns the overall result. An error is the first one that blames a rank, or else blames the rank that is
    /// furthest behind.
    fn conclude(self) -> Result<Vec<Busbw>, Broke> {
        let behind = self.behind();
        let mut busbw = Vec::new();
        let mut broken: Vec<Broke> = Vec::new();
        for done in self.done.iter().flatten() {
            match done {
                Ok(own) => busbw.extend(own.iter().cloned()),
                Err(broke) => broken.push(broke.clone()),
            }
        }
        let blaming = broken.iter().find(|broke| broke.peer.is_some());
        if let Some(broke) = blaming.or(broken.first()) {
            let mut broke = broke.clone();
            if let (None, Some((rank, stage))) = (broke.peer, behind) {
                broke.what = format!("{}; rank {rank} is behind, at {}", broke.what, stage.words());
                broke.peer = Some(rank);
            }
            return Err(broke);
        }
        match self.done.iter().position(Option::is_none) {
            None => Ok(busbw),
            Some(at) => {
                let phase = self.deadline.phase();
                let what = match behind {
                    Some((rank, stage)) => {
                        format!("rank {rank} did not end in time: it was at {}", stage.words())
                    }
                    None => format!(
                        "its ranks did not end in time: they were at {}",
                        self.stages[at].words()
                    ),
                };
                Err(Broke {
                    what: format!("{phase}: {what}"),
                    peer: behind.map(|(rank, _)| rank),
                })
            }
        }
    }

    /// Returns the only rank that is at an earlier stage than all others, if there is one.
    fn behind(&self) -> Option<(usize, Stage)> {
        let least = *self.stages.iter().min()?;
        let mut behind = (0..self.stages.len()).filter(|at| self.stages[*at] == least);
        let (first, second) = (behind.next()?, behind.next());
        (second.is_none() && self.stages.len() > 1).then_some((self.begin + first, least))
    }
}
