use proptest::prelude::*;

use super::*;

/// A recording of a call by grpcio 1.85 over the Unix socket tmp/s. It has the settings, windows and request. The
/// request's authority is the socket's path.
pub(in super::super) const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
\0\0\x24\x04\0\0\0\0\0\0\x02\0\0\0\0\0\x03\0\0\0\0\0\x04\0\x40\0\0\0\x05\0\x40\0\0\0\x06\0\0\x40\0\xfe\x03\0\0\0\x01\
\0\0\x04\x08\0\0\0\0\0\0\x3f\0\x01\0\0\0\x04\x01\0\0\0\0";
pub(in super::super) const CALL: &[u8] = b"\0\0\xf7\x01\x04\0\0\0\x01\
\x40\x05:path\x28/nvhcd.HealthCheckService/RunHealthCheck\x40\x0a:authority\x0etmp%2Frec.sock\x83\x86\
\x40\x0ccontent-type\x10application/grpc\x40\x02te\x08trailers\
\x40\x14grpc-accept-encoding\x17identity, deflate, gzip\x40\x0cgrpc-timeout\x04997m\
\x40\x0auser-agent\x30grpc-python/1.85.1 grpc-c/58.0.0 (linux; chttp2)\
\0\0\x04\x08\0\0\0\0\x01\0\0\0\x05\
\0\0\x11\0\x01\0\0\0\x01\0\0\0\0\x0c\x0a\x0a--no-slurm\
\0\0\x04\x08\0\0\0\0\0\0\0\0\x05";

/// The fields of a POST to /p. (`GET` has the fields of a GET.)
const POST: &[u8] = b"\x83\x86\x04\x02/p";
const GET: &[u8] = b"\x82\x86\x84";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes, kind, flags, stream, payload);
    bytes
}

/// Returns a connection after a greeting with these settings, without its own first output.
fn greeted(settings: &[u8]) -> Connection {
    let mut connection = Connection::new();
    connection.receive(PREFACE);
    connection.receive(&frame(SETTINGS, 0, 0, settings));
    assert_eq!(connection.poll_request(), Ok(None));
    connection.poll_output();
    connection
}

/// Returns the kind, flags, stream and payload of each frame.
fn told(connection: &mut Connection) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let output = connection.poll_output();
    let mut rest = &*output;
    let mut frames = Vec::new();
    while let [a, b, c, kind, flags, stream @ ..] = rest {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let (stream, after) = stream.split_first_chunk::<4>().unwrap();
        let (payload, after) = after.split_at(length);
        frames.push((*kind, *flags, u32::from_be_bytes(*stream), payload.to_vec()));
        rest = after;
    }
    assert!(rest.is_empty());
    frames
}

fn reply(length: usize) -> Reply {
    Reply {
        head: Some(b"head".to_vec()),
        body: vec![7; length],
        tail: b"tail".to_vec(),
    }
}

#[test]
fn what_grpcs_own_client_sends_is_answered() {
    let mut connection = Connection::new();
    assert!(!connection.is_idle());
    // The server's own settings come first.
    assert_eq!(told(&mut connection)[0].0, SETTINGS);
    connection.receive(GREETING);
    assert_eq!(connection.poll_request(), Ok(None));
    assert_eq!(told(&mut connection), [(SETTINGS, ACK, 0, vec![])]);
    assert!(connection.is_idle());
    connection.receive(CALL);
    let request = connection.poll_request().unwrap().unwrap();
    assert_eq!(request.path, b"/nvhcd.HealthCheckService/RunHealthCheck");
    assert_eq!(request.body.unwrap(), b"\0\0\0\0\x0c\x0a\x0a--no-slurm");
    assert!(!connection.is_idle());
    connection.answer(reply(3));
    let taken = (WINDOW_UPDATE, 0, 0, vec![0, 0, 0, 17]);
    let head = (HEADERS, END_HEADERS, 1, b"head".to_vec());
    let body = (DATA, 0, 1, vec![7; 3]);
    let tail = (HEADERS, END_HEADERS | END_STREAM, 1, b"tail".to_vec());
    assert_eq!(told(&mut connection), [taken, head, body, tail]);
    assert_eq!(connection.poll_request(), Ok(None));
    assert!(connection.is_idle());
}

