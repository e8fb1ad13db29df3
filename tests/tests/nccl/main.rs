//! Tests NCCL's profiler plugin under AddressSanitizer with a C program that simulates NCCL (`tests/nccl-harness`). The
//! rings are read as the sidecar reads them. Every record must be there or be counted as dropped.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod arm;
mod elf;
mod harness;
mod job;

use harness::{Harness, Read};
use paceline_ring::{Collective, Duty, Function, Record};

/// With each version of the interface, communicator, collectives and GPU times must arrive, field by field.
#[test]
fn each_version_of_the_interface() {
    for version in [4, 5, 6, 7] {
        let mut harness = Harness::new();
        let said = harness.run(version, "order", 40);
        assert_eq!((said["enqueued"], said["timed"]), (40, 40), "v{version}");
        let read = harness.read();
        let Some(Record::Attach(attach)) = read.records.first() else {
            panic!("{:?}", read.records.first())
        };
        assert_eq!((attach.rank, attach.local_rank, attach.world_size), (3, 1, 8));
        assert!(
            matches!(&read.records[1], Record::Group(group) if group.comm == 0xc011_7000 && group.size == 2)
        );
        for (n, did) in read.collectives().iter().enumerate() {
            assert_eq!((did.comm, did.sequence), (0xc011_7000, n as u64));
            assert_eq!((did.function, did.bytes), (Function::AllReduce, 4 << 20));
            assert_eq!((did.algorithm, did.protocol, did.channels), (1, 3, 32));
            assert!(did.is_timed && did.step == 0 && did.enqueued_ns > 0);
        }
        let timed = read.timed();
        assert_eq!((read.collectives().len(), timed.len()), (40, 40));
        for (n, timed) in timed.iter().enumerate() {
            // Channels start 1 ns apart, and the last one to start is the last to end.
            assert_eq!(timed.start_ns, 1_000_000 * (n as u64 + 1));
            assert_eq!((timed.duration_ns, timed.channels), (5_031, 32));
        }
    }
}

/// NCCL 2.31 and later use v7, where kernel events are too expensive. They must be off unless requested.
#[test]
fn kernel_events_are_off_by_default_where_they_are_costly() {
    for (version, sample, mask, timed) in [
        (7, None, 262, 0),
        (7, Some("4"), 262, 0),
        (7, Some("1"), 326, 40),
        (6, None, 326, 40),
        (6, Some("off"), 262, 0),
        (4, None, 70, 40),
    ] {
        let mut harness = Harness::new();
        harness.set("PACELINE_NCCL_SAMPLE", sample);
        let said = harness.run(version, "order", 40);
        assert_eq!(
            (said["mask"], said["timed"]),
            (mask, timed),
            "v{version} {sample:?}"
        );
        assert_eq!(
            harness.read().collectives().len(),
            40,
            "each is told all the same"
        );
    }
}

/// Nothing may be timed in the first steps, because frameworks capture CUDA graphs then, which would keep the requested
/// events.
#[test]
fn nothing_is_timed_in_the_first_steps() {
    let mut harness = Harness::new();
    harness.set("PACELINE_NCCL_AFTER", None);
    let said = harness.run(5, "order", 40);
    assert_eq!((said["mask"], said["timed"]), (262, 0));
    assert_eq!(
        harness.read().collectives().len(),
        40,
        "each is told all the same"
    );
}

/// Collectives replayed by a graph are counted on the device but not on the host, so later times would be attributed to
/// the wrong collectives.
#[test]
fn once_a_graph_captures_nothing_is_timed_again() {
    for version in [5, 6, 7] {
        let mut harness = Harness::new();
        let said = harness.run(version, "captured", 40);
        assert_eq!((said["mask"], said["timed"]), (262, 20), "v{version}");
        let read = harness.read();
        let timed = read.collectives().iter().filter(|did| did.is_timed).count();
        assert_eq!((read.collectives().len(), timed), (40, 20));
        let is_note =
            |record: &&Record| matches!(record, Record::Note(text) if text.text.contains("CUDA graph"));
        assert_eq!(read.records.iter().filter(is_note).count(), 1);
    }
}

