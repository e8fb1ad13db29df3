//! NCCL's side of the interface: the layouts of its public headers (`src/include/plugin/profiler/profiler_v4.h` to
//! `profiler_v7.h` in <https://github.com/NVIDIA/nccl>). The tests check sizes and offsets.
//!
//! The fields read here have the same offset in every version: later versions only append to the union's members.

use std::ffi::{c_char, c_int, c_void};

/// Bits of the activation mask, and event types.
pub const COLL: u64 = 1 << 1;
/// Event type of sends and receives.
pub const P2P: u64 = 1 << 2;
/// Event type of the timing of a kernel on one channel.
pub const KERNEL_CH: u64 = 1 << 6;
/// Event type of a group of calls, since version 5. NCCL also reports it when any event type below it is requested.
pub const GROUP_API: u64 = 1 << 8;
/// State of a kernel's channel. With it, the arguments contain the GPU's time at the end of the kernel.
pub const KERNEL_CH_STOP: c_int = 22;

/// The return value for success. NCCL treats any other value as an error and logs it.
pub const OK: c_int = 0;

/// `ncclDebugLogger_t`. The plugin does not use it.
pub type Logger = *const c_void;

/// A group of versions of NCCL's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Version 4, which does not report graph capture.
    V4,
    /// Versions 5 and 6: report graph capture.
    V5,
    /// Version 7. Kernel events are either on from the first collective or never on; they are off by default.
    V7,
}

/// The member `coll` of the union, which describes a collective.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Coll {
    /// Number of this call among those of the same function in the communicator.
    pub sequence: u64,
    /// Name of the function, such as `AllReduce`.
    pub func: *const c_char,
    /// Pointer to the send buffer; not read.
    pub send_buff: *const c_void,
    /// Pointer to the receive buffer; not read.
    pub recv_buff: *mut c_void,
    /// Elements per rank.
    pub count: usize,
    /// Root rank, for rooted functions.
    pub root: c_int,
    /// Name of the data type, such as `ncclFloat32`.
    pub datatype: *const c_char,
    /// Number of channels that carry the collective.
    pub channels: u8,
    /// Warps per block.
    pub warps: u8,
    /// Name of the algorithm, such as `RING`.
    pub algo: *const c_char,
    /// Name of the protocol, such as `SIMPLE`.
    pub proto: *const c_char,
}

/// The member `p2p` of the union, which describes a send or a receive.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Message {
    /// Name of the function: `Send` or `Recv`.
    pub func: *const c_char,
    /// Pointer to the buffer; not read.
    pub buff: *mut c_void,
    /// Name of the data type, such as `ncclFloat32`.
    pub datatype: *const c_char,
    /// Number of elements.
    pub count: usize,
    /// The peer's rank in the communicator.
    pub peer: c_int,
    /// Number of channels that may carry the message. Up to NCCL 2.30, a short message uses fewer channels than this
    /// (<https://github.com/NVIDIA/nccl/issues/2056>).
    pub channels: u8,
}

/// The member `kernelCh` of the union, which describes a kernel on one channel.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KernelCh {
    /// Channel number.
    pub channel: u8,
    /// Start time on the GPU's globaltimer, ns.
    pub timer: u64,
}

/// The fields of `groupApi` in the union that the plugin reads.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GroupApi {
    /// Not 0 if the calls are captured into a CUDA graph. They then run each time the graph is launched.
    pub captured: u8,
}

/// The members of the union that are read.
#[repr(C)]
pub union Of {
    /// Valid if the type is [`GROUP_API`].
    pub group: GroupApi,
    /// Valid if the type is [`COLL`].
    pub coll: Coll,
    /// Valid if the type is [`P2P`].
    pub message: Message,
    /// Valid if the type is [`KERNEL_CH`].
    pub kernel: KernelCh,
}

/// An event descriptor: `T` is u8 in version 4 and u64 since version 5.
#[repr(C)]
pub struct Descr<T> {
    /// Event type, one of the constants above.
    pub kind: T,
    /// The handle of the collective or message that the event belongs to, if the event is a kernel.
    pub parent: *mut c_void,
    /// Rank in the communicator.
    pub rank: c_int,
    /// The union; `kind` determines which member is valid.
    pub of: Of,
}

