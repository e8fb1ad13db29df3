//! Tests the shutdown of a pod's sidecar under time pressure.

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::launched::{Place, signal, until};

/// The time that the kubelet leaves when the trainer has used up the pod's grace period.
const LEFT: Duration = Duration::from_secs(2);

/// The container's log must have the summary block even if a metrics receiver accepts data and never responds.
#[test]
fn the_block_is_out_before_receivers_are_waited_for() {
    let place = Place::new();
    fs::create_dir(place.path("rings")).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = |name: &str| fs::File::create(place.path(name)).unwrap();
    let mut command = place.paceline(["sidecar", "--pod", "--job", "j", "--node", "m/p"]);
    command
        .args(["--run-dir", "run", "--ring-dir", "rings"])
        .env(
            "PACELINE_OTLP",
            format!("http://{}", silent.local_addr().unwrap()),
        )
        .env("PACELINE_AGGREGATOR", "127.0.0.1")
        .stdout(file("stdout"))
        .stderr(file("stderr"));
    let mut child = command.spawn().unwrap();
    until("a word of the sidecar", || {
        place
            .read("run/journal.ndjson")
            .contains("\"beat\"")
            .then_some(())
    });
    let began = Instant::now();
    signal("TERM", child.id());
    until("the block", || {
        place.read("stderr").contains("report.json").then_some(())
    });
    let took = began.elapsed();
    assert!(took < LEFT, "{took:?}");
    assert!(place.path("run/report.html").exists());
    assert_eq!(until("its end", || child.try_wait().unwrap()).code(), Some(0));
    assert!(began.elapsed() > LEFT, "nobody was waited for");
}
