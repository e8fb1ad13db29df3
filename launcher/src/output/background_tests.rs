use std::io::{Read, Write};

use super::*;

fn writer_to(sink: File, passed: Option<Arc<Passed>>) -> Writer {
    let mut writer = Writer::new(sink, passed);
    writer.dropped = Box::leak(Box::default());
    writer
}

#[test]
fn a_regular_file_gets_a_new_line_only_where_one_has_begun() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let log = File::options().append(true).open(file.path()).unwrap();
    let writer = writer_to(log, None);
    writer.write("first\n");
    file.as_file_mut().seek_to_end();
    file.write_all(b"step 1\n").unwrap();
    writer.write("second\n");
    file.as_file_mut().seek_to_end();
    file.write_all(b" 40% of a bar").unwrap();
    writer.write("third\n");
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(text, "first\nstep 1\nsecond\n 40% of a bar\nthird\n");
}

trait SeekToEnd {
    fn seek_to_end(&mut self);
}

impl SeekToEnd for File {
    fn seek_to_end(&mut self) {
        std::io::Seek::seek(self, io::SeekFrom::End(0)).unwrap();
    }
}

#[test]
fn an_empty_line_goes_before_ours_in_a_pipe() {
    let (mut read, write) = io::pipe().unwrap();
    let writer = writer_to(File::from(std::os::fd::OwnedFd::from(write)), None);
    writer.write("line\n");
    drop(writer);
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    assert_eq!(text, "\nline\n");
}

#[test]
fn what_passes_through_us_says_where_a_line_begins() {
    let (mut read, write) = io::pipe().unwrap();
    let passed = Passed::new(true);
    let writer = writer_to(
        File::from(std::os::fd::OwnedFd::from(write)),
        Some(Arc::clone(&passed)),
    );
    writer.write("one\n");
    *passed.lock() = b'x';
    let begun = Instant::now();
    writer.write("two\n");
    assert!(begun.elapsed() >= LINE_END, "the command may end its line first");
    *passed.lock() = b'\n';
    writer.write("three\n");
    drop(writer);
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    assert_eq!(text, "one\n\ntwo\nthree\n");
}

/// Nothing reads the pipe at first, so it is full and the thread drops the line. Then the pipe is read.
#[test]
fn a_full_pipe_costs_a_line_and_says_so() {
    let (mut read, write) = io::pipe().unwrap();
    let sink = File::from(std::os::fd::OwnedFd::from(write));
    let size = rustix::pipe::fcntl_getpipe_size(&sink).unwrap();
    rustix::io::write(&sink, &vec![b'x'; size]).unwrap();
    let writer = writer_to(sink, None);
    let begun = Instant::now();
    writer.write("lost\n");
    assert!(begun.elapsed() < PATIENCE * 2);
    let mut filled = vec![0; size];
    read.read_exact(&mut filled).unwrap();
    writer.write("comes\n");
    drop(writer);
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    assert_eq!(text, "\npaceline: 1 line dropped: stderr was not read\ncomes\n");
}

#[test]
fn a_long_line_is_cut_to_what_a_pipe_takes_whole() {
    let (mut read, write) = io::pipe().unwrap();
    let writer = writer_to(File::from(std::os::fd::OwnedFd::from(write)), None);
    writer.write(&("y".repeat(10_000) + "\n"));
    drop(writer);
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    assert!(text.len() == MAX_BYTES && text.ends_with("y\n"));
}
