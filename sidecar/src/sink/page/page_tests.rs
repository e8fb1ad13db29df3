use paceline_health::Detector;
use paceline_health::codec::base64;
use paceline_health::event::{
    Agent, Attach, Event, GpuReading, GpuSignal, Reading, Signal, StepKind, Trouble, TroubleKind,
};
use paceline_health::report::step_snapshot::LEVEL;
use paceline_health::verdict::{Cause, Evidence, Finding, Severity, State, Subject, Verdict};
use paceline_health::{Provenance, id::Rank, text::sanitize::NAME};
use paceline_seal::Key;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;
use crate::sink::http::{HostNames, Visitors, talk};

const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\x1b[31m\u{202e}\r\n\ndata: {}\n\"'&";

fn seen(step: u64) -> StepSnapshot {
    StepSnapshot {
        step,
        restart: 0,
        kind: StepKind::Train,
        signal: Signal::S2,
        at_s: step as f64,
        p50_s: 0.1,
        p99_s: 0.2,
        max_s: 0.3,
        phases_s: None,
        cells: vec![LEVEL; 8],
    }
}

fn frame(event: Event) -> Frame {
    Frame {
        v: 1,
        node: HOSTILE.into(),
        agent: 7,
        seq: 1,
        provenance: Provenance::Live,
        event,
    }
}

fn long() -> String {
    HOSTILE.repeat((1 << 20) / HOSTILE.len())
}

fn hostile_report() -> Report {
    let mut report = Detector::new(Policy::default()).report();
    report.job = long().as_str().into();
    report.coverage.notes = vec![long().into(); 50];
    let piece = Evidence {
        what: HOSTILE.into(),
        value: 1.0,
        peers: None,
        entries: None,
    };
    let verdict = |id| Verdict {
        id,
        finding: Finding::Straggler,
        subject: Subject::Rank {
            rank: paceline_health::id::Rank(3),
            node: long().as_str().into(),
            gpu_uuid: Some(long().as_str().into()),
        },
        severity: Severity::Critical,
        state: if id < 150 { State::Cleared } else { State::Raised },
        since_s: 1.0,
        since_step: Some(1),
        raised_s: 2.0,
        raised_step: Some(2),
        cleared_s: None,
        signals: Vec::new(),
        provenance: Provenance::Live,
        slowdown_ratio: Some(1.3),
        cause: Cause::Thermal,
        evidence: vec![piece.clone(); 100],
        impact_ratio: Some(0.1),
        lost_gpu_hours: 0.0,
        lost_cost: None,
        action: HOSTILE.into(),
        observe_only: false,
        order: None,
        says: None,
        unresolved_at_exit: false,
    };
    report.verdicts = (1..=160).map(verdict).collect();
    report.verdicts[154].impact_ratio = Some(0.2);
    report.verdicts[156].impact_ratio = None;
    report
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn whoever_has_something_is_told_the_rest() {
    let live = Live::default();
    live.step(&seen(1), 0.0);
    live.step(&seen(2), 0.0);
    let (serial, text) = live.since(0);
    let all = parsed(&text);
    assert_eq!(all["steps"].as_array().unwrap().len(), 2);
    assert_eq!(all["serial"], serial);
    assert!(
        all.get("report").is_none() && all.get("events").is_none(),
        "{text}"
    );

    live.step(&seen(3), 7.0);
    let (newer, text) = live.since(serial);
    let news = parsed(&text);
    assert_eq!((newer, news["steps"].as_array().unwrap().len()), (serial + 1, 1));
    assert_eq!(news["steps"][0][0], 3);
    assert!(news["still_s"].as_f64() >= Some(7.0), "{text}");
    let (last, text) = live.since(newer);
    assert!(last == newer && parsed(&text).get("steps").is_none(), "{text}");
}

#[test]
fn whoever_takes_over_knows_how_long_the_job_stands() {
    let live = Live::default();
    let mut report = hostile_report();
    (report.duration_s, report.last_step_s) = (90.0, Some(30.0));
    live.report(&report, &Policy::default(), "/tmp/run");
    assert!(parsed(&live.since(0).1)["still_s"].as_f64() >= Some(60.0));
}

#[test]
fn steps_are_dropped_and_not_gathered() {
    let live = Live::default();
    for step in 0..3000 {
        live.step(&seen(step), 0.0);
    }
    let steps = parsed(&live.since(0).1)["steps"].clone();
    let steps = steps.as_array().unwrap();
    assert_eq!(steps.len(), heat::columns(8));
    assert_eq!(steps.last().unwrap()[0], 2999);
}

#[test]
fn hostile_names_are_short_visible_and_one_line() {
    let live = Live::default();
    live.report(&hostile_report(), &Policy::default(), "/tmp/run");
    for number in 0..1000 {
        let says = format!("{number}{}", long());
        live.frame(&frame(Event::Trouble(Trouble {
            rank: None,
            kind: TroubleKind::Error,
            says: says.get(..2000).unwrap_or(&says).into(),
            code: None,
        })));
    }
    let (_, text) = live.since(0);
    // In an event stream a field ends at a line break, so there must be no line break in a field.
    assert!(!text.chars().any(char::is_control), "control characters");
    assert!(!text.contains('\u{202e}'));
    assert!(text.len() < 2 << 20, "{} bytes", text.len());
    let all = parsed(&text);
    assert!(all["report"]["job"].as_str().unwrap().chars().count() <= NAME + 1);
    let verdicts = all["report"]["verdicts"].as_array().unwrap();
    assert!(verdicts.len() < 160);
    let first: Vec<&Value> = verdicts.iter().take(3).map(|verdict| &verdict["id"]).collect();
    assert_eq!(
        first,
        [155, 150, 151],
        "what holds comes first, and of that what costs most"
    );
    assert_eq!(
        (&all["report"]["findings"], &all["report"]["raised"]),
        (&160.into(), &11.into())
    );
    assert_eq!(verdicts[0]["subject"]["rank"], 3);
    assert_eq!(all["events"].as_array().unwrap().len(), 256);
}

#[test]
fn what_is_unknown_of_a_gpu_is_not_zero() {
    let live = Live::default();
    let mut metrics = Metrics::default();
    let read = |value: f64, errors: f64| {
        let readings = [
            (GpuSignal::TemperatureC, Reading::Value(value)),
            (GpuSignal::EccUncorrected, Reading::Value(errors)),
        ];
        frame(Event::Gpu(GpuReading {
            gpu: HOSTILE.into(),
            pci: "0000:18:00.0".into(),
            model: "H100".into(),
            readings: readings.into(),
        }))
    };
    metrics.observe(&read(61.0, 4.0), 0.0);
    live.tick(&metrics, 1);
    let told = parsed(&live.since(0).1);
    assert_eq!(told["places"]["gpus"].as_array().unwrap().len(), 1);
    // Each value has two bytes: 61, unknown six times, no new error, unknown, and no bits.
    let mut bytes = vec![61, 0];
    bytes.extend([0xff; 12]);
    bytes.extend([0, 0, 0xff, 0xff, 0, 0]);
    assert_eq!(told["gpus"], base64::encode(&bytes));
    let (serial, _) = live.since(0);

    metrics.observe(&read(61.0, 5.0), 0.0);
    live.tick(&metrics, 2);
    assert_eq!(
        live.since(serial).0,
        serial,
        "it is not made twice within two seconds"
    );
    live.tick(&metrics, 60_000_000_000);
    let told = parsed(&live.since(serial).1);
    bytes[14] = 1;
    assert_eq!(told["gpus"], base64::encode(&bytes));
    assert!(told.get("places").is_none(), "names are told when they change");
}

/// The aggregator's own node without ranks is not part of the job. While ranks are missing, it may have some.
#[test]
fn a_node_without_ranks_counts_while_ranks_are_missing() {
    let live = Live::default();
    let mut metrics = Metrics::default();
    let watch = Agent {
        paceline: "0".into(),
        sources: Vec::new(),
        unix_ms: 0,
        rack: "".into(),
        versions: Default::default(),
    };
    let attach = |rank: u32| Attach {
        rank: Rank(rank),
        local_rank: 0,
        world_size: 2,
        restart: 0,
        pid: 1,
        gpu: None,
        role: "".into(),
        framework: "".into(),
    };
    let mut frames = ["head", "node0", "node1"]
        .map(|node| (node, Event::Agent(watch.clone())))
        .to_vec();
    frames.extend([
        ("node0", Event::Attach(attach(0))),
        ("node1", Event::Attach(attach(1))),
    ]);
    let mut told = Vec::new();
    for (at, (node, event)) in (1..).zip(frames) {
        let frame = Frame {
            node: node.into(),
            ..frame(event)
        };
        metrics.observe(&frame, 0.0);
        live.frame(&frame);
        live.tick(&metrics, at * 60_000_000_000);
        told.push(
            parsed(&live.since(0).1)["places"]["nodes"]
                .as_array()
                .unwrap()
                .len(),
        );
    }
    assert_eq!(told, [1, 2, 3, 3, 2]);
}

/// The page handles untrusted text safely. Its scripts create no elements from text, and send requests only to the
/// page's own server.
#[test]
fn scripts_make_no_markup_and_ask_nobody_else() {
    let page = include_str!("web/index.html");
    let scripts = serve::scripts();
    for never in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
        "new Function",
        "</script",
        "http:",
        "https:",
        "import(",
    ] {
        assert!(!scripts.contains(never), "a script has {never}");
    }
    for never in ["src=", "onclick", "http:", "https:", "style="] {
        assert!(!page.contains(never), "the page has {never}");
    }
}

async fn exchange(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

async fn get(address: std::net::SocketAddr, path: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n");
    exchange(&mut stream, &request).await
}

async fn served(live: &Live, token: Option<Key>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (admitted, scrapes) = ((token, HostNames::default()), mpsc::channel(1).0);
    let visitors = Visitors::of(listener, None).unwrap();
    tokio::spawn(talk(visitors, admitted, scrapes, Some(live.clone())));
    address
}

#[tokio::test]
async fn a_browser_may_run_the_page_and_nothing_else() {
    let address = served(&Live::default(), None).await;
    let answer = get(address, "/", "").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    for (tag, end) in [("<script>", "</script>"), ("<style>", "</style>")] {
        let text = body.split_once(tag).unwrap().1.split_once(end).unwrap().0;
        let hash = base64::encode(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref());
        assert!(
            head.contains(&format!("-src 'sha256-{hash}'")),
            "{tag} is not what the policy lets run"
        );
    }
    assert!(
        head.contains("default-src 'none'") && !head.contains("unsafe"),
        "{head}"
    );
}

#[tokio::test]
async fn without_the_token_there_is_the_door_and_no_data() {
    let live = Live::default();
    live.step(&seen(1), 0.0);
    let address = served(&live, Some(Key::from_bytes([7; 32]))).await;
    assert!(get(address, "/", "").await.starts_with("HTTP/1.1 200"));
    for path in ["/v1/live", "/v1/live/events"] {
        let answer = get(address, path, "").await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
        assert!(!answer.contains("steps"), "{answer}");
    }
}
#[tokio::test]
async fn news_wait_for_something_new() {
    let live = Live::default();
    live.step(&seen(1), 0.0);
    let address = served(&live, None).await;
    // A client of another aggregator gets everything, like a new client.
    let answer = get(address, "/v1/live/events", "Last-Event-ID: other-9\r\n").await;
    assert!(answer.contains("content-type: text/event-stream"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let id = body
        .lines()
        .find_map(|line| line.strip_prefix("id: "))
        .unwrap()
        .to_owned();
    let known = format!("Last-Event-ID: {id}\r\n");
    let waits = tokio::spawn(async move { get(address, "/v1/live/events", &known).await });
    while live.0.seats.available_permits() == LISTENERS {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    live.step(&seen(2), 0.0);
    let answer = waits.await.unwrap();
    let data: Vec<&str> = answer
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    let [data] = data[..] else { panic!("{answer}") };
    let steps = parsed(data)["steps"].clone();
    assert_eq!((steps.as_array().unwrap().len(), &steps[0][0]), (1, &2.into()));
}

#[tokio::test]
async fn listeners_have_a_bound_and_hold_up_nobody() {
    let live = Live::default();
    live.step(&seen(1), 0.0);
    let address = served(&live, None).await;
    let (serial, _) = live.since(0);
    let id = format!("Last-Event-ID: {}-{serial}\r\n", live.0.epoch);
    for _ in 0..LISTENERS {
        let id = id.clone();
        tokio::spawn(async move { get(address, "/v1/live/events", &id).await });
    }
    while live.0.seats.available_permits() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let answer = get(address, "/v1/live/events", &id).await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after"),
        "{answer}"
    );
    // A plain request gets an answer as well.
    assert!(get(address, "/v1/live", "").await.starts_with("HTTP/1.1 200"));
}
