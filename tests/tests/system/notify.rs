//! Tests notifications to external tools by real processes. Alertmanager is Debian's.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use paceline_health::verdict::{State, Verdict};
use paceline_sidecar::sink::notify::{Notifier, Receiver};
use serde_json::Value;

use crate::launched::{Place, is_running, signal, until};

const WAITS: &str = "echo ready; while [ ! -e end ]; do sleep 0.05; done";

fn fault(place: &Place, gpu: u32) {
    let log = fs::OpenOptions::new().append(true).open(place.path("kmsg"));
    writeln!(
        log.unwrap(),
        "4,{gpu},77000000,-;NVRM: Xid (PCI:0000:{gpu:02x}:00): 119, pid=7, name=a, Timeout of GSP"
    )
    .unwrap();
}

#[test]
fn a_program_is_told_of_a_fault_once() {
    let place = Place::new();
    place.write("kmsg", "");
    let tell = place.write("tell", "#!/bin/sh\ncat >> told\necho >> told\n");
    fs::set_permissions(&tell, fs::Permissions::from_mode(0o755)).unwrap();
    let receiver = format!("exec={},severity=critical", tell.display());
    let running = place.start(&["--kmsg", "kmsg", "--notify", &receiver, "--job", "j"], WAITS);
    running.until_watched();
    fault(&place, 1);
    fault(&place, 1);
    let told = || -> Vec<Value> {
        let text = place.read("told");
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    };
    until("a notice", || (!told().is_empty()).then_some(()));
    place.write("end", "");
    assert_eq!(running.wait(), 0);
    let firing: Vec<Value> = told()
        .iter()
        .flat_map(|parcel| parcel["notices"].as_array().unwrap().clone())
        .filter(|notice| notice["finding"] == "gpu-fault")
        .collect();
    assert_eq!(firing.len(), 1, "{firing:?}");
    assert_eq!(
        (&firing[0]["status"], &firing[0]["job"]),
        (&"firing".into(), &"j".into())
    );
}