/// Stale, duplicate, foreign or malformed calls must change nothing and must not be timed.
#[test]
fn stale_and_double_calls() {
    let mut harness = Harness::new();
    harness.run(5, "stale", 0);
    let read = harness.read();
    assert_eq!(read.collectives().len(), 3);
    let untimed: Vec<bool> = read.collectives().iter().map(|did| did.is_timed).collect();
    assert_eq!(untimed, [true, false, false], "too short, and rooted");
    let timed = read.timed();
    assert_eq!(timed.len(), 1);
    assert_eq!(
        (timed[0].duration_ns, timed[0].channels),
        (0, 1),
        "given up, not told wrongly"
    );
    assert_eq!(read.given_up, 1);
}

/// Sends and receives of a pipeline stage are timed by any of their channels. An exchange between all ranks is skipped,
/// because it would need two records per rank.
#[test]
fn messages_of_a_pipeline() {
    for version in [4, 5, 6, 7] {
        let mut harness = Harness::new();
        let said = harness.run(version, "messages", 30);
        let read = harness.read();
        assert_eq!(
            (said["enqueued"], said["timed"], read.given_up),
            (90, 60, 0),
            "v{version}"
        );
        assert_eq!((read.collectives().len(), read.timed().len()), (90, 60));
        for of_step in read.collectives().chunks(3) {
            let did = |did: &Collective| (did.function, did.sequence, did.bytes, did.is_timed);
            let (received, sent) = (Function::Receive, Function::Send);
            assert_eq!(did(&of_step[0]), (received, 3, 24, true));
            assert_eq!(did(&of_step[1]), (sent, 1, 2 << 20, true));
            assert_eq!(did(&of_step[2]), (sent, 1, 0, false));
        }
        assert!(
            read.timed()
                .iter()
                .all(|timed| (5_000..5_032).contains(&timed.duration_ns))
        );
    }
}

#[test]
fn unloaded_and_loaded_again() {
    let mut harness = Harness::new();
    let said = harness.run(6, "reload", 0);
    let read = harness.read();
    assert_eq!(said["enqueued"], 1_000);
    assert_eq!((read.collectives().len(), read.timed().len()), (1_000, 1_000));
    let tickets: Vec<u32> = read.collectives().iter().map(|did| did.ticket).collect();
    assert!(tickets.is_sorted_by(|a, b| a < b), "one life, not a hundred");
}

/// A forked child shares the memory and must not write as its parent.
#[test]
fn a_forked_child_is_silent() {
    let mut harness = Harness::new();
    let said = harness.run(5, "fork", 0);
    let read = harness.read();
    assert_eq!((read.collectives().len(), read.timed().len()), (11, 11));
    assert_eq!(said["enqueued"], 11);
    assert_eq!(harness.rings(), 1);
}

/// Uses 64 communicators, 32 channels, two threads and no reader. The ring fills, and dropped records must be counted
/// exactly.
#[test]
fn full_and_counted() {
    let mut harness = Harness::new();
    let said = harness.run(5, "storm", 100_000);
    adds_up(&said, &harness.read());
}

/// The reader dies in the middle and its file is deleted. The job must continue.
#[test]
fn the_reader_is_gone() {
    let mut harness = Harness::new();
    let running = harness.start(5, "storm", 300_000);
    let mut reader = harness.reader();
    while reader.position() < 1_000 {
        reader.next(0, true);
    }
    drop(reader);
    std::fs::remove_dir_all(harness.ring_dir()).unwrap();
    let said = running.said();
    assert_eq!((said["enqueued"], said["timed"]), (300_000, 300_000));
}

/// Without a writable directory or a rank, the plugin must be inactive and request nothing from NCCL.
#[test]
fn without_a_place_nothing_is_watched() {
    for (name, value) in [
        ("PACELINE_RING_DIR", None),
        ("PACELINE_RING_DIR", Some("/nowhere")),
        ("RANK", None),
    ] {
        let mut harness = Harness::new();
        harness.set(name, value);
        let (code, stderr) = harness.fails(5, "order", 10);
        assert_eq!(code, 1, "the harness wants to be watched");
        assert!(stderr.contains("not so: mask & EVENT_COLL"), "{stderr}");
        assert_eq!(harness.rings(), 0);
    }
}

/// A reader switches the plugin off at run time. NCCL must then stop its callbacks.
#[test]
fn the_kill_switch() {
    let mut harness = Harness::new();
    let running = harness.start(5, "storm", 1_000_000);
    harness.reader().stop_writing();
    let said = running.said();
    assert_eq!(said["mask"], 0);
    assert!(said["timed"] < said["enqueued"], "handles stop at once");
}

