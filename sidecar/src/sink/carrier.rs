//! Delivers facts to destinations that may be slow or down. Each destination has its own thread, and the aggregator
//! never waits for it. Facts that were not delivered yet are replaced by newer ones, so there is no backlog.

use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::sink::metrics::JobFacts;

/// A destination for facts.
pub trait Carry: Send + 'static {
    /// Delivers these facts.
    fn carry(&mut self, facts: &JobFacts);

    /// Delivers the last facts, before the deadline `by`, because the job has ended.
    fn last(&mut self, facts: &JobFacts, by: Instant);
}

#[derive(Debug, Default)]
struct Slot {
    facts: Option<Arc<JobFacts>>,
    /// The deadline of the last facts, once they are offered.
    last: Option<Instant>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    slot: Mutex<Slot>,
    bell: Condvar,
}

/// One destination and its thread.
#[derive(Debug)]
pub struct Carrier {
    shared: Arc<Shared>,
    done: Receiver<()>,
}

impl Carrier {
    /// Starts the destination's thread.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub fn start(name: &str, mut carry: impl Carry) -> io::Result<Carrier> {
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let (say_done, done) = sync_channel(1);
        thread::Builder::new()
            .name(name.to_owned())
            .stack_size(512 << 10)
            .spawn(move || {
                while let Some((facts, last)) = theirs.next() {
                    match last {
                        Some(by) => carry.last(&facts, by),
                        None => carry.carry(&facts),
                    }
                }
                let _ = say_done.send(());
            })?;
        Ok(Carrier { shared, done })
    }

    /// Offers new facts. Returns true if they replace facts that were never delivered.
    pub fn offer(&self, facts: Arc<JobFacts>) -> bool {
        self.shared.put(facts, None)
    }

    /// Offers the last facts, with their deadline.
    pub fn end(&self, facts: Arc<JobFacts>, by: Instant) {
        self.shared.put(facts, Some(by));
    }

    /// Waits until the last facts were delivered, but only until `by`. Returns true if the thread has ended.
    pub fn close(self, by: Instant) -> bool {
        self.shared.close();
        let left = by.saturating_duration_since(Instant::now());
        self.done.recv_timeout(left).is_ok()
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Shared {
    fn put(&self, facts: Arc<JobFacts>, last: Option<Instant>) -> bool {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let before = slot.facts.replace(facts);
        slot.last = last;
        self.bell.notify_one();
        before.is_some()
    }

    fn close(&self) {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.is_closed = true;
        self.bell.notify_one();
    }

    /// Waits for the next facts and their deadline, if they are the last. Returns `None` if there will be no more.
    fn next(&self) -> Option<(Arc<JobFacts>, Option<Instant>)> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(facts) = slot.facts.take() {
                return Some((facts, slot.last));
            }
            if slot.is_closed {
                return None;
            }
            slot = self.bell.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
