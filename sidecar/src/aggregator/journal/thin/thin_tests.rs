use std::collections::BTreeMap;
use std::fs::File;

use paceline_health::event::{Beat, Bye, End, Exit, Job, Phases, PolicyChange, Signal, Step, StepKind};
use paceline_health::id::Rank;
use paceline_health::{Detector, Policy};

use super::*;
use crate::aggregator::journal::lines::{Line, Lines};
use crate::aggregator::journal::segments;

fn hand() -> Hand {
    Hand {
        node: "n".into(),
        bound_bytes: 1 << 30,
        stop: Arc::default(),
    }
}

fn beat() -> Event {
    Event::Beat(Beat::default())
}

fn job() -> Event {
    Event::Job(Job {
        job: "j".into(),
        paceline: "0".into(),
        listened_to: None,
    })
}

fn policy() -> Event {
    Event::Policy(PolicyChange {
        key: "straggler.min_steps".into(),
        value: 6.0,
        by: "start".into(),
    })
}

/// Creates numbered entries, one per second, with node, sequence number and event. `m` and `k` are sidecars.
fn entries(from: u64, of: &[(&str, u64, Event)]) -> Vec<Entry> {
    let entry = |(n, (node, seq, event)): (u64, &(&str, u64, Event))| Entry {
        n,
        at_ns: Time(n * 1_000_000_000),
        frame: Frame {
            v: SCHEMA_VERSION,
            node: (*node).into(),
            agent: if *node == "n" { AGGREGATOR } else { 7 },
            seq: *seq,
            provenance: Provenance::Live,
            event: event.clone(),
        },
    };
    (from..).zip(of).map(entry).collect()
}

fn put(path: &Path, entries: &[Entry]) {
    let lines: Vec<String> = entries.iter().map(line::encode_sealed).collect();
    fs::write(path, lines.join("\n") + "\n").unwrap();
}

fn read(path: &Path) -> Vec<Entry> {
    let lines = Lines::new(BufReader::new(File::open(path).unwrap()));
    let entry = |line: io::Result<Line>| match line.unwrap() {
        Line::Entry(entry) => *entry,
        other => panic!("{other:?}"),
    };
    lines.map(entry).collect()
}

fn numbers(path: &Path) -> Vec<u64> {
    read(path).iter().map(|entry| entry.n).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let name = |file: io::Result<fs::DirEntry>| file.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

fn lost(entries: &[Entry]) -> u64 {
    let mut detector = Detector::new(Policy::default());
    for entry in entries {
        detector.observe(entry.at_ns, &entry.frame);
    }
    detector.report().coverage.frames_lost
}

/// Creates a segment with two sidecars and an aggregator that was started twice. The frames 4 and 5 of `m` were lost in
/// transit.
fn segment() -> Vec<Entry> {
    let exit = Event::Exit(Exit { code: 0 });
    entries(
        1,
        &[
            ("n", 1, job()),
            ("n", 2, policy()),
            ("m", 1, beat()),
            ("k", 1, exit.clone()),
            ("m", 2, beat()),
            ("m", 3, beat()),
            ("n", 3, job()),
            ("m", 6, beat()),
            ("k", 2, beat()),
            ("m", 7, exit),
            ("m", 8, beat()),
        ],
    )
}

#[test]
fn telemetry_goes_and_the_rest_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal-000001.ndjson");
    let before = segment();
    put(&path, &before);
    let done = squeeze(None, &path, Rule::Telemetry, &hand()).unwrap();
    let record = done.record.clone().unwrap();
    assert!(done.is_new);
    assert_eq!(
        (record.from, record.to, record.to_ns),
        (1, 11, Time(11_000_000_000))
    );
    assert_eq!(record.gone, BTreeMap::from([("beat".into(), 3)]));
    assert_eq!((record.frames, record.lines()), (3, (3, 0)));
    // The record replaces 3, 5 and 8. Line 6 shows the aggregator's downtime, and 9 and 11 are the last of their
    // sidecars.
    assert_eq!(numbers(&path), [1, 2, 3, 4, 6, 7, 9, 10, 11]);
    let after = read(&path);
    assert_eq!(after[2].frame.event, Event::Thinned(record));
    assert_eq!((lost(&before), lost(&after)), (2, 2), "on the way, and not here");
    // A second run has nothing to do.
    let bytes = fs::read(&path).unwrap();
    let again = squeeze(None, &path, Rule::Telemetry, &hand()).unwrap();
    assert_eq!((again.record, again.is_new), (done.record, false));
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(names(dir.path()), ["journal-000001.ndjson"]);
}

