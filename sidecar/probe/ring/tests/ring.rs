//! Tests the ring between threads, processes and versions. Every lost record must be counted.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::Path;

use paceline_ring::{
    Attach, Axis, Comm, Detach, Framework, Group, HEADER_BYTES, Layout, Mark, Next, Note, OpenError,
    PhaseWord, Reader, Record, Role, Step, StepWord, Work, Writer, Wrote, monotonic_ns,
};

fn step(n: u64) -> Record {
    Record::Step(Step {
        step: n,
        duration_ns: 50_000_000,
        compute_us: 40_000,
        wait_us: 9_000,
        ..Step::default()
    })
}

fn small(dir: &Path) -> (Writer, Reader) {
    let writer = Writer::create_named(dir, "1.ring", 128).unwrap();
    let reader = Reader::open(writer.path()).unwrap();
    (writer, reader)
}

fn drain(reader: &mut Reader) -> Vec<Record> {
    let mut records = Vec::new();
    while let Next::Record(record) = reader.next(0, true) {
        records.push(record);
    }
    records
}

/// Encodes one record of every kind in which each field is different, and compares it with the bytes in layout.md.
#[test]
fn golden_bytes() {
    let uuid: [u8; 16] = std::array::from_fn(|i| 0xa0 + i as u8);
    let records = [
        Record::Step(Step {
            step: 0x0102,
            duration_ns: 0x0304_0506,
            data_us: 1,
            compute_us: 2,
            wait_us: 3,
            optimizer_us: 4,
            checkpoint_us: 5,
            micro_batches: 6,
            kind: StepWord::Evaluation,
            phases_known: true,
            tokens: 7,
        }),
        Record::Attach(Attach {
            rank: 1,
            local_rank: 2,
            world_size: 3,
            restart: 4,
            device: -1,
            gpu_uuid: uuid,
            version: [2, 15, 1],
            framework: Framework::Torch,
            nccl: [2, 27, 5],
            cuda: [13, 0x0c],
        }),
        Record::Mark(Mark {
            step: 9,
            value: 10,
            kind: "checkpoint".into(),
        }),
        Record::Detach(Detach { step: 11 }),
        Record::Note(Note {
            text: "off: no GPU".into(),
        }),
        Record::Role(Role { text: "pp0".into() }),
        Record::Layout(Layout {
            dp: Axis { index: 1, size: 2 },
            tp: Axis { index: 3, size: 4 },
            pp: Axis { index: 5, size: 6 },
            ep: Axis { index: 7, size: 8 },
            cp: Axis {
                index: 9,
                size: 0x0a0b,
            },
            micro_batches: 12,
        }),
        Record::Work(Work {
            step: 0x0102,
            sum_sq: 0x0304_0506_0708,
            expert_tokens: 9,
            gc_us: 10,
        }),
        Record::Group(Group {
            comm: 0x0102_0304_0506_0708,
            size: 9,
            name: "a".repeat(24),
        }),
        Record::Comm(Comm {
            step: 0x0102,
            comm: 0x0102_0304_0506_0708,
            bytes: 3,
            duration_ns: 4,
            collectives: 5,
        }),
    ];
    let dir = tempdir();
    let (writer, mut reader) = small(&dir);
    for record in &records {
        assert_eq!(writer.write(record), Wrote::Published);
    }
    let file = std::fs::read(writer.path()).unwrap();
    let slot = |i: usize| &file[HEADER_BYTES + i * 64..][..64];
    let tail: [String; 10] = std::array::from_fn(|i| hex(&slot(i)[12..]));
    let expected = [
        "0100 0000 0201000000000000 0605040300000000 01000000 02000000 03000000 04000000 05000000 0600 02 01 \
         0700000000000000",
        "0200 0000 01000000 02000000 03000000 04000000 ffffffff a0a1a2a3a4a5a6a7a8a9aaabacadaeaf 02 0f 01 01 \
         021b05 0d0c 000000",
        "0300 0000 0900000000000000 0a00000000000000 636865636b706f696e74 00000000000000000000000000000000000000000000",
        "0400 0000 0b00000000000000 00000000000000000000000000000000000000000000000000000000000000000000000000000000",
        "0500 0000 6f66663a206e6f20475055 00000000000000000000000000000000000000000000000000000000000000000000000000",
        "0600 0000 707030 000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
        "0700 0000 0100 0200 0300 0400 0500 0600 0700 0800 0900 0b0a 0c000000 \
         000000000000000000000000000000000000000000000000",
        "0800 0000 0201000000000000 0807060504030000 0900000000000000 0a000000 0000000000000000000000000000000000000000",
        "0900 0000 0807060504030201 09000000 00000000 616161616161616161616161616161616161616161616161 0000000000000000",
        "0a00 0000 0201000000000000 0807060504030201 0300000000000000 0400000000000000 05000000 000000000000000000000000",
    ];
    for (found, wanted) in tail.iter().zip(expected) {
        assert_eq!(*found, wanted.replace(' ', ""));
    }
    // The checksum of the first slot must equal `zlib.adler32(slot[12:64], 1)`. The sequence precedes it.
    assert_eq!(
        hex(&slot(0)[..12]),
        format!("0100000000000000{}", hex(&0x058e_0036u32.to_le_bytes()))
    );
    let header = [
        (0, "50414345 52494e47 01000000 00020000 40000000 80000000"),
        (64, "0a00000000000000"),
        (128, "0000000000000000"),
    ];
    for (at, wanted) in header {
        let wanted = wanted.replace(' ', "");
        assert_eq!(hex(&file[at..at + wanted.len() / 2]), wanted);
    }
    assert_eq!(drain(&mut reader), records);
}

