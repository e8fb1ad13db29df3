//! Tests torchrun's elastic groups. In one test, a worker is killed and its agent restarts it. In another, a group
//! shrinks with an agent and grows with another one. Statistics must follow the group, there must be no false verdict,
//! and the time in between must be attributed to restarts.

use std::net::TcpListener;
use std::process::Command;

use paceline_health::event::Event;
use paceline_health::frame::Entry;
use serde_json::Value;

use crate::job::{Ended, Running, paceline, torch, trainer};

/// By default, PyTorch 2.15 gives workers the agents' own store, in which gloo finds addresses of the previous group
/// (also without Paceline). This setting prevents that.
pub const OWN_STORE: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1";

/// Runs `paceline run OPTIONS -- torchrun WORDS elastic.py`, until the file `done` is in `place`.
fn elastic(options: &[&str], words: &str, place: &std::path::Path) -> Running {
    let mut command = vec!["env".to_owned(), OWN_STORE.to_owned()];
    command.push(torch().join("bin/torchrun").display().to_string());
    command.extend(words.split_whitespace().map(str::to_owned));
    command.push(trainer("elastic.py"));
    let file = |name: &str| place.join(name).display().to_string();
    for (option, value) in [("--checkpoint", file("kept")), ("--until-file", file("done"))] {
        command.extend([option.to_owned(), value]);
    }
    command.extend(["--sleep-ms".to_owned(), "30".to_owned()]);
    paceline(options, &command).start()
}

