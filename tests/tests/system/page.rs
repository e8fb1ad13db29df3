//! Tests the address of the job's page, access to it and its content, from the command line and from paceline.toml.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::hostile::fetch;
use crate::launched::{Place, text, until};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const TOLD: &str = "paceline: live page http://";

/// Returns the address in the line that announces it, once the file has that line.
fn told(place: &Place, file: &str) -> String {
    until("the page's address on stderr", || {
        let said = place.read(file);
        let line = said.split_once(TOLD)?.1.split_once('\n')?.0;
        Some(line.split_once('/')?.0.to_owned())
    })
}

fn token(place: &Place) {
    let token = place.write("token", TOKEN);
    fs::set_permissions(token, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn the_address_is_printed_while_the_job_runs() {
    let place = Place::new();
    let mut running = place.start(&[], "read line; exit 7");
    let address = told(&place, "stderr");
    assert_eq!(place.read("run/metrics.addr").trim(), address);
    assert!(text(&fetch(&address, "/metrics")).contains("paceline_build_info"));
    running.say("\n");
    assert_eq!(running.wait(), 7);
    let stderr = place.read("stderr");
    assert_eq!(stderr.matches(TOLD).count(), 1, "{stderr}");
}

#[test]
fn a_port_that_is_taken_is_told_with_the_one_that_is_not() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let wanted = taken.local_addr().unwrap();
    let mut running = place.start(&["--http", &wanted.to_string()], "read line");
    let address = told(&place, "stderr");
    assert_ne!(address, wanted.to_string());
    assert_eq!(place.read("run/metrics.addr").trim(), address);
    let stderr = place.read("stderr");
    let why = format!("{TOLD}{address}/ (port {} is taken), for", wanted.port());
    assert!(stderr.contains(&why), "{stderr}");
    assert!(!stderr.contains(&wanted.to_string()), "{stderr}");
    running.say("\n");
    assert_eq!(running.wait(), 0);
}

#[test]
fn quiet_prints_no_address() {
    let place = Place::new();
    let mut running = place.start(&["--quiet"], "read line");
    running.until_watched();
    running.say("\n");
    assert_eq!(running.wait(), 0);
    assert_eq!(place.read("stderr"), "");
}

/// Two tasks share a sidecar. The one that started it must print the address.
#[test]
fn one_of_a_nodes_tasks_prints_it() {
    let place = Place::new();
    let job = format!("page-{}", std::process::id());
    let start = |rank: u32| -> Child {
        let words = ["run", "--run-dir", "run", "--job", &job, "--node", "n", "--"];
        let script = "until [ -e over ]; do sleep 0.05; done";
        place
            .paceline(words.iter().chain(&["sh", "-c", script]))
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")])
            .stdout(Stdio::null())
            .stderr(fs::File::create(place.path(&format!("err{rank}"))).unwrap())
            .spawn()
            .unwrap()
    };
    let tasks = [0, 1].map(start);
    let both = || [0, 1].map(|rank| place.read(&format!("err{rank}"))).concat();
    until("the address", || both().contains(TOLD).then_some(()));
    place.write("over", "");
    for mut task in tasks {
        let ended = until("the end", || task.try_wait().unwrap());
        assert_eq!(ended.code(), Some(0));
    }
    assert_eq!(both().matches(TOLD).count(), 1, "{}", both());
}

#[test]
fn who_may_read_and_what_is_shown_are_settings_like_others() {
    let place = Place::new();
    token(&place);
    place.write(
        "paceline.toml",
        "http_token_file = \"token\"\nmetrics_compat = \"dcgm\"\n",
    );
    let options = ["--sim-gpus", "gpus=2", "--metrics", "gpu"];
    let mut running = place.start(&options, "echo $PACELINE_HTTP_TOKEN_FILE; read line");
    running.until_printed("token\n");
    let address = told(&place, "stderr");
    let refused = fetch(&address, "/metrics");
    assert_eq!(text(&refused), "# a token is needed\n");
    let shown = until("GPUs under dcgm-exporter's names", || {
        let page = fetch_as(&address);
        page.contains("DCGM_FI_DEV_GPU_TEMP{").then_some(page)
    });
    assert!(shown.contains("\npaceline_gpu_temperature_celsius{"), "{shown}");
    // Other ways to view the page must need the token too.
    let top = |more: &[&str]| {
        let words = ["top", "run", "--once", "--json"];
        place.paceline(words.iter().chain(more)).output().unwrap()
    };
    assert_eq!(top(&[]).status.code(), Some(64));
    let seen: Value = serde_json::from_slice(&top(&["--http-token-file", "token"]).stdout).unwrap();
    assert_eq!(seen["state"], "running", "{seen}");
    running.say("\n");
    assert_eq!(running.wait(), 0);
}

/// Fetches `/metrics` with the token.
fn fetch_as(address: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let head = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}");
    write!(stream, "{head}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_page_that_could_not_be_protected_starts_nothing() {
    let place = Place::new();
    for options in [
        &["--http-token-file", "none"][..],
        &["--http-cert", "none"],
        &["--metrics", "all"],
        &["--metrics-compat", "none"],
    ] {
        let output = place.run(options, "touch started");
        assert_eq!(output.status.code(), Some(64), "{options:?}");
        assert!(
            text(&output.stderr).contains(options[0]),
            "{}",
            text(&output.stderr)
        );
    }
    assert!(!place.path("started").exists());
}
