//! Collectives of NCCL, with one rank per GPU, timed with GPU events.
//!
//! All calls that may block run on a separate thread (`worker`), with a blocking communicator (`comm`).
//!
//! NCCL runs only the collectives. A second transport, over sockets, distributes the unique id, agrees and gathers. It
//! still works when NCCL does not, so it can report NCCL's failures.

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
/// The variable that allows ranks to share a GPU, and its value. It must be set before NCCL is opened.
pub const SHARE: (&str, &str) = ("NCCL_MULTI_RANK_GPU_ENABLE", "1");
/// Size of the copies between host and GPU for verification.
const STAGE: usize = 16 << 20;

/// Options.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// NCCL's library, or its folder. With `None`, the system's library is used.
    pub nccl_lib: Option<PathBuf>,
    /// Path of the CUDA driver's library.
    pub cuda_lib: Option<PathBuf>,
    /// The local rank, which determines the GPU in this process's numbering.
    pub local_rank: u32,
    /// True if ranks may share a GPU. If a host has more ranks than GPUs, they are assigned round-robin. This requires
    /// NCCL 2.30 and [`SHARE`].
    pub share: bool,
    /// The communicator's id, which is the same on all ranks. With `None`, rank 0 creates and distributes an id.
    pub id: Option<Id>,
}

/// Returns the version of NCCL's library, such as `2.30.7`. This accesses no GPU.
///
/// # Errors
/// Returns an error if there is no library or if it is too old.
pub fn version(path: Option<&Path>) -> Result<String, LoadError> {
    Nccl::open(path).map(|nccl| nccl.version.to_string())
}

/// Formats a version that is in NCCL's format. For example, `22703` becomes `2.27.3`.
pub(crate) fn version_text(code: &str) -> Option<String> {
    code.parse().ok().map(|code| api::Version(code).to_string())
}

/// One rank of the transport; see the module documentation.
pub struct NcclTransport {
    /// The communicator. It is declared before the resources that it uses, so that it is dropped first.
    comm: Ended,
    /// The lane. It is `None` while a job of the worker owns it, and after it was abandoned together with a job.
    lane: Option<Lane>,
    worker: Worker,
    gpu: Arc<Gpu>,
    nccl: Arc<Nccl>,
    side: Box<dyn Transport>,
    /// This rank in the communicator. It is the same as [`NcclTransport::rank`], unless this rank joined a subset.
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
        // Do not free the memory, because freeing waits for kernels, and a hung kernel would block the process.
        if is_any_left_behind() {
            std::mem::forget(self.lane.take());
        }
    }
}

impl NcclTransport {
    /// Opens the libraries and the GPU, and joins the other ranks, which `side` already connects.
    ///
    /// # Errors
    /// Returns [`TransportError::Missing`] if there is no library, function or GPU, and all errors of joining. `side`
    /// is then aborted, so that the other ranks notice.
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

    /// Replaces the communicator with one of a subset of the ranks, in which this rank is `rank` of `ranks`. From then
    /// on, plans apply to the subset. Agreements and gathering still include all ranks.
    ///
    /// # Errors
    /// Returns all errors of joining.
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

    /// Returns the rank's GPU, for a result's list of ranks.
    pub fn device(&self) -> String {
        format!("{} {} {}", self.gpu.model, self.gpu.pci, self.gpu.uuid)
    }

    /// Runs a function with the lane on the worker's thread. At the deadline the communicator is aborted.
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

    /// Aborts the communicator after an error. The transport is unusable then, and kernels that wait for other ranks
    /// must end.
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
        // Notify the other ranks first, because ending a communicator may take a while.
        self.side.abort();
        self.comm.0.abort();
    }
}
