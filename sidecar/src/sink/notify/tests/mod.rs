//! Tests of notifications, with real receivers on loopback.

mod alike;
mod news;
mod programs;
mod token;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_health::Provenance;
use paceline_health::fault::{Remedy, recovery_order};
use paceline_health::id::Rank;
use paceline_health::text::date::rfc3339;
use paceline_health::verdict::{Cause, Finding, Severity, State, Subject};
use rustix::net::{self, AddressFamily, SocketType};
use serde_json::Value;

use super::*;

pub(super) const NOW: u64 = 1_700_000_000_000;

/// Returns a verdict about the GPU with this number on n1.
pub(in crate::sink) fn throttled(gpu: u32) -> Verdict {
    Verdict {
        finding: Finding::GpuThrottled,
        subject: Subject::Gpu {
            gpu_uuid: format!("GPU-{gpu}").as_str().into(),
            node: "n1".into(),
        },
        ..verdict(u64::from(gpu), 0, Severity::Warning, State::Raised)
    }
}

pub(in crate::sink) fn verdict(id: u64, rank: u32, severity: Severity, state: State) -> Verdict {
    Verdict {
        id,
        finding: Finding::Straggler,
        subject: Subject::Rank {
            rank: Rank(rank),
            node: "n1".into(),
            gpu_uuid: None,
        },
        severity,
        state,
        since_s: 1.0,
        since_step: None,
        raised_s: 2.0,
        raised_step: None,
        cleared_s: None,
        signals: Vec::new(),
        provenance: Provenance::Live,
        slowdown_ratio: Some(1.5),
        cause: Cause::Thermal,
        evidence: Vec::new(),
        impact_ratio: None,
        lost_gpu_hours: 0.0,
        lost_cost: None,
        action: Arc::from("Check <cooling> & airflow."),
        observe_only: false,
        order: None,
        says: None,
        unresolved_at_exit: false,
    }
}

#[test]
fn receivers() {
    let parse = |words: &str| Receiver::parse(words);
    assert_eq!(
        parse("alertmanager=http://127.0.0.1:9093").unwrap().kind.name(),
        "alertmanager"
    );
    assert_eq!(
        parse("exec=/bin/true,severity=critical").unwrap().severity,
        Severity::Critical
    );
    let error = |words: &str| parse(words).unwrap_err().to_string();
    assert!(error("mail=a@b").starts_with("must be KIND=WHERE"));
    assert!(
        error("slack=https://hooks.slack.com/services/T/B/x").contains("does not appear on a command line")
    );
    assert!(error("webhook=https://me:pw@host/x").contains("the address contains a password"));
    assert!(error("webhook=ftp://host").contains("http://"));
    assert!(error("webhook=http://h/,hmac=secret").contains("the value of hmac must be env:NAME"));
    assert!(error("webhook=https://h/,bearer=secret").contains("the value of bearer must be env:NAME"));
    assert!(error("webhook=http://h/,bearer=file:/t").contains("a bearer token goes to https:// only"));
    assert!(error("webhook=http://127.0.0.1.example/,bearer=file:/t").contains("https:// only"));
    assert!(error("slack=env:HOME,bearer=file:/t").contains("option 1 after the address"));
    assert!(error("webhook=https://h/,ca=file:/no/such").contains("/no/such"));
    assert!(error("webhook=http://h/,severity=bad").contains("info, warning or critical"));
    assert!(error("webhook=http://h/,color=red").contains("option 1 after the address"));
    assert_eq!(
        error("slack=env:PACELINE_NO_SUCH"),
        "the variable PACELINE_NO_SUCH is not set"
    );
    for secret in ["/hook/T0KEN", "/hook?token=T0KEN", "?token=T0KEN", "/#T0KEN"] {
        let whom = parse(&format!("webhook=https://h.example:1{secret}"))
            .unwrap()
            .address();
        assert_eq!(whom, "webhook https://h.example:1", "{secret}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    fs::write(&path, "s3cret\n").unwrap();
    let receiver = parse(&format!("pagerduty=file:{}", path.display())).unwrap();
    assert!(!format!("{receiver:?}").contains("s3cret"));
}

/// Checks HMAC-SHA256 with test case 2 of RFC 4231 in our framing, in which the key signs `id.body`.
#[test]
fn signatures() {
    let signed = http::sign("Jefe", "what do ya want for nothing?", "");
    assert_eq!(signed.len(), "sha256=".len() + 64);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"Jefe");
    let tag = ring::hmac::sign(&key, b"what do ya want for nothing?.");
    let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(signed, format!("sha256={digits}"));
}

/// Answers with these codes, one per request, and then with 200. Returns the requests.
pub(super) fn serve(listener: TcpListener, codes: Vec<u16>) -> Inbox<(Vec<String>, Value)> {
    let (sender, came) = sync_channel(1000);
    thread::spawn(move || {
        let mut codes = codes.into_iter();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // A client that waited too long has closed the connection.
            let Some((head, body)) = request(&stream) else {
                continue;
            };
            let code = codes.next().unwrap_or(200);
            let answer = format!("HTTP/1.1 {code} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
            if code == 200 && sender.send((head, body)).is_err() {
                return;
            }
        }
    });
    came
}

fn request(stream: &TcpStream) -> Option<(Vec<String>, Value)> {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_owned());
    }
    let length = head.iter().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some((head, serde_json::from_slice(&body).ok()?))
}

