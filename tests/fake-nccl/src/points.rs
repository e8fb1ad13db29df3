//! NCCL's grouped sends and receives.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::Arc;

use crate::comm::Comm;
use crate::hub::{Kind, Wish};
use crate::memory;
use crate::nccl::{COMMS, INVALID_ARGUMENT, INVALID_USAGE, bytes, launch, ranks, result};
use crate::stream::{STREAMS, Stream};

/// A send or a receive of a group: the communicator, the stream, the peer, the address, the number of bytes, and the
/// direction.
#[derive(Clone, Copy)]
struct Point {
    comm: usize,
    stream: usize,
    peer: u32,
    at: usize,
    bytes: usize,
    is_send: bool,
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static POINTS: RefCell<Vec<Point>> = const { RefCell::new(Vec::new()) };
}

fn point(
    at: u64,
    bytes: usize,
    peer: i32,
    comm: *mut c_void,
    stream: *mut c_void,
    is_send: bool,
) -> Result<(), i32> {
    let peer = u32::try_from(peer).map_err(|_| INVALID_ARGUMENT)?;
    if !memory::holds(at as usize, bytes) || peer as usize >= ranks(comm)? {
        return Err(INVALID_ARGUMENT);
    }
    // Rejects calls outside a group, because a send would wait for a receive that the same thread calls next.
    if DEPTH.get() == 0 {
        return Err(INVALID_USAGE);
    }
    let (comm, stream) = (comm as usize, stream as usize);
    POINTS.with_borrow_mut(|points| {
        points.push(Point {
            comm,
            stream,
            peer,
            at: at as usize,
            bytes,
            is_send,
        })
    });
    Ok(())
}

/// See NCCL. Supported in groups only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    from: u64,
    count: usize,
    dtype: i32,
    peer: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> i32 {
    result("ncclSend", || {
        point(from, bytes(count, dtype)?, peer, comm, stream, true)
    })
}

/// See NCCL. Supported in groups only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    to: u64,
    count: usize,
    dtype: i32,
    peer: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> i32 {
    result("ncclRecv", || {
        point(to, bytes(count, dtype)?, peer, comm, stream, false)
    })
}

/// See NCCL.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> i32 {
    result("ncclGroupStart", || {
        DEPTH.set(DEPTH.get() + 1);
        Ok(())
    })
}

/// See NCCL. Sends and receives of one communicator and one stream are run together.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> i32 {
    result("ncclGroupEnd", || {
        DEPTH.set(DEPTH.get().checked_sub(1).ok_or(INVALID_USAGE)?);
        let points = if DEPTH.get() == 0 {
            POINTS.take()
        } else {
            Vec::new()
        };
        let Some(first) = points.first() else {
            return Ok(());
        };
        if !points
            .iter()
            .all(|point| (point.comm, point.stream) == (first.comm, first.stream))
        {
            return Err(INVALID_USAGE);
        }
        let comm = COMMS.find(first.comm).ok_or(INVALID_ARGUMENT)?;
        let stream = STREAMS.find(first.stream).ok_or(INVALID_ARGUMENT)?;
        launch(&Arc::clone(&comm), move || exchange(comm, &stream, points))
    })
}

fn exchange(comm: Arc<Comm>, stream: &Stream, points: Vec<Point>) {
    let (sends, mut receives): (Vec<Point>, Vec<Point>) = points.into_iter().partition(|point| point.is_send);
    // Sorts the receives, because the output is in the order of the senders.
    receives.sort_by_key(|point| point.peer);
    stream.then(move || {
        // SAFETY: checked at the call; the caller keeps them until the stream has passed this point.
        let gives = sends
            .iter()
            .flat_map(|send| unsafe { memory::bytes(send.at, send.bytes) }.iter().copied());
        let gives: Vec<u8> = gives.collect();
        let to = sends.iter().map(|send| (send.peer, send.bytes as u64)).collect();
        let wish = Wish {
            kind: Kind::Exchange,
            dtype: 1,
            root: 0,
            gives,
            to,
        };
        let Some(answer) = comm.run(&wish) else { return };
        let mut rest = answer.as_slice();
        for receive in receives {
            if let Some(part) = rest.split_off(..receive.bytes) {
                // SAFETY: as above.
                unsafe { memory::bytes_mut(receive.at, receive.bytes) }.copy_from_slice(part);
            }
        }
    });
}
