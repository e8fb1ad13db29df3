//! The callbacks. NCCL calls them from several threads at once: the threads that enqueue work, and those that track
//! kernels.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU64};

use paceline_ring::{
    Bare, Collective, KIND_COLLECTIVE, KIND_TIMED, StepGlance, TOOK_ITSELF_OUT, Timed, Wrote, monotonic_ns,
};

use crate::abi::{COLL, Coll, GROUP_API, Interface, KERNEL_CH, KernelCh, Message, P2P};
use crate::budget::{self, Budget, TIMED_ONE_IN};
use crate::comms::{Comm, Comms, Member};
use crate::environment::{self, variable};
use crate::rank;
use crate::records;
use crate::sampler::{NEVER, Sampler, Step};
use crate::table::{Claim, Handle, Table};

/// Once in this many collectives, the plugin looks for the hook's ring and checks its cost. It never does so at a timed
/// collective, whose cost is scaled up to count for others.
const LOOK_EVERY: u64 = 256;
const LOOK_AT: u64 = TIMED_ONE_IN / 2;
/// Once in this many collectives, the leader is checked. This is more than three of the longest steps.
const LEADER_EVERY: u64 = 1 << 14;
/// The communicators are written again at this interval, so that a sidecar that starts later learns them.
const TELL_AGAIN_NS: u64 = 60_000_000_000;
/// Longest path of the ring directory, in bytes.
const DIR: usize = 400;
/// Maximum number of times that a thread yields while another thread initializes the plugin.
const PATIENCE: u32 = 1 << 20;

unsafe extern "C" {
    fn sched_yield() -> c_int;
}

const NEW: u8 = 0;
const BEGINNING: u8 = 1;
const READY: u8 = 2;
const OFF: u8 = 3;

/// The plugin's whole state in a process.
pub struct Plugin {
    state: AtomicU8,
    ring: Bare,
    steps: StepGlance,
    comms: Comms,
    table: Table,
    sampler: Sampler,
    budget: Budget,
    tickets: AtomicU64,
    /// NCCL's own mask word. All communicators share it.
    mask: AtomicPtr<c_int>,
    /// True if NCCL reports captured calls on request.
    tells_captures: AtomicBool,
    /// True if GPU times are currently requested.
    is_timing: AtomicBool,
    told_ns: AtomicU64,
    /// True if the note about unrecorded communicators was written.
    said_shared: AtomicBool,
    dir: UnsafeCell<[u8; DIR]>,
}

// SAFETY: `dir` is written by the one thread that takes the state from NEW to BEGINNING, and read after READY.
unsafe impl Sync for Plugin {}

impl Default for Plugin {
    fn default() -> Plugin {
        Plugin::new()
    }
}

impl Plugin {
    /// Returns the state before the first communicator.
    pub const fn new() -> Plugin {
        Plugin {
            state: AtomicU8::new(NEW),
            ring: Bare::new(),
            steps: StepGlance::new(),
            comms: Comms::new(),
            table: Table::new(),
            sampler: Sampler::new(),
            budget: Budget::new(),
            tickets: AtomicU64::new(0),
            mask: AtomicPtr::new(std::ptr::null_mut()),
            tells_captures: AtomicBool::new(false),
            is_timing: AtomicBool::new(false),
            told_ns: AtomicU64::new(0),
            said_shared: AtomicBool::new(false),
            dir: UnsafeCell::new([0; DIR]),
        }
    }

    /// Handles the creation of a communicator. Returns its context, or null if it is not recorded.
    ///
    /// # Safety
    /// `mask` is null or NCCL's mask, which is valid as long as NCCL is loaded.
    pub unsafe fn join(&self, mask: *mut c_int, member: Member, interface: Interface) -> *mut c_void {
        let is_watched = member.ranks > 1 && !mask.is_null() && self.is_ready(interface);
        if !is_watched || self.ring.is_off() {
            return std::ptr::null_mut();
        }
        self.mask.store(mask, Release);
        let Some(context) = self.comms.join(member) else {
            self.ring.give_up();
            return std::ptr::null_mut();
        };
        if self.comms.of(context).is_some_and(|(comm, _)| comm.is_shared()) {
            if !self.said_shared.swap(true, Relaxed) {
                self.note(b"NCCL plugin: GPUs of one process: not watched");
            }
            return context;
        }
        self.ring.write(records::GROUP, records::group(member));
        self.ask(self.wants(self.steps.step()));
        self.ring.duty(self.sampler.windows(self.ring.sample()));
        context
    }

    /// Handles the destruction of a communicator.
    pub fn leave(&self, context: *mut c_void) {
        if let Some(member) = self.comms.leave(context) {
            self.table.forget(member.id, |timed| self.give_up(timed));
        }
    }

