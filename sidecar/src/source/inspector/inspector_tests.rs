use std::io::Write;
use std::time::Instant;

use paceline_health::event::{Comm, Event, Phase};
use paceline_health::id::Rank;

use super::*;

/// Lines in the plugin's format: an all-reduce, a send, and drop counts.
const LINES: &str = include_str!("../../../../fuzz/corpus/inspector/lines.jsonl");

#[test]
fn lines_as_they_are_written() {
    let records: Vec<Record> = LINES.lines().map(|line| read(line.as_bytes()).unwrap()).collect();
    let first = &records[0];
    assert_eq!(
        (first.comm, first.rank, first.ranks),
        (0x007f_8c49_6ae9_f661, 2, 8)
    );
    assert_eq!(
        (&*first.name, &*first.host, first.pid),
        ("DP Group 0", "example-hostname", 1_639_453)
    );
    let done = first.done.as_ref().unwrap();
    assert_eq!(
        (&*done.collective, done.number, done.bytes, done.dur_ns),
        ("AllReduce", 1407, 17_179_869_184, 61_974_000)
    );
    // A record of an older version has neither the communicator's name nor the source of its times.
    assert_eq!(&*records[1].name, "");
    assert!(records[1].done.is_some());
    // The other lines have no duration from the GPU: a collective timed by the host, a send, and drop counts.
    assert!(records[2..].iter().all(|record| record.done.is_none()));
    for bad in [
        "",
        "{}",
        "[]",
        r#"{"header":{"id":"x","rank":0,"n_ranks":2},"metadata":{}}"#,
        r#"{"header":{"id":"0x1","rank":2,"n_ranks":2},"metadata":{}}"#,
        r#"{"header":{"id":"0x1","rank":0,"n_ranks":2},"metadata":{},"coll_perf":{"coll":"a","coll_sn":1,"coll_msg_size_bytes":1,"coll_exec_time_us":-1}}"#,
    ] {
        assert!(read(bad.as_bytes()).is_err(), "{bad}");
    }
}

fn line(host: &str, rank: u32, number: u64) -> String {
    let us = 100 + number % 7;
    format!(
        "{{\"header\":{{\"id\":\"0x1b\",\"comm_name\":\"DP\",\"rank\":{rank},\"n_ranks\":2,\"nnodes\":1}},\"metadata\":\
         {{\"inspector_output_format_version\":\"v4.0\",\"hostname\":\"{host}\",\"pid\":{}}},\"coll_perf\":{{\"coll\":\
         \"AllReduce\",\"coll_sn\":{number},\"coll_msg_size_bytes\":4096,\"coll_exec_time_us\":{us}}}}}\n",
        70 + rank
    )
}

fn pulses(step: u64) -> Vec<Pulse> {
    let pulse = |rank| Pulse {
        rank: Rank(rank),
        restart: 0,
        step,
        phase: Phase::Compute,
        idle_ns: 0,
        alive: true,
    };
    vec![pulse(0), pulse(1)]
}

fn comms(told: &[Event]) -> Vec<Comm> {
    let comm = |event: &Event| match event {
        Event::Comm(comm) => Some(comm.clone()),
        _ => None,
    };
    told.iter().filter_map(comm).collect()
}

#[test]
fn collectives_are_put_together_to_steps() {
    let mut tally = Tally::default();
    let mut told = Vec::new();
    for step in 0..120_u64 {
        tally.notice(&pulses(step));
        for number in 4 * step..4 * step + 4 {
            // Rank 1 lacks one collective.
            for rank in (0..2).filter(|rank| (*rank, number) != (1, 403)) {
                let record = read(line("here", rank, number).trim_end().as_bytes()).unwrap();
                tally.take(&record, &mut |event| told.push(event));
            }
        }
    }
    let groups: Vec<&Event> = told
        .iter()
        .filter(|event| matches!(event, Event::Group(_)))
        .collect();
    assert_eq!(groups.len(), 2, "{groups:?}");
    let Event::Group(group) = groups[0] else {
        panic!("{groups:?}")
    };
    assert_eq!(
        (group.rank, group.size, &*group.name),
        (Rank(0), 2, "DP AllReduce")
    );
    let comms = comms(&told);
    assert!(
        comms.len() > 100
            && comms
                .iter()
                .all(|comm| comm.collectives == 4 && comm.bytes == 4 * 4096)
    );
    // The same collectives form the same step on both ranks. The step with a missing collective is not reported.
    for rank in [0, 1] {
        let steps: Vec<u64> = comms
            .iter()
            .filter(|comm| comm.rank == Rank(rank))
            .map(|comm| comm.step)
            .collect();
        assert_eq!(steps.contains(&100), rank == 0);
        assert!(steps.contains(&99) && steps.contains(&101) && steps.contains(&119));
    }
    let seventh = comms.iter().find(|comm| comm.step == 99).map(|comm| comm.dur_ns);
    let wanted: u64 = (396..400_u64).map(|number| (100 + number % 7) * 1000).sum();
    assert_eq!(seventh, Some(wanted));
    assert_eq!(tally.lost(), 1);
}

#[test]
fn without_steps_nothing_is_told() {
    let mut tally = Tally::default();
    for number in 0..2000 {
        let record = read(line("here", 0, number).trim_end().as_bytes()).unwrap();
        tally.take(&record, &mut |event| panic!("{event:?}"));
    }
    // The number of collectives per step is not an integer, so steps cannot be separated.
    let mut tally = Tally::default();
    for number in 0..2000_u64 {
        tally.notice(&pulses(number * 2 / 7));
        let record = read(line("here", 0, number).trim_end().as_bytes()).unwrap();
        tally.take(&record, &mut |event| panic!("{event:?}"));
    }
}

#[test]
fn files_of_this_host_that_come_and_grow() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("old.log"), line("here", 0, 1)).unwrap();
    let mut source = Inspector::of(dir.path().to_owned(), "here".to_owned());
    std::fs::write(dir.path().join("there.log"), line("there", 1, 1)).unwrap();
    let mut file = std::fs::File::create(dir.path().join("here.log")).unwrap();
    let begun = Instant::now();
    let mut told = Vec::new();
    for step in 0..200_u64 {
        source.notice(&pulses(step), 0);
        file.write_all(line("here", 0, step).as_bytes()).unwrap();
        if step % 50 == 49 {
            file.write_all(b"nonsense\n").unwrap();
            // Wait until the line was read.
            while source.losses().torn < step / 50 + 1 {
                assert!(begun.elapsed() < Duration::from_secs(30));
                std::thread::sleep(Duration::from_millis(10));
            }
            source.poll(0, &mut |_, event| {
                told.push(event);
                1
            });
        }
    }
    let comms = comms(&told);
    assert!(comms.len() >= 50, "{}", comms.len());
    assert!(
        comms
            .iter()
            .all(|comm| comm.rank == Rank(0) && comm.collectives == 1)
    );
}
