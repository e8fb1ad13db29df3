//! The handshake and the messages as bytes, without a socket. Blocking and asynchronous callers share this code.
//!
//! ```text
//! caller -> called   "PCSEAL" version 0 | Noise message 1 (psk, e)        8 + 48 bytes
//! called -> caller   "PCSEAL" version s | Noise message 2 (e, ee)         8 + 48 bytes; s = 1: no common key, and zeros
//! caller -> called   an empty message: proof that this caller is no replay of another's first message
//! then, both ways    records: length (2 bytes, big endian) | ciphertext; a message is its length (4 bytes, little
//!                    endian) and its bytes, in as many records as it needs
//! ```

use std::sync::Arc;

use snow::{Builder, HandshakeState, StatelessTransportState};

use crate::{Key, SealError, VERSION};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const MAGIC: &[u8; 6] = b"PCSEAL";
const HEAD: usize = 8;
const REFUSED: u8 = 1;

/// Size of each of the first two messages, bytes.
pub const HANDSHAKE_BYTES: usize = HEAD + 48;

/// Maximum size of a Noise record, and the size of its tag.
const RECORD: usize = 65_535;
const TAG: usize = 16;
const LENGTH: usize = 4;

fn head(status: u8) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..6].copy_from_slice(MAGIC);
    head[6] = VERSION;
    head[7] = status;
    head
}

/// Checks magic and version, and returns the status.
fn check_head(bytes: &[u8]) -> Result<u8, SealError> {
    match bytes {
        [magic @ .., version, status] if magic == MAGIC => {
            if *version == VERSION {
                Ok(*status)
            } else {
                Err(SealError::Version { theirs: *version })
            }
        }
        _ => Err(SealError::Foreign),
    }
}

fn builder<'a>(key: &'a Key, prologue: &'a [u8]) -> Result<Builder<'a>, SealError> {
    let pattern = PATTERN.parse().map_err(|_| SealError::Key)?;
    Builder::new(pattern)
        .psk(0, key.bytes())
        .and_then(|builder| builder.prologue(prologue))
        .map_err(|_| SealError::Key)
}

/// The caller's side of the handshake. [`Caller::start`] makes the first message, and [`Caller::finish`] reads the
/// answer.
pub struct Caller(HandshakeState);

/// The result of the handshake, on both sides. One half seals messages, and the other half opens them.
pub type Pair = (Sealer, Opener);

impl Caller {
    /// Starts the handshake. Returns the state and the first message. Both ends must pass the same `purpose`.
    pub fn start(key: &Key, purpose: &str) -> Result<(Caller, [u8; HANDSHAKE_BYTES]), SealError> {
        let mut state = builder(key, purpose.as_bytes())?
            .build_initiator()
            .map_err(|_| SealError::Key)?;
        let mut first = [0; HANDSHAKE_BYTES];
        first[..HEAD].copy_from_slice(&head(0));
        state
            .write_message(&[], &mut first[HEAD..])
            .map_err(|_| SealError::Key)?;
        Ok((Caller(state), first))
    }

    /// Processes the answer. Returns the sealer and the opener, and the last bytes to send.
    pub fn finish(mut self, answer: &[u8; HANDSHAKE_BYTES]) -> Result<(Pair, Vec<u8>), SealError> {
        if check_head(&answer[..HEAD])? == REFUSED {
            return Err(SealError::Key);
        }
        self.0
            .read_message(&answer[HEAD..], &mut [])
            .map_err(|_| SealError::Key)?;
        let (mut sealer, opener) = pair(self.0)?;
        let proof = sealer.seal(&[])?;
        Ok(((sealer, opener), proof))
    }
}

/// Makes the called side's answer to a first message. Returns the bytes to send and, on success, the sealer and the
/// opener. The caller is not authenticated until [`Opener`] has opened its empty message.
/// is not authenticated until [`Opener`] has opened its empty message.
pub fn answer(
    key: &Key,
    purpose: &str,
    first: &[u8; HANDSHAKE_BYTES],
) -> ([u8; HANDSHAKE_BYTES], Result<Pair, SealError>) {
    let mut reply = [0; HANDSHAKE_BYTES];
    let made = check_head(&first[..HEAD]).and_then(|_| {
        let mut state = builder(key, purpose.as_bytes())?
            .build_responder()
            .map_err(|_| SealError::Key)?;
        state
            .read_message(&first[HEAD..], &mut [])
            .map_err(|_| SealError::Key)?;
        state
            .write_message(&[], &mut reply[HEAD..])
            .map_err(|_| SealError::Key)?;
        pair(state)
    });
    reply[..HEAD].copy_from_slice(&head(if made.is_ok() { 0 } else { REFUSED }));
    (reply, made)
}

