//! Writes the binary part of fuzz/corpus with the protocol's own encoders. Run it when the protocol changes.

use std::fs;
use std::path::Path;

use paceline_health::Provenance;
use paceline_health::event::{Beat, Bye, Event, Exit};
use paceline_seal::Key;
use paceline_seal::codec::Caller;
use paceline_sidecar::guard::{PURPOSE, zmtp};
use paceline_sidecar::uplink::wire::{
    Ack, Batch, Blob, Down, Hello, Later, Refused, Up, Welcome, encode, encode_event,
};

use super::entries::KEY;

/// `cargo test -p paceline-tests --test fuzz -- --ignored the_corpora_are_written`
#[test]
#[ignore = "writes into the repository"]
fn the_corpora_are_written() {
    let (_, first) = Caller::start(&Key::from_bytes(KEY), PURPOSE).unwrap();
    let records: Vec<u8> = (0_u32..600)
        .flat_map(|number| (number * 40).to_be_bytes())
        .collect();
    write("greeting", "first_and_records", &[&first[..], &records].concat());
    write("greeting", "first", &[&first[..], &[0; 400]].concat());
    let words = b"what a node says, again and again. ".repeat(40);
    write("sealed", "untouched", &[&[0][..], &words].concat());
    write("sealed", "one_edit", &[&[1, 0x10, 2, 2, 7][..], &words].concat());
    write(
        "sealed",
        "three_edits",
        &[&[3, 255, 3, 0, 1, 0, 4, 3, 9, 9, 4, 1, 3][..], &words].concat(),
    );
    for (name, socket) in [("dealer", "DEALER"), ("router", "ROUTER")] {
        let mut stream = vec![63];
        stream.extend(zmtp::opening(socket));
        for length in [0, 3, 200, 300, 5000] {
            stream.extend(zmtp::frame(&vec![7; length]));
        }
        write("zmtp", name, &stream);
    }
    for (name, message) in ups() {
        write("envelope", name, &encode(&message));
    }
    for (name, message) in downs() {
        write("envelope", name, &encode(&message));
    }
}

fn ups() -> Vec<(&'static str, Up)> {
    let hello = Hello {
        v: 1,
        job: "train".into(),
        node: "n1".into(),
        agent: 0x1234_5678_9abc,
    };
    let events = [
        Event::Beat(Beat::default()),
        Event::Exit(Exit { code: 1 }),
        Event::Bye(Bye {
            reason: "exit".into(),
        }),
    ];
    let batch = Batch {
        v: 1,
        job: hello.job.clone(),
        node: hello.node.clone(),
        agent: hello.agent,
        after: 7,
        first_seq: 8,
        events: events
            .iter()
            .map(|event| Blob(encode_event(Provenance::Live, event)))
            .collect(),
    };
    vec![("hello", Up::Hello(hello)), ("batch", Up::Batch(batch))]
}

fn downs() -> Vec<(&'static str, Down)> {
    let job = || "train".into();
    vec![
        (
            "welcome",
            Down::Welcome(Welcome {
                v: 1,
                job: job(),
                agent: 9,
                journal: 3,
                upto: 12,
            }),
        ),
        ("later", Down::Later(Later { job: job() })),
        (
            "refused",
            Down::Refused(Refused {
                why: "another job".into(),
            }),
        ),
        (
            "ack",
            Down::Ack(Ack {
                v: 1,
                job: job(),
                agent: 9,
                upto: 300,
            }),
        ),
    ]
}

fn write(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name), bytes).unwrap();
}
