//! NCCL's functions. Codes are those of ncclResult_t.

use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::sync::Arc;

use crate::comm::{Comm, IN_PROGRESS, SYSTEM_ERROR};
use crate::counts::{self, Counted};
use crate::cuda::put;
use crate::hub::{self, Kind, Wish};
use crate::math::width;
use crate::memory;
use crate::scenario::{failure, scenario};
use crate::stream::{Handles, STREAMS};

const UNHANDLED_CUDA_ERROR: i32 = 1;
const INTERNAL_ERROR: i32 = 3;
pub(crate) const INVALID_ARGUMENT: i32 = 4;
pub(crate) const INVALID_USAGE: i32 = 5;
const MAGIC: u32 = 0xcafe_beef;
/// The prefix of the port in a unique id.
const MARK: &[u8; 8] = b"fakenccl";

pub(crate) static COMMS: Handles<Comm> = Handles::new();

/// The C structure ncclUniqueId.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

/// The C structure ncclConfig_t as of NCCL 2.14. Later versions append fields.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

pub(crate) fn result(function: &str, call: impl FnOnce() -> Result<(), i32>) -> i32 {
    failure(function).unwrap_or_else(|| call().err().unwrap_or(0))
}

/// See NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(to: *mut i32) -> i32 {
    result("ncclGetVersion", || {
        // SAFETY: the caller's pointer.
        unsafe { put(to, scenario().nccl) }.map_err(|_| INVALID_ARGUMENT)
    })
}

/// See NCCL.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: i32) -> *const c_char {
    let text: &CStr = match code {
        0 => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        SYSTEM_ERROR => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        INVALID_USAGE => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// See NCCL.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: *mut c_void) -> *const c_char {
    c"fake-nccl: as the scenario has it".as_ptr()
}

/// See NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(to: *mut UniqueId) -> i32 {
    result("ncclGetUniqueId", || {
        let port = hub::open().map_err(|_| SYSTEM_ERROR)?;
        let mut id = UniqueId([0; 128]);
        id.0[..8].copy_from_slice(MARK);
        id.0[8..10].copy_from_slice(&port.to_le_bytes());
        // SAFETY: the caller's pointer.
        unsafe { put(to, id) }.map_err(|_| INVALID_ARGUMENT)
    })
}

/// Writes a log line as NCCL does: to standard output, or to the file named by a variable.
fn say_network() {
    if std::env::var_os("NCCL_DEBUG").is_none_or(|level| level != "INFO") {
        return;
    }
    let line = format!("host:1:1 [0] NCCL INFO Using network {}\n", scenario().network);
    let to = std::env::var_os("NCCL_DEBUG_FILE").unwrap_or_else(|| "/dev/stdout".into());
    let file = std::fs::OpenOptions::new().append(true).open(to);
    // A closed output is ignored.
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Returns true if the communicator is blocking. The caller chooses that, and the environment overrides it, as in NCCL.
fn blocks(config: &Config) -> bool {
    match std::env::var("NCCL_COMM_BLOCKING").as_deref() {
        Ok("0") => false,
        Ok("1") => true,
        _ => config.blocking != 0,
    }
}

/// See NCCL. A blocking communicator is ready when this returns. The call can hang until the communicator is aborted.
/// The handle is written before that, as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    to: *mut *mut c_void,
    ranks: i32,
    id: UniqueId,
    rank: i32,
    config: *const Config,
) -> i32 {
    result("ncclCommInitRankConfig", || {
        // SAFETY: the pointer is null or the caller's structure.
        let config = unsafe { config.as_ref() }.ok_or(INVALID_ARGUMENT)?;
        if config.magic != MAGIC || config.version < 21400 || config.size < size_of::<Config>() {
            return Err(INVALID_ARGUMENT);
        }
        if ranks < 1 || !(0..ranks).contains(&rank) || id.0[..8] != *MARK {
            return Err(INVALID_ARGUMENT);
        }
        crate::cuda::current().ok_or(UNHANDLED_CUDA_ERROR)?;
        say_network();
        let port = u16::from_le_bytes([id.0[8], id.0[9]]);
        let blocks = blocks(config);
        counts::count(if blocks {
            Counted::Blocking
        } else {
            Counted::NonBlocking
        });
        let comm = Arc::new(Comm::new((ranks as u32, rank as u32), blocks));
        let handle = COMMS.insert(Arc::clone(&comm));
        // SAFETY: the caller's pointer.
        unsafe { put(to, handle as *mut c_void) }.map_err(|_| INVALID_ARGUMENT)?;
        if blocks {
            comm.join(port);
            return match comm.state() {
                0 => Ok(()),
                // The communicator was aborted.
                IN_PROGRESS => Err(INTERNAL_ERROR),
                state => Err(state),
            };
        }
        std::thread::spawn(move || comm.join(port));
        Err(IN_PROGRESS)
    })
}

/// See NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut c_void, to: *mut i32) -> i32 {
    result("ncclCommGetAsyncError", || {
        counts::count(Counted::AsyncError);
        let comm = COMMS.find(comm as usize).ok_or(INVALID_ARGUMENT)?;
        // SAFETY: the caller's pointer.
        unsafe { put(to, comm.state()) }.map_err(|_| INVALID_ARGUMENT)
    })
}

