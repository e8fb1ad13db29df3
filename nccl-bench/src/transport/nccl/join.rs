//! Opens a rank's GPU, and joins the other ranks.

use std::sync::Arc;

use super::api::{Nccl, SHARING, UniqueId, Version};
use super::comm::Comm;
use super::errors::{missing, of_gpu};
use super::worker::{Call, Worker};
use super::{NAME, Options, SHARE, STAGE};
use crate::cuda::{Driver, Gpu, Pinned, Stream};
use crate::transport::{Deadline, Transport, TransportError};
use paceline_health::codec::hash::fnv;

/// Opens the libraries and the GPU, and joins the other ranks.
pub fn join(
    side: &mut dyn Transport,
    worker: &Worker,
    options: &Options,
    deadline: &Deadline,
) -> Result<(Comm, Pinned, Stream, Arc<Nccl>), TransportError> {
    let opened = open(options, deadline);
    let (nccl, gpu, stream, stage) = once(side, opened, deadline)?;
    same_version(side, &nccl, deadline)?;
    let id = match &options.id {
        Some(id) => id.unique(),
        None => {
            let mine = (side.rank() == 0).then(|| nccl.unique_id(deadline)).transpose()?;
            share_id(side, mine, deadline)?
        }
    };
    let comm = communicator(worker, &nccl, &gpu, id, (side.rank(), side.ranks()), deadline)?;
    Ok((comm, stage, stream, nccl))
}

/// Joins a communicator on the worker's thread. The call returns when all ranks have joined, and waits for a missing
/// rank until the deadline. [`super::comm`] explains why the communicator is not aborted then.
pub fn communicator(
    worker: &Worker,
    nccl: &Arc<Nccl>,
    gpu: &Arc<Gpu>,
    id: UniqueId,
    place: (usize, usize),
    deadline: &Deadline,
) -> Result<Comm, TransportError> {
    let (nccl, gpu, own) = (Arc::clone(nccl), Arc::clone(gpu), deadline.clone());
    let join = move |call: &Call| Comm::join(&nccl, &gpu, id, place, &own, call);
    let (in_time, joined) = worker.run(deadline, join, || ());
    in_time?;
    joined.unwrap_or_else(|| Err(deadline.passed(None)))
}

/// Opens the rank's GPU before [`join`], to distinguish a GPU that hangs from ranks that wait for it.
pub fn gpu(options: &Options, deadline: &Deadline) -> Result<Arc<Gpu>, TransportError> {
    let driver = Driver::open(options.cuda_lib.as_deref()).map_err(|error| of_gpu(error, deadline))?;
    let index = index(options.local_rank, driver.gpus, is_bound());
    Gpu::open(&driver, index).map_err(|error| of_gpu(error, deadline))
}

/// The local resources of one rank.
type Opened = (Arc<Nccl>, Arc<Gpu>, Stream, Pinned);

fn open(options: &Options, deadline: &Deadline) -> Result<Opened, TransportError> {
    let nccl = Arc::new(Nccl::open(options.nccl_lib.as_deref()).map_err(missing)?);
    let driver = Driver::open(options.cuda_lib.as_deref()).map_err(|error| of_gpu(error, deadline))?;
    let index = place(options, &nccl, driver.gpus)?;
    let gpu = Gpu::open(&driver, index).map_err(|error| of_gpu(error, deadline))?;
    let stream = gpu.stream().map_err(|error| of_gpu(error, deadline))?;
    let stage = gpu.pinned(STAGE).map_err(|error| of_gpu(error, deadline))?;
    Ok((nccl, gpu, stream, stage))
}

