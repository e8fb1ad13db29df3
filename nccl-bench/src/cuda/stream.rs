//! Streams of a GPU and events in them. What waits polls, so that a GPU which never answers is an error by the deadline
//! and not a process that hangs.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::driver::{CudaError, NOT_READY};
use super::gpu::{Gpu, Memory, Pinned};

/// Between two looks at an event that is not passed, once the first ones did not see it pass.
const LOOK: Duration = Duration::from_micros(50);
/// A queue of work for a GPU.
#[derive(Debug)]
pub struct Stream {
    pub(super) gpu: Arc<Gpu>,
    pub(super) handle: *mut c_void,
}

// SAFETY: a handle that is only passed back to the driver, which is thread-safe.
unsafe impl Send for Stream {}

impl Stream {
    /// Its handle, for NCCL and cuBLAS.
    pub(crate) fn handle(&self) -> *mut c_void {
        self.handle
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Queues a copy from the host. The memory must stay until an event behind it has passed: so `from` is borrowed for as
    /// long as [`Stream::finish`] takes, by everyone who calls this.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn copy_in(&self, to: &Memory, offset: usize, from: &Pinned, bytes: usize) -> Result<(), CudaError> {
        debug_assert!(offset + bytes <= to.bytes && bytes <= from.bytes);
        let (to, from, functions) = (
            to.address + offset as u64,
            from.address.cast_const(),
            &self.gpu.driver.functions,
        );
        // SAFETY: both sides are allocated in this length.
        self.gpu.driver.check("cuMemcpyHtoDAsync", unsafe {
            (functions.copy_in)(to, from, bytes, self.handle)
        })
    }

    /// Queues a copy to the host; see [`Stream::copy_in`].
    ///
    /// # Errors
    /// What the driver answers.
    pub fn copy_out(
        &self,
        to: &mut Pinned,
        from: &Memory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        debug_assert!(offset + bytes <= from.bytes && bytes <= to.bytes);
        let functions = &self.gpu.driver.functions;
        let from = from.address + offset as u64;
        // SAFETY: both sides are allocated in this length.
        self.gpu.driver.check("cuMemcpyDtoHAsync", unsafe {
            (functions.copy_out)(to.address, from, bytes, self.handle)
        })
    }

    /// Queues a copy from one memory of the GPU to another.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn copy_within(&self, to: &Memory, from: &Memory, bytes: usize) -> Result<(), CudaError> {
        debug_assert!(bytes <= from.bytes && bytes <= to.bytes);
        let functions = &self.gpu.driver.functions;
        // SAFETY: both sides are allocated in this length, and are not the same.
        let code = unsafe { (functions.copy_within)(to.address, from.address, bytes, self.handle) };
        self.gpu.driver.check("cuMemcpyDtoDAsync", code)
    }

    /// Waits until everything queued so far is done.
    ///
    /// # Errors
    /// As [`Event::wait`].
    pub fn finish(&self, what: &str, until: Instant) -> Result<(), CudaError> {
        let event = self.gpu.event()?;
        event.record(self)?;
        event.wait(what, until)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; the driver lets what is queued end by itself.
        unsafe { (self.gpu.driver.functions.stream_destroy)(self.handle) };
    }
}

/// A mark in a stream that keeps the GPU's time.
#[derive(Debug)]
pub struct Event {
    pub(super) gpu: Arc<Gpu>,
    pub(super) handle: *mut c_void,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}

impl Event {
    /// Queues it.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        let functions = &self.gpu.driver.functions;
        // SAFETY: both handles live.
        self.gpu.driver.check("cuEventRecord", unsafe {
            (functions.event_record)(self.handle, stream.handle)
        })
    }

    /// Whether the GPU has come past it.
    ///
    /// # Errors
    /// What the driver answers: also what went wrong with anything before it.
    pub fn is_passed(&self) -> Result<bool, CudaError> {
        // SAFETY: the handle lives.
        match unsafe { (self.gpu.driver.functions.event_query)(self.handle) } {
            NOT_READY => Ok(false),
            code => self.gpu.driver.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits for it.
    ///
    /// # Errors
    /// What [`Event::is_passed`] says; [`CudaError::Deadline`] names `what`.
    pub fn wait(&self, what: &str, until: Instant) -> Result<(), CudaError> {
        let began = Instant::now();
        for looks in 0u32.. {
            if self.is_passed()? {
                break;
            }
            if Instant::now() >= until {
                return Err(CudaError::Deadline {
                    what: what.to_owned(),
                    seconds: began.elapsed().as_secs_f64(),
                });
            }
            pause(looks);
        }
        Ok(())
    }

    /// Time on the GPU from `before` to this; both have passed.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn since(&self, before: &Event) -> Result<Duration, CudaError> {
        let mut milliseconds = 0.0;
        let functions = &self.gpu.driver.functions;
        // SAFETY: both handles live; the pointer is valid for the call.
        let code = unsafe { (functions.event_elapsed)(&mut milliseconds, before.handle, self.handle) };
        self.gpu.driver.check("cuEventElapsedTime", code)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

/// Between two looks: short work is caught at once, long work leaves the CPU to others. The GPU keeps the time.
pub(crate) fn pause(looks: u32) {
    if looks < 64 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(LOOK);
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.gpu.driver.functions.event_destroy)(self.handle) };
    }
}
