//! Streams are threads that run jobs in order. Events are markers in a stream.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// A stream, whose thread runs until the stream is dropped.
pub struct Stream {
    jobs: Sender<Job>,
    pending: Arc<Gate>,
    all: Arc<Gate>,
    /// The index of the stream's GPU.
    pub device: i32,
}

/// Counts unfinished jobs.
#[derive(Default)]
struct Gate {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Gate {
    fn add(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn done(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.changed.notify_all();
    }

    fn is_clear(&self) -> bool {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) == 0
    }

    fn wait(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count > 0 {
            count = self.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Returns the gate that counts the unfinished jobs on a GPU, in all streams.
fn device_gate(device: i32) -> Arc<Gate> {
    static GATES: Mutex<BTreeMap<i32, Arc<Gate>>> = Mutex::new(BTreeMap::new());
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(gates.entry(device).or_default())
}

/// Waits until a GPU is idle.
pub fn wait_for_all(device: i32) {
    device_gate(device).wait();
}

impl Stream {
    pub fn new(device: i32) -> Stream {
        let (jobs, queue) = channel::<Job>();
        let (pending, all) = (Arc::<Gate>::default(), device_gate(device));
        let gates = [Arc::clone(&pending), Arc::clone(&all)];
        std::thread::spawn(move || {
            for job in queue {
                job();
                gates.iter().for_each(|gate| gate.done());
            }
        });
        Stream {
            jobs,
            pending,
            all,
            device,
        }
    }

    /// Queues a job.
    pub fn then(&self, job: impl FnOnce() + Send + 'static) {
        self.pending.add();
        self.all.add();
        // The send succeeds, because the thread runs as long as this sender exists.
        let _ = self.jobs.send(Box::new(job));
    }

    pub fn is_idle(&self) -> bool {
        self.pending.is_clear()
    }

    /// Waits until all jobs are done. Like cuStreamSynchronize, it has no timeout.
    pub fn wait(&self) {
        self.pending.wait();
    }
}

/// A marker in a stream, with the time when the stream passed it.
#[derive(Default)]
pub struct Event {
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    Never,
    Waiting,
    At(Instant),
}

impl Event {
    pub fn record(self: &Arc<Event>, stream: &Stream) {
        self.set(State::Waiting);
        let event = Arc::clone(self);
        stream.then(move || event.set(State::At(Instant::now())));
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the stream has passed the event. An event that was never recorded counts as passed, as in CUDA.
    pub fn is_passed(&self) -> bool {
        !matches!(self.state(), State::Waiting)
    }

    /// Returns the time from another event to this one, or `None` if one of them was never recorded or not passed.
    pub fn since(&self, other: &Event) -> Option<Duration> {
        match (other.state(), self.state()) {
            (State::At(from), State::At(to)) => Some(to.saturating_duration_since(from)),
            _ => None,
        }
    }
}

/// Objects that C code references by a handle.
pub struct Handles<T> {
    known: Mutex<(usize, BTreeMap<usize, Arc<T>>)>,
}

impl<T> Handles<T> {
    pub const fn new() -> Handles<T> {
        Handles {
            known: Mutex::new((0, BTreeMap::new())),
        }
    }

    pub fn insert(&self, thing: Arc<T>) -> usize {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.0 += 1;
        // Shifts the number, so that a handle is not a readable address.
        let handle = known.0 << 4;
        known.1.insert(handle, thing);
        handle
    }

    pub fn find(&self, handle: usize) -> Option<Arc<T>> {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .get(&handle)
            .cloned()
    }

    pub fn remove(&self, handle: usize) -> Option<Arc<T>> {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .remove(&handle)
    }
}

/// All streams.
pub static STREAMS: Handles<Stream> = Handles::new();
/// All events.
pub static EVENTS: Handles<Event> = Handles::new();
