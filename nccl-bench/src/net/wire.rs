//! A connection on which every call ends by a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::transport::{Deadline, TransportError};

/// A stream to one peer that never blocks by itself.
#[derive(Debug)]
pub struct Wire {
    /// The rank at its other end.
    pub peer: usize,
    stream: TcpStream,
    /// How many bytes make it ready for reading, as the socket was last told.
    threshold: AtomicI32,
}

impl Wire {
    /// Takes a connected stream over.
    pub fn new(stream: TcpStream, peer: usize) -> io::Result<Wire> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Wire {
            peer,
            stream,
            threshold: AtomicI32::new(1),
        })
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Ready for reading when so many bytes have come (SO_RCVLOWAT of socket(7)): a sleeper that is woken by every
    /// segment gets little else done. A full receive buffer makes it ready too.
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
        // Without it there are more wake-ups, and nothing else is different.
        let _ = answer;
    }

    /// Writes all of it.
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

    /// Fills all of it.
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

    /// The error of a connection that failed with `source`.
    pub fn lost(&self, source: io::Error, deadline: &Deadline) -> TransportError {
        // An end between messages is how the death of a process looks from outside.
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

/// Whether a call that failed so is worth repeating when the socket is ready.
pub(crate) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Waits until one of them is ready; with the deadline's error, that names `peer`, when none is in time.
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
