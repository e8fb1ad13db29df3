//! Passes data from the threads that call the library to the agent, which never calls it. Threads publish their state
//! here, and the agent sends what is new. The board does not grow, because new readings replace old ones and equal
//! faults are only counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_health::Provenance;
use paceline_health::event::{
    Access, Event, FaultSource, GpuAccess, GpuFault, GpuFaultKind, GpuHolders, GpuProcess, GpuReading,
};
use paceline_health::id::GpuId;

use super::desk::Desk;
use super::library::Gpu;
use super::readings::reader::Readings;
use crate::host::monotonic_ns;
use crate::source::Send;
use crate::source::bursts::Bursts;

/// A round that takes longer than this is reported. The limit is half a second below five, so that the finding is
/// raised within five seconds.
pub const SILENT_NS: u64 = 4_500_000_000;
/// The board; see the module.
#[derive(Debug, Default)]
pub struct Board(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    node: Option<Status>,
    /// Desk of the thread that opens the library.
    node_desk: Option<Arc<Desk>>,
    gpus: BTreeMap<GpuId, Seat>,
    /// GPUs that were not identified yet, by NVML's index, because their UUID is unknown.
    strangers: BTreeMap<u32, Stranger>,
    readings: BTreeMap<GpuId, GpuReading>,
    faults: Bursts,
    /// Increases when everything must be sent again.
    epoch: u64,
    /// Total time of all rounds.
    busy_ns: u64,
}

/// One GPU. It stays on the board when it is lost.
#[derive(Debug)]
struct Seat {
    pci: Arc<str>,
    status: Status,
    /// If the GPU has no events, the reason.
    no_events: Option<String>,
    desk: Arc<Desk>,
    holders: Option<Vec<GpuProcess>>,
    holders_told: bool,
}

#[derive(Debug)]
struct Stranger {
    desk: Arc<Desk>,
    status: Option<Status>,
}

/// Whether a GPU or node can be read, and the state that was last sent.
#[derive(Debug)]
struct Status {
    access: Access,
    text: String,
    since_ns: u64,
    told: Option<Access>,
}

impl Status {
    fn new(access: Access, text: String) -> Status {
        Status {
            access,
            text,
            since_ns: monotonic_ns(),
            told: None,
        }
    }

    fn set(&mut self, access: Access, text: impl Into<String>) {
        if self.access != access {
            self.access = access;
            self.text = text.into();
            self.since_ns = monotonic_ns();
        }
    }

    fn now(&self, now_ns: u64) -> News {
        (
            self.access,
            self.text.clone(),
            now_ns.saturating_sub(self.since_ns),
        )
    }

    /// Returns the state `news` if it differs from the one last sent.
    fn news(&mut self, news: News) -> Option<News> {
        (self.told.replace(news.0) != Some(news.0)).then_some(news)
    }
}

/// An access state, its description, and how long it has lasted in nanoseconds.
type News = (Access, String, u64);

/// Returns the state `Silent` if a call has not returned for too long.
fn silence(desk: &Desk, now_ns: u64) -> Option<News> {
    let (for_ns, call) = desk.busy(now_ns).filter(|(for_ns, _)| *for_ns >= SILENT_NS)?;
    Some((Access::Silent, format!("{call} has not returned"), for_ns))
}

impl Seat {
    fn now(&self, now_ns: u64) -> News {
        let status = self.status.now(now_ns);
        match (silence(&self.desk, now_ns), &self.no_events) {
            (Some(silence), _) => silence,
            (None, Some(why)) if status.0 == Access::Readable => (Access::NoEvents, why.clone(), status.2),
            (None, _) => status,
        }
    }
}

