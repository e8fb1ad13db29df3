//! Limits the number of connections to the page. Scrapes always find room, because pages may use only a part of the
//! slots, and because an idle connection is closed in favor of a new one if all slots are taken.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;

use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Maximum number of connections. If the descriptor limit is low, a quarter of that limit is used.
const MAX_CONNECTIONS: usize = 128;
/// Maximum number of these connections that may request anything but metrics.
pub(super) const MAX_PAGES: usize = 32;

/// All slots.
#[derive(Clone)]
pub(super) struct Slots {
    table: Arc<Mutex<Table>>,
    pages: Arc<Semaphore>,
    most: usize,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// The taken slots, in order of arrival.
    taken: BTreeMap<u64, Entry>,
}

struct Entry {
    is_idle: Arc<AtomicBool>,
    evict: oneshot::Sender<()>,
}

impl Slots {
    pub(super) fn new() -> Slots {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let quarter = usize::try_from(descriptors / 4).unwrap_or(usize::MAX);
        Slots::of(MAX_CONNECTIONS.min(quarter).max(2))
    }

    fn of(most: usize) -> Slots {
        Slots {
            table: Arc::default(),
            pages: Arc::new(Semaphore::new(MAX_PAGES.min(most / 2))),
            most,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a new connection. Returns `None` if all slots are taken by connections whose requests are being
    /// answered.
    pub(super) fn take(&self) -> Option<Slot> {
        let mut table = self.table();
        if table.taken.len() >= self.most {
            let idle = table
                .taken
                .iter()
                .find(|(_, entry)| entry.is_idle.load(Ordering::Relaxed));
            let oldest = *idle?.0;
            if let Some(entry) = table.taken.remove(&oldest) {
                // This has no effect if that connection has ended meanwhile.
                let _ = entry.evict.send(());
            }
        }
        let number = table.next;
        table.next += 1;
        let (evict, evicted) = oneshot::channel();
        let is_idle = Arc::new(AtomicBool::new(true));
        let entry = Entry {
            is_idle: Arc::clone(&is_idle),
            evict,
        };
        table.taken.insert(number, entry);
        Some(Slot {
            slots: self.clone(),
            number,
            is_idle,
            evicted,
        })
    }

    /// Returns the client of a connection.
    pub(super) fn client(&self, from: SocketAddr) -> Client {
        Client {
            from,
            pages: Arc::clone(&self.pages),
            page: Arc::default(),
        }
    }
}

/// A connection's slot, released on drop.
pub(super) struct Slot {
    slots: Slots,
    number: u64,
    is_idle: Arc<AtomicBool>,
    evicted: oneshot::Receiver<()>,
}

impl Slot {
    /// Returns true if none of the connection's requests is being answered.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle.load(Ordering::Relaxed)
    }

    pub(super) fn set_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::Relaxed);
    }

    /// Returns true if the connection was evicted from its slot.
    pub(super) fn is_evicted(&mut self, context: &mut Context<'_>) -> bool {
        Pin::new(&mut self.evicted).poll(context).is_ready()
    }

    /// Waits until the connection is evicted from its slot.
    pub(super) async fn evicted(&mut self) {
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.table().taken.remove(&self.number);
    }
}

/// The client of one connection.
#[derive(Clone)]
pub struct Client {
    from: SocketAddr,
    pages: Arc<Semaphore>,
    /// The connection's share of the page limit, which it holds until it ends.
    page: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl Client {
    /// Returns true if there is room for a page. If so, this connection holds that room until it ends.
    pub(super) fn has_page(&self) -> bool {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        if page.is_none() {
            *page = Arc::clone(&self.pages).try_acquire_owned().ok();
        }
        page.is_some()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.from.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_nothing_makes_room() {
        let slots = Slots::of(3);
        let mut all: Vec<Slot> = (0..3).filter_map(|_| slots.take()).collect();
        let mut context = Context::from_waker(std::task::Waker::noop());
        all[0].set_idle(false);
        let fourth = slots.take().unwrap();
        let mut evicted = |slot: &mut Slot| slot.is_evicted(&mut context);
        assert!(!evicted(&mut all[0]), "it is being answered");
        assert!(evicted(&mut all[1]), "the oldest that asks for nothing");
        assert!(!evicted(&mut all[2]));
        all[2].set_idle(false);
        fourth.set_idle(false);
        assert!(slots.take().is_none(), "all are being answered");
        all.remove(0);
        assert!(slots.take().is_some());
    }

    #[test]
    fn pages_leave_slots_to_scrapes() {
        let slots = Slots::of(4);
        let from = SocketAddr::from(([127, 0, 0, 1], 1));
        let clients: Vec<Client> = (0..3).map(|_| slots.client(from)).collect();
        assert!(clients[0].has_page() && clients[0].has_page() && clients[1].has_page());
        assert!(!clients[2].has_page());
        drop(clients);
        assert!(slots.client(from).has_page());
    }
}
