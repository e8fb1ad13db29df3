//! The profiler plugin that NCCL loads into a trainer (`NCCL_PROFILER_PLUGIN`): it writes each collective to the ring
//! when it is enqueued, and once more with the GPU's times if these are sampled. `docs/nccl-profiler.md` describes the
//! meaning, the cost, and how to switch it off.
//!
//! The plugin must not disturb the job. No call locks, allocates or can panic. The plugin starts no thread, and it
//! counts data that it drops. Calls for collectives never wait. Only the creation of a communicator may wait, for a
//! bounded time, for the thread that creates the ring. `tests/elf.rs` checks that the shipped library has no allocator,
//! no unwinder and no thread.

pub mod abi;
pub mod budget;
pub mod comms;
pub mod environment;
pub mod plugin;
pub mod rank;
pub mod records;
pub mod sampler;
pub mod table;
pub mod text;

use std::ffi::{CStr, c_char, c_int, c_void};

use abi::{
    COLL, Descr, GROUP_API, Init4, Init5, Interface, KERNEL_CH, KERNEL_CH_STOP, Logger, OK, P2P, Profiler,
    StateArgs,
};
use comms::Member;
use plugin::Plugin;

static PLUGIN: Plugin = Plugin::new();
const NAME: *const c_char = c"Paceline".as_ptr();

/// For NCCL 2.27. NCCL 2.31 and later would also use it, through a shim, if the plugin had no newer version.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclProfiler_v4: Profiler<Init4, u8> = Profiler {
    name: NAME,
    init: init4,
    start: start::<u8>,
    stop,
    record,
    finalize,
};

/// For NCCL 2.28.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclProfiler_v5: Profiler<Init5, u64> = since5(init5);

/// For NCCL 2.29 and 2.30.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclProfiler_v6: Profiler<Init5, u64> = since5(init5);

/// For NCCL 2.31 and later. Kernel events are off by default there, because published measurements show a cost of 4 to
/// 13 %. They can only be on from the first collective or never: the host counts only the collectives for which they
/// were requested, but the device counts all, so after a later start collectives would get the times of other
/// collectives.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclProfiler_v7: Profiler<Init5, u64> = since5(init7);

const fn since5(init: Init5) -> Profiler<Init5, u64> {
    Profiler {
        name: NAME,
        init,
        start: start::<u64>,
        stop,
        record,
        finalize,
    }
}

extern "C" fn init4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    id: u64,
    _nodes: c_int,
    ranks: c_int,
    _rank: c_int,
    _log: Logger,
) -> c_int {
    // SAFETY: the arguments are NCCL's own.
    unsafe { join(context, mask, name, id, ranks, Interface::V4) }
}

extern "C" fn init5(
    context: *mut *mut c_void,
    id: u64,
    mask: *mut c_int,
    name: *const c_char,
    _nodes: c_int,
    ranks: c_int,
    _rank: c_int,
    _log: Logger,
) -> c_int {
    // SAFETY: the arguments are NCCL's own.
    unsafe { join(context, mask, name, id, ranks, Interface::V5) }
}

extern "C" fn init7(
    context: *mut *mut c_void,
    id: u64,
    mask: *mut c_int,
    name: *const c_char,
    _nodes: c_int,
    ranks: c_int,
    _rank: c_int,
    _log: Logger,
) -> c_int {
    // SAFETY: the arguments are NCCL's own.
    unsafe { join(context, mask, name, id, ranks, Interface::V7) }
}

/// # Safety
/// `context` is writable, `mask` is NCCL's, and `name` is null or ends in a zero.
unsafe fn join(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    id: u64,
    ranks: c_int,
    interface: Interface,
) -> c_int {
    if context.is_null() {
        return OK;
    }
    let name = if name.is_null() {
        c""
    } else {
        // SAFETY: guaranteed by the caller.
        unsafe { CStr::from_ptr(name) }
    };
    let member = Member {
        id,
        ranks: u32::try_from(ranks).unwrap_or(0),
        name: records::name(name.to_bytes()),
    };
    // SAFETY: guaranteed by the caller. This function never returns an error, because NCCL would continue without the
    // plugin and log that in every job.
    unsafe { *context = PLUGIN.join(mask, member, interface) };
    OK
}

extern "C" fn start<T: Copy + Into<u64>>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut Descr<T>,
) -> c_int {
    if handle.is_null() || descr.is_null() {
        return OK;
    }
    // SAFETY: NCCL passes a descriptor whose union matches its type, and a location for the handle.
    unsafe {
        let descr = &*descr;
        *handle = match descr.kind.into() {
            COLL => PLUGIN.enqueue(context, &descr.of.coll),
            P2P => PLUGIN.message(context, &descr.of.message, descr.rank),
            GROUP_API => {
                if descr.of.group.captured != 0 {
                    PLUGIN.captured();
                }
                std::ptr::null_mut()
            }
            KERNEL_CH => PLUGIN.began(descr.parent, descr.of.kernel),
            _ => std::ptr::null_mut(),
        };
    }
    OK
}

extern "C" fn stop(handle: *mut c_void) -> c_int {
    PLUGIN.stop(handle);
    OK
}

extern "C" fn record(handle: *mut c_void, state: c_int, args: *mut StateArgs) -> c_int {
    if state == KERNEL_CH_STOP && !args.is_null() {
        // SAFETY: in this state the arguments contain the GPU's time.
        PLUGIN.ended(handle, unsafe { (*args).timer });
    }
    OK
}

extern "C" fn finalize(context: *mut c_void) -> c_int {
    PLUGIN.leave(context);
    OK
}