/// Ensures that ranks with the same error report it once. The first of them keeps its error, and the others refer to
/// it.
fn once<T>(
    side: &mut dyn Transport,
    opened: Result<T, TransportError>,
    deadline: &Deadline,
) -> Result<T, TransportError> {
    // This number is the same for equal errors, and is zero only if there is no error.
    let print = |error: &TransportError| fnv(error.reason().as_bytes()).max(1);
    let own = opened.as_ref().err().map_or(0, print);
    let Ok(worst) = side.agree(own, deadline) else {
        return opened;
    };
    if worst == 0 {
        return opened;
    }
    let is_same = own == worst;
    let claim = if is_same { u64::MAX - side.rank() as u64 } else { 0 };
    let Ok(first) = side.agree(claim, deadline) else {
        return opened;
    };
    let first = usize::try_from(u64::MAX - first).unwrap_or(0);
    match opened {
        Err(error) if is_same && first != side.rank() => Err(TransportError::Aborted {
            phase: deadline.phase().to_owned(),
            peer: first,
            reason: error.reason(),
        }),
        opened => opened,
    }
}

/// Returns the index of a local rank's GPU among those visible to its process. `is_bound` means that the visible GPUs
/// were restricted. A single visible GPU is then the rank's own (Slurm's `--gpu-bind=single:1`).
fn index(local_rank: u32, gpus: u32, is_bound: bool) -> u32 {
    if gpus == 1 && is_bound { 0 } else { local_rank }
}

fn is_bound() -> bool {
    std::env::var_os("CUDA_VISIBLE_DEVICES").is_some()
}

/// Returns the index of this rank's GPU.
fn place(options: &Options, nccl: &Nccl, gpus: u32) -> Result<u32, TransportError> {
    let index = index(options.local_rank, gpus, is_bound());
    if index < gpus {
        return Ok(index);
    }
    if !options.share {
        return Err(TransportError::Missing {
            transport: NAME,
            what: format!("a GPU for local rank {}", options.local_rank),
            tried: format!("the CUDA driver shows {gpus} to this process"),
        });
    }
    let unsupported = |what| {
        Err(TransportError::Unsupported {
            transport: NAME,
            what,
        })
    };
    if nccl.version < SHARING {
        return unsupported(format!(
            "two ranks on one GPU: NCCL {} is older than {SHARING} ({})",
            nccl.version,
            nccl.path.display()
        ));
    }
    if std::env::var(SHARE.0).ok().as_deref() != Some(SHARE.1) {
        return unsupported(format!(
            "two ranks on one GPU without {}={} in its environment",
            SHARE.0, SHARE.1
        ));
    }
    Ok(options.local_rank % gpus)
}

/// Checks that all ranks have the same version of NCCL, because ranks with different versions may hang or crash.
fn same_version(side: &mut dyn Transport, nccl: &Nccl, deadline: &Deadline) -> Result<(), TransportError> {
    let mine = nccl.version.0 as u64;
    let newest = side.agree(mine, deadline)?;
    let oldest = u64::MAX - side.agree(u64::MAX - mine, deadline)?;
    if newest == oldest {
        return Ok(());
    }
    let version = |code| Version(code as i32);
    let what = format!(
        "ranks with different versions of NCCL: {} to {} (this one has {}, {})",
        version(oldest),
        version(newest),
        nccl.version,
        nccl.path.display()
    );
    Err(TransportError::Unsupported {
        transport: NAME,
        what,
    })
}

/// Broadcasts rank 0's id. The other ranks contribute zeros, so the maximum of each eight bytes is that of rank 0.
fn share_id(
    side: &mut dyn Transport,
    mine: Option<UniqueId>,
    deadline: &Deadline,
) -> Result<UniqueId, TransportError> {
    let mine = mine.map_or([0; 128], |id| id.0);
    let mut id = [0; 128];
    for (to, from) in id.as_chunks_mut::<8>().0.iter_mut().zip(mine.as_chunks::<8>().0) {
        *to = side.agree(u64::from_le_bytes(*from), deadline)?.to_le_bytes();
    }
    Ok(UniqueId(id))
}

#[cfg(test)]
mod tests {
    use super::index;

    #[test]
    fn a_task_that_sees_one_gpu_has_that_one() {
        assert_eq!(index(3, 1, true), 0);
        assert_eq!(index(3, 1, false), 3, "three GPUs are missing");
        assert_eq!(index(3, 8, true), 3);
    }
}