/// The receiver is unavailable until the job is over. The summary must show the pending notices, their receiver and
/// directory, and how to send them.
#[test]
fn what_waits_at_the_end_is_told_and_can_be_sent() {
    let place = Place::new();
    place.write("kmsg", "");
    let tell = place.write(
        "tell",
        "#!/bin/sh\n[ -e open ] || exit 75\ncat >> told\necho >> told\n",
    );
    fs::set_permissions(&tell, fs::Permissions::from_mode(0o755)).unwrap();
    let receiver = format!("exec={}", tell.display());
    let running = place.start(&["--kmsg", "kmsg", "--notify", &receiver, "--job", "j"], WAITS);
    running.until_watched();
    fault(&place, 1);
    until("the verdict", || {
        place
            .read("run/verdicts.ndjson")
            .contains("gpu-fault")
            .then_some(())
    });
    let flush = |more: &[&str]| {
        let output = place
            .paceline([&["notify", "flush", "run"], more].concat())
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        (
            output.status.code(),
            out + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (code, said) = flush(&["--notify", &receiver]);
    assert!(code == Some(1) && said.contains("the job still runs"), "{said}");
    place.write("end", "");
    assert_eq!(running.wait(), 0);
    let stderr = place.read("stderr");
    let whom = format!(
        "exec {} could not be sent, and are kept in run/notify/exec-",
        tell.display()
    );
    assert!(stderr.contains(&whom), "{stderr}");
    assert!(stderr.contains("paceline notify flush run"), "{stderr}");
    // Without the receiver's option nothing may be sent. With it, each notice must be sent once.
    let (code, said) = flush(&[]);
    assert!(
        code == Some(1) && said.contains("use the same --notify as the job"),
        "{said}"
    );
    let (code, said) = flush(&["--notify", &receiver]);
    assert!(code == Some(1) && said.contains(": 0 notices sent, "), "{said}");
    place.write("open", "");
    let (code, said) = flush(&["--notify", &receiver]);
    assert!(code == Some(0) && said.contains(" notices sent\n"), "{said}");
    assert!(place.read("told").contains("\"firing\""));
    let (code, said) = flush(&["--notify", &receiver]);
    assert_eq!((code, &*said), (Some(0), "nothing waits\n"));
}

/// The aggregator is killed while its notification program hangs. The program must be ended too.
#[test]
fn a_program_does_not_outlive_the_aggregator() {
    let place = Place::new();
    place.write("kmsg", "");
    let tell = place.write(
        "tell",
        "#!/bin/sh\n[ -e pid ] && exit 0\nsleep 600 &\necho $$ $! > pid.new && mv pid.new pid\nsleep 600\n",
    );
    fs::set_permissions(&tell, fs::Permissions::from_mode(0o755)).unwrap();
    let receiver = format!("exec={}", tell.display());
    let running = place.start(&["--kmsg", "kmsg", "--notify", &receiver, "--job", "j"], WAITS);
    running.until_watched();
    fault(&place, 1);
    until("the program", || place.path("pid").exists().then_some(()));
    signal("KILL", running.sidecar().unwrap());
    // The next aggregator must end the processes that the previous one started.
    for pid in place.read("pid").split_whitespace() {
        let pid = pid.parse().unwrap();
        until("its end", || (!is_running(pid)).then_some(()));
    }
    place.write("end", "");
    assert_eq!(running.wait(), 0);
}

/// Debian's Alertmanager on loopback, which is killed on drop.
struct Alertmanager {
    child: Child,
    port: u16,
}

impl Alertmanager {
    fn start(place: &Place, port: u16) -> Alertmanager {
        let config =
            "route: {receiver: none, group_by: [paceline_job], group_wait: 0s}\nreceivers: [{name: none}]\n";
        let config = place.write("alertmanager.yml", config);
        let child = Command::new("prometheus-alertmanager")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", place.path("alertmanager").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args(["--cluster.listen-address=", "--log.level=error"])
            .stdout(Stdio::null())
            .stderr(Stdio::from(
                fs::File::create(place.path("alertmanager.log")).unwrap(),
            ))
            .spawn()
            .unwrap();
        Alertmanager { child, port }
    }

    /// Returns a port that stays free until Alertmanager starts. Tests that run in parallel get theirs from the
    /// ephemeral range, which starts at 32768.
    fn port() -> u16 {
        let first = 20_000 + (std::process::id() % 10_000) as u16;
        let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        (first..32_000).find(is_free).unwrap()
    }

    /// Returns the output of `amtool`, which is the API's JSON.
    fn alerts(&self, args: &[&str]) -> Vec<Value> {
        let output = Command::new("amtool")
            .arg(format!("--alertmanager.url=http://127.0.0.1:{}", self.port))
            .args(["alert", "query", "--output=json"])
            .args(args)
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Alertmanager starts after the fault. It must receive the pending notices, group them by job, and at the end have the
/// resolved ones.
#[test]
#[ignore = "needs prometheus-alertmanager: tests/run installs it"]
fn alertmanager_receives_groups_and_resolves() {
    let place = Place::new();
    place.write("kmsg", "");
    let port = Alertmanager::port();
    let receiver = format!("alertmanager=http://127.0.0.1:{port}");
    let running = place.start(&["--kmsg", "kmsg", "--notify", &receiver, "--job", "j"], WAITS);
    running.until_watched();
    fault(&place, 1);
    fault(&place, 2);
    until("both in the spool", || {
        let spools = fs::read_dir(place.path("run/notify")).ok()?.flatten();
        let held: String = spools
            .filter_map(|spool| fs::read_dir(spool.path()).ok())
            .flatten()
            .filter_map(|file| fs::read_to_string(file.ok()?.path()).ok())
            .collect();
        (held.contains("0000:01:00.0") && held.contains("0000:02:00.0")).then_some(())
    });
    let mut alertmanager = Alertmanager::start(&place, port);
    let fired = until("two alerts", || {
        let ended = alertmanager.child.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", place.read("alertmanager.log"));
        let alerts = alertmanager.alerts(&["alertname=PacelineGpuFault", "paceline_job=j"]);
        (alerts.len() == 2).then_some(alerts)
    });
    for alert in &fired {
        assert_eq!(alert["labels"]["severity"], "critical", "{alert}");
        assert_eq!(alert["status"]["state"], "active", "{alert}");
    }
    // There must be one group for the job.
    let groups = Command::new("curl")
        .args(["-sf", &format!("http://127.0.0.1:{port}/api/v2/alerts/groups")])
        .output();
    if let Ok(groups) = groups {
        let groups: Value = serde_json::from_slice(&groups.stdout).unwrap();
        assert_eq!(groups.as_array().unwrap().len(), 1, "{groups}");
    }
    place.write("end", "");
    assert_eq!(running.wait(), 0);
    // A GPU fault persists after the job. Nothing may be lost, and nothing may be sent twice.
    let left = alertmanager.alerts(&["alertname=PacelineGpuFault"]);
    assert_eq!(left.len(), 2, "{left:?}");
    resolves(&place, &alertmanager, &receiver);
}

/// A cleared finding must be resolved in Alertmanager at once, not only after its timeout.
fn resolves(place: &Place, alertmanager: &Alertmanager, receiver: &str) {
    let mut verdict: Verdict = serde_json::from_value(serde_json::json!({
        "id": 1, "finding": "straggler", "subject": { "kind": "node", "node": "n1" }, "severity": "warning",
        "state": "raised", "since_s": 1.0, "since_step": 1, "raised_s": 2.0, "raised_step": 2, "cleared_s": null,
        "signals": [], "provenance": "live", "slowdown_ratio": 1.5, "cause": "thermal", "evidence": [],
        "impact_ratio": 0.2, "lost_gpu_hours": 0.0, "action": "cool it",
    }))
    .unwrap();
    let now_ms = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.unwrap().as_millis() as u64
    };
    let receivers = [Receiver::parse(receiver).unwrap()];
    let mut notifier = Notifier::start(&place.path("other"), &"other".into(), &receivers, now_ms());
    let alerts = || {
        alertmanager
            .alerts(&["alertname=PacelineStraggler", "node=n1"])
            .len()
    };
    notifier.verdict(&verdict, now_ms());
    notifier.tick(now_ms());
    until("the alert", || (alerts() == 1).then_some(()));
    verdict.state = State::Cleared;
    notifier.verdict(&verdict, now_ms());
    notifier.tick(now_ms());
    until("its end", || (alerts() == 0).then_some(()));
    notifier.close(now_ms());
}