#[test]
fn no_more_is_sent_than_the_peer_takes() {
    // The peer allows a window of ten bytes for a stream.
    let mut connection = greeted(&[0, 4, 0, 0, 0, 10]);
    connection.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, POST));
    assert!(connection.poll_request().unwrap().is_some());
    connection.answer(reply(70_000));
    let mut sent = 0;
    let mut data = |connection: &mut Connection, more: &[u8]| {
        connection.receive(more);
        assert_eq!(connection.poll_request(), Ok(None));
        let frames = told(connection);
        let of_data = frames.iter().filter(|frame| frame.0 == DATA);
        let lengths: Vec<_> = of_data.map(|frame| frame.3.len()).collect();
        sent += lengths.iter().sum::<usize>();
        (lengths, sent, frames.last().map(|frame| frame.3.clone()))
    };
    assert_eq!(data(&mut connection, b"").0, [10]);
    // The window becomes negative and then grows again.
    assert_eq!(
        data(&mut connection, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 4])).0,
        [0; 0]
    );
    assert_eq!(
        data(&mut connection, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 10])).0,
        [0; 0]
    );
    assert_eq!(
        data(&mut connection, &frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 5])).0,
        [5]
    );
    // The connection's window is 65,535 bytes.
    let (lengths, sent, _) = data(&mut connection, &frame(WINDOW_UPDATE, 0, 1, &[0, 2, 0, 0]));
    assert_eq!((lengths[0], sent), (FRAME, 65_535));
    assert!(!connection.is_idle());
    // While the call is in progress, no other call starts.
    let (_, _, last) = data(
        &mut connection,
        &frame(HEADERS, END_HEADERS | END_STREAM, 3, POST),
    );
    assert_eq!(last.unwrap(), (Code::RefusedStream as u32).to_be_bytes());
    let (_, sent, last) = data(&mut connection, &frame(WINDOW_UPDATE, 0, 0, &[0, 1, 0, 0]));
    assert_eq!((sent, &*last.unwrap()), (70_000, &b"tail"[..]));
    assert!(connection.is_idle());
}

#[test]
fn a_call_that_is_taken_back_is_forgotten() {
    let mut connection = greeted(&[0, 4, 0, 0, 0, 0]);
    connection.receive(&frame(HEADERS, END_HEADERS, 1, POST));
    connection.receive(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
    // Late data is ignored, but it counts for the windows.
    connection.receive(&frame(DATA, END_STREAM, 1, b"late"));
    assert_eq!(connection.poll_request(), Ok(None));
    assert_eq!(told(&mut connection), [(WINDOW_UPDATE, 0, 0, vec![0, 0, 0, 4])]);
    connection.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 3, POST));
    assert!(connection.poll_request().unwrap().is_some());
    connection.answer(reply(1));
    connection.receive(&frame(RST_STREAM, 0, 3, &[0, 0, 0, 8]));
    assert_eq!(connection.poll_request(), Ok(None));
    assert!(connection.is_idle());
}

#[test]
fn a_request_that_is_too_long_is_told_at_once() {
    let mut connection = greeted(&[]);
    connection.receive(&frame(HEADERS, END_HEADERS, 1, POST));
    let most = (64 << 10) / FRAME;
    for _ in 0..most {
        connection.receive(&frame(DATA, 0, 1, &[0; FRAME]));
        assert_eq!(connection.poll_request(), Ok(None));
    }
    // Both windows were updated, that of the stream and that of the connection.
    let again = |frame: &(u8, u8, u32, Vec<u8>)| frame.0 == WINDOW_UPDATE && frame.3 == [0, 0, 0x40, 0];
    assert_eq!(
        told(&mut connection).iter().filter(|frame| again(frame)).count(),
        2 * most
    );
    connection.receive(&frame(DATA, 0, 1, b"!"));
    let request = connection.poll_request().unwrap().unwrap();
    assert_eq!((&*request.path, request.body), (&b"/p"[..], None));
    connection.answer(reply(0));
    let last = told(&mut connection).pop().unwrap();
    assert_eq!(last, (RST_STREAM, 0, 1, vec![0; 4]));
}

