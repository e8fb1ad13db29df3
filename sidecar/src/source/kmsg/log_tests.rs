use std::collections::VecDeque;
use std::fs;

use super::*;

const EPIPE: i32 = 32;
const EIO: i32 = 5;

/// A simulated device. Returns a list of records and error numbers, and after them nothing yet.
struct Device(VecDeque<Result<&'static str, i32>>);

impl Read for Device {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.pop_front() {
            Some(Ok(record)) => record.as_bytes().read(buffer),
            Some(Err(code)) => Err(io::Error::from_raw_os_error(code)),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

fn device() -> Records {
    Records {
        next: None,
        lost: 0,
        old: true,
    }
}

/// Returns the records of one poll, with old ones in parentheses, and whether the end was reached.
fn told(records: &mut Records, script: &[Result<&'static str, i32>]) -> (Vec<String>, bool) {
    let mut told = Vec::new();
    let mut device = Device(script.iter().copied().collect());
    let read = records.read(&mut device, &mut [0; BUFFER], &mut |record, age| {
        let words = record.rsplit(';').next().unwrap();
        told.push(match age {
            Age::Old => format!("({words})"),
            Age::New => words.to_owned(),
        });
    });
    (told, read.is_ok())
}

#[test]
fn numbers() {
    assert_eq!(number("4,900,77000001,-;NVRM: .."), Some(900));
    assert_eq!(number("4,900,77,-,caller=T1;x"), Some(900));
    for bad in ["", ";", "NVRM: a;b", "4,x,1,-;y", "4;y"] {
        assert_eq!(number(bad), None, "{bad}");
    }
}

/// The age does not depend on timestamps, which are not from our clock.
#[test]
fn what_a_device_holds_at_first_is_old_and_the_rest_new() {
    let mut records = device();
    let (first, _) = told(
        &mut records,
        &[Ok("4,7,18446744073709551615,-;a"), Ok("4,8,1,-;b")],
    );
    assert_eq!(first, ["(a)", "(b)"]);
    let (then, _) = told(&mut records, &[Ok("4,9,0,-;c")]);
    assert_eq!(then, ["c"]);
}

#[test]
fn records_that_were_overwritten_are_counted() {
    let mut records = device();
    let (read, is_ok) = told(
        &mut records,
        &[Ok("4,7,1,-;a"), Err(EPIPE), Ok("4,20,1,-;b"), Ok("4,21,1,-;c")],
    );
    assert_eq!((read.len(), is_ok, records.lost), (3, true, 12));
}

#[test]
fn a_device_that_is_opened_again_is_not_told_twice() {
    let mut records = device();
    told(&mut records, &[Ok("4,7,1,-;a")]);
    let (read, is_ok) = told(&mut records, &[Ok("4,8,1,-;b"), Err(EIO)]);
    assert_eq!((read, is_ok), (vec!["b".to_owned()], false));
    // A reopened device starts again with its oldest record.
    let (read, _) = told(
        &mut records,
        &[
            Ok("4,7,1,-;a"),
            Ok("4,8,1,-;b"),
            Ok("4,9,1,-;c"),
            Ok("4,12,1,-;d"),
        ],
    );
    assert_eq!((read, records.lost), (vec!["c".to_owned(), "d".to_owned()], 2));
    // If an error occurs before the end was reached, the remaining records still count as old.
    let mut records = device();
    told(&mut records, &[Ok("4,7,1,-;a"), Err(EIO)]);
    let (read, _) = told(&mut records, &[Ok("4,7,1,-;a"), Ok("4,8,1,-;b")]);
    assert_eq!(read, ["(b)"]);
}

/// A log file and its reader.
struct Bench {
    dir: tempfile::TempDir,
    log: Log,
}

impl Bench {
    fn new(text: &str) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("log"), text).unwrap();
        let log = Log::open(&dir.path().join("log"), Age::Old).unwrap();
        Bench { dir, log }
    }

    fn write(&self, name: &str, text: &str) {
        use std::io::Write;
        let mut options = File::options();
        let file = options.create(true).append(true).open(self.dir.path().join(name));
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.dir.path().join(from), self.dir.path().join(to)).unwrap();
    }

    fn read(&mut self) -> String {
        let mut told = Vec::new();
        self.log
            .read(|line, age| {
                told.push(format!("{line}{}", if age == Age::Old { "?" } else { "" }));
            })
            .unwrap();
        told.join(" ")
    }
}

#[test]
fn what_was_not_read_of_a_file_that_is_renamed_is_read() {
    let mut bench = Bench::new("a\n");
    assert_eq!(bench.read(), "a?");
    bench.write("log", "b\nc\n");
    bench.rename("log", "log.1");
    // logrotate creates the new file, and the writer keeps using the old one until it is notified.
    bench.write("log", "");
    assert_eq!(bench.read(), "b c");
    bench.write("log.1", "d\nno end");
    bench.write("log", "e\n");
    assert_eq!(bench.read(), "d no end e");
    assert!(bench.log.has_caught_up());
    bench.write("log", "f\n");
    assert_eq!(bench.read(), "f");
}

#[test]
fn a_file_that_is_opened_again_is_not_told_twice() {
    let mut bench = Bench::new("a\n");
    bench.write("log", "b\nhal");
    assert_eq!(bench.read(), "a? b");
    bench.log.file = None;
    bench.write("log", "f\nc\n");
    assert_eq!(bench.read(), "");
    bench.log.reopen().unwrap();
    assert_eq!(bench.read(), "half c");
    // Another file replaced the log while it was closed.
    bench.log.file = None;
    bench.write("new", "x\n");
    bench.rename("new", "log");
    bench.log.reopen().unwrap();
    assert_eq!(bench.read(), "x");
}

#[test]
fn a_large_file_is_read_in_parts() {
    let line = format!("{}\n", "x".repeat(1023));
    let mut bench = Bench::new(&line.repeat(3 << 10));
    for expected in [1 << 10, 1 << 10, 1 << 10, 0] {
        assert!(!bench.log.has_caught_up());
        assert_eq!(bench.read().split_whitespace().count(), expected);
    }
    assert!(bench.log.has_caught_up());
}
