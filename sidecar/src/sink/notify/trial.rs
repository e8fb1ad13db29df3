//! A test notice, to check whether a receiver accepts messages.

use std::path::Path;

use paceline_health::Provenance;
use paceline_health::id::JobId;
use paceline_health::policy::Urgency;
use paceline_health::verdict::Severity;

use super::body;
use super::courier::{Courier, Delivery};
use super::exec::Leash;
use super::notice::{Notice, Status};
use super::receiver::Receiver;
use super::spool::{Parcel, Spool};

/// Sends a notice of severity info, and then its resolution, so that no incident stays open. The receiver's minimum
/// severity is ignored.
///
/// # Errors
/// Why it was not accepted, without secrets.
pub fn trial(receiver: &Receiver, node: &str, now_ms: u64) -> Result<(), String> {
    let leash = Leash::default();
    // The courier's spool is neither read nor written here.
    let courier = Courier::new(receiver.clone(), Spool::of(Path::new("")), leash.clone());
    let send = |status: Status, number: u64| {
        let parcel = Parcel {
            unix_ms: now_ms,
            notices: vec![notice(status, node, now_ms)],
        };
        for letter in body::letters(&receiver.kind, &parcel, number) {
            match courier.deliver(&letter) {
                Delivery::Taken => {}
                Delivery::Later(why, _) | Delivery::Never(why) => return Err(why),
            }
        }
        Ok(())
    };
    let sent = send(Status::Firing, 0).and_then(|()| send(Status::Resolved, 1));
    leash.pull();
    sent
}

fn notice(status: Status, node: &str, now_ms: u64) -> Notice {
    Notice {
        key: format!("paceline-test/test/{node}"),
        status,
        severity: Severity::Info,
        worst: Severity::Info,
        was: None,
        was_provenance: None,
        job: JobId::from("paceline-test"),
        finding: "test".into(),
        subject: format!("node {node}"),
        gpu: None,
        gpus: Vec::new(),
        node: Some(node.into()),
        title: "A test of notifications; there is no problem".into(),
        urgency: Urgency::Ticket,
        cause: "unknown".into(),
        action: "No action: this is the result of `paceline notify test`.".into(),
        // Programs that act on notices act only on live ones, so this notice is not live.
        provenance: Provenance::Injected,
        incident: 0,
        times: 1,
        since: String::new(),
        costs: String::new(),
        evidence: Vec::new(),
        raised_ms: now_ms,
        unix_ms: now_ms,
        unwatched: false,
        observe_only: false,
        order: None,
        is_told_again: false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_receiver_gets_a_notice_and_its_end_or_says_why_not() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("take");
        let got = folder.path().join("got");
        fs::write(
            &program,
            format!("#!/bin/sh\ncat >> {0}\necho >> {0}\n", got.display()),
        )
        .unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let receiver = Receiver::parse(&format!("exec={}", program.display())).unwrap();
        trial(&receiver, "n7", 1_000).unwrap();
        let said = fs::read_to_string(&got).unwrap();
        for part in [
            "\"firing\"",
            "\"resolved\"",
            "node n7",
            "there is no problem",
            "\"injected\"",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        // No process listens at this address.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let receiver = Receiver::parse(&format!("webhook=http://{address}/x")).unwrap();
        assert!(trial(&receiver, "n7", 1_000).unwrap_err().len() > 3);
    }
}
