//! Implements the only call of the service, `nvhcd.HealthCheckService/RunHealthCheck`, which
//! <https://github.com/NVIDIA/nvidia-resiliency-ext/blob/main/src/nvidia_resiliency_ext/shared_utils/proto/nvhcd.proto>
//! defines. The request has arguments for a site's script, which are ignored because there is no script here. The
//! response has four fields.
//!
//! Framing: <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::http2::{Code, Connection, Reply, Request, hpack};

/// The HTTP path of the call.
pub(super) const PATH: &str = "/nvhcd.HealthCheckService/RunHealthCheck";
/// gRPC status codes.
const INVALID_ARGUMENT: &str = "3";
const RESOURCE_EXHAUSTED: &str = "8";
const UNIMPLEMENTED: &str = "12";

/// Maximum number of simultaneous connections. A client makes one call and disconnects.
pub(super) const MOST: usize = 16;
/// Time limit for a peer to send its greeting, to send its request, or to read the response.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit of an idle connection.
const IDLE: Duration = Duration::from_secs(300);

/// The four fields of the response.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) success: bool,
    pub(super) exit_code: i32,
    pub(super) output: String,
    pub(super) error: String,
}

/// Answers every call until the process ends.
pub(super) fn serve(listener: &UnixListener, answer: impl Fn() -> Answer + Send + Sync + 'static) -> ! {
    let answer = Arc::new(answer);
    let places = Arc::new(());
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Wait and try again. The error is usually too many open files, which is temporary.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let (answer, place) = (Arc::clone(&answer), Arc::clone(&places));
        if Arc::strong_count(&places) > MOST + 1 {
            continue;
        }
        // Ignore the error: if the thread does not start, the connection is closed, and the client can retry.
        let _ = thread::Builder::new().spawn(move || {
            let _place = place;
            // Ignore the error, because a peer may disconnect at any time.
            let _ = attend(stream, &*answer, PATIENCE, IDLE);
        });
    }
}

/// Answers one connection's calls until it is closed or times out.
fn attend(
    mut stream: UnixStream,
    answer: &impl Fn() -> Answer,
    patience: Duration,
    idle: Duration,
) -> io::Result<()> {
    stream.set_write_timeout(Some(patience))?;
    let mut connection = Connection::new();
    let mut bytes = [0; 16 << 10];
    let (mut since, mut was_idle) = (Instant::now(), false);
    loop {
        let mut asked = connection.poll_request();
        while let Ok(Some(request)) = asked {
            connection.answer(respond(&request, answer));
            stream.write_all(&connection.poll_output())?;
            (since, was_idle) = (Instant::now(), false);
            asked = connection.poll_request();
        }
        stream.write_all(&connection.poll_output())?;
        if asked.is_err() {
            return Ok(());
        }
        let is_idle = connection.is_idle();
        if std::mem::replace(&mut was_idle, is_idle) != is_idle {
            since = Instant::now();
        }
        let left = if is_idle { idle } else { patience }.saturating_sub(since.elapsed());
        if left.is_zero() {
            connection.close(Code::No);
            return stream.write_all(&connection.poll_output());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => connection.receive(&bytes[..count]),
            Err(problem) => match problem.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => return Err(problem),
            },
        }
    }
}

fn respond(request: &Request, answer: &impl Fn() -> Answer) -> Reply {
    if request.path != PATH.as_bytes() {
        return refusal(UNIMPLEMENTED, "only RunHealthCheck is supported");
    }
    let Some(question) = &request.body else {
        return refusal(RESOURCE_EXHAUSTED, "the request is too long");
    };
    match check(question) {
        Ok(()) => reply(&answer()),
        Err((code, why)) => refusal(code, why),
    }
}

/// Checks that the request is one whole, uncompressed message. Its contents are meant for a script and are ignored.
fn check(question: &[u8]) -> Result<(), (&'static str, &'static str)> {
    match question {
        [0, a, b, c, d, message @ ..] if u32::from_be_bytes([*a, *b, *c, *d]) as usize == message.len() => {
            Ok(())
        }
        [1, ..] => Err((UNIMPLEMENTED, "compressed messages are not supported")),
        _ => Err((INVALID_ARGUMENT, "one message was expected")),
    }
}

/// The headers that every response has.
const HEAD: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/grpc")];

fn refusal(code: &str, why: &str) -> Reply {
    let [status, kind] = HEAD;
    Reply {
        head: None,
        body: Vec::new(),
        tail: hpack::write(&[status, kind, ("grpc-status", code), ("grpc-message", why)]),
    }
}

fn reply(answer: &Answer) -> Reply {
    let message = answer.encode();
    let mut body = vec![0];
    body.extend((message.len() as u32).to_be_bytes());
    body.extend(message);
    Reply {
        head: Some(hpack::write(&HEAD)),
        body,
        tail: hpack::write(&[("grpc-status", "0")]),
    }
}

impl Answer {
    /// Encodes the answer in proto3, in which zero and empty fields are omitted.
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

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use super::*;
    use crate::preflight::serve::http2::{CALL, GREETING};

    const LONG: Duration = Duration::from_secs(600);
    const SHORT: Duration = Duration::from_millis(20);

    /// Returns everything that a peer receives if it sends `said` and then waits.
    fn heard(said: &[u8], patience: Duration, idle: Duration) -> Vec<u8> {
        let (mut peer, ours) = UnixStream::pair().unwrap();
        peer.write_all(said).unwrap();
        attend(ours, &Answer::default, patience, idle).unwrap();
        let mut heard = Vec::new();
        peer.read_to_end(&mut heard).unwrap();
        heard
    }

    #[test]
    fn who_takes_too_long_is_sent_away() {
        let away = |last: u8| [&[0, 0, 8, 7, 0, 0, 0, 0, 0][..], &[0, 0, 0, last], &[0; 4]].concat();
        // Cases: a peer that sends nothing, one that has only greeted, and one that has sent half a request.
        assert!(heard(b"", SHORT, LONG).ends_with(&away(0)));
        assert!(heard(GREETING, LONG, SHORT).ends_with(&away(0)));
        let half = [GREETING, &CALL[..CALL.len() - 20]].concat();
        assert!(heard(&half, SHORT, LONG).ends_with(&away(1)));
        // The last case is a peer that has its response.
        let whole = [GREETING, CALL].concat();
        let heard = heard(&whole, LONG, SHORT);
        assert!(heard.ends_with(&away(1)));
        let status = hpack::write(&[("grpc-status", "0")]);
        assert!(heard.windows(status.len()).any(|part| part == status));
    }

    #[test]
    fn who_goes_away_in_the_middle_is_let_go() {
        let (mut peer, ours) = UnixStream::pair().unwrap();
        peer.write_all(&GREETING[..30]).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        attend(ours, &Answer::default, LONG, LONG).unwrap();
    }

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