impl State {
    /// Returns the state of the node as a whole, for example without a driver or with unidentified GPUs.
    fn node_now(&self, status: &Status, now_ns: u64) -> News {
        let silent = self.node_desk.as_ref().and_then(|desk| silence(desk, now_ns));
        let troubled = || {
            self.strangers.iter().filter_map(|(index, stranger)| {
                let trouble = silence(&stranger.desk, now_ns);
                let trouble = trouble.or_else(|| Some(stranger.status.as_ref()?.now(now_ns)))?;
                Some((index, trouble))
            })
        };
        match (silent, troubled().next()) {
            (Some(silence), _) => silence,
            (None, Some((index, (access, text, for_ns)))) if status.access == Access::Readable => {
                let count = troubled().count();
                let text = format!("GPUs that were not found: {count}, such as number {index}: {text}");
                (access, text, for_ns)
            }
            (None, _) => status.now(now_ns),
        }
    }
}

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the desk at which the thread that opens the library records its calls.
    pub fn seat_keeper(&self, desk: Arc<Desk>) {
        self.state().node_desk = Some(desk);
    }

    /// Sets whether the node's GPUs can be read at all.
    pub fn node(&self, access: Access, text: &str) {
        let mut state = self.state();
        match &mut state.node {
            Some(status) => status.set(access, text),
            None => state.node = Some(Status::new(access, text.to_owned())),
        }
        if access != Access::Readable {
            for seat in state.gpus.values_mut() {
                seat.status.set(access, text);
            }
        }
    }

    /// Forgets unidentified GPUs, because the library is opened again.
    pub fn forget_strangers(&self) {
        self.state().strangers.clear();
    }

    /// Adds an unidentified GPU, whose calls are recorded at `desk`, together with its problem, if any.
    pub fn stranger(&self, index: u32, desk: &Arc<Desk>, trouble: Option<(Access, String)>) {
        let mut state = self.state();
        let stranger = state.strangers.entry(index).or_insert_with(|| Stranger {
            desk: Arc::clone(desk),
            status: None,
        });
        match (&mut stranger.status, trouble) {
            (Some(status), Some((access, text))) => status.set(access, text),
            (status, trouble) => *status = trouble.map(|(access, text)| Status::new(access, text)),
        }
    }

    /// Adds a GPU that was found for the first time or again.
    pub fn seat(&self, index: u32, gpu: &Gpu) {
        let mut state = self.state();
        state.strangers.remove(&index);
        let seat = state.gpus.entry(gpu.uuid.clone()).or_insert_with(|| Seat {
            pci: Arc::clone(&gpu.pci),
            status: Status::new(Access::Readable, String::new()),
            no_events: None,
            desk: Arc::clone(&gpu.desk),
            holders: None,
            holders_told: true,
        });
        seat.desk = Arc::clone(&gpu.desk);
    }

    /// Sets whether one GPU can be read.
    pub fn gpu(&self, gpu: &GpuId, access: Access, text: impl Into<String>) {
        if let Some(seat) = self.state().gpus.get_mut(gpu) {
            seat.status.set(access, text);
        }
    }

    /// Sets why a GPU has no events, or `None` if it has events.
    pub fn no_events(&self, gpu: &GpuId, why: Option<String>) {
        if let Some(seat) = self.state().gpus.get_mut(gpu) {
            seat.no_events = why;
        }
    }

    /// Returns true if at least one GPU can be read.
    pub fn any_readable(&self) -> bool {
        let state = self.state();
        state
            .gpus
            .values()
            .any(|seat| seat.status.access == Access::Readable)
    }

    /// Adds readings of a GPU or of one of its instances. Older unsent readings stay unless a new one replaces them.
    pub fn readings(&self, gpu: &Gpu, readings: Readings) {
        let mut state = self.state();
        let reading = state
            .readings
            .entry(gpu.uuid.clone())
            .or_insert_with(|| GpuReading {
                gpu: gpu.uuid.clone(),
                pci: Arc::clone(&gpu.pci),
                model: Arc::clone(&gpu.model),
                readings: Readings::new(),
            });
        reading.readings.extend(readings);
    }

    /// Sets the processes that use a GPU.
    pub fn holders(&self, gpu: &GpuId, processes: Vec<GpuProcess>) {
        if let Some(seat) = self.state().gpus.get_mut(gpu)
            && seat.holders.as_ref() != Some(&processes)
        {
            seat.holders = Some(processes);
            seat.holders_told = false;
        }
    }

    /// Adds a fault reported by the library. `text` names the instance.
    pub fn fault(&self, gpu: Option<&GpuId>, kind: GpuFaultKind, xid: u32, text: &str) {
        let mut state = self.state();
        let pci = gpu
            .and_then(|gpu| state.gpus.get(gpu))
            .map(|seat| Arc::clone(&seat.pci));
        state.faults.add(GpuFault {
            gpu: gpu.cloned(),
            pci: pci.unwrap_or_default(),
            kind,
            xid,
            count: 1,
            seen_by: FaultSource::Nvml,
            text: text.into(),
        });
    }

    /// Adds the duration of a round.
    pub fn took(&self, ns: u64) {
        self.state().busy_ns += ns;
    }

    /// Returns the total time of all rounds.
    pub fn busy_ns(&self) -> u64 {
        self.state().busy_ns
    }

    /// Returns the number of faults lost because there were too many kinds.
    pub fn lost(&self) -> u64 {
        self.state().faults.lost()
    }

    /// Makes everything be sent again. Increases the epoch, so that threads read all signals in their next round.
    pub fn tell_again(&self) {
        let mut state = self.state();
        state.epoch += 1;
        let State {
            node, gpus, faults, ..
        } = &mut *state;
        faults.tell_again();
        node.iter_mut().for_each(|status| status.told = None);
        for seat in gpus.values_mut() {
            seat.status.told = None;
            seat.holders_told = seat.holders.is_none();
        }
    }

    /// Returns the epoch; see [`Board::tell_again`].
    pub fn epoch(&self) -> u64 {
        self.state().epoch
    }

    /// Sends what changed.
    pub fn poll(&self, now_ns: u64, send: &mut Send<'_>) {
        let mut events = Vec::new();
        {
            let mut state = self.state();
            if let Some(mut status) = state.node.take() {
                let now = state.node_now(&status, now_ns);
                let news = status.news(now);
                state.node = Some(status);
                events.extend(news.map(|news| access(None, "".into(), news)));
            }
            let State {
                gpus,
                readings,
                faults,
                ..
            } = &mut *state;
            for (gpu, seat) in gpus {
                let now = seat.now(now_ns);
                let unread = seat
                    .status
                    .told
                    .is_some_and(|told| !matches!(told, Access::Readable | Access::NoEvents));
                if now.0 == Access::NoEvents && unread {
                    // Report first that the GPU became readable, and then that it has no events.
                    let readable = (Access::Readable, String::new(), now.2);
                    let readable = seat.status.news(readable);
                    events.extend(readable.map(|news| access(Some(gpu), Arc::clone(&seat.pci), news)));
                }
                let news = seat.status.news(now);
                events.extend(news.map(|news| access(Some(gpu), Arc::clone(&seat.pci), news)));
                if !std::mem::replace(&mut seat.holders_told, true)
                    && let Some(processes) = seat.holders.clone()
                {
                    events.push(Event::GpuHolders(GpuHolders {
                        gpu: gpu.clone(),
                        pci: Arc::clone(&seat.pci),
                        processes,
                    }));
                }
            }
            faults.send(now_ns, &mut |fault| events.push(Event::GpuFault(fault)));
            events.extend(std::mem::take(readings).into_values().map(Event::Gpu));
        }
        for event in events {
            send(Provenance::Live, event);
        }
    }
}

fn access(gpu: Option<&GpuId>, pci: Arc<str>, (state, text, for_ns): News) -> Event {
    Event::GpuAccess(GpuAccess {
        gpu: gpu.cloned(),
        pci,
        state,
        text: text.into(),
        for_ns,
    })
}
