use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use paceline_health::Policy;

use super::*;

/// Answers requests like an aggregator, in its own thread, until this is dropped.
struct Served {
    hangup: Option<mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<Policy>>,
}

impl Served {
    fn in_dir(dir: &Path, reload: Option<Reload>, known: &[(&str, f64)]) -> Served {
        let known = known
            .iter()
            .map(|(key, value)| ((*key).to_owned(), *value))
            .collect();
        let (hangup, hangups) = mpsc::channel(1);
        let (opened, is_open) = std::sync::mpsc::channel();
        let dir = dir.to_owned();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let (asks, mut asked) = mpsc::channel::<Ask>(1);
                let door = Door::open(&dir);
                assert!(door.is_some());
                opened.send(()).unwrap();
                let control = tokio::spawn(serve(door, reload, known, hangups, asks));
                let mut policy = Policy::default();
                while let Some(ask) = asked.recv().await {
                    let What::Change { changes: asked, .. } = &ask.what else {
                        panic!("{ask:?}")
                    };
                    let changes = asked.iter().map(|(key, value)| (key.as_str(), *value));
                    let was: Vec<f64> = asked.iter().filter_map(|(key, _)| policy.get(key)).collect();
                    let answer = match policy.set_all(changes) {
                        Err(error) => Answer::Refused(error.to_string()),
                        Ok(()) => Answer::Changed(
                            std::iter::zip(asked, was)
                                .map(|((key, now), was)| Changed {
                                    key: key.clone(),
                                    was,
                                    now: *now,
                                })
                                .collect(),
                        ),
                    };
                    ask.answer.send(answer).unwrap();
                }
                control.await.unwrap();
                policy
            })
        });
        is_open.recv().unwrap();
        Served {
            hangup: Some(hangup),
            thread: Some(thread),
        }
    }

    fn end(mut self) -> Policy {
        drop(self.hangup.take());
        self.thread.take().unwrap().join().unwrap()
    }
}

fn changed(key: &str, was: f64, now: f64) -> Answer {
    let key = key.to_owned();
    Answer::Changed(vec![Changed { key, was, now }])
}

#[test]
fn a_question_is_answered_and_the_door_is_for_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    // The path is longer than a socket's address may be.
    let dir = folder.path().join("d".repeat(120));
    std::fs::create_dir(&dir).unwrap();
    let nobody = request(&dir, &Request::Reload).unwrap_err().to_string();
    assert!(nobody.contains("no aggregator runs here"), "{nobody}");

    let served = Served::in_dir(&dir, None, &[]);
    let mode = std::fs::metadata(dir.join(SOCKET)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let pid = std::fs::read_to_string(dir.join(PID)).unwrap();
    assert_eq!(pid.trim(), std::process::id().to_string());

    let ask = |changes: &[(&str, f64)]| {
        let changes = changes.iter().map(|(key, value)| ((*key).to_owned(), *value));
        request(&dir, &Request::Set(changes.collect())).unwrap()
    };
    let key = "impact.warning_ratio";
    assert_eq!(ask(&[(key, 0.05)]), changed(key, 0.03, 0.05));
    assert_eq!(
        ask(&[("observe.straggler", 1.0)]),
        changed("observe.straggler", 0.0, 1.0)
    );
    let Answer::Refused(why) = ask(&[("observe.job-hang", 1.0), ("impact.warn", 0.1)]) else {
        panic!("refused")
    };
    assert!(why.contains("\"impact.warn\"; there are: impact."), "{why}");
    let Answer::Refused(why) = request(&dir, &Request::Reload).unwrap() else {
        panic!("refused")
    };
    assert!(why.contains("without configuration files"), "{why}");

    let policy = served.end();
    assert_eq!(policy.get("observe.job-hang"), Some(0.0), "all or none");
    assert_eq!(
        std::fs::read_dir(&dir).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

#[test]
fn what_is_no_request_is_refused_and_stops_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::in_dir(folder.path(), None, &[]);
    for nonsense in [&b"nonsense\n"[..], b"{\"set\":[[\"a\"]]}\n", b"\n", b"no end"] {
        let mut stream = UnixStream::connect(folder.path().join(SOCKET)).unwrap();
        stream.write_all(nonsense).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("{\"refused\":\"invalid request: "), "{said}");
    }
    // This client disconnects without a request.
    drop(UnixStream::connect(folder.path().join(SOCKET)).unwrap());
    let answer = request(folder.path(), &Request::Set(Vec::new())).unwrap();
    assert_eq!(answer, Answer::Changed(Vec::new()));
    served.end();
}

#[test]
fn one_that_ends_gives_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
    let ending = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = [0; 64];
        let _ = stream.read(&mut line).unwrap();
    });
    let error = request(folder.path(), &Request::Reload).unwrap_err();
    assert!(matches!(error, AskError::NoAnswer(_)), "{error}");
    ending.join().unwrap();
}

#[test]
fn a_reload_changes_what_the_files_say_differently() {
    let said = Arc::new(Mutex::new(Ok(vec![
        ("impact.warning_ratio".to_owned(), 0.05),
        ("observe.straggler".to_owned(), 1.0),
        ("blind.beat_missing_s".to_owned(), 9.0),
    ])));
    let folder = tempfile::tempdir().unwrap();
    let files = said.clone();
    let reload =
        Reload::new(move || files.lock().unwrap().clone()).without(vec!["blind.beat_missing_s".to_owned()]);
    // These values were in force at the job's start. The file changed before requests were served.
    let known = [("impact.warning_ratio", 0.04), ("observe.straggler", 1.0)];
    let served = Served::in_dir(folder.path(), Some(reload), &known);
    let ask = || request(folder.path(), &Request::Reload).unwrap();
    assert_eq!(ask(), changed("impact.warning_ratio", 0.03, 0.05));
    assert_eq!(ask(), Answer::Changed(Vec::new()));
    // This value is set manually and is not in any file.
    let by_hand = Request::Set(vec![("observe.job-hang".to_owned(), 1.0)]);
    assert_eq!(
        request(folder.path(), &by_hand).unwrap(),
        changed("observe.job-hang", 0.0, 1.0)
    );
    *said.lock().unwrap() = Err("p.toml:1:1: no".to_owned());
    assert_eq!(ask(), Answer::Refused("p.toml:1:1: no".to_owned()));
    *said.lock().unwrap() = Ok(vec![
        ("impact.warning_ratio".to_owned(), 0.07),
        ("blind.beat_missing_s".to_owned(), 7.0),
    ]);
    assert!(matches!(ask(), Answer::Changed(changed) if changed.len() == 2));
    let policy = served.end();
    for (key, value) in [
        ("impact.warning_ratio", 0.07),
        ("observe.straggler", 0.0),
        ("observe.job-hang", 1.0),
        ("blind.beat_missing_s", 5.0),
    ] {
        assert_eq!(policy.get(key), Some(value), "{key}");
    }
}
