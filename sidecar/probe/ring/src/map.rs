//! The shared memory: a mapped file accessed as atomic words. No other file of this crate except `bare` declares system
//! calls.

use std::ffi::{c_int, c_long, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

// Declares six functions of the C library, which std links anyway. This avoids a dependency in code that is loaded into
// a trainer.
unsafe extern "C" {
    fn mmap(addr: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, off: i64) -> *mut c_void;
    fn munmap(addr: *mut c_void, len: usize) -> c_int;
    fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn posix_fallocate(fd: c_int, off: i64, len: i64) -> c_int;
    fn getrlimit(what: c_int, limit: *mut Limit) -> c_int;
}

#[repr(C)]
struct Limit {
    soft: u64,
    hard: u64,
}

#[repr(C)]
struct Timespec {
    sec: c_long,
    nsec: c_long,
}

const PROT_READ: c_int = 1;
const PROT_READ_WRITE: c_int = 1 | 2;
const MAP_SHARED: c_int = 1;
const MAP_PRIVATE_ANONYMOUS: c_int = 2 | 0x20;
const MADV_WIPEONFORK: c_int = 18;
const CLOCK_MONOTONIC: c_int = 1;
const RLIMIT_FSIZE: c_int = 1;
const EFBIG: c_int = 27;
const PAGE: usize = 4096;

/// Returns CLOCK_MONOTONIC in nanoseconds, the clock of the header's times.
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut time = Timespec { sec: 0, nsec: 0 };
    // SAFETY: `time` is a valid timespec of the C ABI for the length of the call.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &raw mut time) };
    (time.sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.nsec as u64)
}

/// Gives an empty file its length and its memory. Without this, a store into a page for which a full /dev/shm has no
/// room would kill the process with SIGBUS. Extending the file above the process's `ulimit -f` would kill it with
/// SIGXFSZ. Returns zero, or an error number.
#[inline]
pub(crate) fn allocate(fd: c_int, len: usize) -> c_int {
    let mut limit = Limit {
        soft: u64::MAX,
        hard: u64::MAX,
    };
    // SAFETY: `limit` is a valid rlimit of the 64-bit C ABI for the length of the call; the descriptor is the caller's.
    unsafe {
        if getrlimit(RLIMIT_FSIZE, &raw mut limit) == 0 && limit.soft < len as u64 {
            return EFBIG;
        }
        posix_fallocate(fd, 0, len as i64)
    }
}

/// Maps `len` bytes of an open file for the lifetime of the process. Returns null on failure.
#[inline]
pub(crate) fn shared(fd: c_int, len: usize, writes: bool) -> *mut u8 {
    let prot = if writes { PROT_READ_WRITE } else { PROT_READ };
    // SAFETY: no address is requested, so no existing mapping is replaced; the result is checked.
    let base = unsafe { mmap(std::ptr::null_mut(), len, prot, MAP_SHARED, fd, 0) };
    if base as isize == -1 {
        std::ptr::null_mut()
    } else {
        base.cast()
    }
}

/// Maps a page for the lifetime of the process that a forked child reads as zeros. Returns null on failure.
#[inline]
pub(crate) fn wiped_page() -> *mut u8 {
    // SAFETY: as above; the advice applies to exactly the page that was just mapped.
    unsafe {
        let base = mmap(
            std::ptr::null_mut(),
            PAGE,
            PROT_READ_WRITE,
            MAP_PRIVATE_ANONYMOUS,
            -1,
            0,
        );
        if base as isize == -1 || madvise(base, PAGE, MADV_WIPEONFORK) != 0 {
            return std::ptr::null_mut();
        }
        base.cast()
    }
}

/// A mapping of `len` bytes, accessed only through atomics: other processes write to it.
#[derive(Debug)]
pub(crate) struct Map {
    base: *mut u8,
    len: usize,
}

// SAFETY: the memory is mapped until drop and is only accessed through atomics.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `len` bytes of `file`, shared.
    pub(crate) fn shared(file: &File, len: usize) -> io::Result<Map> {
        Map::new(len, MAP_SHARED, file.as_raw_fd())
    }

    /// Maps a page that reads as zeros in every child forked later.
    pub(crate) fn wiped_on_fork() -> io::Result<Map> {
        let map = Map::new(PAGE, MAP_PRIVATE_ANONYMOUS, -1)?;
        // SAFETY: the range is exactly one of our mappings.
        if unsafe { madvise(map.base.cast(), map.len, MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(map)
    }

    fn new(len: usize, flags: c_int, fd: c_int) -> io::Result<Map> {
        // SAFETY: no address is requested, so no existing mapping is replaced; the result is checked.
        let base = unsafe { mmap(std::ptr::null_mut(), len, PROT_READ_WRITE, flags, fd, 0) };
        if base as isize == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(Map {
            base: base.cast(),
            len,
        })
    }

    /// Returns the word at a byte offset.
    pub(crate) fn u64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len);
        // SAFETY: the word is inside the mapping and aligned, checked above; the mapping outlives the borrow of self.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// Returns the half word at a byte offset.
    pub(crate) fn u32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.len);
        // SAFETY: the half word is inside the mapping and aligned, checked above; the mapping outlives the borrow of
        // self.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: base and len are those of one mapping that is no longer borrowed.
        unsafe { munmap(self.base.cast(), self.len) };
    }
}
