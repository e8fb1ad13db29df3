//! Reads and writes frames in their wire format (RFC 9113, sections 4 and 6).

/// Maximum number of bytes of a frame in both directions, which is the protocol's default.
pub(super) const FRAME: usize = 16 << 10;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// Why a stream or the connection ends (section 7).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Code {
    No = 0,
    Protocol = 1,
    FlowControl = 3,
    FrameSize = 6,
    RefusedStream = 7,
    Compression = 9,
    EnhanceYourCalm = 11,
}

pub(super) struct Frame {
    pub(super) kind: u8,
    flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// Removes and returns the first frame of the input, if it is complete.
    pub(super) fn take(input: &mut Vec<u8>) -> Result<Option<Frame>, Code> {
        let [a, b, c, kind, flags, s, t, u, v, rest @ ..] = &**input else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        if length > FRAME {
            return Err(Code::FrameSize);
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = Frame {
            kind: *kind,
            flags: *flags,
            stream: u32::from_be_bytes([s & 0x7f, *t, *u, *v]),
            payload: payload.to_vec(),
        };
        input.drain(..9 + length);
        Ok(Some(frame))
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the payload as an array. Returns an error if it does not have this length.
    pub(super) fn exactly<const N: usize>(&self) -> Result<[u8; N], Code> {
        self.payload[..].try_into().map_err(|_| Code::FrameSize)
    }

    /// Returns the content of DATA, HEADERS or CONTINUATION, without padding and priority.
    pub(super) fn content(&self) -> Result<&[u8], Code> {
        let mut content = &*self.payload;
        if self.kind != CONTINUATION && self.has(PADDED) {
            let (&padding, rest) = content.split_first().ok_or(Code::FrameSize)?;
            let length = rest.len().checked_sub(padding.into()).ok_or(Code::Protocol)?;
            content = &rest[..length];
        }
        if self.kind == HEADERS && self.has(PRIORITY) {
            content = content.get(5..).ok_or(Code::FrameSize)?;
        }
        Ok(content)
    }
}

/// Appends a frame.
pub(super) fn write(output: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    output.extend(&(payload.len() as u32).to_be_bytes()[1..]);
    output.extend([kind, flags]);
    output.extend(stream.to_be_bytes());
    output.extend(payload);
}
