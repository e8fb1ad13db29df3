//! A communicator of one rank. Its calls block, as in nccl-tests and PyTorch. They run on the thread of
//! [`super::worker`], and another thread aborts the communicator at the deadline.
//!
//! Joining is not aborted. NCCL supports that only for non-blocking communicators (`ncclConfig_t.blocking`). In a
//! blocking one, ncclCommAbort may free memory that the joining call still uses. A thread that does not return from
//! joining is therefore abandoned, and the process ends without it.

use std::ffi::c_void;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::api::{Config, Nccl, UniqueId};
use super::errors::of_gpu;
use super::worker::{Call, leave_behind};
use crate::collective::{Collective, Plan};
use crate::cuda::{Gpu, Stream};
use crate::dtype::Dtype;
use crate::transport::{Deadline, TransportError};

/// Time limit for ending a communicator, which waits for kernels. A call that does not return in this time is
/// abandoned.
const ENDING: Duration = Duration::from_secs(5);
const INIT: &str = "ncclCommInitRankConfig";
/// ncclSum.
const SUM: i32 = 0;

/// The communicator; see the module documentation.
#[derive(Debug)]
pub struct Comm {
    nccl: Arc<Nccl>,
    /// The handle, or `None` after the communicator was ended. A thread other than the calling one may have ended it.
    handle: Mutex<Option<Handle>>,
    gpu: Arc<Gpu>,
}

#[derive(Clone, Copy, Debug)]
struct Handle(*mut c_void);

// SAFETY: a handle that is only passed to NCCL, by one thread at a time except to abort, which NCCL permits from
// another.
unsafe impl Send for Handle {}

/// GPU addresses of a collective's buffers.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Address of the input.
    pub send: u64,
    /// Address of the output.
    pub receive: u64,
}

impl Comm {
    /// Joins the other ranks, which must have the same id. Returns when all have joined, and has no time limit.
    pub fn join(
        nccl: &Arc<Nccl>,
        gpu: &Arc<Gpu>,
        id: UniqueId,
        (rank, ranks): (usize, usize),
        deadline: &Deadline,
        call: &Call,
    ) -> Result<Comm, TransportError> {
        gpu.enter().map_err(|error| of_gpu(error, deadline))?;
        let (mut handle, mut config) = (std::ptr::null_mut(), Config::blocking());
        call.set(Some(INIT));
        // SAFETY: the signature is from the header; the pointers are valid for the call, which copies their content.
        let code = unsafe { (nccl.functions.init)(&mut handle, ranks as i32, id, rank as i32, &mut config) };
        call.set(None);
        nccl.check(INIT, code, deadline)?;
        Ok(Comm {
            nccl: Arc::clone(nccl),
            handle: Mutex::new(Some(Handle(handle))),
            gpu: Arc::clone(gpu),
        })
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, Option<Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, deadline: &Deadline) -> Result<*mut c_void, TransportError> {
        let handle = *self.taken();
        handle.map(|handle| handle.0).ok_or_else(|| deadline.passed(None))
    }

    /// Checks for asynchronous errors since the last call, such as a lost peer.
    pub fn is_well(&self, deadline: &Deadline) -> Result<(), TransportError> {
        const ASKED: &str = "ncclCommGetAsyncError";
        let handle = self.handle(deadline)?;
        let mut state = 0;
        // SAFETY: the communicator is valid; the pointer is valid for the call.
        let code = unsafe { (self.nccl.functions.async_error)(handle, &mut state) };
        self.nccl.check(ASKED, code, deadline)?;
        self.nccl.check(ASKED, state, deadline)
    }

