//! Collectives of NCCL, one rank per GPU, timed with GPU events.
//!
//! All calls that may block run on a separate thread (`worker`), with a blocking communicator (`comm`).
//!
//! NCCL runs only the collectives: a second transport, over sockets, distributes the unique id, agrees and gathers. It
//! still works when NCCL does not, and so reports NCCL's failures.

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
/// The variable that allows ranks to share a GPU, and its value: must be set before NCCL is opened.
pub const SHARE: (&str, &str) = ("NCCL_MULTI_RANK_GPU_ENABLE", "1");
/// Size of the copies between host and GPU for verification.
const STAGE: usize = 16 << 20;

/// Options.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// NCCL's library, or its folder; `None`: the system's.
    pub nccl_lib: Option<PathBuf>,
    /// The CUDA driver's library.
    pub cuda_lib: Option<PathBuf>,
    /// The local rank: its GPU, in this process's numbering.
    pub local_rank: u32,
    /// Ranks may share a GPU: with more ranks than GPUs on a host, they are assigned round-robin. Requires NCCL 2.30
    /// and [`SHARE`].
    pub share: bool,
    /// The communicator's id, the same on all ranks; `None`: rank 0 creates and distributes one.
    pub id: Option<Id>,
}

/// The version of NCCL's library, `2.30.7`. Touches no GPU.
///
/// # Errors
/// If there is none, or it is too old.
pub fn version(path: Option<&Path>) -> Result<String, LoadError> {
    Nccl::open(path).map(|nccl| nccl.version.to_string())
}

/// Formats a version in NCCL's format: `2.27.3` for `22703`.
pub(crate) fn version_text(code: &str) -> Option<String> {
    code.parse().ok().map(|code| api::Version(code).to_string())
}

/// One rank. See the module.
pub struct NcclTransport {
    /// Declared before the resources that it uses, so that it is dropped first.
    comm: Ended,
    /// `None` while a job of the worker owns it, and after it was abandoned with one.
    lane: Option<Lane>,
    worker: Worker,
    gpu: Arc<Gpu>,
    nccl: Arc<Nccl>,
    side: Box<dyn Transport>,
    /// This rank in the communicator. The same as [`NcclTransport::rank`], unless it joined a subset.
    rank: usize,
}

/// A communicator that is destroyed when this is dropped, even if the worker still holds it.
struct Ended(Arc<Comm>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

impl Drop for NcclTransport {
    fn drop(&mut self) {
        self.comm.0.destroy();
        // Freeing memory waits for kernels, and a hung one would block the process.
        if is_any_left_behind() {
            std::mem::forget(self.lane.take());
        }
    }
}

impl NcclTransport {
    /// Opens the libraries and the GPU, and joins the other ranks, which `side` already connects.
    ///
    /// # Errors
    /// [`TransportError::Missing`] without a library, function or GPU, and all errors of joining. `side` is aborted
    /// then, so that the other ranks notice.
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

    /// Replaces the communicator with one of a subset of the ranks, in which this one is `rank` of `ranks`; plans then
    /// apply to it. Agreements and gathering still include all ranks.
    ///
    /// # Errors
    /// All errors of joining.
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

    /// Runs a function on the lane in the worker. At the deadline the communicator is aborted.
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

    /// After an error the transport is unusable, and kernels that wait for others must end.
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
        // Notify the others first: ending a communicator may take a while.
        self.side.abort();
        self.comm.0.abort();
    }
}
