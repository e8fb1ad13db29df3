//! A writer for code inside NCCL that uses only system calls. Nothing here allocates, panics, locks or starts a thread,
//! so a library that links it needs neither Rust's allocator nor its unwinder. The functions are inlined so that the
//! compiler can see that too.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use crate::layout::*;
use crate::map;
use crate::protocol::{self, Gate};
use crate::writer::Wrote;

unsafe extern "C" {
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn rename(from: *const c_char, to: *const c_char) -> c_int;
    fn unlink(path: *const c_char) -> c_int;
    fn getpid() -> c_int;
    fn geteuid() -> u32;
}

const O_RDONLY: c_int = 0;
const O_RDWR: c_int = 2;
const O_CREAT: c_int = 0o100;
const O_EXCL: c_int = 0o200;
const O_CLOEXEC: c_int = 0o2_000_000;
const OWNER_ONLY: c_int = 0o600;

/// Slots of the plugin's ring: 512 KiB, two seconds at two thousand collectives a second.
pub const BARE_CAPACITY: u32 = 8192;
const LEN: usize = HEADER_BYTES + BARE_CAPACITY as usize * SLOT_BYTES;
const MASK: u64 = BARE_CAPACITY as u64 - 1;
/// Longest path in bytes, including its terminating zero.
const PATH: usize = 512;

/// A ring that a process creates once, in a static. Until it is created, or if that fails, writes do nothing.
#[derive(Debug)]
pub struct Bare {
    base: AtomicPtr<u8>,
    /// A page that a forked child reads as zero, so that the child does not write.
    owner: AtomicPtr<u8>,
}

impl Default for Bare {
    fn default() -> Bare {
        Bare::new()
    }
}

