//! What is fuzzed: one function for each parser of what comes from outside. The targets and the plain tests that replay
//! the corpus include this file.

use std::io::{self, BufReader};
use std::time::Duration;

use paceline_health::event::FaultSource;
use paceline_health::fault::KernelLog;
use paceline_health::flight_recorder::{Comparison, Dump};
use paceline_health::id::Rank;
use paceline_health::{Detector, Policy};
use paceline_seal::Key;
use paceline_seal::codec::{Caller, HANDSHAKE_BYTES, Opener, answer};
use paceline_sidecar::aggregator::journal::lines::{Line, Lines};
use paceline_sidecar::guard::{PURPOSE, zmtp};
use paceline_sidecar::sink::http::{self, HostNames, Visitors};
use paceline_sidecar::sink::page::Live;
use paceline_sidecar::source::{inspector, ras, step_log};
use paceline_sidecar::uplink::wire::{self, Up};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Takes anything, and gives how many things it understood.
pub type Entry = fn(&[u8]) -> usize;

/// All of them, by the name of their target and of their folder in corpus/.
pub const ENTRIES: [(&str, Entry); 11] = [
    ("kernel", kernel),
    ("ras", ras),
    ("flight_recorder", flight_recorder),
    ("inspector", inspector),
    ("step_log", step_log),
    ("greeting", greeting),
    ("sealed", sealed),
    ("zmtp", zmtp),
    ("envelope", envelope),
    ("journal", journal),
    ("http", http),
];

/// Most that an entry counts.
const MOST: usize = 32;
/// What fuzzed streams are sealed with.
pub const KEY: [u8; 32] = [1; 32];

/// Lines of the kernel's log, one log to its end.
pub fn kernel(bytes: &[u8]) -> usize {
    let mut log = KernelLog::default();
    let mut seen = 0;
    for line in String::from_utf8_lossy(bytes).lines() {
        log.read(line, |line| {
            seen += 1;
            line.fault(None, 1, FaultSource::Kernel);
        });
    }
    seen
}

/// A dump of PyTorch's flight recorder, compared with itself.
pub fn flight_recorder(bytes: &[u8]) -> usize {
    let dumps = [1, 2].map(|rank| Some((Rank(rank), Dump::decode(bytes).ok()?)));
    let compared = Comparison::of(&dumps.into_iter().flatten().collect());
    compared.positions.len().min(MOST)
}

/// An answer of NCCL's RAS service, JSON or text.
pub fn ras(bytes: &[u8]) -> usize {
    match ras::read(bytes) {
        Ok(report) => {
            assert!(report.ranks.len() <= 32, "what is told has a bound");
            1 + report.ranks.len()
        }
        Err(error) => {
            // Whoever is told of it gets a text.
            assert!(!error.to_string().is_empty());
            0
        }
    }
}

/// Lines of NCCL Inspector, and what they come to.
pub fn inspector(bytes: &[u8]) -> usize {
    let mut tally = inspector::Tally::default();
    let mut seen = 0;
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(record) = inspector::read(line) {
            seen += 1;
            tally.take(&record, &mut |_| {});
        }
    }
    seen
}

/// Lines of a log. The first one is a pattern, should it be one with the groups that a pattern has.
pub fn step_log(bytes: &[u8]) -> usize {
    let mut lines = bytes.split(|byte| matches!(byte, b'\n' | b'\r'));
    let first = lines.next().unwrap_or_default();
    let pattern = std::str::from_utf8(first)
        .ok()
        .and_then(|first| step_log::StepPattern::parse(first).ok());
    let mut log = step_log::Lines::new(pattern);
    let mut meter = step_log::Meter::default();
    let mut seen = 0;
    for (at, line) in (0..).zip(lines) {
        if let Some(line) = log.read(line) {
            seen += 1;
            meter.take(line, at * 1_000_000_000);
        }
    }
    seen
}

/// What a stranger says first, and then: nobody without the key gets past it.
pub fn greeting(bytes: &[u8]) -> usize {
    let key = Key::from_bytes(KEY);
    let Some((first, mut rest)) = bytes.split_first_chunk::<HANDSHAKE_BYTES>() else {
        return 0;
    };
    let Ok((caller, _)) = Caller::start(&key, PURPOSE) else {
        return 0;
    };
    assert!(
        caller.finish(first).is_err(),
        "an answer takes the key and our question"
    );
    let (_, Ok((_, mut opener))) = answer(&key, PURPOSE, first) else {
        return 0;
    };
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(opener.needs().min(rest.len()));
        match opener.take(piece, 0) {
            Ok(None) => rest = more,
            Ok(Some(_)) => panic!("opened what nobody has sealed"),
            Err(_) => break,
        }
    }
    1
}