/// With a budget of zero, the plugin must first sample half as often. When that becomes useless, it must disable itself
/// for good, whatever another thread requests from NCCL in the meantime.
#[test]
fn over_its_budget_it_takes_itself_out() {
    let mut harness = Harness::new();
    harness.set("PACELINE_NCCL_BUDGET_PPM", Some("0"));
    harness.set("PACELINE_NCCL_SAMPLE", Some("32"));
    let mut running = harness.start(5, "costly", 0);
    let read = harness.follow(&mut running);
    let said = running.said();
    assert_eq!(
        read.notes(),
        [
            "NCCL plugin: over its budget, samples half",
            "NCCL plugin: over its budget, off"
        ]
    );
    assert_eq!(harness.reader().duty().1, Duty::TookItselfOut);
    let told = read.collectives().len() as u64;
    assert_eq!(
        (told, read.dropped),
        (said["enqueued"] - 1, 0),
        "and then no more"
    );
}

/// With several GPUs in one process, events cannot be attributed to a rank, so they must not be recorded.
#[test]
fn several_ranks_in_one_process_are_not_watched() {
    let mut harness = Harness::new();
    harness.run(5, "shared", 0);
    let read = harness.read();
    assert_eq!(read.notes(), ["NCCL plugin: GPUs of one process: not watched"]);
    let comms: Vec<u64> = read.collectives().iter().map(|did| did.comm).collect();
    assert_eq!(comms[..100], [0xc011_7002; 100]);
    assert_eq!(comms[100..], [0xc011_7000], "alone in it, it is watched");
    assert_eq!(read.timed().len(), 101);
}

/// Tests the plugin itself under AddressSanitizer, which otherwise covers only the C program. `tests/run` runs this.
#[test]
#[ignore = "builds the plugin once more"]
fn instrumented() {
    let plugin = elf::sanitized();
    let run = |version, scenario, collectives| {
        let mut harness = Harness::new();
        let running = harness.start_with(&harness::program(), &plugin, version, scenario, collectives);
        (running.said(), harness.read())
    };
    for (version, scenario) in [
        (4, "order"),
        (5, "order"),
        (6, "order"),
        (7, "order"),
        (6, "reload"),
    ] {
        let (said, read) = run(version, scenario, 40);
        assert_eq!(read.timed().len() as u64, said["timed"], "v{version} {scenario}");
    }
    for (scenario, told) in [("stale", 3), ("fork", 11), ("shared", 101)] {
        assert_eq!(run(5, scenario, 0).1.collectives().len(), told, "{scenario}");
    }
    let (said, read) = run(5, "storm", 200_000);
    adds_up(&said, &read);
}

/// Like `full_and_counted`, with a concurrent reader and a hundred times as many records. `tests/run` runs this.
#[test]
#[ignore = "ten million collectives with 98 callbacks each take a minute or two"]
fn ten_million() {
    let mut harness = Harness::new();
    let program = harness::compile("nccl-harness-asan-fast", &["-O2", "-fsanitize=address"]);
    let plugin = elf::release();
    let began = std::time::Instant::now();
    let mut running = harness.start_with(&program, &plugin, 5, "storm", 10_000_000);
    let read = harness.follow(&mut running);
    let said = running.said();
    println!(
        "{:.0} s, {said:?}, {} read, {} dropped",
        began.elapsed().as_secs_f64(),
        read.count,
        read.dropped
    );
    assert_eq!(said["enqueued"], 10_000_000);
    adds_up(&said, &read);
}

/// Checks that every collective and every time is in the ring or was counted as dropped.
pub fn adds_up(said: &harness::Said, read: &Read) {
    // The other records are the rank, once, and the 64 communicators, at first and again each minute.
    let others = (read.count + read.dropped).checked_sub(said["enqueued"] + said["timed"] + 1);
    assert!(
        others.is_some_and(|others| others >= 64 && others % 64 == 0),
        "{said:?}, {} read, {} dropped",
        read.count,
        read.dropped
    );
    assert_eq!(
        (said["timed"], read.given_up, read.torn),
        (said["enqueued"], 0, 0)
    );
}