fn header(head: &[String], name: &str) -> String {
    let found = head.iter().find_map(|line| {
        let (key, value) = line.split_once(": ")?;
        key.eq_ignore_ascii_case(name).then(|| value.to_owned())
    });
    found.unwrap_or_else(|| panic!("{name}: {head:?}"))
}

fn key_file(dir: &Path) -> String {
    let path = dir.join("key");
    fs::write(&path, "s3cret\n").unwrap();
    path.display().to_string()
}

pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The receiver refuses connections, then answers with errors, then accepts. No notice is lost, and all are signed and
/// in order. A notifier that is restarted in between sends nothing twice.
#[test]
fn a_receiver_that_is_down_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // The socket is bound but not listening. It refuses connections, and no other process gets its port.
    let down = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&down, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let listener = TcpListener::from(down);
    let address = listener.local_addr().unwrap();
    let words = format!("webhook=http://{address}/hook,hmac=file:{}", key_file(dir.path()));
    let receivers = [Receiver::parse(&words).unwrap()];
    let mut notifier = Notifier::start(dir.path(), &"j".into(), &receivers, NOW);
    for rank in 0..5 {
        notifier.verdict(
            &verdict(1 + u64::from(rank), rank, Severity::Warning, State::Raised),
            NOW,
        );
        notifier.tick(NOW + u64::from(rank));
    }
    // The aggregator dies, and its courier with it. In this test the courier may sleep for a second before it notices.
    drop(notifier);
    std::thread::sleep(Duration::from_millis(1500));
    let mut notifier = Notifier::start(dir.path(), &"j".into(), &receivers, NOW);
    let held: Vec<Verdict> = (0..5)
        .map(|rank| verdict(1 + u64::from(rank), rank, Severity::Warning, State::Raised))
        .collect();
    notifier.resume(&held, NOW + 5000);
    notifier.verdict(&verdict(5, 4, Severity::Warning, State::Cleared), NOW + 6000);
    notifier.tick(NOW + 6000);
    net::listen(&listener, 100).unwrap();
    let came = serve(listener, vec![500, 503, 429]);
    let mut ids = BTreeSet::new();
    // A request that timed out is retried with its number.
    let mut notices = |patience| loop {
        let (head, body) = came.recv_timeout(patience).ok()?;
        let id = header(&head, "Paceline-Delivery");
        let signed = http::sign("s3cret", &id, &body.to_string());
        assert_eq!(header(&head, "Paceline-Signature"), signed);
        if ids.insert(id) {
            return Some(body["notices"].as_array().unwrap().clone());
        }
    };
    let mut said = Vec::new();
    while said.len() < 6 {
        let told = notices(PATIENCE).unwrap();
        said.extend(told.iter().map(|notice| {
            let status = notice["status"].as_str().unwrap();
            format!("{status} {}", notice["subject"])
        }));
    }
    let mut wanted: Vec<String> = (0..5)
        .map(|rank| format!("firing \"rank {rank} on n1\""))
        .collect();
    wanted.push("resolved \"rank 4 on n1\"".to_owned());
    assert_eq!(said, wanted);
    let begin = Instant::now();
    notifier.close(NOW + 9000);
    assert!(begin.elapsed() < PATIENCE);
    let mut over = 0;
    while over < 4 {
        over += notices(PATIENCE).unwrap().len();
    }
    assert_eq!(over, 4, "the rest is over with the job");
    assert_eq!(notices(Duration::from_millis(200)), None, "nothing else was sent");
    assert_eq!(flush(dir.path(), &receivers).unwrap(), []);
}

