//! The job's key, and streams between its nodes that nobody without it can open, read or change.
//!
//! Noise NNpsk0 with Curve25519, ChaCha20-Poly1305 and BLAKE2s (<https://noiseprotocol.org/noise.html>): both ends prove
//! that they know the job's key before anything else of theirs is read, and no recorded stream can be read later by who
//! learns the key. docs/adr/0007 says why. It knows nothing of what is said over the stream.
//!
//! - [`key`]: where the key comes from; it is never on a command line and never printed.
//! - [`codec`]: the handshake and the messages as bytes, without any socket.
//! - [`stream`]: both over a blocking TCP stream, each call with a deadline.

pub mod codec;
pub mod key;
pub mod stream;

pub use key::{Key, KeyError};
pub use stream::{Receiver, Sealed, Sender, accept, dial};

use std::io;

/// Version of handshake and messages. Two ends of different versions tell each other, and part.
pub const VERSION: u8 = 1;

/// Why a stream could not be sealed, or a message not be had. Only [`SealError::TooLong`] on sending leaves it usable.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// Not in time.
    #[error("no {what} within the time limit")]
    Deadline {
        /// What was waited for.
        what: &'static str,
    },
    /// The other end closed, or the network failed.
    #[error("{what}: {source}")]
    Io {
        /// What was under way.
        what: &'static str,
        /// What the socket said.
        source: io::Error,
    },
    /// What speaks there is none of ours.
    #[error("the peer is not paceline")]
    Foreign,
    /// The other end speaks another version.
    #[error("the other end speaks version {theirs} of the sealed stream, this one version {VERSION}")]
    Version {
        /// Its version.
        theirs: u8,
    },
    /// The other end has another key, or another purpose.
    #[error("the other end does not have this job's key")]
    Key,
    /// A record was changed, repeated, left out, or made by somebody else.
    #[error("a message was damaged or forged in transit")]
    Damaged,
    /// A message that claims to be longer than is allowed.
    #[error("a message of {bytes} bytes; at most {limit} are accepted")]
    TooLong {
        /// What it claims.
        bytes: usize,
        /// What is allowed.
        limit: usize,
    },
}
