//! The job's key, and streams between the job's nodes. Without the key, a stream cannot be opened, read or changed.
//!
//! The protocol is Noise NNpsk0 with Curve25519, ChaCha20-Poly1305 and BLAKE2s
//! (<https://noiseprotocol.org/noise.html>). Each end must prove that it has the job's key before the other end reads
//! any more of its data. An attacker who obtains the key later cannot decrypt a recorded stream. docs/adr/0007 gives
//! the reasons. The contents of a stream are opaque to this crate.
//!
//! - [`key`]: loads the key, which is never on a command line and never printed.
//! - [`codec`]: the handshake and the messages as bytes, without any socket.
//! - [`stream`]: the handshake and the messages over a blocking TCP stream. Each call has a deadline.

pub mod codec;
pub mod key;
pub mod stream;

pub use key::{Key, KeyError};
pub use stream::{Receiver, Sealed, Sender, accept, dial};

use std::io;

/// Version of handshake and messages. If the versions of two ends differ, each end reports that and disconnects.
pub const VERSION: u8 = 1;

/// Why a stream could not be sealed, or why a message could not be sent or received. The stream remains usable only if
/// sending failed with [`SealError::TooLong`].
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The deadline was exceeded.
    #[error("no {what} within the time limit")]
    Deadline {
        /// The data that was expected.
        what: &'static str,
    },
    /// The peer closed the connection, or the network failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The socket's error.
        source: io::Error,
    },
    /// The peer uses another protocol.
    #[error("the peer is not paceline")]
    Foreign,
    /// The peer has another version.
    #[error("the other end speaks version {theirs} of the sealed stream, this one version {VERSION}")]
    Version {
        /// The peer's version.
        theirs: u8,
    },
    /// The peer has another key, or another purpose.
    #[error("the other end does not have this job's key")]
    Key,
    /// A record was changed, repeated, omitted, or forged.
    #[error("a message was damaged or forged in transit")]
    Damaged,
    /// A message claims to exceed the limit.
    #[error("a message of {bytes} bytes; at most {limit} are accepted")]
    TooLong {
        /// The claimed length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}
