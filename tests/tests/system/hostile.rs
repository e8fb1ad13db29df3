//! Tests names and texts with markup or control characters. In every output except the browser's they must stay text of
//! bounded length, and no control sequence may reach a terminal. The test `page` checks the live page in a browser.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use paceline_health::text::sanitize;
use serde_json::{Value, json};

use crate::launched::{Place, text, until};

/// A name that the command line accepts, because it has no control character.
const NAME: &str = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>${{x}}{{y}}&amp;\u{202e}\u{2028}\\ {a=\"";
/// A text from outside, as from the kernel, the driver, exceptions or journals.
const WORDS: &str = "</title></script><script>alert(1)</script>\u{1b}[31m\u{1b}]0;x\u{7}\r\0\u{9b}2J\u{7f}\u{202e}\u{2066}\n# TYPE x\ndata: {}";
/// The size limit of any output of a small job, regardless of its texts.
const LONGEST: usize = 256 << 10;

/// One rank that runs steps until a file ends it, and then fails with a megabyte of text.
const TRAINER: &str = r#"
import os, paceline, time
words = open("words").read()
paceline.mark("role", text=words[:60])
paceline.mark(words[:20], value=1)
while not os.path.exists("end"):
    paceline.step()
    time.sleep(0.02)
raise RuntimeError(words + "x" * (1 << 20) + "\n" + words)
"#;

/// Checks that there are only printable characters.
fn assert_text(what: &str, bytes: &[u8]) {
    let shown = std::str::from_utf8(bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(!shown.is_empty(), "{what} is empty");
    assert!(shown.len() < LONGEST, "{what} is of {} bytes", shown.len());
    for (at, letter) in shown.char_indices() {
        let is_own = letter == '\n' || sanitize::visible(letter) == letter;
        assert!(
            is_own,
            "{what} has {letter:?}: {:.200}",
            shown.get(at..).unwrap_or_default()
        );
    }
}

/// Checks that there is no injected markup. The page itself has no script, no external image and no active content.
fn assert_page(what: &str, bytes: &[u8]) {
    assert_text(what, bytes);
    let page = text(bytes);
    for never in ["<script", "<img src=x", "</title></", "<iframe"] {
        assert!(!page.contains(never), "{what} has {never}");
    }
    assert!(page.contains("&lt;script&gt;"), "{what} says nothing of it");
}

/// Fetches a page from the job's own server.
pub fn fetch(address: &str, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    answer.split_off(end + 4)
}

/// Returns the value of a label as Prometheus parses it.
fn label(page: &str, family: &str, name: &str) -> Option<String> {
    let line = page
        .lines()
        .find(|line| line.starts_with(&format!("{family}{{")))?;
    let start = line.find(&format!("{name}=\""))? + name.len() + 2;
    let mut value = String::new();
    let mut letters = line[start..].chars();
    loop {
        match letters.next()? {
            '"' => return Some(value),
            '\\' => match letters.next()? {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
}

/// Starts a server that records POST bodies and responds with 200. Returns its port.
fn receiver() -> (u16, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&bodies);
    // The thread ends with the tests.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = BufReader::new(stream);
            let (mut line, mut length) = (String::new(), 0);
            while stream.read_line(&mut line).is_ok_and(|read| read > 2) {
                if let Some(said) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = said.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            if stream.read_exact(&mut body).is_ok() {
                kept.lock().unwrap().push(body);
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let _ = stream.get_mut().write_all(answer.as_bytes());
            }
        }
    });
    (port, bodies)
}

/// Prepares a library of GPUs whose driver reports such a name.
fn library(place: &Place) -> String {
    let program = std::env::current_exe().unwrap();
    let built = program.parent().unwrap().join("libpaceline_fake_nvml.so");
    let library = place.path("libnvidia-ml.so.1");
    fs::copy(&built, &library).unwrap();
    // Shortens the name, because NVML's names have at most 96 bytes and are zero-terminated.
    let model: String = WORDS.replace('\0', "").chars().take(54).collect();
    let scenario = format!("gpus = 2\nmodel = {}\n", json!(model));
    place.write("libnvidia-ml.so.1.toml", &scenario);
    library.display().to_string()
}

fn output(place: &Place, args: &[&str]) -> Vec<u8> {
    let output = place.paceline(args).output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{args:?}: {}",
        text(&output.stderr)
    );
    output.stdout
}

#[test]
fn what_a_job_is_called_and_says_stays_text() {
    let place = Place::new();
    place.write("kmsg", "");
    place.write("words", WORDS);
    place.write("train.py", TRAINER);
    let tell = place.write("tell", "#!/bin/sh\ncat >> told\necho >> told\n");
    fs::set_permissions(&tell, fs::Permissions::from_mode(0o755)).unwrap();
    let (port, posted) = receiver();
    let library = library(&place);
    let exec = format!("exec={}", tell.display());
    let alertmanager = format!("alertmanager=http://127.0.0.1:{port}");
    let node = format!("n{NAME}");
    let options = [
        &[
            "--job",
            NAME,
            "--node",
            &node,
            "--kmsg",
            "kmsg",
            "--nvml-lib",
            &library,
        ],
        &["--notify", &exec, "--notify", &alertmanager][..],
    ]
    .concat();
    let script = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 python3 train.py 2>/dev/null";
    let mut shell = place.shell(&options, script);
    shell.env("PACELINE_METRICS_COMPAT", "dcgm");
    let running = place.start_as(shell);
    running.until_watched();
    let kernel = fs::OpenOptions::new().append(true).open(place.path("kmsg"));
    let line = format!(
        "4,1,77000000,-;NVRM: Xid (PCI:0000:18:00): 119, pid=7, name={}\n",
        WORDS.replace('\n', " ")
    );
    let mut bytes = line.into_bytes();
    bytes.extend(b"4,2,77000001,-;NVRM: Xid (PCI:0000:18:00): 79, pid=7, \xff\xfe\x80 <script>\n");
    kernel.unwrap().write_all(&bytes).unwrap();

    let address = until("an address", || {
        Some(place.read("run/metrics.addr").trim().to_owned()).filter(|address| !address.is_empty())
    });
    let metrics = until("GPUs and a finding on the metrics page", || {
        let page = fetch(&address, "/metrics");
        let has = |what: &str| text(&page).contains(what);
        (has("DCGM_FI_DEV_GPU_TEMP{") && has("finding=\"gpu-fault\"")).then_some(page)
    });
    assert_text("/metrics", &metrics);
    let metrics = text(&metrics);
    for (family, name, expected) in [
        ("paceline_job_info", "job_id", sanitize::label(NAME)),
        ("paceline_sidecar_resident_bytes", "node", sanitize::label(&node)),
    ] {
        assert_eq!(
            label(metrics, family, name).as_deref(),
            Some(&*expected),
            "{metrics}"
        );
    }
    let model = label(metrics, "DCGM_FI_DEV_GPU_TEMP", "modelName").unwrap();
    assert!(
        model.starts_with("</title></script>") && model.contains('␛'),
        "{model}"
    );

    until("the fault on the page", || {
        text(&fetch(&address, "/v1/live")).contains("119").then_some(())
    });
    assert_text("/v1/live", &fetch(&address, "/v1/live"));
    assert_text("top", &output(&place, &["top", "--once", "run"]));
    assert_text("top --json", &output(&place, &["top", "--once", "--json", "run"]));
    assert_text("gpus", &output(&place, &["gpus", "--nvml-lib", &library]));
    until("both are told", || {
        let all = posted.lock().unwrap().concat();
        let is_told = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("gpu-fault");
        (is_told(&all) && is_told(place.read("told").as_bytes())).then_some(())
    });

    place.write("end", "");
    assert_eq!(running.wait(), 1);
    assert_text("stderr", place.read("stderr").as_bytes());
    assert!(place.read("stderr").contains("paceline: job </script><script>"));
    assert_eq!(place.read("stdout"), "");
    assert_text("exec", place.read("told").as_bytes());
    let posted = posted.lock().unwrap();
    for body in posted.iter() {
        assert_text("Alertmanager", body);
    }
    let alerts: Value = serde_json::from_slice(&posted[0]).unwrap();
    assert_eq!(alerts[0]["labels"]["paceline_job"], *sanitize::label(NAME));
    assert_text("report", &output(&place, &["report", "run"]));
    assert_page("report.html", place.read("run/report.html").as_bytes());
    // JSON must keep the exact text, escaped so that a terminal does not interpret it.
    let json = output(&place, &["report", "run", "--json"]);
    assert_text("report --json", &json);
    let report: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(report["job"], NAME);
    let says = report["end"]["says"].as_str().unwrap();
    assert!(
        says.contains("alert(1)") && says.contains('\u{1b}') && says.len() < 8192,
        "{says}"
    );
}

/// A journal and a report can come from an untrusted source, and must still be shown as text.
#[test]
fn a_report_of_strangers_stays_text() {
    let place = Place::new();
    let simulated = [
        &["simulate", "--gpus", "4", "--steps", "300", "--json"][..],
        &[
            "--fault",
            "slow rank=2 factor=1.25 from=100",
            "--journal",
            "run.ndjson",
        ],
    ]
    .concat();
    let report = output(&place, &simulated);
    let quoted = json!(WORDS).to_string();
    let inside = quoted.trim_matches('"');
    let journal = place.read("run.ndjson").replace("node0", inside);
    place.write("strange/journal.ndjson", &journal);
    let folded = output(&place, &["report", "strange"]);
    assert_text("report of a journal", &folded);
    assert!(text(&folded).contains("␛[31m"), "{}", text(&folded));
    assert_text("replay", &output(&place, &["replay", "strange/journal.ndjson"]));

    let mut report: Value = serde_json::from_slice(&report).unwrap();
    let long = WORDS.repeat((1 << 20) / WORDS.len() + 1);
    report["job"] = json!(long);
    report["coverage"]["notes"] = json!(vec![&long; 3]);
    for verdict in report["verdicts"].as_array_mut().unwrap() {
        verdict["subject"]["node"] = json!(long);
        verdict["action"] = json!(long);
        verdict["evidence"][0]["what"] = json!(long);
    }
    for name in ["a", "b"] {
        place.write(&format!("{name}/report.json"), &report.to_string());
    }
    for args in [
        &["report", "a"][..],
        &["report", "--compare", "a", "b"],
        &["report", "--since", "9999d", "."],
    ] {
        assert_text(&args.join(" "), &output(&place, args));
        let page = [args, &["--html=-"]].concat();
        let page = output(&place, &page);
        if args[1] == "a" {
            assert_page("report --html", &page);
        } else {
            assert_text(&args.join(" "), &page);
        }
    }
    // The name of a missing file is printed, so it must be printed as text too.
    let output = place
        .paceline(["report", WORDS.split('\0').next().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_text("an error", &output.stderr);
}