    /// Handles an enqueued collective. Returns its handle, or null if the plugin needs no further events of it.
    pub fn enqueue(&self, context: *mut c_void, coll: &Coll) -> *mut c_void {
        let Some((comm, member)) = self.watched(context) else {
            return std::ptr::null_mut();
        };
        comm.count();
        self.tell(|ticket, now_ns, step| records::collective(coll, member, ticket, now_ns, step))
    }

    /// Handles an enqueued send or receive of the communicator's rank `own`, in the same way as [`Plugin::enqueue`].
    pub fn message(&self, context: *mut c_void, message: &Message, own: c_int) -> *mut c_void {
        match self.watched(context) {
            Some((comm, member)) if comm.is_neighbor(message.peer, own) => {
                self.tell(|ticket, now_ns, step| records::message(message, member, ticket, now_ns, step))
            }
            _ => std::ptr::null_mut(),
        }
    }

    /// Returns the communicator of a context, or `None` if it is not recorded.
    fn watched(&self, context: *mut c_void) -> Option<(&Comm, Member)> {
        let (comm, member) = self.comms.of(context)?;
        // Clears the mask again, because another thread may have requested events just when the plugin switched itself
        // off.
        if self.ring.is_off() || self.state.load(Relaxed) != READY {
            self.set_mask(0);
            return None;
        }
        (!comm.is_shared()).then_some((comm, member))
    }

    /// Records an enqueued operation. `record` builds the record from its ticket, the time and the step.
    fn tell(&self, record: impl FnOnce(u64, u64, Option<u64>) -> Collective) -> *mut c_void {
        let now_ns = monotonic_ns();
        let ticket = self.tickets.fetch_add(1, Relaxed) + 1;
        let step = self.steps.step();
        let mut did = record(ticket, now_ns, step);
        if let Some(channels) = did.awaited_channels().filter(|_| self.is_timing.load(Relaxed)) {
            match self.table.claim(ticket, did.comm, channels, now_ns) {
                Claim::Taken => did.is_timed = true,
                Claim::Evicted(old) => {
                    did.is_timed = true;
                    self.give_up(old);
                }
                Claim::Refused => self.ring.give_up(),
            }
        }
        self.ring.write(KIND_COLLECTIVE, did.words());
        let wants = self.wants(step);
        if wants != self.is_timing.load(Relaxed) {
            self.ask(wants);
        }
        self.now_and_then(ticket, now_ns);
        self.spent(ticket, now_ns);
        if did.is_timed {
            Handle::Coll(ticket).pack()
        } else {
            std::ptr::null_mut()
        }
    }

    /// Handles the start of a kernel on a channel. Returns its handle, or null if its end is not needed.
    pub fn began(&self, parent: *mut c_void, kernel: KernelCh) -> *mut c_void {
        let Some(Handle::Coll(ticket)) = Handle::unpack(parent) else {
            return std::ptr::null_mut();
        };
        let begin = self.begin(ticket);
        let handle = if self.table.start(ticket, kernel.channel, kernel.timer) {
            Handle::Kernel(ticket, kernel.channel).pack()
        } else {
            std::ptr::null_mut()
        };
        self.spent(ticket, begin);
        handle
    }

    /// Records the GPU's time at a kernel's end.
    pub fn ended(&self, handle: *mut c_void, at_ns: u64) {
        if let Some(Handle::Kernel(ticket, channel)) = Handle::unpack(handle) {
            let begin = self.begin(ticket);
            self.table.ends(ticket, channel, at_ns);
            self.spent(ticket, begin);
        }
    }

    /// Handles the end of an event. For a collective this is only the end of the host's part, which is ignored.
    pub fn stop(&self, handle: *mut c_void) {
        if let Some(Handle::Kernel(ticket, channel)) = Handle::unpack(handle) {
            let begin = self.begin(ticket);
            if let Some(timed) = self.table.stop(ticket, channel, monotonic_ns) {
                match timed.duration_ns {
                    0 => self.give_up(timed),
                    _ => drop(self.ring.write(KIND_TIMED, timed.words())),
                }
            }
            self.spent(ticket, begin);
        }
    }

    /// Handles the capture of calls into a CUDA graph by stopping all timing in this process. Events requested now
    /// would stay in the graph, and its replays are counted on the device but not on the host.
    pub fn captured(&self) {
        if self.state.load(Relaxed) == READY && self.sampler.stop() {
            self.ask(false);
            self.ring.duty(NEVER);
            self.note(b"NCCL plugin: CUDA graph: no GPU times from now");
        }
    }

    fn wants(&self, step: Option<u64>) -> bool {
        let led = || {
            let (id, led) = self.comms.led();
            let of_step = Some(self.ring.led()).filter(|(of, _)| *of == id);
            Step::Led {
                led,
                of_step: of_step.map_or(0, |(_, of_step)| of_step),
            }
        };
        self.sampler
            .wants(self.ring.sample(), step.map_or_else(led, Step::Said))
    }

    fn give_up(&self, timed: Timed) {
        self.ring.give_up();
        self.ring.write(KIND_TIMED, timed.words());
    }

