use super::*;

fn snapshots(journal: &Path) -> Vec<u32> {
    let all = list(journal).unwrap().into_iter();
    all.map(|(number, _)| number).collect()
}

fn bytes(n: u64) -> Vec<u8> {
    encode(&Header::new("j".into(), n, 77), &(n, f64::NAN, "state"), 0).unwrap()
}

#[test]
fn the_two_newest_are_kept_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal.ndjson");
    for number in 1..=4 {
        write(&journal, number, &bytes(u64::from(number) * 10)).unwrap();
    }
    assert_eq!(snapshots(&journal), [3, 4]);
    let (number, header, (n, nothing, text)) = newest::<(u64, f64, String)>(&journal).unwrap();
    assert_eq!((number, header.n, header.verdict_bytes, n), (4, 40, 77, 40));
    assert!(nothing.is_nan() && text == "state");
    forget(&journal);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn one_that_is_deflated_takes_less_and_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal.ndjson");
    let ranks = (0..1_000u32).map(|rank| (rank, format!("node-{}", rank / 8), 0.0, [1_000_000u64; 4]));
    let ranks: Vec<(u32, String, f64, [u64; 4])> = ranks.collect();
    let header = Header::new("j".into(), 10, 77);
    let bytes = encode(&header, &ranks, 0).unwrap();
    write(&journal, 1, &bytes).unwrap();
    write_deflated(&journal, 2, &bytes).unwrap();
    let of = |number| segments::closed(&journal, number).with_extension("state");
    let length = |number| fs::metadata(of(number)).unwrap().len();
    assert!(length(2) * 2 < length(1), "{} and {}", length(2), length(1));
    let (number, found, state) = newest::<Vec<(u32, String, f64, [u64; 4])>>(&journal).unwrap();
    assert_eq!((number, found, state), (2, header, ranks));
}

#[test]
fn one_that_is_damaged_or_of_another_version_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal.ndjson");
    let path = dir.path().join("journal-000001.state");
    for write in [write, write_deflated] {
        write(&journal, 1, &bytes(10)).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(
                matches!(Snapshot::read(&path), Err(Unfit::Damaged)),
                "{length} bytes"
            );
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            fs::write(&path, flipped).unwrap();
            assert!(matches!(Snapshot::read(&path), Err(Unfit::Damaged)), "byte {at}");
        }
    }
    let other = Header {
        paceline: "0.0.9".to_owned(),
        ..Header::new("j".into(), 10, 77)
    };
    write(&journal, 1, &encode(&other, &7u64, 0).unwrap()).unwrap();
    let said = Snapshot::read(&path).unwrap_err().to_string();
    assert_eq!(said, format!("of another version: 0.0.9, format {FORMAT}"));
    // If the newest snapshot is damaged, the previous one is used.
    write(&journal, 1, &bytes(10)).unwrap();
    write(
        &journal,
        2,
        &encode(&Header::new("j".into(), 20, 77), &"no such state", 0).unwrap(),
    )
    .unwrap();
    let (number, ..) = newest::<(u64, f64, String)>(&journal).unwrap();
    assert_eq!(number, 1);
}
