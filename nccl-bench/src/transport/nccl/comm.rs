//! A communicator: one rank's place among the others. None of its calls waits for ever: it is made so that NCCL answers
//! "in progress", and whoever waits gives it up when time is up.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::api::{Config, IN_PROGRESS, Nccl, UniqueId};
use super::errors::of_gpu;
use crate::collective::{Collective, Plan};
use crate::cuda::{Gpu, Stream, pause};
use crate::dtype::Dtype;
use crate::transport::{Deadline, TransportError};

/// How long ending one may take. It waits for kernels; one that does not come back is left behind.
const ENDING: Duration = Duration::from_secs(5);
/// ncclSum.
const SUM: i32 = 0;

/// See the module.
#[derive(Debug)]
pub struct Comm {
    nccl: Arc<Nccl>,
    /// `None` when it was given up.
    handle: Option<Handle>,
    gpu: Arc<Gpu>,
}

#[derive(Clone, Copy, Debug)]
struct Handle(*mut c_void);

// SAFETY: a handle that is only passed back to NCCL, one thread at a time; NCCL has no thread of its own in mind.
unsafe impl Send for Handle {}

/// Addresses on the GPU of what a collective reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Reads.
    pub send: u64,
    /// Writes.
    pub receive: u64,
}

impl Comm {
    /// Joins the others, who must have the same id.
    pub fn join(
        nccl: &Arc<Nccl>,
        gpu: &Arc<Gpu>,
        id: UniqueId,
        (rank, ranks): (usize, usize),
        deadline: &Deadline,
    ) -> Result<Comm, TransportError> {
        gpu.enter().map_err(|error| of_gpu(error, deadline))?;
        let (mut handle, mut config) = (std::ptr::null_mut(), Config::not_blocking());
        // SAFETY: the signature is the header's; the pointers are valid for the call, which copies what they point to.
        let code = unsafe { (nccl.functions.init)(&mut handle, ranks as i32, id, rank as i32, &mut config) };
        nccl.check("ncclCommInitRankConfig", code, std::ptr::null_mut(), deadline)?;
        let mut comm = Comm {
            nccl: Arc::clone(nccl),
            handle: Some(Handle(handle)),
            gpu: Arc::clone(gpu),
        };
        let joined = comm.settle("ncclCommInitRankConfig", deadline);
        if joined.is_err() {
            comm.abort();
        }
        joined.map(|()| comm)
    }

    fn handle(&self) -> *mut c_void {
        self.handle.map_or(std::ptr::null_mut(), |handle| handle.0)
    }

    /// Whether NCCL is done with the last call; what went wrong since, if anything did.
    pub fn is_settled(&self, call: &'static str, deadline: &Deadline) -> Result<bool, TransportError> {
        let Some(Handle(handle)) = self.handle else {
            return Err(deadline.passed(None));
        };
        let mut state = 0;
        // SAFETY: the communicator lives; the pointer is valid for the call.
        let code = unsafe { (self.nccl.functions.async_error)(handle, &mut state) };
        self.nccl.check("ncclCommGetAsyncError", code, handle, deadline)?;
        self.nccl.check(call, state, handle, deadline)?;
        Ok(state != IN_PROGRESS)
    }

    fn settle(&self, call: &'static str, deadline: &Deadline) -> Result<(), TransportError> {
        for looks in 0u32.. {
            if self.is_settled(call, deadline)? {
                break;
            }
            deadline.remaining().ok_or_else(|| deadline.passed(None))?;
            pause(looks);
        }
        Ok(())
    }

    /// Takes an answer, and waits until NCCL has queued what it was asked for: an event recorded earlier would stand before
    /// it.
    fn queued(&self, call: &'static str, code: i32, deadline: &Deadline) -> Result<(), TransportError> {
        self.nccl.check(call, code, self.handle(), deadline)?;
        if code == IN_PROGRESS {
            self.settle(call, deadline)
        } else {
            Ok(())
        }
    }