    fn note(&self, text: &[u8]) {
        self.ring.write(records::NOTE, records::note(text));
    }

    /// Does the periodic work: writes the communicators again, looks for the hook, and checks the cost.
    fn now_and_then(&self, ticket: u64, now_ns: u64) {
        let told = self.told_ns.load(Relaxed);
        let is_due = now_ns.wrapping_sub(told) > TELL_AGAIN_NS;
        if is_due
            && self
                .told_ns
                .compare_exchange(told, now_ns, AcqRel, Relaxed)
                .is_ok()
        {
            self.comms.each(|member| {
                self.ring.write(records::GROUP, records::group(member));
            });
        }
        if ticket % LOOK_EVERY != LOOK_AT || self.state.load(Relaxed) != READY {
            return;
        }
        let begin_ns = monotonic_ns();
        self.steps.look(self.dir());
        self.comms.lead(self.ring.led().0);
        if ticket >= LEADER_EVERY && ticket % LEADER_EVERY == LOOK_AT {
            self.comms.look();
        }
        self.judge(now_ns);
        // Adds this time once, without scaling, because it is measured each time and not sampled.
        let ns = monotonic_ns().saturating_sub(begin_ns);
        self.ring.spend(0, ns);
        self.budget.spend(ns);
    }

    fn judge(&self, now_ns: u64) {
        self.ring.duty(self.sampler.windows(self.ring.sample()));
        if !self.budget.is_exceeded(now_ns) {
            return;
        }
        if self.sampler.halve(self.ring.sample()) {
            self.note(b"NCCL plugin: over its budget, samples half");
        } else {
            self.note(b"NCCL plugin: over its budget, off");
            self.ring.duty(TOOK_ITSELF_OUT);
            self.state.store(OFF, Release);
            self.set_mask(0);
        }
    }

    /// Returns the start time of a callback of this collective if its callbacks are timed, and otherwise 0.
    fn begin(&self, ticket: u64) -> u64 {
        if budget::is_timed(ticket) {
            monotonic_ns()
        } else {
            0
        }
    }

    fn spent(&self, ticket: u64, begin_ns: u64) {
        if budget::is_timed(ticket) {
            let ns = budget::of_sample(monotonic_ns().saturating_sub(begin_ns));
            self.ring.spend(TIMED_ONE_IN, ns);
            self.budget.spend(ns);
        }
    }

    fn ask(&self, timing: bool) {
        if self.state.load(Relaxed) == READY {
            self.is_timing.store(timing, Relaxed);
            let captures = if self.tells_captures.load(Relaxed) {
                GROUP_API
            } else {
                0
            };
            self.set_mask(COLL | P2P | captures | if timing { KERNEL_CH } else { 0 });
        }
    }

    fn set_mask(&self, bits: u64) {
        let mask = self.mask.load(Acquire);
        if !mask.is_null() {
            // SAFETY: this is NCCL's word, which is aligned and valid as long as NCCL is loaded; NCCL reads it
            // atomically.
            unsafe { AtomicI32::from_ptr(mask) }.store(bits as c_int, Relaxed);
        }
    }

    /// Creates the ring at the first communicator, and returns true if it exists. Concurrent callers yield until that
    /// is done.
    fn is_ready(&self, interface: Interface) -> bool {
        if self
            .state
            .compare_exchange(NEW, BEGINNING, AcqRel, Acquire)
            .is_ok()
        {
            let state = if self.begin_all(interface) { READY } else { OFF };
            self.state.store(state, Release);
        }
        for _ in 0..PATIENCE {
            if self.state.load(Acquire) != BEGINNING {
                break;
            }
            // SAFETY: it has no arguments.
            unsafe { sched_yield() };
        }
        self.state.load(Acquire) == READY
    }

    fn begin_all(&self, interface: Interface) -> bool {
        let (Some(dir), Some(identity)) = (variable(c"PACELINE_RING_DIR"), rank::identity(variable)) else {
            return false;
        };
        // SAFETY: only this thread has changed the state from NEW, and the buffer is not read before READY.
        let kept = unsafe { &mut *self.dir.get() };
        let bytes = dir.to_bytes_with_nul();
        if bytes.len() > DIR {
            return false;
        }
        for (to, from) in kept.iter_mut().zip(bytes) {
            *to = *from;
        }
        environment::configure(&self.sampler, &self.budget, interface);
        self.tells_captures.store(interface != Interface::V4, Relaxed);
        self.told_ns.store(monotonic_ns(), Relaxed);
        self.ring.create(dir)
            && self.ring.write(records::ATTACH, records::attach(identity)) == Wrote::Published
    }

    fn dir(&self) -> &CStr {
        // SAFETY: only called after READY was observed through a context. The bytes end in a zero and no longer change.
        unsafe { CStr::from_ptr(self.dir.get().cast()) }
    }
}
