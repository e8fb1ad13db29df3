//! Tests `paceline top` with a real aggregator and simulated sidecars, as JSON, as text, and on a terminal.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::launched::{Place, text, until};
use crate::terminal::{self, Typed};

const HOSTILE: &str = "<b>\u{1b}[31m\u{202e}\nllama";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// An aggregator, and a job of eight ranks that connects to it. Rank 5 is slow.
struct Job {
    processes: Vec<Child>,
}

impl Drop for Job {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Job {
    fn start(place: &Place) -> Job {
        let key = place.write("key", TOKEN);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        // The system does not give out the port again that soon.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let gate = port.to_string();
        let aggregator = place
            .paceline([
                "sidecar",
                "--node",
                "head",
                "--run-dir",
                "run",
                "--key-file",
                "key",
            ])
            .args([
                "--job",
                HOSTILE,
                "--aggregator",
                &gate,
                "--http-token-file",
                "key",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut job = Job {
            processes: vec![aggregator],
        };
        until("an address", || {
            (!place.read("run/metrics.addr").is_empty()).then_some(())
        });
        let load = place
            .paceline([
                "simulate",
                "--connect",
                &gate,
                "--job",
                HOSTILE,
                "--key-file",
                "key",
            ])
            .args(["--ranks", "8", "--slow-every", "1", "--steps", "100000"])
            .args(["--world", "self=100ms"])
            .args(["--fault", "slow rank=5 factor=1.4 from=20 cause=thermal"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        job.processes.push(load.unwrap());
        job
    }

    /// Kills the aggregator with SIGKILL.
    fn kill_aggregator(&mut self) {
        self.processes[0].kill().unwrap();
        self.processes[0].wait().unwrap();
    }
}

fn told(place: &Place) -> Option<Value> {
    let output = place
        .paceline(["top", "run", "--once", "--json", "--http-token-file", "key"])
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).ok()
}

fn straggler(told: &Value) -> Option<&Value> {
    let verdicts = told["verdicts"].as_array()?;
    verdicts
        .iter()
        .find(|verdict| verdict["finding"] == "straggler" && verdict["raised"] == true)
}

#[test]
fn a_slow_rank_is_on_the_first_screen_and_the_last_picture_stays() {
    let place = Place::new();
    let mut job = Job::start(&place);
    let told = until("a straggler, and where it stands", || {
        // Waits for both, because verdicts are sent at once and the state of ranks once per second.
        let slow = |told: &Value| told["ranks"][0]["slowdown_ratio"].as_f64() > Some(1.1);
        told(&place).filter(|told| straggler(told).is_some() && told["ranks"][0]["rank"] == 5 && slow(told))
    });
    assert_eq!(
        (&told["schema_version"], &told["state"]),
        (&1.into(), &"running".into())
    );
    assert_eq!(straggler(&told).unwrap()["subject"]["rank"], 5, "{told}");
    let first = &told["ranks"][0];
    assert!(
        first["gpu"]["temperature_c"].is_number() && first["phases"].is_object(),
        "{first}"
    );
    assert_eq!(told["ranks"].as_array().unwrap().len(), 8);

    // Without a terminal, it must print once, without control sequences.
    let address = place.read("run/metrics.addr").trim().to_owned();
    let top = |args: &[&str]| place.paceline(["top"]).args(args).output().unwrap();
    let once = top(&[&address, "--http-token-file", "key"]);
    let shown = text(&once.stdout);
    assert!(
        once.status.success() && shown.contains("straggler: rank 5 on node0"),
        "{shown}"
    );
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(
        !shown.contains(['\u{1b}', '\u{202e}']) && shown.contains("<b>␛[31m"),
        "{shown}"
    );

    let refused = top(&[&address]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(
        text(&refused.stderr).contains("--http-token-file"),
        "{}",
        text(&refused.stderr)
    );

    let mut command = place.paceline(["top", "run", "--http-token-file", "key"]);
    command.env("TERM", "xterm");
    let mut typed = Typed::start_as(command);
    typed.resize(80, 24);
    typed.until_shown("straggler");
    typed.until_shown("cooling");
    typed.press("?");
    typed.until_shown("Keys");
    typed.press("?/rank 3\r\r");
    typed.until_drawn("Rank 3", 10);
    job.kill_aggregator();
    typed.press("\x1b");
    typed.until_shown("ANSWER");
    typed.press("q");
    typed.until_shown("\u{1b}[?1049l");
    assert!(!typed.seen.contains("\u{1b}[31m\u{fffd}") && !typed.seen.contains('\u{202e}'));
    assert_eq!(typed.end(), Some(0));

    let gone = top(&["run", "--http-token-file", "key"]);
    assert_eq!(gone.status.code(), Some(3), "no job is there to ask");
}

/// The terminal window is closed while `top` runs, so `top` must end.
#[test]
fn it_goes_with_its_terminal() {
    let place = Place::new();
    let mut running = place.start(&[], "read line; exit 7");
    running.until_watched();
    let mut command = place.paceline(["top", "run"]);
    command.env("TERM", "xterm");
    let (mut window, mut top) = terminal::begin(command);
    let mut seen = String::new();
    while !seen.contains("\u{1b}[?1049h") {
        let mut buffer = [0; 1024];
        let count = window.read(&mut buffer).unwrap();
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    drop(window);
    until("the end", || top.try_wait().unwrap());
    running.say("\n");
    assert_eq!(running.wait(), 7);
}

#[test]
fn a_running_job_is_found_without_its_name() {
    let place = Place::new();
    let mut running = place.start(&[], "read line; exit 7");
    running.until_watched();
    let run_dir = fs::canonicalize(place.path("run")).unwrap();
    let rings = fs::read_dir(&run_dir).unwrap().flatten();
    let mut rings = rings.map(|entry| entry.path());
    let rings = rings.find(|path| {
        path.file_name()
            .unwrap()
            .as_encoded_bytes()
            .starts_with(b"rings.")
    });
    assert_eq!(fs::read_link(rings.unwrap().join("run")).unwrap(), run_dir);
    // Accepts two results, because other tests run jobs as the same user: one of these jobs, or this one.
    let elsewhere = Place::new();
    let output = elsewhere.paceline(["top", "--once", "--json"]).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert!(
        output.status.success() && told["run_dir"].is_string(),
        "{}",
        text(&output.stderr)
    );
    running.say("\n");
    assert_eq!(running.wait(), 7);
    let ended = place.paceline(["top", "run"]).output().unwrap();
    assert!(
        text(&ended.stderr).contains("its job has ended: paceline report run"),
        "{}",
        text(&ended.stderr)
    );
}

/// A newer job that cannot be shown must be reported, and so must other jobs.
#[test]
fn a_newer_job_that_takes_a_token_is_not_passed_over_in_silence() {
    let (old, new) = (Place::new(), Place::new());
    let key = new.write("key", TOKEN);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let first = old.start(&[], "read line");
    first.until_watched();
    let second = new.start(&["--http-token-file", "key"], "read line");
    second.until_watched();
    // Makes this job the newest, because other tests start jobs as the same user in the meantime.
    let rings = fs::read_dir(fs::canonicalize(new.path("run")).unwrap()).unwrap();
    let mut rings = rings.flatten().map(|entry| entry.path());
    let rings = rings.find(|path| {
        path.file_name()
            .unwrap()
            .as_encoded_bytes()
            .starts_with(b"rings.")
    });
    let touched = Command::new("touch")
        .args(["-h", "-d", "1 hour"])
        .arg(rings.unwrap().join("run"))
        .status();
    assert!(touched.unwrap().success());
    let address = new.read("run/metrics.addr").trim().to_owned();
    let top = |more: &[&str]| {
        let words = ["top", "--once", "--json"];
        let output = new.paceline(words.iter().chain(more)).output().unwrap();
        let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (told["address"].clone(), text(&output.stderr).to_owned())
    };
    let (shown, said) = top(&[]);
    assert!(
        shown.is_string() && shown != *format!("http://{address}"),
        "{said}"
    );
    let wanted =
        format!("Not your newest job: run needs a token (paceline top --http-token-file FILE {address}). ");
    assert!(said.contains(&wanted), "{said}");
    let (shown, said) = top(&["--http-token-file", "key"]);
    assert_eq!(shown, *format!("http://{address}"), "{said}");
    assert!(
        said.contains("jobs of yours here. Others: paceline top 127.0.0.1:"),
        "{said}"
    );
    for mut running in [first, second] {
        running.say("\n");
        assert_eq!(running.wait(), 0);
    }
}
