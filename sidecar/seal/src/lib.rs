//! The job's key, and streams between its nodes that cannot be opened, read or changed without it.
//!
//! Noise NNpsk0 with Curve25519, ChaCha20-Poly1305 and BLAKE2s (<https://noiseprotocol.org/noise.html>): both ends
//! prove possession of the job's key before any other data of theirs is read, and a recorded stream cannot be decrypted
//! by an attacker who obtains the key later. docs/adr/0007 gives the reasons. The contents of a stream are opaque to
//! this crate.
//!
//! - [`key`]: loads the key; it is never on a command line and never printed.
//! - [`codec`]: the handshake and the messages as bytes, without any socket.
//! - [`stream`]: both over a blocking TCP stream, each call with a deadline.

pub mod codec;
pub mod key;
pub mod stream;

pub use key::{Key, KeyError};
pub use stream::{Receiver, Sealed, Sender, accept, dial};

use std::io;

/// Version of handshake and messages. Two ends with different versions report that to each other and disconnect.
pub const VERSION: u8 = 1;

/// Why a stream could not be sealed, or a message not be sent or received. The stream remains usable only after
/// [`SealError::TooLong`] on sending.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// Deadline exceeded.
    #[error("no {what} within the time limit")]
    Deadline {
        /// The expected data.
        what: &'static str,
    },
    /// The peer closed the connection, or the network failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
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
        /// Its version.
        theirs: u8,
    },
    /// The peer has another key, or another purpose.
    #[error("the other end does not have this job's key")]
    Key,
    /// A record was changed, repeated, omitted, or forged.
    #[error("a message was damaged or forged in transit")]
    Damaged,
    /// A message that claims to exceed the limit.
    #[error("a message of {bytes} bytes; at most {limit} are accepted")]
    TooLong {
        /// Claimed length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}