fn pair(state: HandshakeState) -> Result<Pair, SealError> {
    let noise = state
        .into_stateless_transport_mode()
        .map_err(|_| SealError::Key)?;
    let noise = Arc::new(noise);
    let sealer = Sealer {
        noise: Arc::clone(&noise),
        nonce: 0,
    };
    let opener = Opener {
        noise,
        nonce: 0,
        bytes: Vec::new(),
        message: Vec::new(),
        wanted: None,
    };
    Ok((sealer, opener))
}

/// Encodes messages into bytes for the peer.
pub struct Sealer {
    noise: Arc<StatelessTransportState>,
    nonce: u64,
}

impl Sealer {
    /// Returns the bytes of a message.
    pub fn seal(&mut self, message: &[u8]) -> Result<Vec<u8>, SealError> {
        let too_long = SealError::TooLong {
            bytes: message.len(),
            limit: u32::MAX as usize,
        };
        let length = u32::try_from(message.len()).map_err(|_| too_long)?;
        let mut plain = Vec::with_capacity(LENGTH + message.len());
        plain.extend_from_slice(&length.to_le_bytes());
        plain.extend_from_slice(message);
        let mut out = Vec::with_capacity(plain.len() + (plain.len() / RECORD + 1) * (TAG + 2));
        for piece in plain.chunks(RECORD - TAG) {
            let begin = out.len();
            out.resize(begin + 2 + piece.len() + TAG, 0);
            let written = self
                .noise
                .write_message(self.nonce, piece, &mut out[begin + 2..])
                .map_err(|_| SealError::Damaged)?;
            self.nonce += 1;
            // The cast is safe because the size of `piece` limits a record to 65,535 bytes.
            out[begin..begin + 2].copy_from_slice(&(written as u16).to_be_bytes());
        }
        Ok(out)
    }
}

/// Decodes the peer's bytes into messages.
pub struct Opener {
    noise: Arc<StatelessTransportState>,
    nonce: u64,
    bytes: Vec<u8>,
    message: Vec<u8>,
    wanted: Option<usize>,
}

impl Opener {
    /// Returns how many more bytes are needed for any progress. Reading only this many from a stream never reads past
    /// the sealed data. This matters because a stream may continue unsealed after the last sealed message.
    pub fn needs(&self) -> usize {
        let whole = match *self.bytes {
            [high, low, ..] => 2 + usize::from(u16::from_be_bytes([high, low])),
            _ => 2,
        };
        whole.saturating_sub(self.bytes.len())
    }

    /// Takes bytes that were read, which must never be more than [`Opener::needs`]. Returns a message if they were its
    /// last. A message that claims more than `limit` is rejected before memory is allocated for it.
    pub fn take(&mut self, bytes: &[u8], limit: usize) -> Result<Option<Vec<u8>>, SealError> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() < 2 || self.needs() > 0 {
            return Ok(None);
        }
        let mut plain = vec![0; self.bytes.len()];
        let length = self
            .noise
            .read_message(self.nonce, &self.bytes[2..], &mut plain)
            .map_err(|_| SealError::Damaged)?;
        self.nonce += 1;
        self.bytes.clear();
        let mut plain = &plain[..length];
        let wanted = match self.wanted {
            Some(wanted) => wanted,
            None => {
                let (length, rest) = plain.split_first_chunk::<LENGTH>().ok_or(SealError::Damaged)?;
                plain = rest;
                let bytes = u32::from_le_bytes(*length) as usize;
                if bytes > limit {
                    return Err(SealError::TooLong { bytes, limit });
                }
                self.wanted = Some(bytes);
                bytes
            }
        };
        self.message.extend_from_slice(plain);
        if self.message.len() > wanted {
            return Err(SealError::Damaged);
        }
        if self.message.len() < wanted {
            return Ok(None);
        }
        self.wanted = None;
        Ok(Some(std::mem::take(&mut self.message)))
    }
}