    /// Returns the name of the last call that [`Comm::queue`] makes.
    pub fn call_of(collective: Collective) -> &'static str {
        match collective {
            Collective::AllReduce => "ncclAllReduce",
            Collective::ReduceScatter => "ncclReduceScatter",
            Collective::AllGather => "ncclAllGather",
            Collective::Broadcast => "ncclBroadcast",
            Collective::AllToAll => "ncclGroupEnd",
        }
    }

    /// Queues one collective. On return it is in the stream.
    pub fn queue(
        &self,
        plan: &Plan,
        buffers: Buffers,
        stream: &Stream,
        deadline: &Deadline,
    ) -> Result<(), TransportError> {
        let Buffers { send, receive } = buffers;
        let (count, dtype, root) = (plan.count, code_of(plan.dtype), plan.root as i32);
        let (functions, comm, stream) = (&self.nccl.functions, self.handle(deadline)?, stream.handle());
        // SAFETY: the signatures are from the header; the buffers are on this communicator's GPU and have the sizes of
        // the plan; communicator and stream are valid.
        let code = unsafe {
            match plan.collective {
                Collective::AllReduce => {
                    (functions.all_reduce)(send, receive, count, dtype, SUM, comm, stream)
                }
                Collective::ReduceScatter => {
                    (functions.reduce_scatter)(send, receive, count, dtype, SUM, comm, stream)
                }
                Collective::AllGather => (functions.all_gather)(send, receive, count, dtype, comm, stream),
                Collective::Broadcast => {
                    (functions.broadcast)(send, receive, count, dtype, root, comm, stream)
                }
                Collective::AllToAll => return self.all_to_all(plan, buffers, stream, deadline),
            }
        };
        self.nccl.check(Comm::call_of(plan.collective), code, deadline)
    }

    /// Queues a send to every rank and a receive from every rank, as one group.
    fn all_to_all(
        &self,
        plan: &Plan,
        buffers: Buffers,
        stream: *mut c_void,
        deadline: &Deadline,
    ) -> Result<(), TransportError> {
        let (functions, comm) = (&self.nccl.functions, self.handle(deadline)?);
        let (count, dtype, block) = (
            plan.count,
            code_of(plan.dtype),
            (plan.count * plan.dtype.size()) as u64,
        );
        // SAFETY: the signature is from the header.
        let begun = unsafe { (functions.group_start)() };
        self.nccl.check("ncclGroupStart", begun, deadline)?;
        let mut points = Ok(());
        for peer in 0..plan.ranks {
            let (at, peer) = (peer as u64 * block, peer as i32);
            // SAFETY: as in `queue`; each block is within its buffer.
            let code = unsafe { (functions.send)(buffers.send + at, count, dtype, peer, comm, stream) };
            let sent = self.nccl.check("ncclSend", code, deadline);
            // SAFETY: as above.
            let code = unsafe { (functions.receive)(buffers.receive + at, count, dtype, peer, comm, stream) };
            points = points.and(sent).and(self.nccl.check("ncclRecv", code, deadline));
        }
        // End the group even after an error, because a started group must be ended.
        // SAFETY: as above.
        let code = unsafe { (functions.group_end)() };
        points?;
        self.nccl.check("ncclGroupEnd", code, deadline)
    }

    /// Aborts the communicator. Queued work ends immediately, also on GPUs that wait for this one.
    pub fn abort(&self) {
        self.end(self.nccl.functions.abort);
    }

    /// Destroys the communicator after its queued work is complete.
    pub fn destroy(&self) {
        self.end(self.nccl.functions.destroy);
    }

    /// Ends the communicator in a thread, because the call may wait for a GPU.
    fn end(&self, function: unsafe extern "C" fn(*mut c_void) -> i32) {
        let Some(handle) = self.taken().take() else {
            return;
        };
        let (sender, ended) = channel();
        let (gpu, nccl) = (Arc::clone(&self.gpu), Arc::clone(&self.nccl));
        let thread = std::thread::Builder::new()
            .name("nccl-end".into())
            .spawn(move || {
                // Move the whole handle, because the handle is Send and its pointer alone is not.
                let handle = handle;
                // The communicator cannot be ended if its GPU cannot be made current.
                if gpu.enter().is_ok() {
                    // SAFETY: the communicator is valid, and its handle is not shared.
                    unsafe { function(handle.0) };
                }
                drop(nccl);
                // The receiver may no longer exist.
                let _ = sender.send(());
            });
        if thread.is_ok() && ended.recv_timeout(ENDING).is_err() {
            leave_behind();
        }
    }
}

/// Returns the ncclDataType_t of a type.
fn code_of(dtype: Dtype) -> i32 {
    match dtype {
        Dtype::I32 => 2,
        Dtype::F16 => 6,
        Dtype::F32 => 7,
        Dtype::Bf16 => 9,
    }
}
