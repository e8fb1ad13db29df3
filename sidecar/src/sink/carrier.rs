//! Takes what is known to places that may be slow or gone: on a thread of its own for each, which the aggregator never waits for.
//! What was not taken yet is replaced by what is newer, so nothing piles up.

use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::sink::metrics::JobFacts;

/// A way out for what is known.
pub trait Carry: Send + 'static {
    /// Takes it there.
    fn carry(&mut self, facts: &JobFacts);

    /// The job has ended: takes the last there, by then.
    fn last(&mut self, facts: &JobFacts, by: Instant);
}

#[derive(Debug, Default)]
struct Slot {
    facts: Option<Arc<JobFacts>>,
    /// Nothing comes after these; they are to be there by then.
    last: Option<Instant>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    slot: Mutex<Slot>,
    bell: Condvar,
}

/// One way out.
#[derive(Debug)]
pub struct Carrier {
    shared: Arc<Shared>,
    done: Receiver<()>,
}

impl Carrier {
    /// Its thread begins.
    ///
    /// # Errors
    /// When the system gives no thread.
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

    /// Something new to take there. Whether what came before was never begun.
    pub fn offer(&self, facts: Arc<JobFacts>) -> bool {
        self.shared.put(facts, None)
    }

    /// The last to take there, by then at the latest.
    pub fn end(&self, facts: Arc<JobFacts>, by: Instant) {
        self.shared.put(facts, Some(by));
    }

    /// Waits until the last was taken, but not longer than to `by`. Whether it has ended by then.
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

    /// `None`: nothing will come.
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
