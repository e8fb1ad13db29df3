//! Collectives of NCCL, one rank on one GPU, timed by the GPU's own events.
//!
//! NCCL carries the collectives and nothing else: a second transport, over sockets, brings the unique id to the ranks,
//! agrees and gathers. It works where NCCL does not, and so tells of it.

mod api;
mod comm;
mod errors;
pub(crate) mod id;
mod join;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::api::Nccl;
use self::comm::{Buffers, Comm};
use self::errors::of_gpu;
pub use self::id::{Id, ids};
pub(crate) use self::join::gpu;
use super::{About, Deadline, Transport, TransportError};
use crate::collective::Plan;
use crate::cuda::{Event, Gpu, LoadError, Memory, Pinned, Stream, pause};
use crate::measure::{RankPlace, RankTimes};
use crate::pattern;

const NAME: &str = "nccl";
/// The variable that allows ranks to share a GPU, and its value: in the environment before NCCL is opened.
pub const SHARE: (&str, &str) = ("NCCL_MULTI_RANK_GPU_ENABLE", "1");
/// What goes between host and GPU at once when results are checked.
const STAGE: usize = 16 << 20;

/// What to open.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// NCCL's library, or the folder with it; `None`: where the system has it.
    pub nccl_lib: Option<PathBuf>,
    /// The CUDA driver's.
    pub cuda_lib: Option<PathBuf>,
    /// The rank's number on its host: its GPU, as this process counts them.
    pub local_rank: u32,
    /// Ranks may share a GPU: with more ranks than GPUs on a host, they are dealt out in turn. Takes NCCL 2.30 and
    /// [`SHARE`].
    pub share: bool,
    /// The id of the communicator, the same on all ranks; `None`: rank 0 makes one and tells the others.
    pub id: Option<Id>,
}

/// The version of NCCL's library, `2.30.7`. Touches no GPU.
///
/// # Errors
/// When there is none, or it is too old to be used.
pub fn version(path: Option<&Path>) -> Result<String, LoadError> {
    Nccl::open(path).map(|nccl| nccl.version.to_string())
}

/// A version as NCCL counts it, for people: of `22703`, `2.27.3`.
pub(crate) fn version_text(code: &str) -> Option<String> {
    code.parse().ok().map(|code| api::Version(code).to_string())
}

/// One rank. See the module.
pub struct NcclTransport {
    /// Before what it uses: it is ended first.
    comm: Comm,
    prepared: Option<Prepared>,
    events: Vec<Event>,
    stage: Pinned,
    stream: Stream,
    gpu: Arc<Gpu>,
    nccl: Arc<Nccl>,
    side: Box<dyn Transport>,
    /// Which rank of the communicator this is. All of [`NcclTransport::rank`], unless it joined a part.
    rank: usize,
}

/// A plan and its memory.
struct Prepared {
    plan: Plan,
    memory: Memory,
    /// The second buffer, out of place.
    second: Option<Memory>,
}

impl NcclTransport {
    /// Opens the libraries and the GPU, and joins the other ranks, which `side` connects already.
    ///
    /// # Errors
    /// [`TransportError::Missing`] where there is no library, no function or no GPU, and whatever goes wrong in joining.
    /// `side` is aborted then, so that the other ranks learn of it.
    pub fn open(
        mut side: Box<dyn Transport>,
        options: &Options,
        deadline: &Deadline,
    ) -> Result<NcclTransport, TransportError> {
        match join::join(side.as_mut(), options, deadline) {
            Ok((comm, stage, stream, nccl)) => {
                let gpu = Arc::clone(stream.gpu());
                let (prepared, events, rank) = (None, Vec::new(), side.rank());
                Ok(NcclTransport {
                    comm,
                    prepared,
                    events,
                    stage,
                    stream,
                    gpu,
                    nccl,
                    side,
                    rank,
                })
            }
            Err(error) => {
                side.abort();
                Err(error)
            }
        }
    }

    /// Leaves the communicator for one of some of the ranks only, in which this one is `rank` of `ranks`; plans are its
    /// then. What all ranks agree on and gather they still do together.
    ///
    /// # Errors
    /// Whatever goes wrong in joining.
    pub fn regroup(
        &mut self,
        id: &Id,
        (rank, ranks): (usize, usize),
        deadline: &Deadline,
    ) -> Result<(), TransportError> {
        self.prepared = None;
        self.comm = Comm::join(&self.nccl, &self.gpu, id.unique(), (rank, ranks), deadline)?;
        self.rank = rank;
        Ok(())
    }