/// A sealed stream and what somebody between the ends does to it: how many of its bytes are changed, four bytes for each,
/// then what is said. What is opened was sealed, in its order.
pub fn sealed(bytes: &[u8]) -> usize {
    let Some((&count, rest)) = bytes.split_first() else {
        return 0;
    };
    let (edits, words) = rest.split_at(rest.len().min(usize::from(count % 4) * 4));
    let key = Key::from_bytes(KEY);
    let Ok((caller, first)) = Caller::start(&key, PURPOSE) else {
        return 0;
    };
    let (reply, Ok((_, mut opener))) = answer(&key, PURPOSE, &first) else {
        panic!("our own greeting")
    };
    let Ok(((mut sealer, _), mut stream)) = caller.finish(&reply) else {
        panic!("our own answer")
    };
    let said: Vec<&[u8]> = words.chunks(words.len() / 7 + 1).collect();
    for word in &said {
        stream.extend(sealer.seal(word).unwrap_or_default());
    }
    for edit in edits.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % stream.len();
        match edit[2] % 4 {
            0 => stream[at] ^= edit[3],
            1 => drop(stream.drain(at..(at + usize::from(edit[3])).min(stream.len()))),
            2 => stream.insert(at, edit[3]),
            _ => {
                let again: Vec<u8> = stream[at..].iter().take(usize::from(edit[3])).copied().collect();
                stream.splice(at..at, again);
            }
        }
        if stream.is_empty() {
            return 0;
        }
    }
    let opened = open_all(&mut opener, &stream);
    // The first is the proof.
    for (opened, said) in opened.iter().skip(1).zip(&said) {
        assert_eq!(opened, said, "what is opened was sealed");
    }
    assert!(opened.len() <= said.len() + 1);
    opened.len()
}

fn open_all(opener: &mut Opener, mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut opened = Vec::new();
    while !stream.is_empty() {
        let (piece, rest) = stream.split_at(opener.needs().min(stream.len()));
        match opener.take(piece, 1 << 20) {
            Ok(message) => opened.extend(message),
            Err(_) => break,
        }
        stream = rest;
    }
    opened
}

/// ZeroMQ's protocol, in pieces as long as the first byte says, from its greeting on.
pub fn zmtp(bytes: &[u8]) -> usize {
    let Some((&size, bytes)) = bytes.split_first() else {
        return 0;
    };
    let mut reader = zmtp::Reader::default();
    let mut seen = 0;
    for piece in bytes.chunks(usize::from(size) + 1) {
        if reader.take(piece, |_| seen += 1).is_err() {
            break;
        }
    }
    seen.min(MOST)
}

/// A message of either end, and the events in it.
pub fn envelope(bytes: &[u8]) -> usize {
    let down = wire::decode_down(bytes).is_ok_and(|down| {
        let again = wire::decode_down(&wire::encode(&down));
        assert!(again.is_ok(), "what was read can be said");
        true
    });
    match wire::decode_up(bytes) {
        Ok(Up::Batch(batch)) => {
            let read = |blob| wire::decode_event(&batch, 1, blob).is_ok();
            (1 + batch.events.iter().filter(|blob| read(blob)).count()).min(MOST)
        }
        Ok(Up::Hello(_) | Up::Carried(_)) => 1,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            usize::from(down)
        }
    }
}

/// A journal, folded to the verdicts of its job.
pub fn journal(bytes: &[u8]) -> usize {
    let mut detector = Detector::new(Policy::default());
    let mut seen = 0;
    for line in Lines::new(BufReader::new(bytes)).take(200).flatten() {
        let Line::Entry(entry) = line else { continue };
        seen += 1;
        detector.observe(entry.at_ns, &entry.frame);
        while detector.poll().is_some() {}
    }
    seen.min(MOST)
}

/// With a whole request there is an answer well within this; with half of one there is none.
const PATIENCE: Duration = Duration::from_millis(50);

/// Requests for the metrics page, which takes a token: how many were answered. None is let in.
pub fn http(bytes: &[u8]) -> usize {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return 0;
    };
    let answer = runtime.block_on(asked(bytes)).unwrap_or_default();
    let text = String::from_utf8_lossy(&answer);
    assert!(!text.contains("the aggregator is ending"), "nobody has the token");
    text.matches("HTTP/1.").count().min(MOST)
}

/// What the page answers on one connection.
async fn asked(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (scrapes, _asked) = mpsc::channel(1);
    let admitted = (Some(Key::from_bytes(KEY)), HostNames::default());
    let visitors = Visitors::of(listener, None)?;
    let served = tokio::spawn(http::talk(visitors, admitted, scrapes, Some(Live::default())));
    let mut here = TcpStream::connect(address).await?;
    let mut answer = Vec::new();
    // An end that closes early is an answer as well.
    let _ = here.write_all(bytes).await;
    // Whoever hangs up is not answered any more.
    while let Ok(Ok(1..)) = timeout(PATIENCE, here.read_buf(&mut answer)).await {}
    let _ = here.shutdown().await;
    let _ = timeout(PATIENCE, here.read_to_end(&mut answer)).await;
    served.abort();
    Ok(answer)
}
