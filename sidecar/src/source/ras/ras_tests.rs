use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_health::event::{Phase, RasRank};
use paceline_health::id::Rank;

use super::*;

const SECOND: u64 = 1_000_000_000;
const BEHIND_JSON: &str = include_str!("../../../../fuzz/corpus/ras/behind.json");
const DEAD_JSON: &str = include_str!("../../../../fuzz/corpus/ras/dead_2.28.9.json");
const EVEN_JSON: &str = include_str!("../../../../fuzz/corpus/ras/even.json");
const FAILED_JSON: &str = include_str!("../../../../fuzz/corpus/ras/failed.json");
const STARTING_JSON: &str = include_str!("../../../../fuzz/corpus/ras/starting.json");
const BEHIND_TEXT: &str = include_str!("../../../../fuzz/corpus/ras/behind.txt");
const DEAD_TEXT: &str = include_str!("../../../../fuzz/corpus/ras/dead.txt");

const LIMITS: Limits = Limits {
    connect: Duration::from_secs(1),
    peers: Duration::from_secs(5),
    whole: Duration::from_millis(400),
    bytes: 1 << 20,
};

/// Possible behaviors of NCCL's service.
#[derive(Clone, Copy)]
enum Service {
    /// Responds as 2.28.7 and later do, in JSON.
    Json(&'static str),
    /// Responds as earlier versions do, which have no choice of formats.
    Text(&'static str),
    /// Accepts the connection but sends nothing.
    Mute,
    /// Sends its greeting but nothing more.
    Stuck,
    /// Closes the connection this many bytes before the end of the response.
    Cut(&'static str, usize),
    /// Sends one byte at a time, forever.
    Drips,
    /// Is a program other than NCCL.
    Http,
    /// Sends data without end.
    Endless,
}

/// Serves this many connections. Returns the requests.
fn serve(service: Service, calls: usize) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let served = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for _ in 0..calls {
            let (stream, _) = listener.accept().unwrap();
            // Ignore the result, because the client may have given up.
            let _ = talk(service, stream, &mut asked);
        }
        asked
    });
    (address, served)
}

fn talk(service: Service, stream: TcpStream, asked: &mut Vec<String>) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut lines = BufReader::new(stream).lines();
    let mut is_json = false;
    while let Some(line) = lines.next().transpose()? {
        asked.push(line.clone());
        match (service, line.as_str()) {
            (Service::Mute, _) => {}
            (Service::Http, _) => out.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")?,
            (_, "CLIENT PROTOCOL 2") => out.write_all(b"SERVER PROTOCOL 2\n")?,
            (Service::Stuck, _) => {}
            (_, "TIMEOUT 5") => out.write_all(b"OK\n")?,
            (Service::Text(_), "SET FORMAT json") => {
                out.write_all(b"ERROR: Unknown command SET FORMAT json\n")?;
            }
            (_, "SET FORMAT json") => {
                is_json = true;
                out.write_all(b"OK\n")?;
            }
            (Service::Json(answer), "VERBOSE STATUS") if is_json => return out.write_all(answer.as_bytes()),
            (Service::Text(answer), "VERBOSE STATUS") => return out.write_all(answer.as_bytes()),
            (Service::Cut(answer, short), "VERBOSE STATUS") => {
                return out.write_all(&answer.as_bytes()[..answer.len() - short]);
            }
            (Service::Drips, "VERBOSE STATUS") => loop {
                out.write_all(b" ")?;
                std::thread::sleep(Duration::from_millis(5));
            },
            (Service::Endless, "VERBOSE STATUS") => {
                out.write_all(b"{\"nccl_version\": \"2.28.9\", \"communicators\": [")?;
                loop {
                    out.write_all(b"{\"hash\": \"0x1\", \"size\": 2, \"ranks\": []},")?;
                }
            }
            (_, other) => panic!("asked {other}"),
        }
    }
    Ok(())
}

fn short(rank: &RasRank) -> (RasState, Option<u32>, u32, &str, u64, u64) {
    let number = rank.rank.map(|Rank(rank)| rank);
    (
        rank.state,
        number,
        rank.pid,
        &rank.collective,
        rank.launched,
        rank.others,
    )
}

#[test]
fn json_is_asked_for_and_read() {
    let (address, served) = serve(Service::Json(BEHIND_JSON), 1);
    let report = ask(&address, &LIMITS).unwrap();
    assert_eq!(
        (&*report.nccl, report.comms, report.uneven, report.size),
        ("2.28.9", 2, 2, 4)
    );
    // Rank 1 of the pair is rank 2 of the job, and is reported only once.
    let told: Vec<_> = report.ranks.iter().map(short).collect();
    assert_eq!(told, [(RasState::Behind, Some(2), 100, "AllReduce", 148, 150)]);
    assert_eq!(
        served.join().unwrap(),
        [
            "CLIENT PROTOCOL 2",
            "TIMEOUT 5",
            "SET FORMAT json",
            "VERBOSE STATUS"
        ]
    );
}

#[test]
fn one_that_knows_no_json_is_read_as_text() {
    let (address, served) = serve(Service::Text(BEHIND_TEXT), 1);
    let report = ask(&address, &LIMITS).unwrap();
    served.join().unwrap();
    assert_eq!(
        (&*report.nccl, report.comms, report.uneven, report.size),
        ("2.24.3", 17, 1, 32)
    );
    let told: Vec<_> = report.ranks.iter().map(short).collect();
    assert_eq!(
        told,
        [
            (RasState::Behind, Some(3), 483_075, "AllReduce", 6648, 6650),
            (RasState::Ahead, Some(17), 9, "AllReduce", 6651, 6650),
        ]
    );
}