    /// The rank's GPU, for a result's list of ranks.
    pub fn device(&self) -> String {
        format!("{} {} {}", self.gpu.model, self.gpu.pci, self.gpu.uuid)
    }

    fn prepared(&self) -> Result<&Prepared, TransportError> {
        let what = || "a run before it is prepared".into();
        self.prepared.as_ref().ok_or_else(|| TransportError::Unsupported {
            transport: NAME,
            what: what(),
        })
    }

    fn queue(&self, deadline: &Deadline) -> Result<(), TransportError> {
        let prepared = self.prepared()?;
        let buffers = prepared.buffers(self.rank);
        self.comm.queue(&prepared.plan, buffers, &self.stream, deadline)
    }

    /// Waits for an event, and looks at the communicator meanwhile: when a rank is lost the kernel would wait on.
    fn wait(&self, event: &Event, deadline: &Deadline) -> Result<(), TransportError> {
        for looks in 0u32.. {
            if event.is_passed().map_err(|error| of_gpu(error, deadline))? {
                break;
            }
            self.comm.is_settled("ncclCommGetAsyncError", deadline)?;
            deadline.remaining().ok_or_else(|| deadline.passed(None))?;
            pause(looks);
        }
        Ok(())
    }

    fn timed(&mut self, iterations: u32, deadline: &Deadline) -> Result<Vec<Duration>, TransportError> {
        let marks = iterations as usize + 1;
        let gpu_error = |error| of_gpu(error, deadline);
        self.gpu.enter().map_err(gpu_error)?;
        while self.events.len() < marks {
            self.events.push(self.gpu.event().map_err(gpu_error)?);
        }
        let events = &self.events[..marks];
        events[0].record(&self.stream).map_err(gpu_error)?;
        for event in &events[1..] {
            self.queue(deadline)?;
            event.record(&self.stream).map_err(gpu_error)?;
        }
        self.wait(&events[marks - 1], deadline)?;
        events
            .windows(2)
            .map(|pair| pair[1].since(&pair[0]).map_err(gpu_error))
            .collect()
    }

    fn checked(&mut self, deadline: &Deadline) -> Result<u64, TransportError> {
        let rank = self.rank;
        self.gpu.enter().map_err(|error| of_gpu(error, deadline))?;
        let prepared = self.prepared.take().ok_or_else(|| deadline.passed(None))?;
        let counted = self.check_prepared(&prepared, rank, deadline);
        self.prepared = Some(prepared);
        counted
    }

    fn check_prepared(
        &mut self,
        prepared: &Prepared,
        rank: usize,
        deadline: &Deadline,
    ) -> Result<u64, TransportError> {
        let plan = &prepared.plan;
        let size = plan.dtype.size();
        let (send, receive) = prepared.offsets(rank);
        // What an earlier run left may be right: it must not be taken for the result of this one.
        let output = prepared.second.as_ref().unwrap_or(&prepared.memory);
        self.fill(output, 0, &vec![0xFF; output.bytes()], deadline)?;
        self.fill(&prepared.memory, send, &pattern::input(plan, rank), deadline)?;
        self.comm
            .queue(plan, prepared.buffers(rank), &self.stream, deadline)?;
        let done = self
            .gpu
            .event()
            .and_then(|event| event.record(&self.stream).map(|()| event));
        self.wait(&done.map_err(|error| of_gpu(error, deadline))?, deadline)?;
        let seen = self.fetch(output, receive, plan.receive_elements() * size, deadline)?;
        Ok(pattern::wrong(plan, rank, &seen))
    }

    /// Writes to the GPU, from `offset` on.
    fn fill(
        &mut self,
        to: &Memory,
        offset: usize,
        from: &[u8],
        deadline: &Deadline,
    ) -> Result<(), TransportError> {
        let until = until(deadline)?;
        for (part, bytes) in from.chunks(STAGE).enumerate() {
            self.stage.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
            let queued = self
                .stream
                .copy_in(to, offset + part * STAGE, &self.stage, bytes.len());
            queued
                .and_then(|()| self.stream.finish("the copy to the GPU", until))
                .map_err(|error| of_gpu(error, deadline))?;
        }
        Ok(())
    }

