//! A bounded journal, written by a real sidecar that is killed.

use std::time::{Duration, Instant};

use paceline_health::Entry;
use paceline_health::codec::line;
use paceline_health::event::Event;
use paceline_ring::{Detach, Record};
use paceline_sidecar::aggregator::{journal::room, journal::segments};

use crate::job::{Job, train, trainer, until};

const BOUND: u64 = 1 << 20;

fn entries(job: &Job) -> Vec<Entry> {
    let files = segments::files(&job.run_dir().join("journal.ndjson")).unwrap_or_default();
    let texts = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap_or_default());
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.filter_map(|text| line::decode(&text).ok()).collect()
}

fn is_thinned(entry: &Entry) -> bool {
    matches!(&entry.frame.event, Event::Thinned(thinned) if thinned.here && thinned.gone.contains_key("step"))
}

#[test]
fn the_oldest_telemetry_goes_and_it_is_told() {
    let job = Job::new("bound");
    let journal = job.run_dir().join("journal.ndjson");
    let ring = trainer(&job, 0);
    let sidecar = job.start("n0", &["--journal-bytes", "1MiB"]);
    sidecar.hear("ready");
    let began = Instant::now();
    let mut step = 0;
    while !entries(&job).iter().any(is_thinned) {
        assert!(began.elapsed() < Duration::from_secs(120), "nothing was thinned");
        train(&ring, step + 1..=step + 200);
        step += 200;
        until(&format!("step {step}"), || {
            let is_last = |entry: &Entry| matches!(&entry.frame.event, Event::Step(did) if did.step == step);
            entries(&job).iter().any(is_last)
        });
    }
    sidecar.kill();
    let mut sidecar = job.start("n0", &["--journal-bytes", "1MiB"]);
    sidecar.hear("ready");
    train(&ring, step + 1..=step + 10);
    ring.write(&Record::Detach(Detach { step: step + 10 }));
    sidecar.say(r#"{"exit":{"code":0}}"#);
    sidecar.end();
    let used = room::used(&journal).unwrap();
    assert!(used <= BOUND, "{used} bytes");
    let report = job.report(&job.run_dir());
    assert_eq!(report["steps"], step + 10);
    assert_eq!(report["coverage"]["frames_lost"], 0);
    let notes = report["coverage"]["notes"].to_string();
    assert!(
        notes.contains("was reduced to keep the journal within 1 MiB"),
        "{notes}"
    );
    assert!(
        entries(&job)
            .iter()
            .any(|entry| matches!(entry.frame.event, Event::Attach(_)))
    );
}
