//! Tests remedies for a fault with trainers that react: they write a checkpoint at a signal, and then the job ends, or
//! one node of an elastic group leaves it.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;

use serde_json::Value;

use crate::elastic::{OWN_STORE, groups, journal, until_trains};
use crate::job::{paceline, torch, torchrun, trainer};

/// Policy options without waiting times. The ledger must be separate, because it prevents repeated remedies for the
/// same job.
const AT_ONCE: [&str; 7] = [
    "--act",
    "--remedy-limit",
    "hold_s=0",
    "--remedy-limit",
    "severity=warning",
    "--checkpoint-wait",
    "120",
];

/// Returns the audit's entries of this kind.
fn audit(running: &Path, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(running.join("run/remedies.ndjson")).unwrap_or_default();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line.get(kind).cloned()).collect()
}

fn course(running: &Path) -> Vec<String> {
    let what = |line: &Value| line["what"].as_str().unwrap().to_owned();
    audit(running, "course").iter().map(what).collect()
}

/// A real straggler is found. The job must write a checkpoint before it is stopped.
#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_job_with_a_slow_rank_writes_a_checkpoint_and_is_stopped() {
    let place = tempfile::tempdir().unwrap();
    let kept = place.path().join("kept");
    let ledger = place.path().join("ledger.json");
    let mut options = AT_ONCE.to_vec();
    options.extend(["--on-fault", "straggler=checkpoint-and-stop"]);
    options.extend(["--remedy-ledger", ledger.to_str().unwrap()]);
    let args = format!(
        "--checkpoint {} --sleep-ms 40 --slow-rank 2 --slow-pct 60",
        kept.display()
    );
    let ended = torchrun(&options, 4, "signalled.py", &args).run();
    assert!(!ended.status.success(), "{}", ended.stderr);
    // Each of the four trainers must have got the signal once.
    assert!(kept.exists());
    let saved: Vec<&str> = ended
        .stdout
        .lines()
        .filter(|line| line.starts_with("saved after "))
        .collect();
    assert!(!saved.is_empty(), "{}", ended.stdout);
    let decided: Vec<Value> = audit(ended.dir.path(), "decision");
    let acts: Vec<&Value> = decided.iter().filter(|line| line["outcome"] == "act").collect();
    assert_eq!(acts.len(), 1, "{decided:?}");
    assert_eq!(acts[0]["ask"]["finding"], "straggler");
    assert_eq!(acts[0]["ask"]["subject"]["rank"], 2, "{acts:?}");
    let wanted = [
        "SIGUSR1 to the trainers",
        "a checkpoint was written",
        "the command is stopped",
    ];
    assert_eq!(course(ended.dir.path()), wanted);
    let log = std::fs::read_to_string(ended.dir.path().join("run/sidecar.log")).unwrap();
    assert_eq!(log.matches("SIGUSR1 sent to rank 0, 1, 2, 3").count(), 1, "{log}");
    let end = ended.report()["end"].clone();
    assert_eq!(end["reason"], "stopped", "{end}");
    let says = end["says"].as_str().unwrap();
    assert!(says.starts_with("SIGTERM by paceline:"), "{end}");
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Two agents run as two nodes. A GPU of the second fails permanently, so its agent is stopped, and the first continues
/// alone from the requested checkpoint.
#[test]
#[ignore = "needs PyTorch: tests/run"]
fn long_an_elastic_group_goes_on_without_a_bad_node() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str| place.path().join(name).display().to_string();
    let (rendezvous, aggregator) = (free_port(), free_port());
    let agent = |node: &str| {
        let kmsg = file(&format!("kmsg-{node}"));
        std::fs::write(&kmsg, "").unwrap();
        let (aggregator, ledger) = (format!("127.0.0.1:{aggregator}"), file("ledger.json"));
        let mut options = AT_ONCE.to_vec();
        options.extend(["--on-fault", "leave-node", "--remedy-ledger", &ledger]);
        options.extend([
            "--job",
            "leaves",
            "--node",
            node,
            "--kmsg",
            &kmsg,
            "--aggregator",
            &aggregator,
        ]);
        let words = format!(
            "--nnodes 1:2 --nproc-per-node 1 --max-restarts 5 --rdzv-id leaves --rdzv-backend c10d --rdzv-endpoint \
             127.0.0.1:{rendezvous} --rdzv-conf last_call_timeout=3,keep_alive_interval=1 --local-addr 127.0.0.1 \
             --monitor-interval 0.2"
        );
        let mut command = vec!["env".to_owned(), OWN_STORE.to_owned()];
        command.push(torch().join("bin/torchrun").display().to_string());
        command.extend(words.split_whitespace().map(str::to_owned));
        let script = [
            "--checkpoint",
            &file("kept"),
            "--until-file",
            &file("done"),
            "--sleep-ms",
            "30",
        ];
        command.push(trainer("signalled.py"));
        command.extend(script.iter().map(|word| (*word).to_owned()));
        paceline(&options, &command).start()
    };
    let first = agent("n0");
    first.until("the store", || {
        std::net::TcpStream::connect(("127.0.0.1", rendezvous)).ok()
    });
    first.until_journal(1);
    let second = agent("n1");
    first.until("both", || {
        let groups = groups(&journal(&first));
        let is_whole = groups
            .last()
            .is_some_and(|group| group.ranks == 2 && group.steps > 40);
        is_whole.then_some(())
    });
    let begun = groups(&journal(&first)).len();
    fail(&file("kmsg-n1"));
    until_trains(&first, begun, 1);
    std::fs::write(place.path().join("done"), "").unwrap();
    let ended = first.wait().ok();
    assert!(!second.wait().status.success());
    let wanted = [
        "SIGUSR1 to the trainers",
        "a checkpoint was written",
        "the command of n1 is stopped, the others continue",
    ];
    assert_eq!(course(ended.dir.path()), wanted);
    let report = ended.report();
    assert_eq!(report["end"]["reason"], "success", "{report}");
    // The group must have resumed from the requested checkpoint.
    let begins: Vec<&str> = ended
        .stdout
        .lines()
        .filter(|line| line.contains("of 1 begins at"))
        .collect();
    let saved = ended
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("saved after "))
        .next_back();
    // The signal reaches the two trainers at different times, so there may be two checkpoints.
    let saved = saved.unwrap_or_else(|| panic!("{}", ended.stdout));
    assert!(
        begins
            .last()
            .is_some_and(|line| line.contains(&format!("begins at {saved},"))),
        "{}",
        ended.stdout
    );
}

/// Logs that a GPU's firmware does not respond, a fault that only a reset clears.
fn fail(kmsg: &str) {
    let log = std::fs::OpenOptions::new().append(true).open(kmsg);
    writeln!(
        log.unwrap(),
        "4,1,77000000,-;NVRM: Xid (PCI:0000:01:00): 119, pid=7, name=a, Timeout of GSP"
    )
    .unwrap();
}
