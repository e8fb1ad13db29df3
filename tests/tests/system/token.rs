//! Tests the page's token. `paceline top` must not send it to an address set by another user, or to another user's
//! process on an old address.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::launched::Place;
use crate::strangers::{STRANGER, give_away, mode};

/// Accepts one request and returns it, unless the client ends without one.
fn one_request(listener: &TcpListener, child: &mut Child) -> String {
    listener.set_nonblocking(true).unwrap();
    let mut said = String::new();
    let mut is_over = false;
    while !is_over {
        // A client that has ended has already sent its request.
        is_over = child.try_wait().unwrap().is_some();
        if let Ok((mut stream, _)) = listener.accept() {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).unwrap_or(0);
            said += &String::from_utf8_lossy(&buffer[..read]);
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait().unwrap();
    said
}

fn top(place: &Place, what: &str, with_token: bool) -> Child {
    let mut command = place.paceline(["top", "--once", what]);
    if with_token {
        command.env("PACELINE_HTTP_TOKEN_FILE", place.path("token"));
    }
    let log = fs::File::create(place.path("top.err")).unwrap();
    command.stderr(log).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_token_goes_to_no_address_that_another_user_names() {
    let place = Place::new();
    mode(&place.write("token", "0123456789abcdef0123456789abcdef"), 0o600);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let named = place.write("run/metrics.addr", &format!("{address}\n"));
    let asks = |with_token: bool| {
        let asked = one_request(&listener, &mut top(&place, "run", with_token));
        (asked, place.read("top.err"))
    };
    let (asked, said) = asks(true);
    assert!(
        asked.to_lowercase().contains("authorization: bearer 0123"),
        "{asked} {said}"
    );
    if !give_away(&named) {
        return;
    }
    let (asked, said) = asks(true);
    assert_eq!(asked, "", "{said}");
    assert!(
        said.contains("the token was not sent: run/metrics.addr: it belongs to another user"),
        "{said}"
    );
    let (asked, _) = asks(false);
    assert!(asked.starts_with("GET /v1/live"), "{asked}");
    // An address given on the command line is trusted.
    let asked = one_request(&listener, &mut top(&place, &address, true));
    assert!(asked.to_lowercase().contains("authorization: bearer"), "{asked}");
}

/// This is the address of a killed run, where another user's process may listen now.
#[test]
fn a_token_goes_to_no_process_of_another_user() {
    let place = Place::new();
    mode(&place.write("token", "0123456789abcdef0123456789abcdef"), 0o600);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    place.write("run/metrics.addr", &format!("{free}\n"));
    let mut child = top(&place, "run", true);
    assert!(!child.wait().unwrap().success());
    assert!(
        place.read("top.err").contains("no process listens there"),
        "{}",
        place.read("top.err")
    );
    let script = "import socket,sys,time; s=socket.create_server((\"127.0.0.1\",int(sys.argv[1]))); print(1,flush=True); s.accept()[0].recv(99); print(2,flush=True)";
    let port = free.port().to_string();
    let user = STRANGER.to_string();
    let theirs = Command::new("setpriv")
        .args(["--reuid", &user, "--clear-groups", "python3", "-c", script, &port])
        .stdout(fs::File::create(place.path("theirs")).unwrap())
        .spawn();
    let Ok(mut theirs) = theirs else {
        eprintln!("LEFT OUT: a listener of another user: no setpriv");
        return;
    };
    for _ in 0..250 {
        if !place.read("theirs").is_empty() || theirs.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if place.read("theirs").is_empty() {
        eprintln!("LEFT OUT: a listener of another user: setpriv or python3 was refused");
        return;
    }
    let mut child = top(&place, "run", true);
    child.wait().unwrap();
    let said = place.read("top.err");
    theirs.kill().unwrap();
    theirs.wait().unwrap();
    assert!(said.contains("another user listens there (uid 65533)"), "{said}");
    assert!(!place.read("theirs").contains('2'), "it was sent something");
}
