use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use paceline_health::verdict::{Severity, State};

use super::super::*;
use super::{NOW, PATIENCE, serve, verdict};

/// A pod's token is read for each message, because it changes every hour. A receiver with a token gets active notices
/// repeatedly.
#[test]
fn a_token_is_read_anew_for_each_message() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "t-1\n").unwrap();
    let words = format!(
        "webhook=http://{}/verdicts,bearer=file:{}",
        listener.local_addr().unwrap(),
        token.display()
    );
    let receivers = [Receiver::parse(&words).unwrap()];
    let came = serve(listener, vec![]);
    let next = || {
        let (head, body) = came.recv_timeout(PATIENCE).unwrap();
        let bearer = head
            .iter()
            .find_map(|line| line.strip_prefix("authorization: Bearer "));
        (bearer.map(str::to_owned), body["notices"][0]["status"].clone())
    };
    let mut notifier = Notifier::start(dir.path(), &"j".into(), &receivers, NOW);
    notifier.verdict(&verdict(1, 0, Severity::Critical, State::Raised), NOW);
    notifier.tick(NOW);
    assert_eq!(next(), (Some("t-1".to_owned()), "firing".into()));
    fs::write(&token, "t-2\n").unwrap();
    let until = Instant::now() + PATIENCE;
    let mut now = NOW;
    // Continue only after the first notice has left its spool.
    let spool = Spool::open(&dir.path().join(FOLDER).join(receivers[0].name())).unwrap();
    while !spool.is_empty() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    now += 60_000;
    notifier.tick(now);
    assert_eq!(next(), (Some("t-2".to_owned()), "firing".into()));
    notifier.close(now);
}
