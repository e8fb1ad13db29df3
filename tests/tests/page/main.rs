//! Tests the live page in a real Chromium, with a real aggregator and simulated sidecars. `tests/run` runs this, or you
//! can run it by hand: `cargo test --locked -p paceline-tests --test page -- --ignored`.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod axe;
mod browser;
mod hostile;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use browser::Browser;
use serde_json::json;
use tempfile::TempDir;

const HOSTILE: &str = "<img src=x onerror=alert(1)>\u{1b}[31m";
/// The name of the aggregator's node.
const HOSTILE_NODE: &str = "head</script><script>document.title=1</script>\u{202e}\"'&amp;${{x}}";

/// An aggregator, and a job that connects to it.
struct Job {
    place: TempDir,
    processes: Vec<Child>,
    address: String,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

fn paceline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline-under-test"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

impl Job {
    fn start(token: bool) -> Job {
        let place = tempfile::tempdir().unwrap();
        let key = place.path().join("key");
        fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        // The system does not give out the port again that soon.
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let gate = format!("127.0.0.1:{port}");
        let run_dir = place.path().join("run");
        let mut aggregator = paceline();
        aggregator
            .args([
                "sidecar",
                "--job",
                HOSTILE,
                "--node",
                HOSTILE_NODE,
                "--aggregator",
                &gate,
            ])
            .args(["--key-file".as_ref(), key.as_os_str()])
            .args(["--run-dir".as_ref(), run_dir.as_os_str()])
            .stdin(Stdio::piped());
        if token {
            aggregator.args(["--http-token-file".as_ref(), key.as_os_str()]);
        }
        let mut job = Job {
            processes: vec![aggregator.spawn().unwrap()],
            place,
            address: String::new(),
        };
        let end = Instant::now() + Duration::from_secs(60);
        while job.address.is_empty() {
            assert!(Instant::now() < end, "no metrics.addr");
            thread::sleep(Duration::from_millis(20));
            let said = fs::read_to_string(run_dir.join("metrics.addr")).unwrap_or_default();
            said.trim().clone_into(&mut job.address);
        }
        let load = paceline()
            .args([
                "simulate",
                "--connect",
                &gate,
                "--job",
                HOSTILE,
                "--ranks",
                "16",
                "--slow-every",
                "1",
            ])
            .args(["--world", "self=100ms racks=2", "--steps", "4000"])
            .args(["--fault", "slow rank=5 factor=1.4 from=30 cause=thermal"])
            .args(["--key-file".as_ref(), key.as_os_str()])
            .spawn();
        job.processes.push(load.unwrap());
        job
    }

    fn kill(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

const ANSWER: &str = "document.getElementById('answer').innerText";

#[test]
#[ignore = "needs chromium"]
fn the_first_screen_answers() {
    let mut job = Job::start(false);
    let mut page = Browser::start();
    page.call(
        "Page.navigate",
        json!({ "url": format!("http://{}/", job.address) }),
    );
    page.until(&format!(
        "{ANSWER}.includes('straggler') && {ANSWER}.includes('thermal margin')"
    ));
    for says in [
        "CRITICAL",
        "rank 5",
        "node0",
        "heat: the GPU",
        "step 30",
        "of every step",
        "cooling",
    ] {
        let answer = page.run(ANSWER);
        assert!(answer.as_str().unwrap().contains(says), "{says}: {answer}");
    }
    let low = page.run("document.getElementById('answer').getBoundingClientRect().bottom < innerHeight");
    assert_eq!(low, json!(true), "the answer is on the first screen");

    // The job's name is shown as text, and shortened.
    let name = page.run("document.getElementById('job').textContent");
    assert!(
        name.as_str().unwrap().starts_with("<img src=x onerror=alert(1)>"),
        "{name}"
    );
    assert_eq!(
        page.run("document.querySelectorAll('img, iframe, body script + script').length"),
        json!(0)
    );

    // The keyboard selects the same rank as the pointer.
    page.press("h");
    page.press("w");
    page.until("document.getElementById('heat-says').textContent.includes('rank 5 on node0')");
    page.press("Enter");
    page.until("document.getElementById('filter').value === 'rank 5' && heat.rows.length === 1");
    page.press("Escape");
    page.run("document.activeElement.blur()");
    page.press("Escape");
    page.until("document.getElementById('filter').value === '' && heat.rows.length === 16");
    page.press("t");
    assert_eq!(page.run("document.documentElement.dataset.theme"), json!("light"));
    page.press("t");
    assert_eq!(
        page.run("getComputedStyle(document.body).backgroundColor"),
        json!("rgb(17, 23, 28)")
    );

    // The page updates by itself.
    let step = page.run("data.steps.at(-1).step").as_u64().unwrap();
    page.until(&format!("data.steps.at(-1).step > {step}"));

    page.resize(390, 844);
    page.until("document.documentElement.scrollWidth <= 390");
    assert!(page.complaints.is_empty(), "{:?}", page.complaints);

    job.kill();
    page.until("document.getElementById('link').textContent.includes('No answer from the aggregator')");
    assert!(
        page.run(ANSWER).as_str().unwrap().contains("rank 5"),
        "the last that was told stays"
    );
}

#[test]
#[ignore = "needs chromium"]
fn whoever_has_no_token_is_asked_for_it() {
    let job = Job::start(true);
    let mut page = Browser::start();
    page.call(
        "Page.navigate",
        json!({ "url": format!("http://{}/", job.address) }),
    );
    page.until("!document.getElementById('door').hidden");
    assert_eq!(page.run("data.report"), json!(null));
    let token = fs::read_to_string(job.place.path().join("key")).unwrap();
    page.run(&format!(
        "document.getElementById('token').value = '{token}'; document.getElementById('door').requestSubmit()"
    ));
    page.until("data.report !== null && document.getElementById('door').hidden");
}
