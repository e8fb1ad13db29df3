//! Runs two torchrun agents as two nodes, each under its own paceline, with one aggregator.

use std::net::TcpListener;

use crate::job::{Running, paceline, torch, trainer};

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn node(index: u32, rendezvous: u16, aggregator: u16, args: &str) -> Running {
    let torchrun = torch().join("bin/torchrun");
    let mut command = vec![torchrun.to_str().unwrap().to_owned()];
    let flags = format!(
        "--nnodes=2 --nproc-per-node=2 --node-rank={index} --master-addr=127.0.0.1 --master-port={rendezvous}"
    );
    command.extend(flags.split_whitespace().map(str::to_owned));
    command.push(trainer("ddp.py"));
    command.extend(args.split_whitespace().map(str::to_owned));
    let (name, aggregator) = (format!("node-{index}"), format!("127.0.0.1:{aggregator}"));
    paceline(
        &["--job", "two-nodes", "--node", &name, "--aggregator", &aggregator],
        &command,
    )
    .start()
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn two_agents_one_verdict() {
    let (rendezvous, aggregator) = (free_port(), free_port());
    let args = "--steps 60 --sleep-ms 40 --slow-rank 2 --slow-pct 25";
    let first = node(0, rendezvous, aggregator, args);
    let second = node(1, rendezvous, aggregator, args);
    let (first, second) = (first.wait().ok(), second.wait().ok());
    // One of the two launchers ran the aggregator, and its report must cover the job.
    let reports = [first, second]
        .into_iter()
        .filter(|ended| ended.report()["world_size"] == 4);
    let whole: Vec<_> = reports
        .filter(|ended| ended.report()["coverage"]["ranks_seen"] == 4)
        .collect();
    assert!(!whole.is_empty(), "nobody saw all four ranks");
    for ended in &whole {
        ended.names_only(2, 55);
        assert_eq!(ended.report()["verdicts"][0]["subject"]["node"], "node-1");
    }
}