pub fn journal(running: &Running) -> Vec<Entry> {
    let text = std::fs::read_to_string(running.dir.path().join("run/journal.ndjson")).unwrap_or_default();
    // Skips lines that cannot be parsed, because the last one may be incomplete.
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Returns the groups of ranks, each with the number of ranks, the times of the first and last steps, and the number of
/// steps.
pub fn groups(entries: &[Entry]) -> Vec<Group> {
    let mut found: Vec<Group> = Vec::new();
    for entry in entries {
        let at_s = entry.at_ns.since(paceline_health::Time::ZERO).as_secs_f64();
        match &entry.frame.event {
            Event::Attach(attach) => {
                // Ranks of a group attach one after the other, so the first one may already have made steps.
                let is_of = |group: &Group| {
                    let is_known = group.pids.iter().any(|(rank, _)| *rank == attach.rank.0);
                    group.ranks == attach.world_size && !is_known
                };
                let is_new = !found.last().is_some_and(is_of);
                if is_new {
                    found.push(Group {
                        ranks: attach.world_size,
                        ..Group::default()
                    });
                }
                let group = found.last_mut().unwrap();
                group.pids.push((attach.rank.0, attach.pid));
            }
            Event::Step(_) => {
                let group = found.last_mut().unwrap();
                group.first_s.get_or_insert(at_s);
                (group.last_s, group.steps) = (at_s, group.steps + 1);
            }
            _ => {}
        }
    }
    found
}

#[derive(Debug, Default)]
pub struct Group {
    pub ranks: u32,
    pids: Vec<(u32, u32)>,
    first_s: Option<f64>,
    last_s: f64,
    pub steps: usize,
}

/// Waits until the group with this number has made enough steps, over all ranks.
pub fn until_trains(running: &Running, number: usize, ranks: u32) {
    running.until("steps", || {
        let groups = groups(&journal(running));
        let group = groups.get(number)?;
        assert_eq!(group.ranks, ranks, "{groups:?}");
        (group.steps >= 40 * ranks as usize).then_some(())
    });
}

fn kill(pids: &[u32]) {
    let mut command = Command::new("kill");
    command.arg("-KILL").args(pids.iter().map(u32::to_string));
    // The command may fail, because one of the processes may already have exited.
    command.status().unwrap();
}

/// Checks that the job succeeds without a false verdict, and that the time of restarts is attributed to them. That
/// time, in GPU-seconds, is from the last step of a group to the first of the next one. Repeated steps add a little,
/// and the journal's times are half a second apart.
fn is_followed(ended: &Ended, entries: &[Entry], ranks: u32, killed: &[u64]) {
    ended.accuses_only(&[]);
    let report = ended.report();
    let found: Vec<&Value> = report["verdicts"].as_array().unwrap().iter().collect();
    // Verdicts that this machine causes are allowed, because four ranks on a small test machine can lack CPU.
    let is_of_killed = |verdict: &Value| {
        let rank = verdict["subject"]["rank"].as_u64().unwrap_or(u64::MAX);
        verdict["finding"] == "rank-died" && verdict["state"] == "cleared" && killed.contains(&rank)
    };
    let wrong = found
        .iter()
        .find(|verdict| !is_the_machines(verdict) && !is_of_killed(verdict));
    assert!(wrong.is_none(), "wrongly accused\n{report}");
    assert_eq!(report["end"]["reason"], "success", "{report}");
    assert_eq!(report["world_size"], ranks, "{report}");
    assert_eq!(report["coverage"]["ranks_seen"], ranks, "{report}");
    let groups = groups(entries);
    let between: f64 = groups
        .windows(2)
        .map(|pair| (pair[1].first_s.unwrap() - pair[0].last_s) * f64::from(pair[1].ranks))
        .sum();
    // The time from a death to the restart is attributed to the death if it was long enough for a finding.
    let of = |cause| report["cost"]["by_cause"][cause].as_f64().unwrap_or(0.0);
    let (restart, died) = (of("restart") * 3600.0, of("rank-died") * 3600.0);
    let most = between + 2.0 * f64::from(ranks) * (groups.len() - 1) as f64;
    assert!(
        restart < most && between * 0.7 <= restart + died,
        "{restart} and {died} of {between}: {groups:?}\n{report}"
    );
}

fn is_the_machines(verdict: &Value) -> bool {
    ["cpu-contention", "all-ranks-slow"]
        .iter()
        .any(|finding| verdict["finding"] == *finding)
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_worker_is_killed_and_its_agent_restarts_the_group() {
    let place = tempfile::tempdir().unwrap();
    let words = "--standalone --nproc-per-node=2 --max-restarts=2 --monitor-interval 0.2";
    let running = elastic(&[], words, place.path());
    until_trains(&running, 0, 2);
    let pids = groups(&journal(&running)).remove(0).pids;
    kill(&[pids.iter().find(|(rank, _)| *rank == 1).unwrap().1]);
    until_trains(&running, 1, 2);
    std::fs::write(place.path().join("done"), "").unwrap();
    let dir = running.dir.path().join("run/journal.ndjson");
    let ended = running.wait().ok();
    is_followed(&ended, &read(&dir), 2, &[1]);
}

fn read(path: &std::path::Path) -> Vec<Entry> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Two agents run as two nodes. The second and its workers are killed, the first continues alone, and a third joins it.
#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_group_shrinks_and_grows() {
    let place = tempfile::tempdir().unwrap();
    let (rendezvous, aggregator) = (free_port(), free_port());
    let agent = |node: &str| {
        let words = format!(
            "--nnodes 1:2 --nproc-per-node 2 --max-restarts 5 --rdzv-id elastic --rdzv-backend c10d --rdzv-endpoint \
             127.0.0.1:{rendezvous} --rdzv-conf last_call_timeout=3,keep_alive_interval=1 --local-addr 127.0.0.1 \
             --monitor-interval 0.2"
        );
        let aggregator = format!("127.0.0.1:{aggregator}");
        let options = ["--job", "elastic", "--node", node, "--aggregator", &aggregator];
        elastic(&options, &words, place.path())
    };
    // The first agent hosts the store and the aggregator.
    let first = agent("n0");
    first.until("the store", || {
        std::net::TcpStream::connect(("127.0.0.1", rendezvous)).ok()
    });
    first.until_journal(1);
    let second = agent("n1");
    first.until("both", || {
        let groups = groups(&journal(&first));
        groups
            .last()
            .filter(|group| group.ranks == 4 && group.steps > 160)
            .map(|_| ())
    });
    let begun = groups(&journal(&first)).len();
    let (workers, ranks) = of_node(&journal(&first), "n1");
    kill(&[children(second.child.id()), workers].concat());
    until_trains(&first, begun, 2);
    let third = agent("n2");
    until_trains(&first, begun + 1, 4);
    std::fs::write(place.path().join("done"), "").unwrap();
    let dir = first.dir.path().join("run/journal.ndjson");
    let ended = first.wait().ok();
    assert_eq!(second.wait().status.code(), Some(137));
    third.wait().ok();
    is_followed(&ended, &read(&dir), 4, &ranks);
    let exits = ended.report()["exits"].as_array().unwrap().clone();
    let of = |node: &str| {
        exits
            .iter()
            .find(|exit| exit["node"] == node)
            .map(|exit| exit["code"].clone())
    };
    assert_eq!(
        (of("n0"), of("n1"), of("n2")),
        (Some(0.into()), Some(137.into()), Some(0.into()))
    );
}

/// Returns the processes of a node and their ranks.
fn of_node(entries: &[Entry], node: &str) -> (Vec<u32>, Vec<u64>) {
    let attached = |entry: &Entry| match &entry.frame.event {
        Event::Attach(attach) if entry.frame.node.as_str() == node => {
            Some((attach.pid, u64::from(attach.rank.0)))
        }
        _ => None,
    };
    entries.iter().filter_map(attached).unzip()
}

/// Returns the child processes except Paceline's sidecar. By then `env` has become torchrun.
fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let of = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        of == Some(parent)
            && String::from_utf8_lossy(&words).contains("torchrun")
            && !words.starts_with(b"paceline\0sidecar")
    })
    .collect()
}