/// Arguments of a state change; only those of a kernel's channel are read.
#[repr(C)]
pub struct StateArgs {
    /// The GPU's time, which is `kernelCh.pTimer`.
    pub timer: u64,
}

/// `init` of version 4.
pub type Init4 =
    extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, Logger) -> c_int;
/// `init` since version 5, which has a different order of arguments.
pub type Init5 =
    extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, Logger) -> c_int;

/// `ncclProfiler_vN_t`.
#[repr(C)]
pub struct Profiler<Init, T> {
    /// Name in NCCL's log.
    pub name: *const c_char,
    /// Called when a communicator is created.
    pub init: Init,
    /// Called when an event starts.
    pub start: extern "C" fn(*mut c_void, *mut *mut c_void, *mut Descr<T>) -> c_int,
    /// Called when an event stops.
    pub stop: extern "C" fn(*mut c_void) -> c_int,
    /// Called when an event changes state.
    pub record: extern "C" fn(*mut c_void, c_int, *mut StateArgs) -> c_int,
    /// Called when a communicator is destroyed.
    pub finalize: extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: the struct contains only constant addresses.
unsafe impl<Init, T> Sync for Profiler<Init, T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// These members determine the union's size: `coll` in version 5 and in version 7, and `ceColl` since version 6.
    #[repr(C)]
    struct Coll5 {
        coll: Coll,
        parent_group: *mut c_void,
    }
    #[repr(C)]
    struct Coll7 {
        coll: Coll5,
        kernel_variant: *const c_char,
        is_sym_coll: bool,
        user_tag: u64,
    }
    #[repr(C)]
    struct CeColl {
        sequence: u64,
        func: *const c_char,
        buffers: [*mut c_void; 2],
        count: usize,
        root: c_int,
        names: [*const c_char; 2],
        intra_batch_sync: bool,
        batches: [u32; 3],
        stream: *mut c_void,
    }
    #[repr(C)]
    struct Whole<T, U> {
        kind: T,
        parent: *mut c_void,
        rank: c_int,
        of: U,
    }

    #[test]
    fn sizes_of_each_version() {
        assert_eq!(size_of::<Whole<u8, Coll>>(), 104, "v4");
        assert_eq!(size_of::<Whole<u64, Coll5>>(), 112, "v5");
        assert_eq!(size_of::<Whole<u64, CeColl>>(), 112, "v6");
        assert_eq!(size_of::<Whole<u64, Coll7>>(), 136, "v7");
        assert_eq!(size_of::<Profiler<Init4, u8>>(), 48);
        assert_eq!(size_of::<Profiler<Init5, u64>>(), 48);
    }

    #[test]
    fn offsets_are_the_same_in_each_version() {
        assert_eq!(offset_of!(Descr<u8>, parent), 8);
        assert_eq!(offset_of!(Descr<u8>, rank), 16);
        assert_eq!(offset_of!(Descr<u8>, of), 24);
        assert_eq!(offset_of!(Descr<u64>, parent), 8);
        assert_eq!(offset_of!(Descr<u64>, of), 24);
        let coll = [
            offset_of!(Coll, sequence),
            offset_of!(Coll, func),
            offset_of!(Coll, count),
            offset_of!(Coll, root),
            offset_of!(Coll, datatype),
            offset_of!(Coll, channels),
            offset_of!(Coll, algo),
            offset_of!(Coll, proto),
        ];
        assert_eq!(coll.map(|at| at + 24), [24, 32, 56, 64, 72, 80, 88, 96]);
        assert_eq!(offset_of!(KernelCh, timer) + 24, 32);
        let message = [
            offset_of!(Message, func),
            offset_of!(Message, datatype),
            offset_of!(Message, count),
            offset_of!(Message, peer),
            offset_of!(Message, channels),
        ];
        assert_eq!(message.map(|at| at + 24), [24, 40, 48, 56, 60]);
        assert_eq!(offset_of!(StateArgs, timer), 0);
    }
}