#[test]
fn padding_priorities_parts_and_trailers_are_understood() {
    let mut connection = greeted(&[]);
    let padded = [&[2, 0, 0, 0, 0, 9][..], &POST[..3], &[0; 2]].concat();
    connection.receive(&frame(HEADERS, 0x28, 1, &padded));
    connection.receive(&frame(CONTINUATION, 0, 1, b""));
    connection.receive(&frame(CONTINUATION, END_HEADERS, 1, &POST[3..]));
    connection.receive(&frame(2, 0, 9, &[0; 5]));
    connection.receive(&frame(DATA, 8, 1, b"\x03hello\0\0\0"));
    connection.receive(&frame(0x77, 0xff, 5, b"not known"));
    connection.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x01x\x01y"));
    let request = connection.poll_request().unwrap().unwrap();
    assert_eq!(
        (&*request.path, &*request.body.unwrap()),
        (&b"/p"[..], &b"hello"[..])
    );
}

#[test]
fn a_ping_is_answered_and_its_answer_is_not() {
    let mut connection = greeted(&[]);
    connection.receive(&frame(PING, 0, 0, b"12345678"));
    connection.receive(&frame(PING, ACK, 0, b"12345678"));
    assert_eq!(connection.poll_request(), Ok(None));
    assert_eq!(told(&mut connection), [(PING, ACK, 0, b"12345678".to_vec())]);
}

#[test]
fn what_is_no_request_is_reset() {
    for fields in [
        GET,
        b"\x83\x86",                       // no path
        b"\x83\x04\x02/p",                 // no scheme
        b"\x83\x86\x04\x02/p\x04\x02/q",   // two paths
        b"\x83\x86\0\x01x\x01y\x04\x02/p", // a pseudo-header after the others
        b"\x83\x86\x04\x02/p\0\x01X\x01y", // not lower case
        b"\x83\x86\x04\x02/p\0\x00\x01y",  // no name
        b"\x83\x86\x04\x02/p\x88",         // a response's pseudo-header
    ] {
        let mut connection = greeted(&[]);
        connection.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, fields));
        connection.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 3, POST));
        assert!(connection.poll_request().unwrap().is_some(), "{fields:?}");
        let reset = (RST_STREAM, 0, 1, vec![0, 0, 0, Code::Protocol as u8]);
        assert_eq!(told(&mut connection), [reset], "{fields:?}");
    }
}

#[test]
fn what_breaks_the_connection_is_told_with_its_code() {
    let open = frame(HEADERS, END_HEADERS, 1, POST);
    let begun = frame(HEADERS, 0, 1, POST);
    let and = |first: &[u8], then: Vec<u8>| [first, &then].concat();
    let cases = [
        (frame(SETTINGS, 0, 1, b""), Code::Protocol),
        (frame(SETTINGS, 0, 0, &[0; 7]), Code::FrameSize),
        (frame(SETTINGS, ACK, 0, &[0; 6]), Code::FrameSize),
        (frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]), Code::Protocol),
        (frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]), Code::FlowControl),
        (frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0x3f, 0xff]), Code::Protocol),
        (frame(PING, 0, 0, b"1234567"), Code::FrameSize),
        (frame(PING, 0, 1, b"12345678"), Code::Protocol),
        (frame(WINDOW_UPDATE, 0, 0, &[0; 4]), Code::Protocol),
        (frame(WINDOW_UPDATE, 0, 0, &[1; 3]), Code::FrameSize),
        (frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), Code::Protocol),
        (
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
            Code::FlowControl,
        ),
        (frame(RST_STREAM, 0, 1, &[0; 4]), Code::Protocol),
        (frame(PUSH_PROMISE, 0, 1, &[0; 4]), Code::Protocol),
        (frame(DATA, 0, 0, b""), Code::Protocol),
        (frame(DATA, 0, 1, b""), Code::Protocol),
        (frame(HEADERS, END_HEADERS, 2, POST), Code::Protocol),
        (frame(HEADERS, END_HEADERS, 1, b"\xbe"), Code::Compression),
        (frame(HEADERS, 0x24, 1, b"1234"), Code::FrameSize),
        (frame(CONTINUATION, END_HEADERS, 1, POST), Code::Protocol),
        (vec![0, 0x40, 1, DATA, 0, 0, 0, 0, 1], Code::FrameSize),
        (and(&open, frame(DATA, 8, 1, b"")), Code::FrameSize),
        (and(&open, frame(DATA, 8, 1, b"\x01")), Code::Protocol),
        (and(&open, frame(RST_STREAM, 0, 1, &[0; 3])), Code::FrameSize),
        (and(&open, frame(HEADERS, END_HEADERS, 1, b"")), Code::Protocol),
        (and(&begun, frame(PING, 0, 0, b"12345678")), Code::Protocol),
        (
            and(&begun, frame(CONTINUATION, END_HEADERS, 3, b"")),
            Code::Protocol,
        ),
        (
            and(&begun, frame(CONTINUATION, 0, 1, &[0; FRAME])),
            Code::EnhanceYourCalm,
        ),
    ];
    for (bytes, code) in cases {
        let mut connection = greeted(&[]);
        connection.receive(&bytes);
        assert_eq!(connection.poll_request(), Err(code), "{bytes:?}");
        let (kind, _, _, why) = told(&mut connection).pop().unwrap();
        assert_eq!((kind, why[7]), (GOAWAY, code as u8), "{bytes:?}");
    }
}

