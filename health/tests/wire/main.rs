//! docs/wire.md is the contract for the journal and for every fixture. Each line in it must stay unchanged when it is
//! decoded and encoded, and every event must be present. `REWRITE=1` rewrites the examples.

#![allow(clippy::disallowed_methods)] // A test may read the docs; the crate may not.

mod examples;

use paceline_health::codec::line;
use paceline_health::event::Event;
use paceline_health::frame::{Provenance, SCHEMA_VERSION};
use paceline_health::{Entry, Frame, Time};

use self::examples::examples;

const DOC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/wire.md");

fn lines() -> Vec<String> {
    let entry = |(n, event): (u64, Event)| Entry {
        n,
        at_ns: Time(n * 1_000_000),
        frame: Frame {
            v: SCHEMA_VERSION,
            node: "n1".into(),
            agent: 7,
            seq: n,
            provenance: Provenance::Live,
            event,
        },
    };
    (1..)
        .zip(examples())
        .map(entry)
        .map(|entry| line::encode(&entry))
        .collect()
}

#[test]
fn the_documented_lines_are_what_is_read_and_written() {
    let block = format!("```json\n{}\n```", lines().join("\n"));
    let doc = std::fs::read_to_string(DOC).unwrap();
    let start = doc.find("```json\n").expect("docs/wire.md has a json block");
    let end = start + doc[start..].find("\n```").unwrap() + 4;
    if std::env::var_os("REWRITE").is_some() {
        std::fs::write(DOC, format!("{}{block}{}", &doc[..start], &doc[end..])).unwrap();
        return;
    }
    assert_eq!(
        &doc[start..end],
        block,
        "docs/wire.md is out of step: REWRITE=1 cargo test -p paceline-health"
    );
    for text in doc[start..end].lines().filter(|line| line.starts_with('{')) {
        assert_eq!(line::encode(&line::decode(text).unwrap()), text);
    }
}

#[test]
fn unknown_fields_are_skipped_and_a_future_version_is_named() {
    let known = lines().remove(9);
    let newer = known.replace("\"code\":0", "\"code\":0,\"core_dumped\":true");
    assert_ne!(newer, known);
    assert_eq!(line::encode(&line::decode(&newer).unwrap()), known);

    let future = known
        .replace("\"v\":1", "\"v\":9")
        .replace("\"exit\"", "\"exit_v9\"");
    assert_eq!(
        line::decode(&future),
        Err(line::LineError::FutureVersion { found: 9 })
    );
}

#[test]
fn what_is_broken_is_named_by_its_column() {
    for (text, column) in [("", 1), ("{\"n\":1,", 7), ("{\"n\":-1}", 7), ("[1,2]", 5)] {
        match line::decode(text) {
            Err(line::LineError::Malformed { column: found, .. }) => assert_eq!(found, column, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    let long = " ".repeat(line::MAX_LINE_BYTES + 1);
    assert!(matches!(
        line::decode(&long),
        Err(line::LineError::TooLong { .. })
    ));
}

/// `glance` returns the same fields of a line as decoding it.
#[test]
fn a_glance_is_enough() {
    for (n, event) in (1u64..).zip(examples()) {
        let is_telemetry = event.is_telemetry();
        let frame = Frame {
            v: SCHEMA_VERSION,
            node: "n-\u{e9},1".into(),
            agent: u64::MAX,
            seq: 9,
            provenance: Provenance::Injected,
            event,
        };
        let entry = Entry {
            n,
            at_ns: Time(n * 7),
            frame,
        };
        let sealed = line::encode_sealed(&entry);
        let seen = line::glance(&sealed).unwrap();
        assert_eq!((seen.n, seen.at_ns, seen.agent), (n, n * 7, u64::MAX));
        assert_eq!(seen.node, "n-\u{e9},1");
        assert!(sealed.contains(&format!(",\"event\":{{\"{}\":", seen.kind)));
        assert_eq!(paceline_health::event::is_telemetry(seen.kind), is_telemetry);
        assert_eq!(line::glance(&line::encode(&entry)), None, "not sealed");
        assert_eq!(line::glance(&sealed.replacen(",1", ",2", 1)), None, "damaged");
        let quoted = Entry {
            frame: Frame {
                node: "a\"b".into(),
                ..entry.frame
            },
            ..entry
        };
        assert_eq!(line::glance(&line::encode_sealed(&quoted)), None, "to be decoded");
    }
}

/// If any single byte of a sealed line is damaged, the line is rejected or decoded with its original content.
#[test]
fn a_damaged_line_is_found() {
    let events = examples();
    for (n, event) in (1u64..).zip(events) {
        let frame = Frame {
            v: SCHEMA_VERSION,
            node: "n1".into(),
            agent: 7,
            seq: n,
            provenance: Provenance::Live,
            event,
        };
        let entry = Entry {
            n,
            at_ns: Time(n),
            frame,
        };
        let sealed = line::encode_sealed(&entry);
        assert_eq!(line::decode(&sealed), Ok(entry.clone()));
        assert_eq!(sealed.len(), line::encode(&entry).len() + 17);
        for at in 0..sealed.len() {
            for flip in [1, 2, 4, 0x10] {
                let mut bytes = sealed.clone().into_bytes();
                bytes[at] ^= flip;
                let text = String::from_utf8(bytes).unwrap();
                if let Ok(read) = line::decode(&text) {
                    assert_eq!(read, entry, "{text}");
                }
            }
        }
    }
}
