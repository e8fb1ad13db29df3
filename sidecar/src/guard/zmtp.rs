//! ZeroMQ's wire protocol as bytes: ZMTP 3.0 with the NULL mechanism (<https://rfc.zeromq.org/spec/23/>). It covers
//! what a ROUTER and a DEALER with single-frame messages need. It uses no socket, and all memory is bounded.

/// Maximum length of a message. A longer one ends the connection.
pub const LONGEST: usize = crate::uplink::wire::MAX_MESSAGE_BYTES;

const GREETING: usize = 64;
/// Maximum length of a command that is skipped.
const COMMAND: usize = 4096;
const MORE: u8 = 1;
const LONG: u8 = 2;
const IS_COMMAND: u8 = 4;

/// Why the input is not the supported subset of ZMTP 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// The peer uses another protocol, an older version, or an unsupported mechanism.
    #[error("not a greeting of ZMTP 3 with the NULL mechanism")]
    Greeting,
    /// A frame arrived before the peer was ready.
    #[error("an unexpected frame in the handshake")]
    Handshake,
    /// A frame claims to exceed the limit.
    #[error("a frame of {0} bytes")]
    TooLong(u64),
}

/// Returns the first bytes that each end sends: its greeting, and READY. `socket` is `ROUTER` or `DEALER`.
pub fn opening(socket: &str) -> Vec<u8> {
    let mut bytes = vec![0; GREETING];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend((socket.len() as u32).to_be_bytes());
    ready.extend(socket.as_bytes());
    bytes.extend([IS_COMMAND, ready.len() as u8]);
    bytes.extend(ready);
    bytes
}

/// Encodes a message.
pub fn frame(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(message.len() + 9);
    match u8::try_from(message.len()) {
        Ok(length) => bytes.extend([0, length]),
        Err(_) => {
            bytes.push(LONG);
            bytes.extend((message.len() as u64).to_be_bytes());
        }
    }
    bytes.extend(message);
    bytes
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Greeting,
    Ready,
    Talking,
}

/// Decodes the peer's bytes.
#[derive(Debug, Default)]
pub struct Reader {
    stage: Stage,
    /// The beginning of an incomplete frame.
    part: Vec<u8>,
}

impl Reader {
    /// Takes bytes as they arrive, and passes each complete message to `each`. If a message has several frames, only
    /// the last one counts, because the others are an envelope.
    ///
    /// # Errors
    /// [`ZmtpError`] if the connection is unusable.
    pub fn take(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), ZmtpError> {
        if self.part.is_empty() {
            let used = self.read(bytes, &mut each)?;
            self.part.extend_from_slice(&bytes[used..]);
        } else {
            let mut part = std::mem::take(&mut self.part);
            part.extend_from_slice(bytes);
            let used = self.read(&part, &mut each)?;
            part.drain(..used);
            if part.is_empty() {
                // Do not keep the memory of one long message.
                part = Vec::new();
            }
            self.part = part;
        }
        Ok(())
    }

    /// Processes the complete frames. Returns their length in bytes.
    fn read(&mut self, bytes: &[u8], each: &mut impl FnMut(&[u8])) -> Result<usize, ZmtpError> {
        let mut used = 0;
        if self.stage == Stage::Greeting {
            let Some(greeting) = bytes.get(..GREETING) else {
                return Ok(0);
            };
            if greeting[0] != 0xff
                || greeting[9] != 0x7f
                || greeting[10] < 3
                || &greeting[12..17] != b"NULL\0"
            {
                return Err(ZmtpError::Greeting);
            }
            self.stage = Stage::Ready;
            used = GREETING;
        }
        while let Some(Frame { flags, body, length }) = next(&bytes[used..])? {
            let is_command = flags & IS_COMMAND != 0;
            match self.stage {
                Stage::Ready if is_command && body.starts_with(b"\x05READY") => self.stage = Stage::Talking,
                Stage::Talking if is_command || flags & MORE != 0 => {}
                Stage::Talking => each(body),
                _ => return Err(ZmtpError::Handshake),
            }
            used += length;
        }
        Ok(used)
    }
}

struct Frame<'a> {
    flags: u8,
    body: &'a [u8],
    /// The length including the header.
    length: usize,
}

/// Returns the first frame if it is complete.
fn next(bytes: &[u8]) -> Result<Option<Frame<'_>>, ZmtpError> {
    let Some((&flags, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let (claim, head) = if flags & LONG == 0 {
        (rest.first().map(|length| u64::from(*length)), 2)
    } else {
        (rest.first_chunk().map(|length| u64::from_be_bytes(*length)), 9)
    };
    let Some(claim) = claim else { return Ok(None) };
    let most = if flags & IS_COMMAND == 0 { LONGEST } else { COMMAND };
    if claim > most as u64 {
        return Err(ZmtpError::TooLong(claim));
    }
    let length = head + claim as usize;
    Ok(bytes.get(head..length).map(|body| Frame { flags, body, length }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(reader: &mut Reader, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ZmtpError> {
        let mut seen = Vec::new();
        reader.take(bytes, |message| seen.push(message.to_vec()))?;
        Ok(seen)
    }

    fn talking() -> Reader {
        let mut reader = Reader::default();
        assert_eq!(read(&mut reader, &opening("DEALER")), Ok(Vec::new()));
        reader
    }

    #[test]
    fn what_is_none_of_ours_is_refused() {
        let check = |bytes: &[u8], wanted| assert_eq!(read(&mut Reader::default(), bytes), Err(wanted));
        check(&[b'x'; 64], ZmtpError::Greeting);
        let mut curve = opening("DEALER");
        curve[12..17].copy_from_slice(b"CURVE");
        check(&curve, ZmtpError::Greeting);
        let mut old = opening("DEALER");
        old[10] = 2;
        check(&old, ZmtpError::Greeting);
        let mut early = opening("DEALER")[..GREETING].to_vec();
        early.extend(frame(b"hello"));
        check(&early, ZmtpError::Handshake);
        let long = LONGEST as u64 + 1;
        let mut claim = vec![LONG];
        claim.extend(long.to_be_bytes());
        assert_eq!(read(&mut talking(), &claim), Err(ZmtpError::TooLong(long)));
        claim[0] |= IS_COMMAND;
        claim[1..].copy_from_slice(&4097u64.to_be_bytes());
        assert_eq!(read(&mut talking(), &claim), Err(ZmtpError::TooLong(4097)));
    }

    #[test]
    fn envelopes_and_commands_are_gone_over() {
        let mut bytes = vec![MORE, 2, 1, 2];
        bytes.extend(frame(b"body"));
        bytes.extend([IS_COMMAND, 5, 4, b'P', b'I', b'N', b'G']);
        bytes.extend(frame(b""));
        let wanted = vec![b"body".to_vec(), Vec::new()];
        assert_eq!(read(&mut talking(), &bytes), Ok(wanted));
    }

    proptest! {
        /// The resulting messages are the same however the stream is split.
        #[test]
        fn pieces(lengths in proptest::collection::vec(0usize..700, 0..6), cut in 1usize..97) {
            let messages: Vec<Vec<u8>> = lengths.iter().map(|length| vec![7; *length]).collect();
            let mut bytes = opening("ROUTER");
            messages.iter().for_each(|message| bytes.extend(frame(message)));
            let mut reader = Reader::default();
            let mut seen = Vec::new();
            for piece in bytes.chunks(cut) {
                seen.extend(read(&mut reader, piece).unwrap());
            }
            prop_assert_eq!(seen, messages);
            prop_assert!(reader.part.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&mut Reader::default(), &bytes);
            let _ = read(&mut talking(), &bytes);
        }
    }
}
