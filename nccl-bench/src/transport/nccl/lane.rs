//! A rank's GPU resources, and the work with them on [`super::worker`]'s thread, which is to prepare, time and verify.
//! As long as a call does not return, the thread keeps all resources, because kernels may still use the memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::comm::{Buffers, Comm};
use super::errors::of_gpu;
use super::worker::Call;
use super::{NAME, STAGE};
use crate::collective::Plan;
use crate::cuda::{Event, Gpu, Memory, Pinned, Stream, pause};
use crate::pattern;
use crate::transport::{Deadline, TransportError};

/// Interval of checks on the communicator while waiting for the GPU. A lost peer is noticed with this delay.
const LOOK: Duration = Duration::from_millis(20);

/// The GPU resources of a rank; see the module documentation.
pub(super) struct Lane {
    prepared: Option<Prepared>,
    events: Vec<Event>,
    stage: Pinned,
    stream: Stream,
    gpu: Arc<Gpu>,
}

/// A plan and its memory.
struct Prepared {
    plan: Plan,
    memory: Memory,
    /// The second buffer, if the plan is out of place.
    second: Option<Memory>,
}

/// Parameters of a job on the lane.
pub(super) struct With<'a> {
    pub(super) comm: &'a Comm,
    /// This rank in the communicator.
    pub(super) rank: usize,
    pub(super) deadline: &'a Deadline,
    pub(super) call: &'a Call,
}

impl Lane {
    pub(super) fn new(stage: Pinned, stream: Stream) -> Lane {
        let gpu = Arc::clone(stream.gpu());
        Lane {
            prepared: None,
            events: Vec::new(),
            stage,
            stream,
            gpu,
        }
    }

    /// Allocates buffers for a plan. They replace the previous ones.
    pub(super) fn prepare(&mut self, plan: &Plan, deadline: &Deadline) -> Result<(), TransportError> {
        // Free the previous buffers first.
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

    /// Frees the buffers.
    pub(super) fn clear(&mut self) {
        self.prepared = None;
    }

    fn prepared(&self) -> Result<&Prepared, TransportError> {
        let what = || "a run before it is prepared".into();
        self.prepared.as_ref().ok_or_else(|| TransportError::Unsupported {
            transport: NAME,
            what: what(),
        })
    }

    /// Queues this many collectives without gaps, with events before, between and after them, and then waits for the
    /// last event. The communicator is not checked while they are queued, so that only the GPUs limit small
    /// collectives.
    pub(super) fn timed(
        &mut self,
        iterations: u32,
        with: &With<'_>,
    ) -> Result<Vec<Duration>, TransportError> {
        let marks = iterations as usize + 1;
        let gpu_error = |error| of_gpu(error, with.deadline);
        self.gpu.enter().map_err(gpu_error)?;
        while self.events.len() < marks {
            self.events.push(self.gpu.event().map_err(gpu_error)?);
        }
        let (events, prepared) = (&self.events[..marks], self.prepared()?);
        let buffers = prepared.buffers(with.rank);
        with.call.set(Some(Comm::call_of(prepared.plan.collective)));
        events[0].record(&self.stream).map_err(gpu_error)?;
        for event in &events[1..] {
            // Start no call after the deadline, so that an abort can only affect a call that does not return.
            with.deadline
                .remaining()
                .ok_or_else(|| with.deadline.passed(None))?;
            with.comm
                .queue(&prepared.plan, buffers, &self.stream, with.deadline)?;
            event.record(&self.stream).map_err(gpu_error)?;
        }
        with.call.set(None);
        wait(&events[marks - 1], with)?;
        events
            .windows(2)
            .map(|pair| pair[1].since(&pair[0]).map_err(gpu_error))
            .collect()
    }

    /// Fills the buffers, runs the collective once, and returns the number of wrong elements.
    pub(super) fn checked(&mut self, with: &With<'_>) -> Result<u64, TransportError> {
        self.gpu.enter().map_err(|error| of_gpu(error, with.deadline))?;
        self.prepared()?;
        let prepared = self.prepared.take().ok_or_else(|| with.deadline.passed(None))?;
        let counted = self.check_prepared(&prepared, with);
        self.prepared = Some(prepared);
        counted
    }

    fn check_prepared(&mut self, prepared: &Prepared, with: &With<'_>) -> Result<u64, TransportError> {
        let (plan, rank, deadline) = (&prepared.plan, with.rank, with.deadline);
        let size = plan.dtype.size();
        let (send, receive) = prepared.offsets(rank);
        // Overwrite the output of an earlier run. It may be correct, and must not pass as the result of this run.
        let output = prepared.second.as_ref().unwrap_or(&prepared.memory);
        self.fill(output, 0, &vec![0xFF; output.bytes()], deadline)?;
        self.fill(&prepared.memory, send, &pattern::input(plan, rank), deadline)?;
        with.call.set(Some(Comm::call_of(plan.collective)));
        with.comm
            .queue(plan, prepared.buffers(rank), &self.stream, deadline)?;
        with.call.set(None);
        let done = self
            .gpu
            .event()
            .and_then(|event| event.record(&self.stream).map(|()| event));
        wait(&done.map_err(|error| of_gpu(error, deadline))?, with)?;
        let seen = self.fetch(output, receive, plan.receive_elements() * size, deadline)?;
        Ok(pattern::wrong(plan, rank, &seen))
    }

    /// Writes to the GPU's memory, starting at `offset`.
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

    /// Reads from the GPU's memory.
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
}

impl Prepared {
    /// Returns the offsets of a rank's input and output in their buffers, in bytes.
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

/// Waits for an event. If a rank is lost, the kernel would wait forever, so longer waits also check the communicator.
fn wait(event: &Event, with: &With<'_>) -> Result<(), TransportError> {
    let mut next = Instant::now() + LOOK;
    for looks in 0u32.. {
        if event.is_passed().map_err(|error| of_gpu(error, with.deadline))? {
            break;
        }
        if Instant::now() >= next {
            with.comm.is_well(with.deadline)?;
            next = Instant::now() + LOOK;
        }
        with.deadline
            .remaining()
            .ok_or_else(|| with.deadline.passed(None))?;
        pause(looks);
    }
    Ok(())
}

fn until(deadline: &Deadline) -> Result<Instant, TransportError> {
    deadline
        .remaining()
        .map(|left| Instant::now() + left)
        .ok_or_else(|| deadline.passed(None))
}
