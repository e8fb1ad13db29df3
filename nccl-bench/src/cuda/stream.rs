//! GPU streams and their events. Waits poll, so that an unresponsive GPU causes an error at the deadline instead of a
//! hang.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::driver::{CudaError, NOT_READY};
use super::gpu::{Gpu, Memory, Pinned};

/// Interval of polls for an event, used after the first polls.
const LOOK: Duration = Duration::from_micros(50);
/// A queue of work for a GPU.
#[derive(Debug)]
pub struct Stream {
    pub(super) gpu: Arc<Gpu>,
    pub(super) handle: *mut c_void,
}

// SAFETY: a handle that is only passed to the driver, which is thread-safe.
unsafe impl Send for Stream {}

impl Stream {
    /// Returns the handle, for NCCL and cuBLAS.
    pub(crate) fn handle(&self) -> *mut c_void {
        self.handle
    }

    /// Returns the GPU of the stream.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Queues a copy from the host. The memory must stay valid until a later event has completed. Every caller ensures
    /// this by borrowing `from` until [`Stream::finish`] returns.
    ///
    /// # Errors
    /// Returns the driver's errors.
    pub fn copy_in(&self, to: &Memory, offset: usize, from: &Pinned, bytes: usize) -> Result<(), CudaError> {
        debug_assert!(offset + bytes <= to.bytes && bytes <= from.bytes);
        let (to, from, functions) = (
            to.address + offset as u64,
            from.address.cast_const(),
            &self.gpu.driver.functions,
        );
        // SAFETY: both buffers have this length.
        self.gpu.driver.check("cuMemcpyHtoDAsync", unsafe {
            (functions.copy_in)(to, from, bytes, self.handle)
        })
    }

    /// Queues a copy to the host. The memory must stay valid as in [`Stream::copy_in`].
    ///
    /// # Errors
    /// Returns the driver's errors.
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
        // SAFETY: both buffers have this length.
        self.gpu.driver.check("cuMemcpyDtoHAsync", unsafe {
            (functions.copy_out)(to.address, from, bytes, self.handle)
        })
    }

    /// Queues a copy within the GPU's memory.
    ///
    /// # Errors
    /// Returns the driver's errors.
    pub fn copy_within(&self, to: &Memory, from: &Memory, bytes: usize) -> Result<(), CudaError> {
        debug_assert!(bytes <= from.bytes && bytes <= to.bytes);
        let functions = &self.gpu.driver.functions;
        // SAFETY: both buffers have this length, and they are different.
        let code = unsafe { (functions.copy_within)(to.address, from.address, bytes, self.handle) };
        self.gpu.driver.check("cuMemcpyDtoDAsync", code)
    }

    /// Waits until all queued work is complete.
    ///
    /// # Errors
    /// Returns the same errors as [`Event::wait`].
    pub fn finish(&self, what: &str, until: Instant) -> Result<(), CudaError> {
        let event = self.gpu.event()?;
        event.record(self)?;
        event.wait(what, until)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; the driver completes queued work.
        unsafe { (self.gpu.driver.functions.stream_destroy)(self.handle) };
    }
}

/// A marker in a stream with a GPU timestamp.
#[derive(Debug)]
pub struct Event {
    pub(super) gpu: Arc<Gpu>,
    pub(super) handle: *mut c_void,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}

impl Event {
    /// Queues the event.
    ///
    /// # Errors
    /// Returns the driver's errors.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        let functions = &self.gpu.driver.functions;
        // SAFETY: both handles are valid.
        self.gpu.driver.check("cuEventRecord", unsafe {
            (functions.event_record)(self.handle, stream.handle)
        })
    }

    /// Returns true if the event has completed.
    ///
    /// # Errors
    /// Returns the driver's errors, including those of earlier work.
    pub fn is_passed(&self) -> Result<bool, CudaError> {
        // SAFETY: the handle is valid.
        match unsafe { (self.gpu.driver.functions.event_query)(self.handle) } {
            NOT_READY => Ok(false),
            code => self.gpu.driver.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits for the event.
    ///
    /// # Errors
    /// Returns the same errors as [`Event::is_passed`], or [`CudaError::Deadline`] with `what` at the deadline.
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

    /// Returns the GPU time from `before` to this event. Both events must have completed.
    ///
    /// # Errors
    /// Returns the driver's errors.
    pub fn since(&self, before: &Event) -> Result<Duration, CudaError> {
        let mut milliseconds = 0.0;
        let functions = &self.gpu.driver.functions;
        // SAFETY: both handles are valid; the pointer is valid for the call.
        let code = unsafe { (functions.event_elapsed)(&mut milliseconds, before.handle, self.handle) };
        self.gpu.driver.check("cuEventElapsedTime", code)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

/// Pauses between polls. Short work is detected immediately, and long work leaves the CPU free. The pause does not
/// affect the measured time, because the GPU measures it.
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