    /// Queues one collective.
    pub fn queue(
        &self,
        plan: &Plan,
        buffers: Buffers,
        stream: &Stream,
        deadline: &Deadline,
    ) -> Result<(), TransportError> {
        let Buffers { send, receive } = buffers;
        let (count, dtype, root) = (plan.count, code_of(plan.dtype), plan.root as i32);
        let (functions, comm, stream) = (&self.nccl.functions, self.handle(), stream.handle());
        // SAFETY: the signatures are the header's; the buffers are on this communicator's GPU and as long as the plan says;
        // communicator and stream live.
        let (call, code) = unsafe {
            match plan.collective {
                Collective::AllReduce => (
                    "ncclAllReduce",
                    (functions.all_reduce)(send, receive, count, dtype, SUM, comm, stream),
                ),
                Collective::ReduceScatter => (
                    "ncclReduceScatter",
                    (functions.reduce_scatter)(send, receive, count, dtype, SUM, comm, stream),
                ),
                Collective::AllGather => (
                    "ncclAllGather",
                    (functions.all_gather)(send, receive, count, dtype, comm, stream),
                ),
                Collective::Broadcast => (
                    "ncclBroadcast",
                    (functions.broadcast)(send, receive, count, dtype, root, comm, stream),
                ),
                Collective::AllToAll => return self.all_to_all(plan, buffers, stream, deadline),
            }
        };
        self.queued(call, code, deadline)
    }

    /// A send to everyone and a receive from everyone, as one group.
    fn all_to_all(
        &self,
        plan: &Plan,
        buffers: Buffers,
        stream: *mut c_void,
        deadline: &Deadline,
    ) -> Result<(), TransportError> {
        let (functions, comm) = (&self.nccl.functions, self.handle());
        let (count, dtype, block) = (
            plan.count,
            code_of(plan.dtype),
            (plan.count * plan.dtype.size()) as u64,
        );
        // SAFETY: the signature is the header's.
        let begun = unsafe { (functions.group_start)() };
        self.nccl.check("ncclGroupStart", begun, comm, deadline)?;
        let mut points = Ok(());
        for peer in 0..plan.ranks {
            let (at, peer) = (peer as u64 * block, peer as i32);
            // SAFETY: as in `queue`; each block lies within its buffer.
            let code = unsafe { (functions.send)(buffers.send + at, count, dtype, peer, comm, stream) };
            let sent = self.nccl.check("ncclSend", code, comm, deadline);
            // SAFETY: as above.
            let code = unsafe { (functions.receive)(buffers.receive + at, count, dtype, peer, comm, stream) };
            points = points
                .and(sent)
                .and(self.nccl.check("ncclRecv", code, comm, deadline));
        }
        // A group that was begun must be ended, whatever happened in it.
        // SAFETY: as above.
        let code = unsafe { (functions.group_end)() };
        points?;
        self.queued("ncclGroupEnd", code, deadline)
    }

    /// Gives it up: what it has queued ends at once, on every GPU that waits for this one too.
    pub fn abort(&mut self) {
        self.end(self.nccl.functions.abort);
    }

    /// Ends it in a thread, because that may wait for a GPU.
    fn end(&mut self, function: unsafe extern "C" fn(*mut c_void) -> i32) {
        let Some(handle) = self.handle.take() else {
            return;
        };
        let (sender, ended) = channel();
        let (gpu, nccl) = (Arc::clone(&self.gpu), Arc::clone(&self.nccl));
        let thread = std::thread::Builder::new()
            .name("nccl-end".into())
            .spawn(move || {
                // The whole handle moves here, which may be sent; its pointer alone may not.
                let handle = handle;
                // Without its GPU it ends nothing; there is nobody left to tell.
                if gpu.enter().is_ok() {
                    // SAFETY: the communicator lives, and nobody has its handle any more.
                    unsafe { function(handle.0) };
                }
                drop(nccl);
                // Who asked may have given up.
                let _ = sender.send(());
            });
        if thread.is_ok() {
            // Not back in time: left behind.
            let _ = ended.recv_timeout(ENDING);
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        self.end(self.nccl.functions.destroy);
    }
}

/// ncclDataType_t.
fn code_of(dtype: Dtype) -> i32 {
    match dtype {
        Dtype::I32 => 2,
        Dtype::F16 => 6,
        Dtype::F32 => 7,
        Dtype::Bf16 => 9,
    }
}
