use paceline_inject::{Request, Settings};
use paceline_sidecar::aggregator::{journal::segments, place};
use paceline_sidecar::sink::http::Place;
use serde_json::json;

/// The injector accepts exactly the annotations that the program can read. It omits the others, with a note.
#[test]
fn annotations_are_judged_as_the_program_judges() {
    let is_taken = |name: &str, text: &str| {
        let pod = json!({ "metadata": { "annotations": { format!("paceline.dev/{name}"): text } } });
        let mut notes = Vec::new();
        Request::of(&pod, &Settings::default(), &mut notes);
        notes.is_empty()
    };
    let addresses = [
        ":9810",
        "a:9810",
        "eth0:9810",
        "10.0.0.1:9810",
        "[::1]:9810",
        "fd00::7:9810",
        "0.0.0.0:1",
    ];
    let wrong = [
        "9810",
        "eth0",
        "eth0:",
        "1.2.3:4",
        "eth0:70000",
        "a/b:1",
        "averyveryverylongname:1",
        "::",
        "[eth0]:1",
    ];
    for text in addresses
        .into_iter()
        .chain(wrong)
        .filter(|text| text.contains(':'))
    {
        assert_eq!(is_taken("metrics", text), text.parse::<Place>().is_ok(), "{text}");
    }
    // A port alone is appended to the pod's address, which can be IPv4 or IPv6.
    for (text, is_good) in [
        ("9810", true),
        ("+9810", false),
        ("0", false),
        ("70000", false),
        ("eth0", false),
    ] {
        let places = [format!("10.0.0.1:{text}"), format!("fd00::7:{text}")];
        let is_read = places.iter().all(|place| place.parse::<Place>().is_ok());
        assert_eq!(is_taken("metrics", text), is_good, "{text}");
        assert!(is_read || !is_good, "{text}");
    }
    let hosts = [
        "host",
        "host:1",
        "host:99999",
        "host:0",
        "host:",
        ":1",
        "h/x",
        "fd00::1",
        "[fd00::1]:7",
        "a:b",
    ];
    let relays = [
        "r:1,host",
        "r:1,s:2,host:3",
        "r,host",
        "r:1,",
        ",",
        "r:1,host:99999",
    ];
    for text in hosts.into_iter().chain(relays) {
        assert_eq!(is_taken("aggregator", text), place::check(text).is_ok(), "{text}");
    }
    for (text, is_good) in [
        ("512MiB", true),
        ("1GiB", true),
        ("0MiB", false),
        ("8GB", false),
        ("much", false),
    ] {
        assert_eq!(is_taken("journal-bytes", text), is_good, "{text}");
        assert!(!is_good || segments::parse_bytes(text).is_ok(), "{text}");
    }
}