#[test]
fn a_full_ring_drops_and_counts_and_recovers() {
    let dir = tempdir();
    let (writer, mut reader) = small(&dir);
    let wrote: Vec<Wrote> = (0..100).map(|n| writer.write(&step(n))).collect();
    assert_eq!(wrote.iter().filter(|w| **w == Wrote::Published).count(), 64);
    assert_eq!((writer.dropped(), reader.dropped()), (36, 36));
    assert_eq!(drain(&mut reader).len(), 64);
    assert_eq!(writer.write(&step(200)), Wrote::Dropped, "read is not released");
    reader.release(reader.position());
    assert_eq!(writer.write(&step(201)), Wrote::Published);
    assert_eq!(drain(&mut reader), [step(201)]);
}

/// Eight threads write without a pause. The records read and those dropped must add up to those written, each counted
/// once.
#[test]
fn many_producers() {
    let dir = tempdir();
    let writer = Writer::create_named(&dir, "1.ring", 1024).unwrap();
    let mut reader = Reader::open(writer.path()).unwrap();
    let (threads, each) = (8u64, 20_000u64);
    let mut seen = BTreeSet::new();
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|t| {
                let writer = &writer;
                scope.spawn(move || (0..each).for_each(|n| _ = writer.write(&step(t * each + n))))
            })
            .collect();
        let mut finished = false;
        loop {
            match reader.next(monotonic_ns(), true) {
                Next::Record(Record::Step(record)) => {
                    assert_eq!(Record::Step(record), step(record.step), "whole");
                    assert!(seen.insert(record.step), "once");
                    reader.release(reader.position());
                }
                Next::Empty if finished => break,
                Next::Empty => finished = handles.iter().all(|handle| handle.is_finished()),
                Next::Pending => std::thread::yield_now(),
                other => panic!("{other:?}"),
            }
        }
    });
    assert_eq!(seen.len() as u64 + writer.dropped(), threads * each);
    assert!(!seen.is_empty());
}

#[test]
fn a_writer_killed_in_a_slot_leaves_a_hole_that_is_skipped() {
    let dir = tempdir();
    let (writer, mut reader) = small(&dir);
    writer.write(&step(1));
    writer.reserve_and_die();
    writer.write(&step(2));
    assert_eq!(reader.next(0, true), Next::Record(step(1)));
    assert_eq!(reader.next(0, true), Next::Pending);
    assert_eq!(reader.next(99_999_999, true), Next::Pending);
    assert_eq!(reader.next(100_000_000, true), Next::Torn);
    assert_eq!(reader.next(100_000_000, true), Next::Record(step(2)));
    writer.reserve_and_die();
    assert_eq!(
        reader.next(200_000_000, false),
        Next::Torn,
        "no wait when its process is gone"
    );
    assert_eq!(reader.torn(), 2);
}

#[test]
fn damage_is_torn_and_a_mad_head_is_broken() {
    let dir = tempdir();
    let (writer, mut reader) = small(&dir);
    writer.write(&step(1));
    poke(writer.path(), (HEADER_BYTES + 20) as u64, &[0x55]);
    assert_eq!(reader.next(0, false), Next::Torn);
    poke(writer.path(), 64, &u64::MAX.to_le_bytes());
    assert_eq!(reader.next(0, false), Next::Broken);
}

