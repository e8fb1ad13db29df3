use super::*;
use crate::preflight::gate::sample::report;

fn words(text: &str) -> Vec<OsString> {
    text.split(' ').map(OsString::from).collect()
}

/// Returns the redirection of a command on the nodes n1 to n4 (at 10.0.0.1 to 10.0.0.4) if n1 is excluded.
fn redirected(command: &str, variables: &[(&str, &str)], rank: usize) -> Redirected {
    let mut report = report(4, &["n1"]);
    for (n, row) in (1..).zip(report.nodes.values_mut()) {
        row.address = format!("10.0.0.{n}").into();
    }
    let starting: Vec<NodeId> = ["n2", "n3", "n4"].map(NodeId::from).to_vec();
    let starting: Vec<&NodeId> = starting.iter().collect();
    let variable = |name: &str| {
        let pair = variables.iter().find(|(known, _)| *known == name);
        pair.map(|(_, value)| (*value).to_owned())
    };
    redirect(&words(command), &variable, &report, &starting, rank)
}

#[test]
fn the_command_names_the_first_good_node_instead() {
    let check = |command: &str, wanted: &str| {
        let found = redirected(command, &[], 1).command;
        assert_eq!(found, Some(words(wanted)), "{command}");
    };
    check(
        "torchrun --nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint n1:29400 t.py --rdzv-endpoint n1:1",
        "torchrun --nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint 10.0.0.2:29400 t.py --rdzv-endpoint n1:1",
    );
    check(
        "python3 -m torch.distributed.run --rdzv_endpoint=n1.cluster:29400 -m train",
        "python3 -m torch.distributed.run --rdzv_endpoint=10.0.0.2:29400 -m train",
    );
    check(
        "env X=1 /opt/bin/torchrun --no-python --master-addr=10.0.0.1 --node-rank 2 --master_port 1 ./t",
        "env X=1 /opt/bin/torchrun --no-python --master-addr=10.0.0.2 --node-rank 1 --master_port 1 ./t",
    );
}

#[test]
fn what_names_a_good_node_or_is_not_torchruns_stays() {
    for command in [
        "torchrun --rdzv-endpoint n2:29400 t.py",
        "torchrun --rdzv-endpoint elsewhere.invalid:29400 t.py",
        "torchrun --master-addr n3 --node-rank 1 t.py",
        "torchrun t.py --master-addr n1",
        "bash train.sh --rdzv-endpoint n1:29400",
        "torchrun --standalone t.py --node-rank 7",
        "torchrun --rdzv-endpoint",
    ] {
        assert_eq!(redirected(command, &[], 1), Redirected::default(), "{command}");
    }
}

#[test]
fn variables_that_torchrun_reads_are_redirected_and_others_told_of() {
    let variables = [("PET_RDZV_ENDPOINT", "n1:29400"), ("PET_NODE_RANK", "3")];
    let found = redirected("bash train.sh", &variables, 2);
    assert_eq!(found.command, None);
    let expected: Vec<(&str, OsString)> = vec![
        ("PET_RDZV_ENDPOINT", "10.0.0.2:29400".into()),
        ("PET_NODE_RANK", "2".into()),
    ];
    assert_eq!(found.env, expected);
    assert_eq!(found.said[0], "PET_RDZV_ENDPOINT n1:29400 becomes 10.0.0.2:29400");
    // An option takes precedence over its variable.
    let found = redirected("torchrun --rdzv-endpoint n2:1 t.py", &variables[..1], 0);
    assert_eq!(found, Redirected::default());
    let found = redirected("bash train.sh", &[("MASTER_ADDR", "n1")], 0);
    assert!(found.env.is_empty() && found.said[0].contains("PACELINE_FIRST_NODE (n2)"));
}

#[test]
fn endpoints_are_split_where_the_port_begins() {
    for (text, host, port) in [
        ("n1", "n1", ""),
        ("n1:29400", "n1", ":29400"),
        ("[fd00::1]:29400", "[fd00::1]", ":29400"),
        ("fd00::1", "fd00::1", ""),
    ] {
        assert_eq!(split(text), (host, port), "{text}");
    }
}

#[test]
fn an_aggregator_stays_where_it_was_put_unless_that_node_is_left_out() {
    let report = report(4, &["n1"]);
    let starting = ["n2", "n3", "n4"].map(NodeId::from);
    let starting: Vec<&NodeId> = starting.iter().collect();
    let stays = |given: Option<&str>| starts(given, &report, &starting);
    assert!(stays(Some("n3:4711")) && stays(Some("192.0.2.9")));
    assert!(!stays(Some("n1:4711")) && !stays(None));
}
