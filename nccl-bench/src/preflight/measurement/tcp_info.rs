//! Reads the kernel's counters of sent and retransmitted segments of a TCP connection.

use std::io;
use std::mem::size_of;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Numbers of data segments and of their retransmissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Number of sent segments, including retransmissions.
    pub sent: u64,
    /// Number of retransmissions, except those that the peer reported as unnecessary (DSACK).
    pub again: u64,
}

/// Number of bytes that are requested. `struct tcp_info` of linux/tcp.h grows at its end.
const BYTES: usize = 232;
/// Offsets of u32 fields in the structure.
const TOTAL_RETRANS: usize = 100;
const DATA_SEGS_OUT: usize = 156;
const DSACK_DUPS: usize = 216;

/// Returns the counters of a connection since its start.
pub fn segments(stream: &TcpStream) -> io::Result<Segments> {
    let mut bytes = [0_u8; BYTES];
    let mut length = size_of::<[u8; BYTES]>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `bytes`, which has that length, and updates `length`.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    let known = length as usize;
    let at = |offset: usize| {
        let field = bytes.get(offset..offset + 4).filter(|_| offset + 4 <= known);
        field
            .and_then(|field| field.try_into().ok())
            .map(u32::from_ne_bytes)
    };
    // Kernels before 4.6 do not count data segments.
    let sent = at(DATA_SEGS_OUT).ok_or(io::ErrorKind::Unsupported)?;
    let again = at(TOTAL_RETRANS).unwrap_or(0);
    Ok(Segments {
        sent: u64::from(sent),
        again: u64::from(again.saturating_sub(at(DSACK_DUPS).unwrap_or(0))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    #[test]
    fn a_connection_counts_what_it_sends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let before = segments(&one).unwrap();
        for _ in 0..10 {
            one.write_all(b"x").unwrap();
            other.read_exact(&mut [0]).unwrap();
        }
        let after = segments(&one).unwrap();
        assert!(after.sent >= before.sent + 10, "{before:?} {after:?}");
        assert!(after.again <= after.sent);
    }
}
