use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use paceline_health::event::{End, Event, Exit, Job};
use paceline_health::frame::AGGREGATOR;
use paceline_health::{Frame, Provenance, Time};

use super::*;
use crate::aggregator::journal::lines::{Line, Lines};

fn entry(n: u64, event: Event) -> Entry {
    let is_own = matches!(event, Event::Job(_) | Event::End(_));
    let frame = Frame {
        v: 1,
        node: "n".into(),
        agent: if is_own { AGGREGATOR } else { 1 },
        seq: n,
        provenance: Provenance::Live,
        event,
    };
    Entry {
        n,
        at_ns: Time(n),
        frame,
    }
}

fn opening(job: &str) -> Entry {
    entry(
        1,
        Event::Job(Job {
            job: job.into(),
            paceline: Arc::from("0"),
            listened_to: None,
        }),
    )
}

fn exit(n: u64) -> Entry {
    entry(n, Event::Exit(Exit { code: 0 }))
}

fn open(dir: &Path, job: &str) -> (Journal, Vec<u64>) {
    let mut seen = Vec::new();
    let journal = Journal::open(dir, &job.into(), |entry| seen.push(entry.n)).unwrap();
    (journal, seen)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_lock_that_a_starting_program_has_for_a_moment_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let lock = File::open(dir.path()).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let program = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(60));
        drop(lock);
    });
    open(dir.path(), "j");
    program.join().unwrap();
}

#[test]
fn a_cut_in_the_middle_of_a_line_is_survived() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(dir.path(), "j");
    journal.append(&[opening("j"), exit(2), exit(3)], 0);
    drop(journal);
    let path = dir.path().join("journal.ndjson");
    let whole = fs::read(&path).unwrap();
    let second_ends = whole.len() - whole.split(|byte| *byte == b'\n').nth(2).unwrap().len() - 1;
    for cut in second_ends + 1..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let (mut journal, seen) = open(dir.path(), "j");
        assert_eq!(seen, [1, 2], "cut at {cut}");
        journal.append(&[exit(3)], 0);
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    let torn = fs::read(dir.path().join("journal.torn")).unwrap();
    assert!(torn.starts_with(&whole[second_ends..second_ends + 1]) && torn.ends_with(b"\n"));
}

#[test]
fn what_ended_or_is_another_job_is_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    let closing = |missing: &[&str]| {
        entry(
            2,
            Event::End(End {
                missing: missing.iter().map(|name| (*name).into()).collect(),
            }),
        )
    };
    let check = |job: &str, write: &[Entry], wanted: &[u64]| {
        let (mut journal, seen) = open(dir.path(), job);
        assert_eq!(seen, wanted);
        journal.append(write, 0);
        journal.close();
    };
    check("a", &[opening("a"), closing(&["n2"])], &[]);
    check("a", &[closing(&[])], &[1, 2]);
    check("a", &[opening("a"), exit(2)], &[]);
    check("b", &[opening("b")], &[]);
    check("b", &[], &[1]);
    assert_eq!(
        names(dir.path()),
        ["journal.1.ndjson", "journal.2.ndjson", "journal.ndjson"]
    );
}

#[test]
fn one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path(), "j");
    assert!(matches!(
        Journal::open(dir.path(), &"j".into(), drop),
        Err(JournalError::Taken(_, by)) if by.contains("process")
    ));
    drop(journal);
    open(dir.path(), "j");
}

/// A disk with room for only half a line more, until space is freed.
#[derive(Clone, Debug, Default)]
struct Full {
    bytes: Arc<Mutex<Vec<u8>>>,
    full: Arc<AtomicBool>,
    keeps_halves: bool,
}