/// The job ends while the receiver does not answer. The end is not delayed, and the rest is sent later.
#[test]
fn what_is_left_is_sent_later() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let receivers = [Receiver::parse(&format!("webhook=http://{address}/")).unwrap()];
    // The receiver accepts connections and never answers.
    let mut notifier = Notifier::start(dir.path(), &"j".into(), &receivers, NOW);
    notifier.verdict(&verdict(1, 0, Severity::Critical, State::Raised), NOW);
    notifier.tick(NOW);
    let held = listener.accept().unwrap();
    let begin = Instant::now();
    let left = notifier.close(NOW + 1000);
    // This is less than the timeout of a request, and less than the launcher waits.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let whom = format!("webhook http://{address}");
    let notices: Vec<_> = left.iter().map(|one| (one.notices, &*one.receiver)).collect();
    assert_eq!(notices, [(2, &*whom)]);
    assert_eq!(pending(dir.path(), &receivers), left);
    assert_eq!(strangers(dir.path(), &receivers).unwrap(), Vec::<PathBuf>::new());
    assert_eq!(strangers(dir.path(), &[]).unwrap(), [left[0].dir.clone()]);
    drop((listener, held));
    // A program that another test is starting holds a copy of the socket until it calls exec.
    let again = loop {
        match TcpListener::bind(address) {
            Ok(again) => break again,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let came = serve(again, vec![]);
    let told = flush(dir.path(), &receivers).unwrap();
    let counts: Vec<_> = told.iter().map(|(sent, left)| (*sent, left.notices)).collect();
    assert_eq!(counts, [(2, 0)]);
    let status = || came.recv_timeout(PATIENCE).unwrap().1["notices"][0]["status"].clone();
    assert_eq!((status(), status()), ("firing".into(), "resolved".into()));
}

#[test]
fn a_storm_is_one_message_to_people() {
    let mut news = News::open("j".into(), Default::default());
    (0..500).for_each(|rank| {
        news.verdict(
            &verdict(1 + rank, rank as u32, Severity::Critical, State::Raised),
            NOW,
        )
    });
    let parcel = Parcel {
        unix_ms: NOW,
        notices: news.poll(NOW),
    };
    let secret = secret::Secret::Env("X".to_owned());
    let address = receiver::Address::Open("http://h".to_owned());
    let bodies = |kind: Kind| body::letters(&kind, &parcel, 1);
    let slack = bodies(Kind::Slack(address.clone()));
    let text = slack[0].body["text"].as_str().unwrap();
    assert_eq!((slack.len(), text.lines().count()), (1, 11));
    assert!(text.ends_with("and 490 more: see report.json"), "{text}");
    let pages = bodies(Kind::PagerDuty(address.clone(), secret));
    assert_eq!(pages.len(), 21);
    assert_eq!(
        pages[20].body["payload"]["summary"],
        "job j: and 480 more problems"
    );
    assert_eq!(pages[0].body["event_action"], "trigger");
    assert_eq!(pages[0].with_routing_key("k").body["routing_key"], "k");
    let alerts = bodies(Kind::Alertmanager(address));
    assert_eq!(alerts[0].body.as_array().unwrap().len(), 500);
    let labels = &alerts[0].body[0]["labels"];
    assert_eq!(
        (&labels["alertname"], &labels["severity"]),
        (&"PacelineStraggler".into(), &"critical".into())
    );
}

#[test]
fn slack_text_is_escaped() {
    let mut news = News::open("j".into(), Default::default());
    news.verdict(&verdict(1, 3, Severity::Critical, State::Raised), NOW);
    let parcel = Parcel {
        unix_ms: NOW,
        notices: news.poll(NOW),
    };
    let kind = Kind::Slack(receiver::Address::Open(String::new()));
    let text = body::letters(&kind, &parcel, 1)[0].body["text"].clone();
    assert_eq!(
        text,
        "CRITICAL: job j: A rank is persistently slower than its peers: rank 3 on n1\n\
         since: 1.00 s after the start, confirmed 1.00 s later\n\
         costs: 1.50x as long as its peers\n\
         why: heat: the GPU protects itself\n\
         Check &lt;cooling&gt; &amp; airflow.\n\
         runbook: https://github.com/paceline/paceline/blob/main/docs/findings.md#straggler"
    );
}

/// Alertmanager identifies an alert by its labels. The alert with the previous labels is resolved, and an incident
/// never pages twice.
#[test]
fn an_alert_whose_evidence_turns_out_not_to_be_live_is_one() {
    let mut news = News::open("j".into(), Default::default());
    let mut verdict = verdict(1, 3, Severity::Critical, State::Raised);
    verdict.cause = Cause::Unknown;
    news.verdict(&verdict, NOW);
    news.poll(NOW);
    (verdict.cause, verdict.provenance) = (Cause::Thermal, Provenance::Sim);
    news.verdict(&verdict, NOW + 1000);
    let alerts = |notices| {
        let parcel = Parcel {
            unix_ms: NOW,
            notices,
        };
        let kind = Kind::Alertmanager(receiver::Address::Open(String::new()));
        body::letters(&kind, &parcel, 1)[0].body.clone()
    };
    let told = alerts(news.poll(NOW + 1000));
    let provenances: Vec<&Value> = (0..2).map(|at| &told[at]["labels"]["provenance"]).collect();
    assert_eq!(provenances, [&Value::Null, &Value::from("sim")], "{told}");
    assert_eq!(told[0]["endsAt"], rfc3339(NOW + 1000));
    assert_eq!(alerts(news.open_notices(NOW + 2000)).as_array().unwrap().len(), 1);
}

/// The flag is stored in the spool's file. It determines how long Alertmanager keeps the alert.
#[test]
fn what_is_told_again_at_the_end_is_so_in_the_spool() {
    let mut news = News::open("j".into(), Default::default());
    let mut verdict = verdict(1, 3, Severity::Critical, State::Raised);
    verdict.order = Some(recovery_order(Remedy::ResetGpu).1);
    news.verdict(&verdict, NOW);
    news.poll(NOW);
    let last = serde_json::to_string(&news.close(NOW)).unwrap();
    let last: Vec<Notice> = serde_json::from_str(&last).unwrap();
    assert!(last[0].is_told_again, "{last:?}");
}