/// Everything is removed from the first segment and then from the second, whose record covers both.
#[test]
fn what_is_dropped_becomes_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal.ndjson");
    let [first, second] = [1, 2].map(|number| segments::closed(&journal, number));
    let bye = Event::Bye(Bye { reason: "".into() });
    let later = entries(
        12,
        &[
            ("m", 9, beat()),
            ("n", 4, policy()),
            ("m", 10, bye),
            ("m", 11, beat()),
        ],
    );
    put(&first, &segment());
    put(&second, &later);
    squeeze(None, &first, Rule::Telemetry, &hand()).unwrap();
    squeeze(None, &first, Rule::Everything, &hand()).unwrap();
    assert!(is_dropped(&first) && !is_dropped(&second));
    let left = fs::read(&first).unwrap();
    let done = squeeze(Some(&first), &second, Rule::Everything, &hand()).unwrap();
    let record = done.record.unwrap();
    assert_eq!((record.whole, record.from, record.to), (true, 1, 15));
    let gone = [("beat".into(), 5), ("bye".into(), 1), ("exit".into(), 2)];
    assert_eq!(record.gone, BTreeMap::from(gone));
    assert_eq!(record.lines(), (5, 3));
    assert_eq!(numbers(&second), [1, 2, 3, 6, 7, 9, 13, 15]);
    let all: Vec<Entry> = segment().into_iter().chain(later).collect();
    assert_eq!(lost(&read(&second)), lost(&all));
    assert_eq!(names(dir.path()), ["journal-000002.ndjson"]);
    // The process was killed before it removed the first segment. Readers skip that segment, and the next writer
    // removes it.
    fs::write(&first, left).unwrap();
    fs::write(second.with_added_extension("7.thin"), "half").unwrap();
    assert_eq!(segments::list(&journal).unwrap(), [(2, second.clone())]);
    segments::sweep(&journal);
    assert_eq!(names(dir.path()), ["journal-000002.ndjson"]);
}

/// An unreadable line is kept for inspection until everything is removed. A truncated last line counts as a line.
#[test]
fn damaged_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal-000001.ndjson");
    put(&path, &segment());
    let mut bytes = fs::read(&path).unwrap();
    let third = bytes.windows(6).position(|text| text == b"{\"n\":3").unwrap();
    bytes[third + 5] = b'4';
    bytes.extend(vec![b'x'; 3 << 20]);
    fs::write(&path, &bytes).unwrap();
    let broken = |path: &Path| {
        let lines = Lines::new(BufReader::new(File::open(path).unwrap()));
        lines
            .filter(|line| matches!(line, Ok(Line::Broken { .. })))
            .count()
    };
    let done = squeeze(None, &path, Rule::Telemetry, &hand()).unwrap();
    assert_eq!(done.record.unwrap().gone, BTreeMap::from([("beat".into(), 2)]));
    assert!(broken(&path) >= 2 && fs::metadata(&path).unwrap().len() > 3 << 20);
    let done = squeeze(None, &path, Rule::Everything, &hand()).unwrap();
    assert!(done.record.unwrap().gone["damaged"] >= 2);
    assert_eq!(broken(&path), 0);
    assert!(fs::metadata(&path).unwrap().len() < 4096);
}

#[test]
fn who_is_stopped_leaves_it_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal-000001.ndjson");
    let many: Vec<(&str, u64, Event)> = (1..=2 * ASK_EVERY).map(|seq| ("m", seq, beat())).collect();
    put(&path, &entries(1, &many));
    let bytes = fs::read(&path).unwrap();
    let stopped = hand();
    stopped.stop.store(true, Ordering::Relaxed);
    let error = squeeze(None, &path, Rule::Telemetry, &stopped).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(names(dir.path()), ["journal-000001.ndjson"]);
    squeeze(None, &path, Rule::Telemetry, &hand()).unwrap();
    assert_eq!(numbers(&path), [1, 2 * ASK_EVERY]);
}

/// Lines without a checksum, of an older version, are thinned as well.
#[test]
fn lines_of_older_versions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal-000001.ndjson");
    let mut all = segment();
    let missing = vec!["m".into()];
    all.extend(entries(12, &[("n", 5, Event::End(End { missing }))]));
    let lines: Vec<String> = all.iter().map(line::encode).collect();
    fs::write(&path, lines.join("\n")).unwrap();
    squeeze(None, &path, Rule::Telemetry, &hand()).unwrap();
    assert_eq!(numbers(&path), [1, 2, 3, 4, 6, 7, 9, 10, 11, 12]);
}

/// Measures time and result for a segment of 2,048 nodes with eight ranks each.
#[test]
#[ignore = "prints a measurement: a segment of 256 MiB"]
fn a_large_segment_is_thinned() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal-000007.ndjson");
    let mut out = BufWriter::new(File::create(&path).unwrap());
    let (mut n, mut bytes) = (0, 0);
    for second in 0u64.. {
        for node in 0..2_048u32 {
            let name = format!("node-{node:04}");
            let step = |rank| {
                Event::Step(Step {
                    rank: Rank(node * 8 + rank),
                    restart: 0,
                    step: second,
                    kind: StepKind::Train,
                    dur_ns: 1_000_000_000 + n,
                    phases: Some(Phases {
                        compute_ns: 900_000_000 + n,
                        ..Phases::default()
                    }),
                    micro_batches: 8,
                    tokens: 0,
                    signal: Signal::S2,
                    sum_sq: 0,
                    expert_tokens: 0,
                })
            };
            let mut events: Vec<Event> = (0..8).map(step).collect();
            events.push(beat());
            events.extend((second.is_multiple_of(10) && node.is_multiple_of(64)).then(policy));
            for event in events {
                n += 1;
                let of = [(name.as_str(), second * 10 + n, event)];
                let line = line::encode_sealed(&entries(n, &of)[0]);
                bytes += line.len() as u64 + 1;
                copy(&mut out, line.as_bytes()).unwrap();
            }
        }
        if bytes >= segments::SEGMENT_BYTES {
            break;
        }
    }
    out.flush().unwrap();
    let begun = std::time::Instant::now();
    let done = squeeze(None, &path, Rule::Telemetry, &hand()).unwrap();
    let took = begun.elapsed();
    let left = fs::metadata(&path).unwrap().len();
    println!("{bytes} bytes, {n} lines: thinned in {took:?}, {left} bytes are left");
    assert!(done.is_new && left < bytes / 20);
}
