//! The state of a call, from its first header field to its last.

use super::frame::{Code, DATA, END_HEADERS, END_STREAM, FRAME, HEADERS, RST_STREAM, write};
use super::hpack::Field;

/// Maximum number of bytes of a request.
const MOST: usize = 64 << 10;

/// A request.
#[derive(Debug, PartialEq)]
pub(in super::super) struct Request {
    pub(in super::super) path: Vec<u8>,
    /// The body, or `None` if it exceeds the limit.
    pub(in super::super) body: Option<Vec<u8>>,
}

/// A response: two header blocks around a body, or only the last block.
pub(in super::super) struct Reply {
    pub(in super::super) head: Option<Vec<u8>>,
    pub(in super::super) body: Vec<u8>,
    pub(in super::super) tail: Vec<u8>,
}

pub(super) struct Call {
    pub(super) stream: u32,
    /// The peer's flow-control window for this stream.
    pub(super) window: i64,
    /// True if the request has ended.
    pub(super) is_whole: bool,
    stage: Stage,
}

enum Stage {
    Asking(Request),
    Asked,
    Answering(Reply),
}

impl Call {
    pub(super) fn new(stream: u32, path: Vec<u8>, window: i64) -> Self {
        let body = Some(Vec::new());
        Call {
            stream,
            window,
            is_whole: false,
            stage: Stage::Asking(Request { path, body }),
        }
    }

    /// Adds to the body. Data after the response is ignored.
    pub(super) fn add(&mut self, content: &[u8]) {
        if let Stage::Asking(Request { body, .. }) = &mut self.stage {
            body.take_if(|body| body.len() + content.len() > MOST);
            if let Some(body) = body {
                body.extend(content);
            }
        }
    }

    /// Returns the request once, when it is complete or known to be too long.
    pub(super) fn request(&mut self) -> Option<Request> {
        match std::mem::replace(&mut self.stage, Stage::Asked) {
            Stage::Asking(request) if self.is_whole || request.body.is_none() => Some(request),
            other => {
                self.stage = other;
                None
            }
        }
    }

    pub(super) fn answer(&mut self, reply: Reply) {
        self.stage = Stage::Answering(reply);
    }

    /// Sends as much of the response as the windows of this call and of the connection permit. Returns true if it is
    /// complete.
    pub(super) fn flush(&mut self, all: &mut i64, output: &mut Vec<u8>) -> bool {
        let Stage::Answering(reply) = &mut self.stage else {
            return false;
        };
        if let Some(head) = reply.head.take() {
            write(output, HEADERS, END_HEADERS, self.stream, &head);
        }
        while !reply.body.is_empty() {
            let room = usize::try_from(self.window.min(*all)).unwrap_or(0);
            let length = reply.body.len().min(room).min(FRAME);
            if length == 0 {
                return false;
            }
            write(output, DATA, 0, self.stream, &reply.body[..length]);
            reply.body.drain(..length);
            self.window -= length as i64;
            *all -= length as i64;
        }
        write(
            output,
            HEADERS,
            END_HEADERS | END_STREAM,
            self.stream,
            &reply.tail,
        );
        if !self.is_whole {
            // Tell the peer that the rest of the request is not needed (section 8.1).
            write(
                output,
                RST_STREAM,
                0,
                self.stream,
                &(Code::No as u32).to_be_bytes(),
            );
        }
        true
    }
}

/// Returns the path of a well-formed POST (section 8.3).
pub(super) fn path(fields: &[Field]) -> Option<Vec<u8>> {
    let (mut method, mut scheme, mut path, mut authority) = (None, None, None, None);
    let mut is_early = true;
    for (name, value) in fields {
        if name.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        let place = match &**name {
            b":method" => &mut method,
            b":scheme" => &mut scheme,
            b":path" => &mut path,
            b":authority" => &mut authority,
            [] | [b':', ..] => return None,
            _ => {
                is_early = false;
                continue;
            }
        };
        if !is_early || place.replace(value).is_some() {
            return None;
        }
    }
    scheme?;
    path.filter(|_| method.is_some_and(|method| method == b"POST"))
        .cloned()
}
