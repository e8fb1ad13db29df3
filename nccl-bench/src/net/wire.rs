//! A connection with a deadline for every call.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::transport::{Deadline, TransportError};

/// A non-blocking stream to one peer.
#[derive(Debug)]
pub struct Wire {
    /// The peer's rank.
    pub peer: usize,
    stream: TcpStream,
    /// Number of bytes that make the socket ready for reading, as last set on the socket.
    threshold: AtomicI32,
}

impl Wire {
    /// Wraps a connected stream.
    pub fn new(stream: TcpStream, peer: usize) -> io::Result<Wire> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Wire {
            peer,
            stream,
            threshold: AtomicI32::new(1),
        })
    }

    /// Returns the socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Makes the socket ready for reading only when this many bytes have arrived (SO_RCVLOWAT of socket(7)), because
    /// waking up for every segment would waste time. A full receive buffer makes it ready too.
    pub fn wake_at(&self, bytes: usize) {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX).max(1);
        if self.threshold.swap(bytes, Ordering::Relaxed) == bytes {
            return;
        }
        // SAFETY: the descriptor is open as long as the stream, and the kernel reads four bytes of ours.
        let answer = unsafe {
            libc::setsockopt(
                self.stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const bytes).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        // If the call fails, there are more wake-ups, but no other difference.
        let _ = answer;
    }

    /// Writes all bytes.
    pub fn write(&self, mut bytes: &[u8], deadline: &Deadline) -> Result<(), TransportError> {
        while !bytes.is_empty() {
            match (&self.stream).write(bytes) {
                Ok(0) => return Err(self.lost(ErrorKind::WriteZero.into(), deadline)),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if is_pause(&error) => self.wait(PollFlags::OUT, deadline)?,
                Err(error) => return Err(self.lost(error, deadline)),
            }
        }
        Ok(())
    }

    /// Fills the whole buffer.
    pub fn read(&self, mut bytes: &mut [u8], deadline: &Deadline) -> Result<(), TransportError> {
        while !bytes.is_empty() {
            match (&self.stream).read(bytes) {
                Ok(0) => return Err(self.lost(ErrorKind::UnexpectedEof.into(), deadline)),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if is_pause(&error) => self.wait(PollFlags::IN, deadline)?,
                Err(error) => return Err(self.lost(error, deadline)),
            }
        }
        Ok(())
    }

    /// Returns the error of a connection that failed with `source`.
    pub fn lost(&self, source: io::Error, deadline: &Deadline) -> TransportError {
        // When a process dies, its connection usually ends between messages, so a better text is used for this case.
        let source = match source.kind() {
            ErrorKind::UnexpectedEof => io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection"),
            _ => source,
        };
        TransportError::Lost {
            phase: deadline.phase().to_owned(),
            peer: self.peer,
            source,
        }
    }

    fn wait(&self, flags: PollFlags, deadline: &Deadline) -> Result<(), TransportError> {
        self.wake_at(1);
        let mut fds = [PollFd::new(&self.stream, flags)];
        ready(&mut fds, deadline, Some(self.peer)).map(|_| ())
    }
}

/// Returns true if the call should be repeated when the socket is ready.
pub(crate) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Waits until one of the sockets is ready. At the deadline, the error names `peer`.
pub(crate) fn ready(
    fds: &mut [PollFd<'_>],
    deadline: &Deadline,
    peer: Option<usize>,
) -> Result<usize, TransportError> {
    loop {
        let left = deadline.remaining().ok_or_else(|| deadline.passed(peer))?;
        let left = Timespec {
            tv_sec: left.as_secs() as _,
            tv_nsec: i64::from(left.subsec_nanos()) as _,
        };
        match poll(fds, Some(&left)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(count) => return Ok(count),
            Err(error) => return Err(deadline.local("poll", error.into())),
        }
    }
}