impl Disk for Full {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let full = self.full.load(Ordering::Relaxed);
        let room = if full { bytes.len() / 2 } else { bytes.len() };
        self.bytes.lock().unwrap().extend(&bytes[..room]);
        if full {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(())
        }
    }
    fn cut(&mut self, length: u64) -> io::Result<()> {
        if self.keeps_halves {
            return Err(io::ErrorKind::Other.into());
        }
        self.bytes.lock().unwrap().truncate(length as usize);
        Ok(())
    }
    fn length(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_loses_lines_and_counts_them() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Full::default();
    let mut journal = open(dir.path(), "j").0.with_disk(disk.clone());
    assert!(names(dir.path()).contains(&".reserve".to_owned()));
    journal.append(&[opening("j")], 0);
    disk.full.store(true, Ordering::Relaxed);
    journal.append(&[exit(2), exit(3)], 1);
    assert_eq!(journal.lost(), 2);
    assert!(
        !names(dir.path()).contains(&".reserve".to_owned()),
        "given up for the report"
    );
    disk.full.store(false, Ordering::Relaxed);
    journal.append(&[exit(4)], RETRY_NS);
    assert_eq!(journal.lost(), 3, "not tried again at once");
    journal.append(&[exit(5)], 1 + RETRY_NS);
    assert_eq!(journal.lost(), 3);
    let bytes = disk.bytes.lock().unwrap().clone();
    let seen: Vec<u64> = Lines::new(&bytes[..])
        .map(|line| match line.unwrap() {
            Line::Entry(entry) => entry.n,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(seen, [1, 5], "no half line between");
}

/// If half a line cannot be truncated, lines after it are not part of it, and are not truncated with it later.
#[test]
fn half_a_line_that_stays_costs_itself_only() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Full {
        keeps_halves: true,
        ..Full::default()
    };
    let mut journal = open(dir.path(), "j").0.with_disk(disk.clone());
    journal.append(&[opening("j")], 0);
    for (n, full) in [(2, true), (3, false), (4, true), (5, false)] {
        disk.full.store(full, Ordering::Relaxed);
        journal.append(&[exit(n)], n * RETRY_NS);
    }
    assert_eq!(journal.lost(), 2);
    let bytes = disk.bytes.lock().unwrap().clone();
    let seen: Vec<u64> = Lines::new(&bytes[..])
        .filter_map(|line| match line.unwrap() {
            Line::Entry(entry) => Some(entry.n),
            Line::Broken { .. } => None,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(seen, [1, 3, 5]);
}

/// A damaged line is skipped and affects no other line. The journal still belongs to the same job.
#[test]
fn a_damaged_line_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.ndjson");
    let (mut journal, _) = open(dir.path(), "j");
    let again = Entry { n: 3, ..opening("j") };
    journal.append(&[opening("j"), exit(2), again, exit(4)], 0);
    drop(journal);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("\"n\":2,", "\"n\":7,", 1)).unwrap();
    assert_eq!(open(dir.path(), "j").1, [1, 3, 4]);
    fs::write(
        &path,
        text.replacen("\"paceline\":\"0\"", "\"paceline\":\"1\"", 1),
    )
    .unwrap();
    assert_eq!(open(dir.path(), "j").1, [2, 3, 4]);
}

/// A journal of an older version has no checksums.
#[test]
fn lines_without_a_checksum_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<String> = [opening("j"), exit(2)].iter().map(line::encode).collect();
    fs::write(dir.path().join("journal.ndjson"), lines.join("\n") + "\n").unwrap();
    assert_eq!(open(dir.path(), "j").1, [1, 2]);
}

/// A durable entry is synced at once, or after a fifth of a second together with others.
#[test]
fn syncs_are_few() {
    #[derive(Debug)]
    struct Counting(Arc<std::sync::atomic::AtomicU64>);
    impl Disk for Counting {
        fn append(&mut self, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
        fn cut(&mut self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn length(&self) -> io::Result<u64> {
            Ok(0)
        }
        fn sync(&mut self) -> io::Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let syncs = Arc::default();
    let mut journal = open(dir.path(), "j").0.with_disk(Counting(Arc::clone(&syncs)));
    let count = || syncs.load(Ordering::Relaxed);
    journal.commit_due(1_000);
    assert_eq!((count(), journal.commits_at()), (0, None), "nothing has to");
    journal.commit(1_000);
    (0..1_000).for_each(|n| journal.commit(2_000 + n));
    assert_eq!((count(), journal.commits_at()), (1, Some(1_000 + SYNC_EVERY_NS)));
    journal.commit_due(1_000 + SYNC_EVERY_NS);
    journal.commit_due(1_001 + SYNC_EVERY_NS);
    assert_eq!((count(), journal.commits_at()), (2, None));
}

/// Directories and pipes have the names of the journal's files, before it is opened and while it is written.
#[test]
fn what_is_in_the_way_is_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let pipe = |name: &str| {
        let made = std::process::Command::new("mkfifo").arg(at(name)).status();
        assert!(made.unwrap().success());
    };
    fs::create_dir(at("journal.ndjson")).unwrap();
    pipe("journal.owner");
    let (mut journal, seen) = open(dir.path(), "a");
    assert_eq!(seen, [] as [u64; 0]);
    journal.append(&[opening("a")], 0);
    fs::create_dir(at("journal-000001.ndjson")).unwrap();
    assert!(journal.close_segment(0));
    journal.append(&[exit(2)], 0);
    drop(journal);
    assert!(at("journal.ndjson.aside").is_dir() && at("journal-000001.ndjson").is_dir());
    // Another process renames the file that was written since, and puts a pipe in its place.
    fs::rename(at("journal.ndjson"), at("journal-000003.ndjson")).unwrap();
    pipe("journal.ndjson");
    assert_eq!(open(dir.path(), "a").1, [1, 2]);
    assert!(at("journal-000001.ndjson.aside").is_dir() && at("journal.ndjson.aside.1").exists());
}

#[test]
fn a_journal_without_its_beginning_is_whose_its_snapshot_says() {
    let whose = |job: &str| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.ndjson");
        let header = snapshot::Header::new("a".into(), 4, 0);
        let bytes = snapshot::encode(&header, &(), 0).unwrap();
        snapshot::write(&path, 1, &bytes).unwrap();
        let lines = ["damaged", &line::encode_sealed(&exit(5)), ""];
        fs::write(&path, lines.join("\n")).unwrap();
        open(dir.path(), job).1
    };
    assert_eq!(whose("a"), [5]);
    assert_eq!(whose("b"), [] as [u64; 0]);
}
