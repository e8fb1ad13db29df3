//! The death of any Paceline process must cost the job nothing, and there must still be a report.

use std::net::TcpListener;

use crate::launched::{Place, is_running, signal, stands, text, until};

const WAITS: &str = "echo $PACELINE_RING_DIR; read line; exit 7";

#[test]
fn a_killed_sidecar_is_started_again_and_the_gap_is_told() {
    let place = Place::new();
    let mut running = place.start(&[], WAITS);
    running.until_watched();
    let first = until("a sidecar", || running.sidecar());
    signal("KILL", first);
    let second = until("another sidecar", || {
        running.sidecar().filter(|pid| *pid != first)
    });
    let agents = || place.read("run/journal.ndjson").matches("\"agent\":{").count();
    until("the second one's first words", || (agents() >= 2).then_some(()));
    running.say("\n");
    assert_eq!(running.wait(), 7);
    assert!(!is_running(second));
    let report = place.report("run/report.json");
    assert_eq!(report["exits"][0]["code"], 7);
    assert!(
        !report["coverage"]["gaps"].as_array().unwrap().is_empty(),
        "{report}"
    );
    let stderr = place.read("stderr");
    assert!(
        stderr.contains("warning: the sidecar was ended by signal 9; it is restarted"),
        "{stderr}"
    );
}

#[test]
fn a_sidecar_that_dies_at_the_very_end_is_replaced_for_the_last_words() {
    let place = Place::new();
    let mut running = place.start(&[], WAITS);
    running.until_watched();
    signal("KILL", until("a sidecar", || running.sidecar()));
    running.say("\n");
    assert_eq!(running.wait(), 7);
    assert_eq!(place.report("run/report.json")["exits"][0]["code"], 7);
    assert!(place.read("run/journal.ndjson").contains("\"end\""));
}

/// After SIGSTOP, the sidecar neither works nor exits. It must be killed after five seconds, and the report must be
/// made from the journal.
#[test]
fn a_sidecar_that_hangs_is_ended_and_the_report_folded() {
    let place = Place::new();
    let mut running = place.start(&["--json"], WAITS);
    running.until_watched();
    let sidecar = until("a sidecar", || running.sidecar());
    signal("STOP", sidecar);
    running.say("\n");
    assert_eq!(running.wait(), 7);
    assert!(!is_running(sidecar));
    let report = place.report("run/report.json");
    assert_eq!(report["exits"][0]["code"], 7);
    let notes = report["coverage"]["notes"].to_string();
    assert!(notes.contains("did not finish in time"), "{report}");
    assert_eq!(report["verdicts"].as_array().unwrap().len(), 0, "{report}");
    let stdout = place.read("stdout");
    let line: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!(line, report);
}

#[test]
fn nothing_stays_behind_when_the_launcher_is_asked_to_end() {
    let place = Place::new();
    let running = place.start(&[], "echo $PACELINE_RING_DIR; exec sleep 600");
    running.until_watched();
    let sidecar = until("a sidecar", || running.sidecar());
    let ring = place.read("stdout").trim().to_owned();
    assert!(stands(&ring));
    signal("TERM", running.pid());
    assert_eq!(running.wait(), 143);
    assert!(!is_running(sidecar) && !stands(&ring));
}

/// A launcher killed by SIGKILL cannot clean up. The sidecar must notice that, continue to the child's end, and then
/// exit.
#[test]
fn a_killed_launcher_leaves_the_job_running_and_the_sidecar_ends_with_it() {
    let place = Place::new();
    let mut running = place.start(&[], "echo $$ $PACELINE_RING_DIR; read line; echo done");
    running.until_watched();
    let sidecar = until("a sidecar", || running.sidecar());
    let said = place.read("stdout");
    let (child, ring) = said.trim().split_once(' ').unwrap();
    let child: u32 = child.parse().unwrap();
    signal("KILL", running.pid());
    until("the launcher's end", || running.child.try_wait().unwrap());
    assert!(is_running(child) && is_running(sidecar));
    running.say("\n");
    until("the child's end", || (!is_running(child)).then_some(()));
    until("the sidecar's end", || (!is_running(sidecar)).then_some(()));
    assert!(place.read("stdout").contains("done") && !stands(ring));
    assert!(place.read("run/journal.ndjson").contains("\"end\""));
}

#[test]
fn a_port_in_use_means_a_node_that_is_watched_alone_and_says_so() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    let place = Place::new();
    let mut running = place.start(&["--aggregator", &address], WAITS);
    running.until_watched();
    running.say("\n");
    assert_eq!(running.wait(), 7);
    let notes = place.report("run/report.json")["coverage"]["notes"].to_string();
    assert!(notes.contains("alone") && notes.contains(&address), "{notes}");
}

#[test]
fn a_second_run_in_a_directory_is_a_job_of_its_own() {
    let place = Place::new();
    assert_eq!(place.run(&["--job", "x"], "exit 1").status.code(), Some(1));
    let output = place.run(&["--job", "x", "--json"], "exit 2");
    assert_eq!(output.status.code(), Some(2));
    let report: serde_json::Value = serde_json::from_str(text(&output.stdout)).unwrap();
    assert_eq!(report["exits"].as_array().unwrap().len(), 1);
    assert_eq!(report["exits"][0]["code"], 2);
}
