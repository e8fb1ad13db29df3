//! The load tool against a real aggregator, through its gate: every step of every rank arrives, and the problems of the
//! simulated job are found.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use paceline_health::report::Report;
use paceline_health::sim::{World, WorldSpec};
use paceline_health::verdict::Finding;
use paceline_seal::Key;
use paceline_sidecar::aggregator::Plan;
use paceline_sidecar::aggregator::server::{END_GRACE, Hosted};
use paceline_sidecar::guard::den::Den;
use paceline_sidecar::guard::{conduit, tunnel};
use paceline_sidecar::load::{LoadError, LoadOptions, run};
use paceline_sidecar::sink::http::Page;
use paceline_sidecar::sink::status::StatusStream;
use paceline_sidecar::uplink::wire::{Down, Hello, Up, decode_down, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn options(address: std::net::SocketAddr, key: u8) -> LoadOptions {
    LoadOptions {
        address,
        relays: Vec::new(),
        key: Key::from_bytes([key; 32]),
        job: "j".into(),
        speed: 20.0,
        part: (0, 1),
        slow_every: 10,
        join: Duration::from_secs(3),
        acked: None,
    }
}

fn plan(dir: &Path) -> Plan {
    Plan {
        job: "j".into(),
        node: "head".into(),
        run_dir: dir.to_owned(),
        policy: Vec::new(),
        remedy: Default::default(),
        reload: None,
        reported: None,
        journal: Default::default(),
        doors: Default::default(),
    }
}

#[test]
fn a_job_is_heard_and_its_slow_rank_found() {
    let dir = tempfile::tempdir().unwrap();
    let den = Den::dig(None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (status, _end) = StatusStream::to(std::io::sink());
    let hosted = Hosted::start(
        listener,
        &Key::from_bytes([1; 32]),
        &den,
        None,
        plan(dir.path()),
        status,
    )
    .unwrap();

    let mut spec = WorldSpec::parse("nodes=8 gpus=2 steps=60 self=990ms job=j").unwrap();
    spec.faults
        .push("slow rank=5 factor=1.5 from=40".parse().unwrap());
    let told = run(World::new(spec).unwrap(), &options(address, 1), &mut |_| ()).unwrap();
    assert!(told.connect_s.is_some(), "{told:?}");
    assert_eq!((told.nodes, told.rank_steps, told.dropped), (8, 16 * 60, 0));
    assert_eq!(told.steps.len(), 60);
    assert!(told.bytes_up > 0 && told.said_to_acked.max_ms > 0.0, "{told:?}");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(hosted.finish(END_GRACE));
    let report: Report =
        serde_json::from_slice(&std::fs::read(dir.path().join("report.json")).unwrap()).unwrap();
    assert_eq!((report.steps, report.coverage.ranks_seen), (60, 16));
    let slow = report
        .verdicts
        .iter()
        .find(|verdict| verdict.finding == Finding::Straggler);
    let slow = slow.unwrap_or_else(|| panic!("{:?}", report.verdicts));
    assert_eq!(slow.since_step, Some(40));
}

/// Damaged packed messages are counted, and their sender stays connected.
#[test]
fn what_cannot_be_unpacked_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let den = Den::dig(None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let key = Key::from_bytes([1; 32]);
    let (status, _end) = StatusStream::to(std::io::sink());
    let page = Some(Page::at("127.0.0.1:0".parse().unwrap()));
    let hosted = Hosted::start(listener, &key, &den, page, plan(dir.path()), status).unwrap();
    let page = hosted.http.unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(async {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let pair = tunnel::call(&mut stream, &key).await.unwrap();
        let (mut inlet, out) = conduit::sealed(stream, pair, "DEALER");
        out.send(&[0xc1, 1, 5, 5, 0xff, 0xff, 0xff]);
        out.send(&[0xc1, 9]);
        let hello = Up::Hello(Hello {
            v: 1,
            job: "j".into(),
            node: "n".into(),
            agent: 1,
        });
        let mut answers = Vec::new();
        while answers.is_empty() {
            out.send(&encode(&hello));
            inlet
                .recv(|message| answers.push(decode_down(message).unwrap()))
                .await
                .unwrap();
        }
        // While opening the journal, the aggregator asks sidecars to wait.
        assert!(
            matches!(answers[0], Down::Welcome(_) | Down::Later(_)),
            "{answers:?}"
        );
        let begun = std::time::Instant::now();
        loop {
            out.send(&[0xc1, 9]);
            let mut page = tokio::net::TcpStream::connect(page).await.unwrap();
            page.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
                .await
                .unwrap();
            let mut text = String::new();
            page.read_to_string(&mut text).await.unwrap();
            let counted = text.lines().any(|line| {
                line.starts_with("paceline_transport_dropped_total{")
                    && line.contains("unreadable")
                    && !line.ends_with(" 0")
            });
            if counted {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{text}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(out);
        hosted.finish(END_GRACE).await;
    });
}

#[test]
fn nobody_there() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let world = World::new(WorldSpec::parse("nodes=2").unwrap()).unwrap();
    let error = run(world, &options(address, 1), &mut |_| ()).unwrap_err();
    assert!(matches!(error, LoadError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}
