use super::*;
use paceline_health::event::Exit;
use paceline_health::id::NodeId;
use paceline_health::{Frame, Provenance, Time};

fn entry(n: u64) -> String {
    let event = Event::Exit(Exit { code: 0 });
    let node = NodeId::from("a");
    let frame = Frame {
        v: 1,
        node,
        agent: 1,
        seq: n,
        provenance: Provenance::Live,
        event,
    };
    line::encode(&Entry {
        n,
        at_ns: Time(n),
        frame,
    })
}

fn read(text: &str, skip: bool) -> Result<(Vec<u64>, usize, bool), String> {
    // Use a small buffer, so that lines span several reads.
    let reader = BufReader::with_capacity(7, text.as_bytes());
    let mut journal = Journal::new(PathBuf::from("j"), reader, skip);
    let mut seen = Vec::new();
    while let Some(entry) = journal.next().map_err(|problem| problem.to_string())? {
        seen.push(entry.n);
    }
    Ok((seen, journal.broken, journal.torn))
}

#[test]
fn a_cut_last_line_is_left_out_and_a_whole_one_is_not() {
    let (one, two) = (entry(1), entry(2));
    assert_eq!(read(&format!("{one}\n{two}"), false), Ok((vec![1, 2], 0, false)));
    assert_eq!(
        read(&format!("{one}\n\n{}", &two[..20]), false),
        Ok((vec![1], 0, true))
    );
    assert_eq!(read("", false), Ok((vec![], 0, false)));
}

#[test]
fn segments_are_one_journal() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    write("journal-000001.ndjson", format!("{}\n{}\n", entry(1), entry(2)));
    write(
        "journal-000002.ndjson",
        format!("{}\n{}", entry(3), &entry(4)[..20]),
    );
    write("journal.ndjson", format!("{}\n{}", entry(5), &entry(6)[..20]));
    let read = |path: &Path| {
        let mut journal = Journal::open(path, true).unwrap();
        let mut seen = Vec::new();
        while let Some(entry) = journal.next().unwrap() {
            seen.push(entry.n);
        }
        (seen, journal.broken, journal.torn)
    };
    assert_eq!(read(dir.path()), (vec![1, 2, 3, 5], 1, true));
    assert_eq!(
        read(&dir.path().join("journal-000001.ndjson")),
        (vec![1, 2], 0, false)
    );
    std::fs::remove_file(dir.path().join("journal.ndjson")).unwrap();
    assert_eq!(
        read(dir.path()),
        (vec![1, 2, 3], 0, true),
        "killed between two segments"
    );
}

#[test]
fn a_broken_line_in_the_middle_is_an_error_that_names_its_place() {
    let (one, three) = (entry(1), entry(3));
    let text = format!("{one}\n{{\"n\":2,\"at_ns\":x}}\n{three}\n");
    let said = read(&text, false).unwrap_err();
    assert!(
        said.starts_with("j:2:16: expected value; --skip-broken"),
        "{said}"
    );
    assert_eq!(read(&text, true), Ok((vec![1, 3], 1, false)));
}

#[test]
fn a_future_version_and_a_long_line_are_told_apart() {
    let future = entry(1).replace("\"v\":1", "\"v\":9");
    let said = read(&future, false).unwrap_err();
    assert!(said.starts_with("j:1:"), "{said}");
    assert!(said.contains("schema version 9 is newer than 1"), "{said}");
    let long = format!("{}\n{}\n{}\n", entry(1), "x".repeat(10 << 20), entry(2));
    let said = read(&long, false).unwrap_err();
    assert!(
        said.starts_with("j:2:1048577: line is 10485760 bytes long"),
        "{said}"
    );
    assert_eq!(read(&long, true), Ok((vec![1, 2], 1, false)));
}
