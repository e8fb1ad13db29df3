//! Serves the targets over HTTP for Prometheus (<https://prometheus.io/docs/prometheus/latest/http_sd/>). Every client
//! that can reach the address gets what squeue shows to all users. Requests have no parameters and change nothing.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use paceline_sidecar::host;
use paceline_sidecar::sink::http::HostNames;

use crate::output::{self, Color, Style};

/// Maximum number of simultaneous connections. Further ones are closed.
const MOST: usize = 16;
/// Time limit for a request and its response together.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum size of a request in bytes.
const MOST_BYTES: usize = 16 << 10;
/// Minimum interval between two queries to the controller, however many clients poll.
const FRESH: Duration = Duration::from_secs(2);

/// Parses `9811` or `ADDR:9811`. Without an address, it is loopback.
pub(super) fn parse(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse().map(|port| (IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    let place = port.map(SocketAddr::from).or_else(|_| text.parse());
    place.map_err(|_| "expected PORT (of loopback) or ADDR:PORT".to_owned())
}

/// The last response with its time, and true if a failure was reported.
#[derive(Default)]
struct Kept {
    last: Option<(Instant, String)>,
    is_told: bool,
}

/// Responds to every request with the result of `find`, until the process ends.
pub(super) fn serve(listener: &TcpListener, find: impl Fn() -> anyhow::Result<String> + Sync) -> ! {
    let (kept, busy) = (Mutex::<Kept>::default(), AtomicUsize::new(0));
    thread::scope(|scope| {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                // Wait and try again, because the process is out of file descriptors.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            if busy.fetch_add(1, Ordering::Relaxed) >= MOST {
                busy.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (kept, busy, find) = (&kept, &busy, &find);
            let answered = thread::Builder::new().spawn_scoped(scope, move || {
                // Ignore an error, because a client that has disconnected needs no response.
                let _ = answer(&stream, || fresh(kept, find));
                busy.fetch_sub(1, Ordering::Relaxed);
            });
            if answered.is_err() {
                busy.fetch_sub(1, Ordering::Relaxed);
            }
        }
    })
}

fn fresh(kept: &Mutex<Kept>, find: &impl Fn() -> anyhow::Result<String>) -> Option<String> {
    // Hold the lock during the query to the controller, so that further requests wait for its result.
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, text)) = &kept.last
        && at.elapsed() < FRESH
    {
        return Some(text.clone());
    }
    match find() {
        Ok(text) => {
            *kept = Kept {
                last: Some((Instant::now(), text.clone())),
                is_told: false,
            };
            Some(text)
        }
        Err(problem) => {
            if !std::mem::replace(&mut kept.is_told, true) {
                output::warning(Style::stderr(Color::Auto), format_args!("targets: {problem:#}"));
            }
            None
        }
    }
}

fn answer(mut stream: &TcpStream, find: impl FnOnce() -> Option<String>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (status, kind, body) = match asks(stream)? {
        Asked::List => match find() {
            Some(text) => ("200 OK", "application/json", text),
            // Send an error, on which Prometheus keeps the previous targets.
            None => (
                "503 Service Unavailable",
                "text/plain",
                "Slurm does not answer\n".to_owned(),
            ),
        },
        Asked::OtherHost => (
            "421 Misdirected Request",
            "text/plain",
            "use localhost, an address or this machine's name\n".to_owned(),
        ),
        Asked::Other => ("405 Method Not Allowed", "text/plain", "GET\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// What a client has requested.
enum Asked {
    List,
    /// The list, under a host name that is not ours. A web page could let such a name resolve to loopback, so that a
    /// browser reads the list for it.
    OtherHost,
    Other,
}

/// Reads a request up to the end of its head.
fn asks(mut stream: &TcpStream) -> io::Result<Asked> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut part)?;
        head.extend_from_slice(&part[..read]);
        if read == 0 || head.len() > MOST_BYTES || Instant::now() > until {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    if !head.starts_with(b"GET ") {
        return Ok(Asked::Other);
    }
    let head = String::from_utf8_lossy(&head);
    let headers = head.lines().filter_map(|line| line.split_once(':'));
    let mut hosts = headers.filter(|(name, _)| name.eq_ignore_ascii_case("host"));
    let names = HostNames::new(&host::hostname(), &[]);
    let is_ours = hosts.all(|(_, host)| names.is_ours(host.trim()));
    // Accept any host name on an address that others can reach, because sites use their own names for it.
    let is_shared = !stream.local_addr()?.ip().is_loopback();
    Ok(if is_ours || is_shared {
        Asked::List
    } else {
        Asked::OtherHost
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn whoever_polls_gets_the_list_and_slurm_is_asked_now_and_then() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            serve(&listener, || match ASKED.fetch_add(1, Ordering::Relaxed) {
                0 => anyhow::bail!("it is away"),
                _ => Ok("[]\n".to_owned()),
            })
        });
        let get = "GET /targets HTTP/1.1\r\nHost: localhost\r\n\r\n";
        assert!(ask(address, get).starts_with("HTTP/1.1 503 "));
        let answer = ask(address, get);
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"),
            "{answer}"
        );
        assert!(answer.ends_with("\r\n\r\n[]\n"), "{answer}");
        let rebound = "GET /targets HTTP/1.1\r\nHost: evil.example\r\n\r\n";
        assert!(ask(address, rebound).starts_with("HTTP/1.1 421 "));
        assert!(ask(address, "POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        // Neither an idle client nor an oversized request blocks the other clients.
        let _silent = TcpStream::connect(address).unwrap();
        let mut long = TcpStream::connect(address).unwrap();
        let _ = long.write_all(&vec![b'x'; MOST_BYTES + 1024]);
        assert!(ask(address, get).starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn places() {
        for (text, wanted) in [
            ("9811", Some("127.0.0.1:9811")),
            ("10.0.0.1:9811", Some("10.0.0.1:9811")),
            ("[::1]:1", Some("[::1]:1")),
            ("host:1", None),
            ("", None),
        ] {
            let place = parse(text).ok().map(|place| place.to_string());
            assert_eq!(place.as_deref(), wanted, "{text}");
        }
    }
}
