//! HTTP/2 for a server that handles one call at a time (RFC 9113). It uses no socket and no clock. Its input and output
//! are bytes and function calls.
//!
//! Pass input to `receive`. Then use `poll_request` and `answer` until there is no request. After each of these calls,
//! send the bytes from `poll_output`.
//!
//! The usual library rejects the `:authority` that gRPC's own clients send on a Unix socket, which is the socket's path
//! (<https://github.com/hyperium/h2/pull/487>). Here the `:authority` is read and ignored, because the socket's mode
//! controls access.

mod call;
mod frame;
pub(super) mod hpack;

use self::call::{Call, path};
pub(super) use self::call::{Reply, Request};
pub(super) use self::frame::Code;
use self::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, FRAME, Frame, GOAWAY, HEADERS, PING, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, write,
};
use self::hpack::{Table, Unread};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The initial flow-control window, and the largest possible one.
const WINDOW: i64 = (1 << 16) - 1;
const LARGEST: i64 = (1 << 31) - 1;

pub(super) struct Connection {
    input: Vec<u8>,
    output: Vec<u8>,
    table: Table,
    /// True if the preface has arrived. `is_set` is true if the peer's first settings have arrived.
    is_greeted: bool,
    is_set: bool,
    /// A header block that is not complete yet.
    block: Option<Block>,
    /// The number of the peer's last stream.
    last: u32,
    call: Option<Call>,
    /// The peer's flow-control windows for the connection and for a new stream.
    window: i64,
    first_window: i64,
}

struct Block {
    stream: u32,
    is_last: bool,
    bytes: Vec<u8>,
}

impl Connection {
    pub(super) fn new() -> Self {
        let mut connection = Connection {
            input: Vec::new(),
            output: Vec::new(),
            table: Table::new(),
            is_greeted: false,
            is_set: false,
            block: None,
            last: 0,
            call: None,
            window: WINDOW,
            first_window: WINDOW,
        };
        // The settings are MAX_CONCURRENT_STREAMS and MAX_HEADER_LIST_SIZE.
        let settings = [[0, 3, 0, 0, 0, 1], [0, 6, 0, 0, (hpack::MOST >> 8) as u8, 0]];
        connection.send(SETTINGS, 0, 0, settings.as_flattened());
        connection
    }

