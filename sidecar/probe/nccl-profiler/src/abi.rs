//! NCCL's side of the boundary: the layouts of its public headers (`src/include/plugin/profiler/profiler_v4.h` to
//! `profiler_v7.h` in <https://github.com/NVIDIA/nccl>). The tests hold their sizes and offsets.
//!
//! What is read here stands at the same place in every version: later ones only append to the union's members.

use std::ffi::{c_char, c_int, c_void};

/// Bits of the activation mask, and kinds of events.
pub const COLL: u64 = 1 << 1;
/// Sends and receives.
pub const P2P: u64 = 1 << 2;
/// Times of a kernel on one channel.
pub const KERNEL_CH: u64 = 1 << 6;
/// A group of calls, since version 5. NCCL tells it where anything below it is asked for as well.
pub const GROUP_API: u64 = 1 << 8;
/// State of a kernel's channel: the GPU's time at its end is in the arguments.
pub const KERNEL_CH_STOP: c_int = 22;

/// NCCL takes anything but zero for an error and says so in its log.
pub const OK: c_int = 0;

/// `ncclDebugLogger_t`: not used.
pub type Logger = *const c_void;

/// The version of NCCL's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// 4: it does not say what is captured.
    V4,
    /// 5 and 6: it does.
    V5,
    /// 7: kernel events from the first collective on, or never, and by default never.
    V7,
}

/// `coll` of the union.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Coll {
    /// Number among those of its function in the communicator.
    pub sequence: u64,
    /// `AllReduce`.
    pub func: *const c_char,
    /// Not looked at, as what follows.
    pub send_buff: *const c_void,
    /// Not looked at.
    pub recv_buff: *mut c_void,
    /// Elements of a rank.
    pub count: usize,
    /// Of rooted functions.
    pub root: c_int,
    /// `ncclFloat32`.
    pub datatype: *const c_char,
    /// That carry it.
    pub channels: u8,
    /// Of each block.
    pub warps: u8,
    /// `RING`.
    pub algo: *const c_char,
    /// `SIMPLE`.
    pub proto: *const c_char,
}

/// `p2p` of the union.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Message {
    /// `Send` or `Recv`.
    pub func: *const c_char,
    /// Not looked at.
    pub buff: *mut c_void,
    /// `ncclFloat32`.
    pub datatype: *const c_char,
    /// Elements.
    pub count: usize,
    /// The other rank's number in the communicator.
    pub peer: c_int,
    /// That may carry it. Up to NCCL 2.30 a short one uses fewer (<https://github.com/NVIDIA/nccl/issues/2056>).
    pub channels: u8,
}

/// `kernelCh` of the union.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KernelCh {
    /// Which.
    pub channel: u8,
    /// Start by the GPU's globaltimer, ns.
    pub timer: u64,
}

/// `groupApi` of the union, as far as it is read.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GroupApi {
    /// Not 0: the calls are recorded into a CUDA graph, and run when that is launched, as often as it is.
    pub captured: u8,
}

/// What is read of the union.
#[repr(C)]
pub union Of {
    /// When the type is [`GROUP_API`].
    pub group: GroupApi,
    /// When the type is [`COLL`].
    pub coll: Coll,
    /// When the type is [`P2P`].
    pub message: Message,
    /// When the type is [`KERNEL_CH`].
    pub kernel: KernelCh,
}

/// An event's description: `T` is u8 in version 4 and u64 since.
#[repr(C)]
pub struct Descr<T> {
    /// One of the bits above.
    pub kind: T,
    /// Of a kernel: the handle of its collective or message.
    pub parent: *mut c_void,
    /// In the communicator.
    pub rank: c_int,
    /// By type.
    pub of: Of,
}

/// Arguments of a change of state; of a kernel's channel the only one that is read.
#[repr(C)]
pub struct StateArgs {
    /// `kernelCh.pTimer`.
    pub timer: u64,
}

/// `init` of version 4.
pub type Init4 =
    extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, Logger) -> c_int;
/// `init` since version 5: other order.
pub type Init5 =
    extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, Logger) -> c_int;

/// `ncclProfiler_vN_t`.
#[repr(C)]
pub struct Profiler<Init, T> {
    /// Told in NCCL's log.
    pub name: *const c_char,
    /// A communicator begins.
    pub init: Init,
    /// An event begins.
    pub start: extern "C" fn(*mut c_void, *mut *mut c_void, *mut Descr<T>) -> c_int,
    /// It ends.
    pub stop: extern "C" fn(*mut c_void) -> c_int,
    /// It has come further.
    pub record: extern "C" fn(*mut c_void, c_int, *mut StateArgs) -> c_int,
    /// The communicator ends.
    pub finalize: extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: it holds constant addresses only.
unsafe impl<Init, T> Sync for Profiler<Init, T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// `coll` since version 5 and in version 7, `ceColl` since version 6: what decides the sizes.
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