#[test]
fn who_does_not_greet_is_sent_away() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x08\x06\0\0\0\0\x0012345678",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\x01\0\0\0\0",
    ] {
        let mut connection = Connection::new();
        connection.receive(bytes);
        assert_eq!(connection.poll_request(), Err(Code::Protocol), "{bytes:?}");
    }
}

/// Returns the requests, output and error of a connection that receives its bytes in these pieces.
fn talk<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Request>, Vec<u8>, Option<Code>) {
    let mut connection = Connection::new();
    let (mut requests, mut output) = (Vec::new(), Vec::new());
    for piece in pieces {
        connection.receive(piece);
        loop {
            let asked = connection.poll_request();
            output.extend(connection.poll_output());
            match asked {
                Ok(Some(request)) => requests.push(request),
                Ok(None) => break,
                Err(code) => return (requests, output, Some(code)),
            }
            connection.answer(reply(20_000));
            output.extend(connection.poll_output());
        }
        assert!(connection.input.len() < FRAME + 9);
    }
    (requests, output, None)
}

/// Generates frames from a peer, sensible or not, on the first streams.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let fields = prop_oneof![Just(POST.to_vec()), Just(GET.to_vec())];
    let bytes = proptest::collection::vec(any::<u8>(), 0..40);
    let numbers = prop_oneof![
        Just(vec![0, 0, 0, 9]),
        Just(vec![0; 8]),
        Just(vec![0, 4, 0, 0, 0x90, 0])
    ];
    let payload = prop_oneof![4 => fields, 1 => bytes, 2 => numbers];
    let flags = prop_oneof![
        Just(END_HEADERS | END_STREAM),
        Just(END_HEADERS),
        Just(0),
        any::<u8>()
    ];
    let kind = prop_oneof![Just(HEADERS), Just(DATA), 0u8..11];
    let frames = (kind, flags, 0u32..8, payload);
    let frames = frames.prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload));
    proptest::collection::vec(frames, 0..30).prop_map(|frames| frames.concat())
}

proptest! {
    #[test]
    fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        talk([GREETING, &bytes].into_iter());
        talk([&*bytes].into_iter());
    }

    #[test]
    fn how_bytes_are_cut_changes_nothing(frames in frames(), size in 1usize..40) {
        let all = [GREETING, &frames].concat();
        let whole = talk([&*all].into_iter());
        prop_assert_eq!(&talk(all.chunks(size)), &whole);
        // Requests before a broken frame stay valid.
        let half = talk([&all[..all.len() / 2]].into_iter());
        prop_assert!(whole.0.starts_with(&half.0));
    }
}