    /// Returns true if the peer has sent its settings and no call is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.is_set && self.block.is_none() && self.call.is_none()
    }

    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.input.extend(bytes);
    }

    /// Returns the next request, which must be answered before anything else. After an error, only the output of
    /// `poll_output` may still be sent.
    pub(super) fn poll_request(&mut self) -> Result<Option<Request>, Code> {
        let asked = self.advance();
        if let Err(code) = asked {
            self.close(code);
        }
        asked
    }

    /// Answers the last request.
    pub(super) fn answer(&mut self, reply: Reply) {
        if let Some(call) = &mut self.call {
            call.answer(reply);
        }
        self.flush();
    }

    /// Sends GOAWAY, after which no more calls are answered.
    pub(super) fn close(&mut self, code: Code) {
        let why = [self.last.to_be_bytes(), (code as u32).to_be_bytes()];
        self.send(GOAWAY, 0, 0, why.as_flattened());
    }

    /// Removes and returns the bytes to send.
    pub(super) fn poll_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    fn advance(&mut self) -> Result<Option<Request>, Code> {
        if !self.is_greeted {
            let come = self.input.len().min(PREFACE.len());
            if self.input[..come] != PREFACE[..come] {
                return Err(Code::Protocol);
            }
            if come < PREFACE.len() {
                return Ok(None);
            }
            self.input.drain(..come);
            self.is_greeted = true;
        }
        while let Some(frame) = Frame::take(&mut self.input)? {
            self.handle(&frame)?;
            if let Some(request) = self.call.as_mut().and_then(Call::request) {
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    fn handle(&mut self, frame: &Frame) -> Result<(), Code> {
        // Check the order: no other frame may come between the parts of a header block, or before the settings.
        let is_in_order = self.block.is_some() == (frame.kind == CONTINUATION);
        if !is_in_order || !self.is_set && frame.kind != SETTINGS {
            return Err(Code::Protocol);
        }
        // Check the stream: the frame must be for the connection, or for an existing or earlier stream, depending on
        // its kind.
        let is_placed = match frame.kind {
            SETTINGS | PING => frame.stream == 0,
            DATA | RST_STREAM => (1..=self.last).contains(&frame.stream),
            WINDOW_UPDATE => frame.stream <= self.last,
            HEADERS => frame.stream % 2 == 1,
            _ => true,
        };
        if !is_placed {
            return Err(Code::Protocol);
        }
        match frame.kind {
            DATA => self.data(frame),
            HEADERS => self.headers(frame),
            CONTINUATION => self.fields(frame),
            RST_STREAM => self.reset_by_peer(frame),
            SETTINGS => self.settings(frame),
            PING => self.ping(frame),
            WINDOW_UPDATE => self.window_update(frame),
            PUSH_PROMISE => Err(Code::Protocol),
            // Ignore PRIORITY, GOAWAY and unknown frames.
            _ => Ok(()),
        }
    }

    fn data(&mut self, frame: &Frame) -> Result<(), Code> {
        let content = frame.content()?;
        // Return the received bytes, including padding, to the peer's window.
        let taken = (frame.payload.len() as u32).to_be_bytes();
        if !frame.payload.is_empty() {
            self.send(WINDOW_UPDATE, 0, 0, &taken);
        }
        // Ignore the rest of a stream that has ended.
        let Some(call) = self.call.as_mut().filter(|call| call.stream == frame.stream) else {
            return Ok(());
        };
        call.add(content);
        call.is_whole |= frame.has(END_STREAM);
        if !call.is_whole && !frame.payload.is_empty() {
            self.send(WINDOW_UPDATE, 0, frame.stream, &taken);
        }
        Ok(())
    }

    fn headers(&mut self, frame: &Frame) -> Result<(), Code> {
        self.block = Some(Block {
            stream: frame.stream,
            is_last: frame.has(END_STREAM),
            bytes: Vec::new(),
        });
        self.fields(frame)
    }

    /// Handles a part of a header block, from HEADERS or CONTINUATION.
    fn fields(&mut self, frame: &Frame) -> Result<(), Code> {
        let mut block = self.block.take().ok_or(Code::Protocol)?;
        block.bytes.extend(frame.content()?);
        if frame.stream != block.stream {
            return Err(Code::Protocol);
        }
        if block.bytes.len() > hpack::MOST {
            return Err(Code::EnhanceYourCalm);
        }
        if frame.has(END_HEADERS) {
            return self.begin(&block);
        }
        self.block = Some(block);
        Ok(())
    }

    fn begin(&mut self, block: &Block) -> Result<(), Code> {
        // Decode the fields even if they are not needed, because later blocks refer to them.
        let fields = self.table.read(&block.bytes).map_err(|unread| match unread {
            Unread::Malformed => Code::Compression,
            Unread::TooLong => Code::EnhanceYourCalm,
        })?;
        if block.stream <= self.last {
            // Fields after a body are trailers. They may still arrive for a stream that has ended.
            let call = self.call.as_mut().filter(|call| call.stream == block.stream);
            return match call {
                Some(call) if call.is_whole || !block.is_last => Err(Code::Protocol),
                Some(call) => {
                    call.is_whole = true;
                    Ok(())
                }
                None => Ok(()),
            };
        }
        self.last = block.stream;
        if self.call.is_some() {
            self.reset(block.stream, Code::RefusedStream);
        } else if let Some(path) = path(&fields) {
            let call = self.call.insert(Call::new(block.stream, path, self.first_window));
            call.is_whole = block.is_last;
        } else {
            self.reset(block.stream, Code::Protocol);
        }
        Ok(())
    }

    fn reset_by_peer(&mut self, frame: &Frame) -> Result<(), Code> {
        frame.exactly::<4>()?;
        self.call.take_if(|call| call.stream == frame.stream);
        Ok(())
    }

    fn settings(&mut self, frame: &Frame) -> Result<(), Code> {
        let (settings, rest) = frame.payload.as_chunks::<6>();
        let is_ack = frame.has(ACK);
        if !rest.is_empty() || is_ack && !settings.is_empty() {
            return Err(Code::FrameSize);
        }
        if is_ack {
            // Accept an acknowledgment only after the peer's own settings, which must come first.
            return if self.is_set { Ok(()) } else { Err(Code::Protocol) };
        }
        self.is_set = true;
        for [a, b, value @ ..] in settings {
            let value = i64::from(u32::from_be_bytes(*value));
            match u16::from_be_bytes([*a, *b]) {
                // Check the values of ENABLE_PUSH and MAX_FRAME_SIZE. They have no effect, because we never send more
                // than the minimum.
                2 if value > 1 => return Err(Code::Protocol),
                5 if !(FRAME as i64..1 << 24).contains(&value) => return Err(Code::Protocol),
                4 => self.resize(value)?,
                _ => {}
            }
        }
        self.send(SETTINGS, ACK, 0, &[]);
        self.flush();
        Ok(())
    }

    /// Applies INITIAL_WINDOW_SIZE, which also changes the window of the open stream.
    fn resize(&mut self, window: i64) -> Result<(), Code> {
        let more = window - std::mem::replace(&mut self.first_window, window);
        let of_call = self.call.as_mut().map(|call| {
            call.window += more;
            call.window
        });
        if window.max(of_call.unwrap_or(0)) > LARGEST {
            return Err(Code::FlowControl);
        }
        Ok(())
    }

    fn ping(&mut self, frame: &Frame) -> Result<(), Code> {
        let what = frame.exactly::<8>()?;
        if !frame.has(ACK) {
            self.send(PING, ACK, 0, &what);
        }
        Ok(())
    }

    fn window_update(&mut self, frame: &Frame) -> Result<(), Code> {
        let more = i64::from(u32::from_be_bytes(frame.exactly()?)) & LARGEST;
        if more == 0 {
            return Err(Code::Protocol);
        }
        let window = match &mut self.call {
            _ if frame.stream == 0 => &mut self.window,
            Some(call) if call.stream == frame.stream => &mut call.window,
            _ => return Ok(()),
        };
        *window += more;
        if *window > LARGEST {
            return Err(Code::FlowControl);
        }
        self.flush();
        Ok(())
    }

    fn flush(&mut self) {
        self.call
            .take_if(|call| call.flush(&mut self.window, &mut self.output));
    }

    fn reset(&mut self, stream: u32, code: Code) {
        self.send(RST_STREAM, 0, stream, &(code as u32).to_be_bytes());
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        write(&mut self.output, kind, flags, stream, payload);
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use self::tests::{CALL, GREETING};