impl Bare {
    /// Returns a value without a ring.
    pub const fn new() -> Bare {
        Bare {
            base: AtomicPtr::new(ptr::null_mut()),
            owner: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Creates `<dir>/<pid>-nccl.ring`. Returns false if that fails. Call it once, before other threads write.
    #[inline]
    pub fn create(&self, dir: &CStr) -> bool {
        // SAFETY: the function has no arguments and cannot fail.
        let pid = unsafe { getpid() }.unsigned_abs();
        let mut draft = Path::new(dir);
        draft.push(b"/.").number(pid).push(b"-nccl.ring");
        let mut path = Path::new(dir);
        path.push(b"/").number(pid).push(b"-nccl.ring");
        let (Some(draft), Some(path)) = (draft.c_str(), path.c_str()) else {
            return false;
        };
        // SAFETY: both paths end in a zero and outlive the calls.
        let fd = unsafe {
            unlink(draft);
            open(draft, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, OWNER_ONLY)
        };
        if fd < 0 {
            return false;
        }
        let base = fill(fd, pid);
        let owner = map::wiped_page();
        // SAFETY: the descriptor is ours and open; the mapping stays valid after the close.
        let made = unsafe { close(fd) } == 0 && !base.is_null() && !owner.is_null();
        if made {
            self.base.store(base, Release);
            // SAFETY: the page is ours, and no other thread has its address yet.
            unsafe { AtomicU64::from_ptr(owner.cast()) }.store(1, Relaxed);
            self.owner.store(owner, Release);
        }
        // SAFETY: both paths end in a zero and outlive the calls.
        unsafe {
            if made && rename(draft, path) == 0 {
                return true;
            }
            self.owner.store(ptr::null_mut(), Release);
            unlink(draft);
        }
        false
    }

    /// Writes one record of this kind whose payload is `words`.
    #[inline]
    pub fn write(&self, kind: u16, words: [u64; 6]) -> Wrote {
        if self.is_off() {
            return Wrote::Off;
        }
        let base = self.base.load(Relaxed);
        // SAFETY: `is_off` saw the mapping, which is never unmapped; offsets are those of the layout, inside LEN.
        let gate = unsafe {
            Gate {
                head: word(base, AT_HEAD),
                tail: word(base, AT_TAIL),
                dropped: word(base, AT_DROPPED),
                room: MASK + 1 - SPARE_SLOTS,
            }
        };
        let Some(index) = gate.reserve() else {
            return Wrote::Dropped;
        };
        let at = HEADER_BYTES + (index & MASK) as usize * SLOT_BYTES;
        let [a, b, c, d, e, f] = words;
        let slot = [0, u64::from(kind) << 32, a, b, c, d, e, f];
        // SAFETY: `i` is a word of the slot, and the slot is inside the mapping.
        protocol::publish(|i| unsafe { word(base, at + (i & 7) * 8) }, index, slot);
        Wrote::Published
    }

    /// Returns true if writing does nothing: there is no ring, this is a forked child, or the kill switch is set.
    #[inline]
    pub fn is_off(&self) -> bool {
        let owner = self.owner.load(Acquire);
        if owner.is_null() {
            return true;
        }
        // SAFETY: both mappings exist if `owner` does, and are never unmapped.
        unsafe {
            let ours = (*AtomicU64::from_ptr(owner.cast())).load(Relaxed) != 0;
            let control = half(self.base.load(Relaxed), AT_CONTROL).load(Relaxed);
            !ours || u32::from_le(control) & CONTROL_STOP != 0
        }
    }

    /// Returns the rate that the reader requests: GPU times in one of this many windows. 0 leaves the rate to the
    /// writer, and `u32::MAX` means never.
    #[inline]
    pub fn sample(&self) -> u32 {
        self.at(AT_SAMPLE).map_or(0, |at| u32::from_le(at.load(Relaxed)))
    }

    /// Returns the communicator by which the reader counts steps, and the number of its collectives in a step. Both are
    /// zero if they are not known.
    #[inline]
    pub fn led(&self) -> (u64, u32) {
        let base = self.base.load(Acquire);
        if base.is_null() {
            return (0, 0);
        }
        // SAFETY: as in `add`.
        let (comm, of_step) = unsafe { (word(base, AT_LEADER), half(base, AT_LED)) };
        (
            u64::from_le(comm.load(Relaxed)),
            u32::from_le(of_step.load(Relaxed)),
        )
    }

    /// Reports the current rate: GPU times in one of this many windows, `u32::MAX` for never, or [`TOOK_ITSELF_OUT`].
    #[inline]
    pub fn duty(&self, windows: u32) {
        if !self.is_off()
            && let Some(at) = self.at(AT_DUTY)
        {
            at.store(windows.to_le(), Relaxed);
        }
    }

    /// Adds to the plugin's cost: the number of callbacks, and the time spent in them.
    #[inline]
    pub fn spend(&self, calls: u64, ns: u64) {
        self.add(AT_CALLS, calls);
        self.add(AT_CALLS_NS, ns);
    }

    /// Counts a collective with incomplete data.
    #[inline]
    pub fn give_up(&self) {
        self.add(AT_GIVEN_UP, 1);
    }

    #[inline]
    fn add(&self, at: usize, amount: u64) {
        let base = self.base.load(Acquire);
        if !base.is_null() && !self.owner.load(Relaxed).is_null() {
            // SAFETY: the mapping is never unmapped; `at` is an offset of the header.
            unsafe { word(base, at) }.fetch_add(amount, Relaxed);
        }
    }

    #[inline]
    fn at(&self, at: usize) -> Option<&AtomicU32> {
        let base = self.base.load(Acquire);
        // SAFETY: as in `add`.
        (!base.is_null()).then(|| unsafe { half(base, at) })
    }
}

/// Writes the header of a new ring to the open file. Returns its mapping, or null if it cannot be mapped.
#[inline]
fn fill(fd: c_int, pid: u32) -> *mut u8 {
    if map::allocate(fd, LEN) != 0 {
        return ptr::null_mut();
    }
    let base = map::shared(fd, LEN, true);
    if base.is_null() {
        return base;
    }
    // SAFETY: the mapping is LEN long, offsets are those of the header, and no other thread has its address yet.
    unsafe {
        word(base, AT_MAGIC).store(u64::from_ne_bytes(MAGIC), Relaxed);
        half(base, AT_VERSION).store(VERSION.to_le(), Relaxed);
        half(base, AT_HEADER_BYTES).store((HEADER_BYTES as u32).to_le(), Relaxed);
        half(base, AT_SLOT_BYTES).store((SLOT_BYTES as u32).to_le(), Relaxed);
        half(base, AT_CAPACITY).store(BARE_CAPACITY.to_le(), Relaxed);
        half(base, AT_PID).store(pid.to_le(), Relaxed);
        half(base, AT_UID).store(geteuid().to_le(), Relaxed);
    }
    base
}

/// This process's current step, read directly from its hook's ring. The ring is looked for repeatedly, because the hook
/// creates it only at the first step.
#[derive(Debug)]
pub struct StepGlance {
    base: AtomicPtr<u8>,
}

impl Default for StepGlance {
    fn default() -> StepGlance {
        StepGlance::new()
    }
}

impl StepGlance {
    /// Returns a value that has not found a ring yet.
    pub const fn new() -> StepGlance {
        StepGlance {
            base: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Looks for `<dir>/<pid>.ring`, unless already found.
    #[inline]
    pub fn look(&self, dir: &CStr) {
        if !self.base.load(Acquire).is_null() {
            return;
        }
        let mut path = Path::new(dir);
        // SAFETY: the function has no arguments and cannot fail.
        let pid = unsafe { getpid() }.unsigned_abs();
        path.push(b"/").number(pid).push(b".ring");
        let Some(path) = path.c_str() else { return };
        // SAFETY: the path ends in a zero and outlives the call.
        let fd = unsafe { open(path, O_RDONLY | O_CLOEXEC) };
        if fd < 0 {
            return;
        }
        let base = map::shared(fd, HEADER_BYTES, false);
        // SAFETY: the descriptor is ours; the mapping stays valid.
        unsafe { close(fd) };
        // SAFETY: the header is mapped. If two threads look for the ring at the same time, one of the mappings remains
        // unused.
        let is_ring =
            !base.is_null() && unsafe { word(base, AT_MAGIC) }.load(Relaxed) == u64::from_ne_bytes(MAGIC);
        if is_ring {
            self.base.store(base, Release);
        }
    }

    /// Returns the trainer's current step, or `None` if there is no hook or no step yet.
    #[inline]
    pub fn step(&self) -> Option<u64> {
        let base = self.base.load(Acquire);
        // SAFETY: the header is mapped and never unmapped.
        (!base.is_null()).then(|| u64::from_le(unsafe { word(base, AT_PROGRESS) }.load(Relaxed)) >> 8)
    }
}

/// # Safety
/// `base + at` must be eight aligned bytes of a mapping that is never unmapped.
#[inline]
unsafe fn word<'a>(base: *mut u8, at: usize) -> &'a AtomicU64 {
    // SAFETY: guaranteed by the caller.
    unsafe { AtomicU64::from_ptr(base.add(at).cast()) }
}

/// # Safety
/// The same as for [`word`], with four bytes.
#[inline]
unsafe fn half<'a>(base: *mut u8, at: usize) -> &'a AtomicU32 {
    // SAFETY: guaranteed by the caller.
    unsafe { AtomicU32::from_ptr(base.add(at).cast()) }
}

/// A path built without an allocator. A path that is too long is rejected.
struct Path {
    bytes: [u8; PATH],
    len: usize,
}

impl Path {
    #[inline]
    fn new(dir: &CStr) -> Path {
        let mut path = Path {
            bytes: [0; PATH],
            len: 0,
        };
        path.push(dir.to_bytes());
        path
    }

    #[inline]
    fn push(&mut self, text: &[u8]) -> &mut Path {
        for byte in text {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = *byte;
            }
            self.len = self.len.saturating_add(1);
        }
        self
    }

    #[inline]
    fn number(&mut self, number: u32) -> &mut Path {
        let mut scale = 1_000_000_000;
        while scale > 0 {
            if number >= scale || scale == 1 {
                self.push(&[b'0' + ((number / scale) % 10) as u8]);
            }
            scale /= 10;
        }
        self
    }

    #[inline]
    fn c_str(&self) -> Option<*const c_char> {
        (self.len < PATH).then(|| self.bytes.as_ptr().cast())
    }
}
