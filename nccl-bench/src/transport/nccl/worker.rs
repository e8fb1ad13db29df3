//! The thread for all calls that may block in NCCL or in the driver. Calls of a blocking communicator have no timeout
//! of their own. The caller therefore waits here until its deadline, and then aborts the communicator from its own
//! thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::transport::{Deadline, TransportError};

/// Time for a job that stops by itself at its deadline to return. If it returns in this time, no call is in progress
/// during the abort.
const GRACE: Duration = Duration::from_millis(250);
/// Time for an aborted call to return.
const RETURNING: Duration = Duration::from_secs(2);

static LEFT_BEHIND: AtomicBool = AtomicBool::new(false);

/// Returns true if a thread of this process is stuck in a call of NCCL or of the driver. Exit handlers of the process
/// may wait for such a thread.
pub(crate) fn is_any_left_behind() -> bool {
    LEFT_BEHIND.load(Ordering::Acquire)
}

/// Records that a thread was abandoned.
pub(super) fn leave_behind() {
    LEFT_BEHIND.store(true, Ordering::Release);
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread for blocking calls. After the worker is dropped, the thread ends with its last job.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Sender<Job>,
    call: Call,
}

/// The thread's current call. The error names it if it does not return.
#[derive(Clone, Debug, Default)]
pub(super) struct Call(Arc<Mutex<Option<&'static str>>>);

impl Call {
    /// Sets the current call. `None` means that the thread makes no call that could block forever.
    pub(super) fn set(&self, call: Option<&'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = call;
    }

    fn get(&self) -> Option<&'static str> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// Starts the thread.
    pub(super) fn start(deadline: &Deadline) -> Result<Worker, TransportError> {
        let (jobs, queue) = channel::<Job>();
        std::thread::Builder::new()
            .name("nccl-calls".into())
            .spawn(move || queue.into_iter().for_each(|job| job()))
            .map_err(|error| deadline.local("a thread for NCCL's calls", error))?;
        Ok(Worker {
            jobs,
            call: Call::default(),
        })
    }

    /// Runs `job` on the thread, and waits for it until the deadline. If a call is in progress at the deadline, `abort`
    /// is called, which should make the call return. If it does not return, the thread is abandoned together with the
    /// resources of `job`.
    ///
    /// The second value is the job's result. It is present even with an error, if the call returned after the abort.
    pub(super) fn run<T: Send + 'static>(
        &self,
        deadline: &Deadline,
        job: impl FnOnce(&Call) -> T + Send + 'static,
        abort: impl FnOnce(),
    ) -> (Result<(), TransportError>, Option<T>) {
        let (sender, answer) = channel();
        let call = self.call.clone();
        let job = move || {
            let given = job(&call);
            call.set(None);
            // The caller may have given up waiting.
            let _ = sender.send(given);
        };
        // If the thread has ended, the send fails, and the missing answer shows this below.
        let _ = self.jobs.send(Box::new(job));
        let until = deadline.at().max(Instant::now()) + GRACE;
        match receive(&answer, until) {
            Ok(given) => (Ok(()), Some(given)),
            Err(_) => {
                let late = deadline.passed_in(self.call.get());
                abort();
                let given = receive(&answer, Instant::now() + RETURNING).ok();
                if given.is_none() {
                    leave_behind();
                }
                (Err(late), given)
            }
        }
    }
}

fn receive<T>(from: &Receiver<T>, until: Instant) -> Result<T, RecvTimeoutError> {
    from.recv_timeout(until.saturating_duration_since(Instant::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_aborted_returns_what_it_had() {
        let deadline = Deadline::new("run", Duration::from_millis(10));
        let worker = Worker::start(&deadline).unwrap();
        let (abort, aborted) = channel();
        let job = move |call: &Call| {
            call.set(Some("ncclAllReduce"));
            aborted.recv().unwrap();
            7
        };
        let (result, given) = worker.run(&deadline, job, || abort.send(()).unwrap());
        let error = result.unwrap_err().to_string();
        assert_eq!(error, "run: not done within 0.0 s in ncclAllReduce");
        assert_eq!(given, Some(7));
        // The worker accepts the next job.
        let (result, given) = worker.run(&Deadline::new("run", Duration::from_secs(5)), |_| 8, || ());
        assert!(result.is_ok() && given == Some(8));
        assert!(!is_any_left_behind());
    }
}
