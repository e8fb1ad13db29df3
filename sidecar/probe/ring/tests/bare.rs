//! The plugin's writer and its reading of the hook's ring, tested from the sidecar's and the hook's side.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use paceline_ring::{
    BARE_CAPACITY, Bare, Collective, Function, KIND_COLLECTIVE, KIND_TIMED, Next, PhaseWord, Reader, Record,
    SPARE_SLOTS, StepGlance, Timed, Writer, Wrote,
};

/// Covers everything in one test, because a process creates only one such ring.
#[test]
fn a_ring_from_system_calls_alone() {
    let dir = std::env::temp_dir().join(format!("paceline-bare-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let c_dir = CString::new(dir.as_os_str().as_bytes()).unwrap();

    static BARE: Bare = Bare::new();
    assert_eq!(BARE.write(KIND_TIMED, [0; 6]), Wrote::Off, "nowhere yet");
    assert!(!BARE.create(c"/nowhere"));
    assert!(!BARE.create(&CString::new("x".repeat(600)).unwrap()));
    assert_eq!(BARE.write(KIND_TIMED, [0; 6]), Wrote::Off);
    assert!(BARE.create(&c_dir));

    let path = dir.join(format!("{}-nccl.ring", std::process::id()));
    assert_eq!(names(&dir), std::slice::from_ref(&path), "no draft is left");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut reader = Reader::open(&path).unwrap();
    assert_eq!(reader.pid(), std::process::id());

    let (did, timed) = (collective(), timed());
    assert_eq!(BARE.write(KIND_COLLECTIVE, did.words()), Wrote::Published);
    assert_eq!(BARE.write(KIND_TIMED, timed.words()), Wrote::Published);
    assert_eq!(reader.next(0, true), Next::Record(Record::Collective(did)));
    assert_eq!(reader.next(0, true), Next::Record(Record::Timed(timed)));

    let room = u64::from(BARE_CAPACITY) - SPARE_SLOTS;
    let wrote = (0..room).filter(|_| BARE.write(KIND_TIMED, timed.words()) == Wrote::Published);
    assert_eq!(wrote.count() as u64, room - 2, "two were read and not released");
    assert_eq!(reader.dropped(), 2);
    while reader.next(0, true) != Next::Empty {}
    reader.release(reader.position());
    assert_eq!(BARE.write(KIND_TIMED, timed.words()), Wrote::Published);

    BARE.spend(16, 3_200);
    BARE.give_up();
    assert_eq!((reader.spent(), reader.given_up()), ((16, 3_200), 1));
    assert_eq!(BARE.sample(), 0);
    reader.sample(8);
    assert_eq!(BARE.sample(), 8);

    let glance = StepGlance::new();
    glance.look(&c_dir);
    assert_eq!(glance.step(), None, "the hook has not armed yet");
    let hook = Writer::create(&dir).unwrap();
    hook.progress(41, PhaseWord::Wait);
    glance.look(&c_dir);
    assert_eq!(glance.step(), Some(41));
    hook.progress(42, PhaseWord::Data);
    assert_eq!(glance.step(), Some(42));

    reader.stop_writing();
    assert_eq!(BARE.write(KIND_TIMED, timed.words()), Wrote::Off);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Encodes records in which each field is different, compares them with the bytes in layout.md, and decodes them again.
#[test]
fn golden_words() {
    let bytes = |words: [u64; 6]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let did = collective();
    let payload = bytes(did.words());
    let at = |offset: usize| offset - 16;
    let u64_at =
        |payload: &[u8], offset| u64::from_le_bytes(payload[at(offset)..at(offset) + 8].try_into().unwrap());
    let u32_at =
        |payload: &[u8], offset| u32::from_le_bytes(payload[at(offset)..at(offset) + 4].try_into().unwrap());
    assert_eq!(
        [16, 24, 32, 40].map(|offset| u64_at(&payload, offset)),
        [0xabc, 7, 1 << 20, 99]
    );
    assert_eq!([48, 52].map(|offset| u32_at(&payload, offset)), [3, 17]);
    assert_eq!(payload[at(56)..], [3, 1, 2, 32, 1, 0, 0, 0]);
    assert_eq!(Collective::of(did.words()), did);

    let timed = timed();
    let payload = bytes(timed.words());
    assert_eq!(
        [16, 24, 32].map(|offset| u64_at(&payload, offset)),
        [0xabc, 1 << 60, 2_000]
    );
    assert_eq!((u32_at(&payload, 40), payload[at(44)]), (3, 32));
    assert_eq!(Timed::of(timed.words()), timed);
}

fn collective() -> Collective {
    Collective {
        comm: 0xabc,
        sequence: 7,
        bytes: 1 << 20,
        enqueued_ns: 99,
        ticket: 3,
        step: 17,
        function: Function::AllGather,
        algorithm: 1,
        protocol: 2,
        channels: 32,
        is_timed: true,
    }
}

fn timed() -> Timed {
    Timed {
        comm: 0xabc,
        start_ns: 1 << 60,
        duration_ns: 2_000,
        ticket: 3,
        channels: 32,
    }
}

fn names(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}
