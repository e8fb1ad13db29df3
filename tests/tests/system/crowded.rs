//! Tests the page under load. Scrapes must be answered beside many viewers and idle connections, and requests for other
//! host names must be rejected.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::launched::{Place, until};

/// Prometheus's default timeout is ten seconds. A machine with two busy cores must respond sooner than that.
const SOON: Duration = Duration::from_secs(5);

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn ask(address: &str, path: &str, host: &str) -> String {
    let mut stream = connect(address);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    // Ignores the error, because a connection over the limit may be closed before the request is sent.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn scrape(address: &str, beside: &str) {
    let began = Instant::now();
    let answer = ask(address, "/metrics", address);
    assert!(answer.starts_with("HTTP/1.1 200"), "{beside}: {answer:.200}");
    assert!(began.elapsed() < SOON, "{beside}: {:?}", began.elapsed());
}

/// Calls `look` with the page's address while a job runs.
fn beside_a_job(options: &[&str], look: impl FnOnce(&str)) {
    let place = Place::new();
    let mut running = place.start(options, "read line");
    let address = until("metrics.addr", || {
        let said = place.read("run/metrics.addr");
        said.ends_with('\n').then(|| said.trim().to_owned())
    });
    look(&address);
    running.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    until("the end", || running.child.try_wait().unwrap());
}

#[test]
fn scrapes_find_room_beside_open_pages() {
    beside_a_job(&[], |address| {
        // Behaves like browsers, which load the page and then request updates on the same connection, one after the
        // other.
        let mut pages: Vec<TcpStream> = (0..40).map(|_| connect(address)).collect();
        let mut refused = 0;
        for page in &mut pages {
            page.write_all(format!("GET /v1/live HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
                .unwrap();
            let mut head = [0; 12];
            page.read_exact(&mut head).unwrap();
            if head == *b"HTTP/1.1 503" {
                refused += 1;
                let mut rest = String::new();
                page.read_to_string(&mut rest).unwrap();
                assert!(rest.to_lowercase().contains("connection: close"), "{rest}");
            }
        }
        assert_eq!(refused, 40 - 32);
        for _ in 0..6 {
            scrape(address, "40 pages");
        }
        drop(pages);
        until("room for a page", || {
            ask(address, "/v1/live", "localhost")
                .starts_with("HTTP/1.1 200")
                .then_some(())
        });
    });
}

#[test]
fn scrapes_find_room_beside_connections_that_ask_for_nothing() {
    beside_a_job(&[], |address| {
        let mut silent: Vec<TcpStream> = (0..161).map(|_| connect(address)).collect();
        // An incomplete request head must have no effect on the limits.
        for stream in &mut silent {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost:");
        }
        scrape(address, "161 connections");
        // A request head must arrive within five seconds.
        let began = Instant::now();
        let mut last = silent.pop().unwrap();
        let _ = last.read(&mut [0; 512]);
        assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
        scrape(address, "160 connections");
    });
}

#[test]
fn a_name_of_somebody_else_gets_nothing() {
    let known = ["--http-hosts", "page.example.org,*.cluster.local"];
    beside_a_job(&known, |address| {
        for path in ["/", "/metrics", "/v1/live", "/v1/live/events"] {
            let answer = ask(address, path, "rebound.example:80");
            assert!(answer.starts_with("HTTP/1.1 421"), "{path}: {answer:.200}");
            assert!(
                answer.contains("--http-hosts") && !answer.contains("paceline_"),
                "{path}: {answer:.300}"
            );
        }
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        for host in [
            address,
            "localhost",
            "[::1]:1",
            "page.example.org",
            "a.ns.cluster.local",
            &machine,
        ] {
            assert!(
                ask(address, "/metrics", host).starts_with("HTTP/1.1 200"),
                "{host}"
            );
        }
    });
}
