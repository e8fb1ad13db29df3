//! A relay as a process: its messages about misconfiguration.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use crate::job::{DEADLINE, Job};

fn relay(job: &Job, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline-sidecar"));
    command
        .args(["--job", "j"])
        .args(words)
        .env("HOME", &job.home)
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("PACELINE_KEY_FILE")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

#[test]
fn mistakes_are_told_once() {
    let job = Job::new("relay");
    let refused = |words: &[&str]| {
        let mut words = words.to_vec();
        words.extend(["--relay", "127.0.0.1:0"]);
        let output = relay(&job, &words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let told = refused(&["--aggregator", "127.0.0.1:1", "--key-file", "/no/such/key"]);
    assert_eq!(told.matches("No such file").count(), 1, "{told}");
    let told = refused(&["--aggregator", ","]);
    assert!(told.contains("RELAY:PORT"), "{told}");
    let told = refused(&["--aggregator", " "]);
    assert!(told.contains("--aggregator HOST:PORT"), "{told}");
}

#[test]
fn one_that_leads_to_itself_says_so() {
    let job = Job::new("circle");
    // It is very unlikely that another process takes it meanwhile.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = free.local_addr().unwrap().to_string();
    drop(free);
    let mut child = relay(&job, &["--relay", &at, "--aggregator", &at])
        .spawn()
        .unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let (sender, said) = channel();
    let reader = thread::spawn(move || {
        let mut stderr = stderr;
        let mut line = String::new();
        let _ = stderr.read_line(&mut line);
        let _ = sender.send(line);
        let _ = stderr.read_to_string(&mut String::new());
    });
    let line = said.recv_timeout(DEADLINE);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    let line = line.unwrap();
    assert!(line.contains(&at) && line.contains("the relay itself"), "{line}");
}