/// Ends a communicator. Abort and destroy behave the same here, but neither calls the other, so that a test can remove
/// one.
fn end(comm: *mut c_void) -> Result<(), i32> {
    COMMS.remove(comm as usize).ok_or(INVALID_ARGUMENT)?.abort();
    Ok(())
}

/// See NCCL.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: *mut c_void) -> i32 {
    result("ncclCommAbort", || end(comm))
}

/// See NCCL.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: *mut c_void) -> i32 {
    result("ncclCommDestroy", || end(comm))
}

/// Starts a collective in a stream.
fn start(
    comm: *mut c_void,
    stream: *mut c_void,
    (kind, dtype, root): (Kind, i32, u32),
    (from, gives): (u64, usize),
    (to, gets): (u64, usize),
) -> Result<(), i32> {
    let comm = COMMS.find(comm as usize).ok_or(INVALID_ARGUMENT)?;
    let stream = STREAMS.find(stream as usize).ok_or(INVALID_ARGUMENT)?;
    if !memory::holds(from as usize, gives) || !memory::holds(to as usize, gets) {
        return Err(INVALID_ARGUMENT);
    }
    launch(&Arc::clone(&comm), move || {
        stream.then(move || run(&comm, (kind, dtype, root), (from, gives), (to, gets)));
    })
}

/// Queues the operation of a call, or of the group that ends. For a blocking communicator, the operation is in the
/// stream when the call returns. A nonblocking one uses a thread per group, and must not be used until that is done.
pub(crate) fn launch(comm: &Arc<Comm>, queue: impl FnOnce() + Send + 'static) -> Result<(), i32> {
    match comm.state() {
        0 => {}
        // As in NCCL: "Attempt to use communicator before the previous operation returned ncclSuccess".
        IN_PROGRESS => return Err(INVALID_ARGUMENT),
        state => return Err(state),
    }
    if comm.blocks {
        if !comm.connects() {
            return Err(INTERNAL_ERROR);
        }
        queue();
        return Ok(());
    }
    counts::count(Counted::GroupThread);
    comm.begin();
    let comm = Arc::clone(comm);
    std::thread::spawn(move || {
        if comm.connects() {
            queue();
            comm.done();
        }
    });
    Err(IN_PROGRESS)
}

/// Runs one collective when the stream reaches it.
fn run(
    comm: &Comm,
    (kind, dtype, root): (Kind, i32, u32),
    (from, gives): (u64, usize),
    (to, gets): (u64, usize),
) {
    // SAFETY: the range was checked at the call, and the caller keeps it until the stream has passed this point.
    let gives = unsafe { memory::bytes(from as usize, gives) }.to_vec();
    let wish = Wish {
        kind,
        dtype,
        root,
        gives,
        to: Vec::new(),
    };
    let answer = comm.run(&wish).filter(|answer| answer.len() == gets);
    if let Some(answer) = answer {
        // SAFETY: as above.
        unsafe { memory::bytes_mut(to as usize, gets) }.copy_from_slice(&answer);
    }
}

pub(crate) fn ranks(comm: *mut c_void) -> Result<usize, i32> {
    Ok(COMMS.find(comm as usize).ok_or(INVALID_ARGUMENT)?.ranks as usize)
}

pub(crate) fn bytes(count: usize, dtype: i32) -> Result<usize, i32> {
    Ok(count * width(dtype).ok_or(INVALID_ARGUMENT)?)
}

/// See NCCL. Supports sums only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    dtype: i32,
    op: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> i32 {
    result("ncclAllReduce", || {
        let bytes = bytes(count, dtype)?;
        if op != 0 {
            return Err(INVALID_ARGUMENT);
        }
        start(
            comm,
            stream,
            (Kind::AllReduce, dtype, 0),
            (from, bytes),
            (to, bytes),
        )
    })
}

/// See NCCL. Supports sums only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    from: u64,
    to: u64,
    count: usize,
    dtype: i32,
    op: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> i32 {
    result("ncclReduceScatter", || {
        let bytes = bytes(count, dtype)?;
        if op != 0 {
            return Err(INVALID_ARGUMENT);
        }
        let gives = bytes * ranks(comm)?;
        start(
            comm,
            stream,
            (Kind::ReduceScatter, dtype, 0),
            (from, gives),
            (to, bytes),
        )
    })
}

/// See NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    from: u64,
    to: u64,
    count: usize,
    dtype: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> i32 {
    result("ncclAllGather", || {
        let bytes = bytes(count, dtype)?;
        let gets = bytes * ranks(comm)?;
        start(
            comm,
            stream,
            (Kind::AllGather, dtype, 0),
            (from, bytes),
            (to, gets),
        )
    })
}

/// See NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    from: u64,
    to: u64,
    count: usize,
    dtype: i32,
    root: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> i32 {
    result("ncclBroadcast", || {
        let bytes = bytes(count, dtype)?;
        let root = u32::try_from(root).map_err(|_| INVALID_ARGUMENT)?;
        start(
            comm,
            stream,
            (Kind::Broadcast, dtype, root),
            (from, bytes),
            (to, bytes),
        )
    })
}
