use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn lines(fields: &[Field]) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    fields
        .iter()
        .map(|(name, value)| format!("{}: {}", text(name), text(value)))
        .collect()
}

/// Checks the blocks of one connection. Each has its expected fields and the table's size after it.
fn check(table: &mut Table, blocks: &[(&str, &[&str], usize)]) {
    for (block, fields, size) in blocks {
        assert_eq!(lines(&table.read(&hex(block)).unwrap()), *fields, "{block}");
        assert_eq!(table.size, *size, "{block}");
    }
}

const FIRST: &[&str] = &[
    ":method: GET",
    ":scheme: http",
    ":path: /",
    ":authority: www.example.com",
];
const SECOND: &[&str] = &[
    ":method: GET",
    ":scheme: http",
    ":path: /",
    ":authority: www.example.com",
    "cache-control: no-cache",
];
const THIRD: &[&str] = &[
    ":method: GET",
    ":scheme: https",
    ":path: /index.html",
    ":authority: www.example.com",
    "custom-key: custom-value",
];

/// Examples of RFC 7541, appendices C.3 and C.4.
#[test]
fn requests_of_the_standard_are_read() {
    let plain = [
        ("828684410f7777772e6578616d706c652e636f6d", FIRST, 57),
        ("828684be58086e6f2d6361636865", SECOND, 110),
        (
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
            THIRD,
            164,
        ),
    ];
    check(&mut Table::new(), &plain);
    let huffman = [
        ("828684418cf1e3c2e5f23a6ba0ab90f4ff", FIRST, 57),
        ("828684be5886a8eb10649cbf", SECOND, 110),
        ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", THIRD, 164),
    ];
    check(&mut Table::new(), &huffman);
}

/// Examples of RFC 7541, appendix C.6, after an update of the table's size to 256 bytes, so that entries are evicted.
#[test]
fn a_full_table_forgets_the_oldest() {
    let date = "date: Mon, 21 Oct 2013 20:13:21 GMT";
    let place = "location: https://www.example.com";
    let blocks: [(&str, &[&str], usize); 3] = [
        (
            "3fe101 4882640258 85aec3771a4b 6196d07abe941054d444a8200595040b8166e082a62d1bff \
             6e919d29ad171863c78f0b97c8e9ae82ae43d3",
            &[":status: 302", "cache-control: private", date, place],
            222,
        ),
        (
            "4883640effc1c0bf",
            &[":status: 307", "cache-control: private", date, place],
            222,
        ),
        (
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b39\
             60d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
            &[
                ":status: 200",
                "cache-control: private",
                "date: Mon, 21 Oct 2013 20:13:22 GMT",
                place,
                "content-encoding: gzip",
                "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            ],
            215,
        ),
    ];
    let mut table = Table::new();
    check(&mut table, &blocks);
    // An entry larger than the table empties the table.
    let long = [&[0x40, 1, b'a', 0x7f, 0x81, 1][..], &[b'b'; 256]].concat();
    assert_eq!(table.read(&long).unwrap()[0].1.len(), 256);
    assert_eq!((table.size, table.entries.len()), (0, 0));
}

/// The code has no gap and no overlap, so every text can be read. Each byte has a code.
#[test]
fn the_code_is_whole() {
    let share = |(length, count): (usize, &u8)| u64::from(*count) << (30 - length);
    assert_eq!(LENGTHS.iter().enumerate().map(share).sum::<u64>(), 1 << 30);
    let mut symbols = *SYMBOLS;
    symbols.sort_unstable();
    assert!(
        symbols
            .iter()
            .zip(0u8..=255)
            .all(|(symbol, byte)| *symbol == byte)
    );
    // The symbols are sorted within each length.
    let mut rest = &SYMBOLS[..];
    for count in LENGTHS {
        let (these, after) = rest.split_at(usize::from(count).min(rest.len()));
        assert!(these.is_sorted(), "{these:?}");
        rest = after;
    }
}

#[test]
fn what_is_no_block_is_refused() {
    for block in [
        "80",               // index 0
        "be",               // an entry that does not exist
        "ff",               // a truncated integer
        "ffffffffffff7f",   // an integer that is too large
        "ff8080808000",     // endless continuation bytes
        "4001",             // a string without its bytes
        "400161",           // no value
        "4001617f",         // a truncated length
        "40016181ff",       // eight bits of padding
        "4001618100",       // padded with zeros
        "40016184ffffffff", // EOS, which is never sent
        "3fe21f",           // a table larger than allowed
        "8220",             // its size after a field
    ] {
        assert_eq!(Table::new().read(&hex(block)), Err(Unread::Malformed), "{block}");
    }
    // The largest table and an empty block are valid.
    assert_eq!(Table::new().read(&hex("3fe11f")), Ok(vec![]));
}

#[test]
fn an_entry_is_not_asked_for_over_and_over() {
    let mut table = Table::new();
    let entry = [&[0x40, 1, b'a', 0x7f, 0xa1, 0x1e][..], &[b'b'; 4000]].concat();
    assert_eq!(table.read(&entry).unwrap()[0].1.len(), 4000);
    assert_eq!(table.read(&[0xbe; 4]).unwrap().len(), 4);
    assert_eq!(table.read(&[0xbe; 5]), Err(Unread::TooLong));
}

proptest! {
    #[test]
    fn what_is_written_is_read(fields in proptest::collection::vec(("[a-z-]{1,20}", ".{0,200}"), 0..8)) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        let mut table = Table::new();
        let read = table.read(&write(&fields)).unwrap();
        let bytes = |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        prop_assert_eq!(read, fields.iter().map(bytes).collect::<Vec<_>>());
        prop_assert_eq!(table.size, 0);
    }

    #[test]
    fn no_bytes_do_harm(blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..6)) {
        let mut table = Table::new();
        for block in blocks {
            if let Ok(fields) = table.read(&block) {
                prop_assert!(fields.iter().map(size_of).sum::<usize>() <= MOST);
            }
            prop_assert!(table.size <= table.limit);
            prop_assert_eq!(table.size, table.entries.iter().map(size_of).sum::<usize>());
        }
    }
}
