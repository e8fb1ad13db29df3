//! Tests of reading dumps, and of the bounds for large ones.

use super::tests::{all_reduce, entry};
use super::{Dump, dump};

/// Coalesced operations stay "scheduled". Their state is in the entry after them, which has the number of the
/// collective before them. The entries are as written by PyTorch 2.15 with its older NCCL backend.
#[test]
fn operations_that_are_started_together() {
    let read = |is_completed| {
        let mut entries = vec![all_reduce("0", 1, true)];
        for name in ["recv 1<-0", "send 1->2"] {
            entries.push(entry("0", 7, name, 4, false));
        }
        let closing = dump::Raw {
            entry: entry("0", 1, "coalesced", 0, is_completed),
            description: String::new(),
            of_messages: Some(7),
        };
        dump::add(&mut entries, closing);
        let entries = entries.into_iter();
        entries
            .map(|entry| (entry.name, entry.is_completed))
            .collect::<Vec<_>>()
    };
    for is_completed in [true, false] {
        let expected = [
            ("all_reduce", true),
            ("recv 1<-0", is_completed),
            ("send 1->2", is_completed),
        ];
        let read = read(is_completed);
        let read: Vec<(&str, bool)> = read
            .iter()
            .map(|(name, completed)| (&**name, *completed))
            .collect();
        assert_eq!(read, expected);
    }
    let mut entries = vec![
        entry("0", 2, "all_gather", 4, false),
        entry("0", 2, "all_gather", 4, false),
    ];
    let closing = dump::Raw {
        entry: entry("0", 2, "all_gather_coalesced", 8, true),
        description: String::new(),
        of_messages: Some(0),
    };
    dump::add(&mut entries, closing);
    let names: Vec<&str> = entries.iter().map(|entry| &*entry.name).collect();
    assert_eq!(
        (names, entries[0].is_completed),
        (vec!["all_gather_coalesced"], true)
    );
}

/// Returns the pickle of a text.
fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

/// Format 2.1 lists no groups and has a common number for collectives and messages. A newer format is an error.
#[test]
fn other_formats() {
    let dump = |version: &str| {
        let entry = [
            &b"}("[..],
            &text("process_group"),
            &text("dp"),
            &text("profiling_name"),
            &text("nccl:_all_gather_base"),
            &text("seq_id"),
            b"K\x05",
            &text("state"),
            &text("scheduled"),
            b"u",
        ];
        let head = [
            &b"\x80\x02}("[..],
            &text("version"),
            &text(version),
            &text("entries"),
        ]
        .concat();
        Dump::decode(&[&head[..], b"](", &entry.concat(), b"eu."].concat())
    };
    let old = dump("2.1").unwrap();
    let [entry] = old.entries.as_slice() else {
        panic!("{old:?}")
    };
    let read = (&*entry.name, entry.sequence, entry.is_completed, &*entry.group);
    assert_eq!(read, ("all_gather", 5, false, "dp"));
    assert!(old.groups.contains_key("dp"));
    let error = dump("3.0").unwrap_err();
    assert_eq!(error.to_string(), "a dump of format 3.0: formats 2.x are read");
}

/// Small files with many references to the same long value take little memory and time.
#[test]
fn values_that_are_shared() {
    let long = "7,".repeat(1 << 19);
    // {"version": "2.10", "pg_config": {name: {"ranks": long}, ...}, "entries": [{...}, ...]}
    let mut bytes = [
        &b"\x80\x02}("[..],
        &text("version"),
        &text("2.10"),
        &text("pg_config"),
    ]
    .concat();
    let group = [&b"}q\x00("[..], &text("ranks"), &text(&long), b"u"].concat();
    bytes.extend([&b"}("[..], &text("0"), &group].concat());
    for name in 1..50_000 {
        bytes.extend([&text(&name.to_string()), &b"h\x00"[..]].concat());
    }
    bytes.extend(b"u");
    let entry = [
        &b"}q\x01("[..],
        &text("process_group"),
        &text(&long),
        &text("profiling_name"),
        &text(&long),
        &text("collective_seq_id"),
        b"K\x01u",
    ];
    bytes.extend(
        [
            &text("entries")[..],
            b"](",
            &entry.concat(),
            &b"h\x01".repeat(100_000),
            b"eu.",
        ]
        .concat(),
    );
    let dump = Dump::decode(&bytes).unwrap();
    let members: usize = dump.groups.values().map(|group| group.members.len()).sum();
    assert!(members <= 1 << 20 && dump.groups.len() <= 4096, "{members}");
    assert_eq!(dump.entries.len(), 128);
}