#[test]
fn who_is_dead_missing_or_failed() {
    let told = |text: &str| {
        let report = read(text.as_bytes()).unwrap();
        let ranks = report
            .ranks
            .iter()
            .map(|rank| (rank.state, rank.rank.map(|rank| rank.0)));
        ranks.collect::<Vec<_>>()
    };
    assert_eq!(told(DEAD_JSON), [(RasState::Dead, Some(3))]);
    assert_eq!(told(EVEN_JSON), []);
    assert_eq!(told(STARTING_JSON), []);
    assert_eq!(
        told(FAILED_JSON),
        [(RasState::Failed, Some(0)), (RasState::Aborted, Some(1))]
    );
    assert_eq!(
        told(DEAD_TEXT),
        [
            (RasState::Dead, Some(3)),
            (RasState::Unresponsive, Some(1)),
            (RasState::Failed, Some(2)),
        ]
    );
}

#[test]
fn what_is_no_answer_is_told_as_what_it_is() {
    let within = |limits: &Limits, service, wanted: &str| {
        let (address, served) = serve(service, 1);
        let begun = Instant::now();
        let problem = ask(&address, limits).unwrap_err().to_string();
        assert!(problem.contains(wanted), "{problem}");
        assert!(begun.elapsed() < Duration::from_secs(60));
        drop(served);
    };
    let check = |service, wanted| within(&LIMITS, service, wanted);
    check(Service::Mute, "waiting for a line: timed out");
    check(Service::Stuck, "waiting for a line: timed out");
    check(Service::Http, "was answered by \"HTTP/1.1 400 Bad Request\"");
    check(
        Service::Cut(BEHIND_JSON, 40),
        "the answer in JSON: EOF while parsing",
    );
    check(
        Service::Cut(BEHIND_TEXT, 400),
        "the answer as text: it ends in the middle",
    );
    check(
        Service::Cut(BEHIND_JSON, BEHIND_JSON.len()),
        "waiting for the answer: unexpected end of file",
    );
    check(Service::Drips, "the answer as text: timed out");
    // The number of bytes is limited, whatever they contain.
    let patient = Limits {
        whole: Duration::from_secs(60),
        ..LIMITS
    };
    within(&patient, Service::Endless, "EOF while parsing");
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    assert!(matches!(ask(&nobody, &LIMITS), Err(AskError::Absent { .. })));
    assert!(matches!(ask("no port", &LIMITS), Err(AskError::Absent { .. })));
}

fn still(idle_s: u64) -> Vec<Pulse> {
    vec![Pulse {
        rank: Rank(0),
        restart: 0,
        step: 7,
        phase: Phase::Wait,
        idle_ns: idle_s * SECOND,
        alive: true,
    }]
}

/// Polls until a response was handled. Returns the reports.
fn poll(source: &mut Ras, now_ns: u64) -> Vec<RasReport> {
    let mut told = Vec::new();
    let begun = Instant::now();
    loop {
        let polled = Instant::now();
        source.poll(now_ns, &mut |_, event| {
            let Event::Ras(report) = event else {
                panic!("{event:?}")
            };
            told.push(report);
            1
        });
        // A poll must never block the agent's thread.
        assert!(polled.elapsed() < Duration::from_millis(200));
        assert!(begun.elapsed() < Duration::from_secs(30));
        if source.asking.is_none() {
            return told;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_source_asks_while_ranks_stand_still() {
    let (address, served) = serve(Service::Json(BEHIND_JSON), 3);
    let mut source = Ras::new(address, LIMITS);
    // In a running job, different counts mean nothing, so only the state is reported.
    source.notice(&still(0), SECOND);
    assert_eq!(
        poll(&mut source, 40 * SECOND)
            .iter()
            .map(|told| told.state)
            .collect::<Vec<_>>(),
        [RasAccess::Answered]
    );
    assert_eq!(source.told.ranks, []);
    source.notice(&still(9), 50 * SECOND);
    let told = poll(&mut source, 50 * SECOND);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].ranks[0].rank, Some(Rank(2)));
    // The next query is not sent at once.
    assert!(poll(&mut source, 51 * SECOND).is_empty());
    source.notice(&still(30), 71 * SECOND);
    assert_eq!(poll(&mut source, 71 * SECOND).len(), 1);
    served.join().unwrap();
}

#[test]
fn trouble_is_told_once_and_counted() {
    let (address, _served) = serve(Service::Http, 2);
    let mut source = Ras::new(address, LIMITS);
    source.notice(&still(9), SECOND);
    let told = poll(&mut source, SECOND);
    assert_eq!((told[0].state, told[0].errors), (RasAccess::Failing, 1));
    source.notice(&still(60), 60 * SECOND);
    assert!(poll(&mut source, 60 * SECOND).is_empty());
    assert_eq!(source.errors, 2);
    // If no service ever listened, the missing service is not reported.
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let mut source = Ras::new(nobody, LIMITS);
    source.notice(&still(9), SECOND);
    assert!(poll(&mut source, SECOND).is_empty());
}

#[test]
fn where_it_listens() {
    let address = |pairs: &[(&str, &str)]| {
        Ras::address(|name| {
            let pair = pairs.iter().find(|(key, _)| *key == name);
            pair.map(|(_, value)| (*value).to_owned())
        })
    };
    assert_eq!(address(&[]).as_deref(), Some(ADDRESS));
    assert_eq!(
        address(&[("NCCL_RAS_ADDR", "[::1]:7")]).as_deref(),
        Some("[::1]:7")
    );
    assert_eq!(address(&[("NCCL_RAS_ENABLE", "0")]), None);
}
