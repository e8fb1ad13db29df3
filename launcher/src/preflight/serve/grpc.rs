//! The one call of the service, as its interface is published: `nvhcd.HealthCheckService/RunHealthCheck`, with arguments
//! for a site's script as the question (there is no script here: they mean nothing) and four fields as the answer
//! (<https://github.com/NVIDIA/nvidia-resiliency-ext/blob/main/src/nvidia_resiliency_ext/shared_utils/proto/nvhcd.proto>).
//!
//! Framing: <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>.

use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use axum::routing::post;
use http_body::Frame;

/// Where the call is.
pub(super) const PATH: &str = "/nvhcd.HealthCheckService/RunHealthCheck";
/// Most bytes of a question.
const MOST: usize = 64 << 10;
/// Codes of gRPC.
const INVALID_ARGUMENT: u8 = 3;
const UNIMPLEMENTED: u8 = 12;
const INTERNAL: u8 = 13;

/// The four fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) success: bool,
    pub(super) exit_code: i32,
    pub(super) output: String,
    pub(super) error: String,
}

/// Answers every call, until the process is ended.
pub(super) fn serve(
    listener: UnixListener,
    answer: impl Fn() -> Answer + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()?;
    let answer = Arc::new(answer);
    let call = move |question: Bytes| {
        let answer = Arc::clone(&answer);
        async move {
            if let Err((code, why)) = check(&question) {
                return refusal(code, why);
            }
            // Libraries are asked, which may take its time.
            match tokio::task::spawn_blocking(move || answer()).await {
                Ok(answer) => reply(&answer),
                Err(_) => refusal(INTERNAL, "the node could not be examined"),
            }
        }
    };
    let unknown = || async { refusal(UNIMPLEMENTED, "there is only RunHealthCheck") };
    let app = Router::new()
        .route(PATH, post(call))
        .fallback(unknown)
        .layer(DefaultBodyLimit::max(MOST));
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        axum::serve(listener, app).await.context("serving")
    })
}

/// One whole message, not compressed. What is in it is a script's.
fn check(question: &[u8]) -> Result<(), (u8, &'static str)> {
    match question {
        [0, a, b, c, d, message @ ..] if u32::from_be_bytes([*a, *b, *c, *d]) as usize == message.len() => {
            Ok(())
        }
        [1, ..] => Err((UNIMPLEMENTED, "compressed messages are not understood")),
        _ => Err((INVALID_ARGUMENT, "one message was expected")),
    }
}

fn head() -> axum::http::response::Builder {
    Response::builder().header(header::CONTENT_TYPE, "application/grpc")
}

fn refusal(code: u8, why: &'static str) -> Response<Body> {
    let response = head()
        .header("grpc-status", u16::from(code))
        .header("grpc-message", why);
    response.body(Body::empty()).unwrap_or_default()
}

fn reply(answer: &Answer) -> Response<Body> {
    let message = answer.encode();
    let mut data = vec![0];
    data.extend((message.len() as u32).to_be_bytes());
    data.extend(message);
    let told = Told {
        data: Some(data.into()),
        is_over: false,
    };
    head().body(Body::new(told)).unwrap_or_default()
}

impl Answer {
    /// As proto3 writes it: what is zero or empty is left out.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.success {
            bytes.extend([1 << 3, 1]);
        }
        if self.exit_code != 0 {
            bytes.push(2 << 3);
            varint(i64::from(self.exit_code) as u64, &mut bytes);
        }
        for (field, text) in [(3, &self.output), (4, &self.error)] {
            if !text.is_empty() {
                bytes.push(field << 3 | 2);
                varint(text.len() as u64, &mut bytes);
                bytes.extend(text.as_bytes());
            }
        }
        bytes
    }
}

fn varint(mut value: u64, bytes: &mut Vec<u8>) {
    while value > 0x7f {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// One message, and that all went well after it.
struct Told {
    data: Option<Bytes>,
    is_over: bool,
}

impl HttpBody for Told {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(data) = self.data.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if std::mem::replace(&mut self.is_over, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_written_as_proto3() {
        let well = Answer {
            success: true,
            ..Answer::default()
        };
        assert_eq!(well.encode(), [0x08, 1]);
        let ill = Answer {
            exit_code: 300,
            output: "{}".into(),
            error: "x".into(),
            ..Answer::default()
        };
        assert_eq!(ill.encode(), b"\x10\xac\x02\x1a\x02{}\x22\x01x");
        let below = Answer {
            exit_code: -1,
            ..Answer::default()
        };
        assert_eq!(below.encode(), b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    }

    #[test]
    fn only_one_whole_plain_message_is_a_question() {
        assert!(check(&[0, 0, 0, 0, 0]).is_ok());
        assert!(check(&[0, 0, 0, 0, 2, 9, 9]).is_ok());
        for broken in [
            &[][..],
            &[0, 0, 0],
            &[0, 0, 0, 0, 2, 9],
            &[1, 0, 0, 0, 0],
            &[0, 255, 255, 255, 255],
        ] {
            assert!(check(broken).is_err(), "{broken:?}");
        }
    }
}