/// A restarted sidecar continues at the tail and still knows the rank's identity.
#[test]
fn a_second_reader_continues_at_the_tail() {
    let dir = tempdir();
    let (writer, mut first) = small(&dir);
    let attach = Record::Attach(Attach {
        rank: 3,
        world_size: 8,
        ..Attach::default()
    });
    writer.write(&attach);
    writer.write(&Record::Role(Role { text: "pp1".into() }));
    writer.write(&step(1));
    writer.write(&step(2));
    for _ in 0..3 {
        first.next(0, true);
    }
    first.release(first.position());
    first.next(0, true);
    drop(first);
    let mut second = Reader::open(writer.path()).unwrap();
    assert_eq!(second.attach(), Some(attach));
    assert_eq!(second.role(), Some(Record::Role(Role { text: "pp1".into() })));
    assert_eq!(drain(&mut second), [step(2)], "read and not released comes again");
}

#[test]
fn progress_and_the_kill_switch() {
    let dir = tempdir();
    let (writer, reader) = small(&dir);
    assert_eq!(reader.progress().since_ns, 0);
    let before = monotonic_ns();
    writer.progress(41, PhaseWord::Wait);
    let progress = reader.progress();
    assert_eq!((progress.step, progress.phase), (41, PhaseWord::Wait));
    assert!(progress.since_ns >= before);
    reader.stop_writing();
    assert_eq!(writer.write(&step(1)), Wrote::Off);
    writer.progress(42, PhaseWord::Data);
    assert_eq!(reader.progress().step, 41);
}

#[test]
fn what_is_not_a_ring_is_refused() {
    let dir = tempdir();
    let (writer, _) = small(&dir);
    let path = writer.path().to_owned();
    let check = |at: u64, bytes: &[u8], wanted: fn(&OpenError) -> bool| {
        let original = std::fs::read(&path).unwrap();
        poke(&path, at, bytes);
        let error = Reader::open(&path).unwrap_err();
        assert!(wanted(&error), "{error}");
        poke(&path, 0, &original[..HEADER_BYTES]);
    };
    check(0, b"X", |e| matches!(e, OpenError::NotARing));
    check(8, &[2], |e| matches!(e, OpenError::Version(2)));
    check(16, &[32], |e| matches!(e, OpenError::Sizes));
    check(20, &[0, 1], |e| matches!(e, OpenError::Sizes));
    let empty = dir.join("empty");
    std::fs::write(&empty, b"").unwrap();
    assert!(matches!(Reader::open(&empty), Err(OpenError::NotARing)));
    assert!(Writer::create_named(&dir, "2.ring", 100).is_err());
    assert!(Writer::create(Path::new("/nowhere")).is_err());
}

/// Only the owner can access the file, and no temporary file is left beside it.
#[test]
fn mode_and_name() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempdir();
    let writer = Writer::create(&dir).unwrap();
    assert_eq!(
        writer.path().metadata().unwrap().permissions().mode() & 0o777,
        0o600
    );
    let names: Vec<String> = std::fs::read_dir(&*dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, [format!("{}.ring", std::process::id())]);
}

/// A forked child shares the memory and must not write as its parent.
#[test]
fn a_forked_child_is_silent() {
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(code: i32) -> !;
    }
    let dir = tempdir();
    let (writer, mut reader) = small(&dir);
    // SAFETY: the child only calls Writer::write, which does not allocate, and _exit.
    let pid = unsafe { fork() };
    if pid == 0 {
        let code = i32::from(writer.write(&Record::Detach(Detach { step: 7 })) != Wrote::Off);
        // SAFETY: exits without running the parent's cleanup.
        unsafe { _exit(code) };
    }
    let mut status = -1;
    // SAFETY: waits for the child created above; `status` outlives the call.
    assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    assert_eq!(reader.next(0, true), Next::Empty);
    assert_eq!(
        writer.write(&step(1)),
        Wrote::Published,
        "the parent still writes"
    );
}

#[test]
fn text_is_cut_at_a_character() {
    let dir = tempdir();
    let (writer, mut reader) = small(&dir);
    writer.write(&Record::Mark(Mark {
        step: 0,
        value: 0,
        kind: "ä".repeat(17),
    }));
    let Next::Record(Record::Mark(mark)) = reader.next(0, true) else {
        panic!("no mark")
    };
    assert_eq!(mark.kind, "ä".repeat(16));
    writer.write(&Record::Unknown(99));
    assert_eq!(reader.next(0, true), Next::Record(Record::Unknown(99)));
}

fn poke(path: &Path, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    std::fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(bytes, at)
        .unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A directory for one test, removed at its end.
struct TempDir(std::path::PathBuf);

impl std::ops::Deref for TempDir {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tempdir() -> TempDir {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "paceline-ring-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let path = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&path).unwrap();
    TempDir(path)
}
