use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use paceline_health::text::sanitize;
use paceline_health::verdict::{Severity, State, Subject};

use super::super::*;
use super::{NOW, PATIENCE, verdict};

#[test]
fn programs() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("tell");
    let check = |script: &str| {
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let letter = body::Letter {
            id: "7".to_owned(),
            body: serde_json::json!({ "a": 1 }),
        };
        exec::run(program.to_str().unwrap(), &letter, &exec::Leash::default())
    };
    let out = dir.path().join("out");
    assert_eq!(
        check(&format!(
            "cat > {0}; echo \" $PACELINE_DELIVERY\" >> {0}",
            out.display()
        )),
        courier::Delivery::Taken
    );
    assert_eq!(fs::read_to_string(&out).unwrap(), "{\"a\":1} 7\n");
    assert!(matches!(check("exit 1"), courier::Delivery::Never(_)));
    assert!(matches!(check("exit 75"), courier::Delivery::Later(..)));
    assert!(matches!(check("kill -9 $$"), courier::Delivery::Later(..)));
    // The program accepts the notice, but its child continues to run.
    let pid = dir.path().join("pid");
    let script = format!("sleep 600 & echo $! > {}", pid.display());
    assert_eq!(check(&script), courier::Delivery::Taken);
    is_gone(&pid);
}

/// Waits until the process whose ID is in a file is gone.
fn is_gone(pid: &Path) {
    let number = fs::read_to_string(pid).unwrap();
    let begin = Instant::now();
    let is_there = || {
        let status = fs::read_to_string(format!("/proc/{}/stat", number.trim()));
        status.is_ok_and(|status| !status.contains(") Z "))
    };
    while is_there() {
        assert!(begin.elapsed() < PATIENCE, "{number} runs on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The job ends while a program is running. The program and its children are killed.
#[test]
fn a_program_that_hangs_ends_with_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let (program, pids) = (
        dir.path().join("tell"),
        ["own", "child"].map(|name| dir.path().join(name)),
    );
    let script = format!(
        "#!/bin/sh\nsleep 600 &\necho $! > {1}.new; mv {1}.new {1}\necho $$ > {0}.new; mv {0}.new {0}\nwait\n",
        pids[0].display(),
        pids[1].display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let receivers = [Receiver::parse(&format!("exec={}", program.display())).unwrap()];
    let mut notifier = Notifier::start(dir.path(), &"j".into(), &receivers, NOW);
    notifier.verdict(&verdict(1, 0, Severity::Critical, State::Raised), NOW);
    notifier.tick(NOW);
    let begin = Instant::now();
    while !pids[0].exists() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let left = notifier.close(NOW + 1000);
    assert_eq!(left.len(), 1, "{left:?}");
    pids.iter().for_each(|pid| is_gone(pid));
}

/// A misplaced value may be a secret, so errors do not contain it.
#[test]
fn refusals_repeat_no_value() {
    for words in [
        "webhook=https://h/,hmac=s3cretkey",
        "webhook=https://h/,hmac:s3cretkey",
        "slack=https://hooks.slack.com/services/s3cretkey",
        "slack=env:https://hooks.slack.com/services/s3cretkey",
        "pagerduty=s3cretkey",
        "pagerduty=env:K,routing=s3cretkey",
        "webhook=https://ada:s3cretkey@h/",
        "webhook=s3cretkey",
        "hook=s3cretkey",
        "exec=/bin/true,severity=s3cretkey",
        "s3cretkey",
    ] {
        let said = Receiver::parse(words).unwrap_err().to_string();
        assert!(!said.contains("s3cret"), "{words}: {said}");
    }
}

/// Names are a megabyte long with terminal escape sequences. All kinds of receivers are checked.
#[test]
fn hostile_words_are_short_and_visible_to_everybody() {
    let words = "<script>\x1b[31m\r\n\0\u{9b}\u{202e}\"${{x}}".repeat(1 << 15);
    let mut news = News::open(words.as_str().into(), Default::default());
    for id in 1..=2 {
        let mut verdict = verdict(id, 3, Severity::Critical, State::Raised);
        verdict.subject = Subject::Gpu {
            gpu_uuid: format!("GPU-{id}").as_str().into(),
            node: words.as_str().into(),
        };
        verdict.action = words.as_str().into();
        news.verdict(&verdict, NOW);
    }
    let parcel = Parcel {
        unix_ms: NOW,
        // The second GPU of a node waits for others.
        notices: news.poll(NOW + 3_000),
    };
    assert_eq!(parcel.notices.len(), 2, "two GPUs are two troubles");
    let secret = || secret::Secret::Env("X".to_owned());
    let address = || receiver::Address::Open("http://h".to_owned());
    for kind in [
        Kind::Alertmanager(address()),
        Kind::Webhook(address(), receiver::Proof::default()),
        Kind::Exec("/bin/true".into()),
        Kind::Slack(address()),
        Kind::PagerDuty(address(), secret()),
    ] {
        let letters = body::letters(&kind, &parcel, 1);
        for letter in &letters {
            let text = letter.body.to_string();
            assert!(text.len() < 32 << 10, "{}: {} bytes", kind.name(), text.len());
            let bad = text
                .replace("\\n", " ")
                .contains(|letter: char| sanitize::visible(letter) != letter);
            assert!(!bad && !text.contains("\\u00"), "{}: {text}", kind.name());
        }
        if let Kind::PagerDuty(..) = kind {
            let key = |index: usize| letters[index].body["dedup_key"].as_str().unwrap().to_owned();
            assert!(key(0).len() <= 255 && key(0) != key(1), "{}", key(0));
        }
    }
}