    /// Reads from the GPU.
    fn fetch(
        &mut self,
        from: &Memory,
        offset: usize,
        bytes: usize,
        deadline: &Deadline,
    ) -> Result<Vec<u8>, TransportError> {
        let until = until(deadline)?;
        let mut all = Vec::with_capacity(bytes);
        while all.len() < bytes {
            let part = (bytes - all.len()).min(STAGE);
            let queued = self
                .stream
                .copy_out(&mut self.stage, from, offset + all.len(), part);
            queued
                .and_then(|()| self.stream.finish("the copy from the GPU", until))
                .map_err(|error| of_gpu(error, deadline))?;
            all.extend_from_slice(&self.stage.as_slice()[..part]);
        }
        Ok(all)
    }

    /// After an error nothing of it is of use, and kernels that wait for others must end.
    fn or_give_up<T>(&mut self, result: Result<T, TransportError>) -> Result<T, TransportError> {
        if result.is_err() {
            self.comm.abort();
        }
        result
    }
}

impl Prepared {
    /// Where in their buffers a rank reads and writes, in bytes.
    fn offsets(&self, rank: usize) -> (usize, usize) {
        if self.second.is_some() {
            return (0, 0);
        }
        let size = self.plan.dtype.size();
        (
            self.plan.send_offset(rank) * size,
            self.plan.receive_offset(rank) * size,
        )
    }

    fn buffers(&self, rank: usize) -> Buffers {
        let (send, receive) = self.offsets(rank);
        let output = self.second.as_ref().unwrap_or(&self.memory);
        Buffers {
            send: self.memory.address() + send as u64,
            receive: output.address() + receive as u64,
        }
    }
}

impl Transport for NcclTransport {
    fn about(&self) -> About {
        let details = [
            ("nccl", self.nccl.version.to_string()),
            ("libnccl", self.nccl.path.display().to_string()),
            ("cuda_driver", self.gpu.driver().version_text()),
            ("gpu", self.gpu.model.clone()),
        ];
        let details = details
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        About {
            transport: NAME.to_owned(),
            simulated: false,
            details,
        }
    }

    fn rank(&self) -> usize {
        self.side.rank()
    }

    fn ranks(&self) -> usize {
        self.side.ranks()
    }

    fn prepare(&mut self, plan: &Plan, deadline: &Deadline) -> Result<(), TransportError> {
        if plan.in_place && !plan.collective.in_place() {
            let what = format!("{} in place", plan.collective);
            return Err(TransportError::Unsupported {
                transport: NAME,
                what,
            });
        }
        // What was prepared before leaves room first.
        self.prepared = None;
        let memory = |elements: usize| {
            self.gpu
                .memory(elements * plan.dtype.size())
                .map_err(|error| of_gpu(error, deadline))
        };
        let (send, receive) = (plan.send_elements(), plan.receive_elements());
        self.prepared = Some(if plan.in_place {
            Prepared {
                plan: *plan,
                memory: memory(send.max(receive))?,
                second: None,
            }
        } else {
            Prepared {
                plan: *plan,
                memory: memory(send)?,
                second: Some(memory(receive)?),
            }
        });
        Ok(())
    }

    fn run(&mut self, iterations: u32, deadline: &Deadline) -> Result<Vec<Duration>, TransportError> {
        let times = self.timed(iterations, deadline);
        self.or_give_up(times)
    }

    fn verify(&mut self, deadline: &Deadline) -> Result<u64, TransportError> {
        self.prepared()?;
        let wrong = self.checked(deadline);
        self.or_give_up(wrong)
    }

    fn agree(&mut self, value: u64, deadline: &Deadline) -> Result<u64, TransportError> {
        self.side.agree(value, deadline)
    }

    fn gather(
        &mut self,
        mine: RankTimes,
        deadline: &Deadline,
    ) -> Result<Option<Vec<RankTimes>>, TransportError> {
        self.side.gather(mine, deadline)
    }

    fn places(
        &mut self,
        mine: RankPlace,
        deadline: &Deadline,
    ) -> Result<Option<Vec<RankPlace>>, TransportError> {
        let device = self.device();
        self.side.places(RankPlace { device, ..mine }, deadline)
    }

    fn abort(&mut self) {
        // The others first: ending a communicator may take a while.
        self.side.abort();
        self.comm.abort();
    }
}

fn until(deadline: &Deadline) -> Result<Instant, TransportError> {
    deadline
        .remaining()
        .map(|left| Instant::now() + left)
        .ok_or_else(|| deadline.passed(None))
}
