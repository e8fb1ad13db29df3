//! A node that is monitored alone, and the job's aggregator that appears later.

use std::net::TcpListener;

use paceline_health::event::Event;
use paceline_ring::{Detach, Record};

use crate::job::{Job, train, trainer, until};

/// Both the events from before and the later ones reach the job's aggregator.
#[test]
fn joins_when_the_aggregator_appears() {
    let job = Job::new("later");
    // Another program uses the port when the first sidecar looks.
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    let ring = trainer(&job, 0);
    train(&ring, 1..=5);
    let mut lonely = job.start("n0", &["--aggregator", &address]);
    let alone = lonely.hear("ready");
    assert!(alone["run_dir"].is_string());
    job.has_steps(0, 5);
    drop(stranger);
    // A sidecar being started by another test holds a copy until its exec.
    until("a free place", || TcpListener::bind(&address).is_ok());
    let other = job.beside();
    let mut found = other.start("n1", &["--aggregator", &address]);
    assert_eq!(found.hear("ready")["aggregator"], address.as_str());
    let joined = lonely.hear("ready");
    assert_eq!(joined["aggregator"], address.as_str());
    assert!(joined["run_dir"].is_null() && joined["http"].is_null());
    train(&ring, 6..=9);
    other.has_steps(0, 9);
    ring.write(&Record::Detach(Detach { step: 9 }));
    for sidecar in [&mut lonely, &mut found] {
        sidecar.say(r#"{"exit":{"code":0}}"#);
    }
    lonely.end();
    found.end();
    // No duplicates, no losses, and its own aggregator closed its journal normally.
    let report = other.report(&other.run_dir());
    assert_eq!(
        (&report["steps"], &report["coverage"]["frames_lost"]),
        (&9.into(), &0.into())
    );
    let last = job.entries(&job.run_dir()).pop().unwrap();
    assert!(
        matches!(&last.frame.event, Event::End(end) if end.missing.is_empty()),
        "{last:?}"
    );
}
