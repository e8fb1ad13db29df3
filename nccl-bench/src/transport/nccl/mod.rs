//! Collectives of NCCL, one rank on one GPU, timed by the GPU's own events.
//!
//! All calls that may block are made by a thread of their own (`worker`), on a communicator that blocks (`comm`).
//!
//! NCCL carries the collectives and nothing else: a second transport, over sockets, brings the unique id to the ranks,
//! agrees and gathers. It works where NCCL does not, and so tells of it.

mod api;
mod comm;
mod errors;
pub(crate) mod id;
mod join;
mod lane;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::api::Nccl;
use self::comm::Comm;
pub use self::id::{Id, ids};
pub(crate) use self::join::gpu;
use self::lane::{Lane, With};
use self::worker::Worker;
pub(crate) use self::worker::is_any_left_behind;
use super::{About, Deadline, Transport, TransportError};
use crate::collective::Plan;
use crate::cuda::{Gpu, LoadError};
use crate::measure::{RankPlace, RankTimes};

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
    comm: Ended,
    /// `None` while a job of the worker has it, and when one was left behind with it.
    lane: Option<Lane>,
    worker: Worker,
    gpu: Arc<Gpu>,
    nccl: Arc<Nccl>,
    side: Box<dyn Transport>,
    /// Which rank of the communicator this is. All of [`NcclTransport::rank`], unless it joined a part.
    rank: usize,
}

/// A communicator that is destroyed with this, also if the worker still holds it.
struct Ended(Arc<Comm>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

impl Drop for NcclTransport {
    fn drop(&mut self) {
        self.comm.0.destroy();
        // Freeing memory waits for kernels, and one that hangs would keep the process.
        if is_any_left_behind() {
            std::mem::forget(self.lane.take());
        }
    }
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
        let worker = Worker::start(deadline)?;
        match join::join(side.as_mut(), &worker, options, deadline) {
            Ok((comm, stage, stream, nccl)) => {
                let (gpu, rank) = (Arc::clone(stream.gpu()), side.rank());
                Ok(NcclTransport {
                    comm: Ended(Arc::new(comm)),
                    lane: Some(Lane::new(stage, stream)),
                    worker,
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
        if let Some(lane) = &mut self.lane {
            lane.clear();
        }
        let id = id.unique();
        let comm = join::communicator(&self.worker, &self.nccl, &self.gpu, id, (rank, ranks), deadline)?;
        self.comm = Ended(Arc::new(comm));
        self.rank = rank;
        Ok(())
    }

    /// The rank's GPU, for a result's list of ranks.
    pub fn device(&self) -> String {
        format!("{} {} {}", self.gpu.model, self.gpu.pci, self.gpu.uuid)
    }

    /// Has the worker do something with the lane. By the deadline it has done it, or the communicator is aborted.
    fn on_lane<T: Send + 'static>(
        &mut self,
        deadline: &Deadline,
        job: impl FnOnce(&mut Lane, &With<'_>) -> Result<T, TransportError> + Send + 'static,
    ) -> Result<T, TransportError> {
        let mut lane = self.lane.take().ok_or_else(|| deadline.passed(None))?;
        let (comm, rank, own) = (Arc::clone(&self.comm.0), self.rank, deadline.clone());
        let (in_time, given) = self.worker.run(
            deadline,
            move |call| {
                let with = With {
                    comm: &comm,
                    rank,
                    deadline: &own,
                    call,
                };
                let result = job(&mut lane, &with);
                (lane, result)
            },
            || self.comm.0.abort(),
        );
        let (lane, result) = given.unzip();
        self.lane = lane;
        in_time?;
        result.unwrap_or_else(|| Err(deadline.passed(None)))
    }

    /// After an error nothing of it is of use, and kernels that wait for others must end.
    fn or_give_up<T>(&mut self, result: Result<T, TransportError>) -> Result<T, TransportError> {
        if result.is_err() {
            self.comm.0.abort();
        }
        result
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
        let plan = *plan;
        self.on_lane(deadline, move |lane, with| lane.prepare(&plan, with.deadline))
    }

    fn run(&mut self, iterations: u32, deadline: &Deadline) -> Result<Vec<Duration>, TransportError> {
        let times = self.on_lane(deadline, move |lane, with| lane.timed(iterations, with));
        self.or_give_up(times)
    }

    fn verify(&mut self, deadline: &Deadline) -> Result<u64, TransportError> {
        let wrong = self.on_lane(deadline, Lane::checked);
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
        self.comm.0.abort();
    }
}
