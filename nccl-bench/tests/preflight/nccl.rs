//! Tests preflights over NCCL. The nodes are threads on loopback, each with its own fake GPU library and real rank
//! processes.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use paceline_health::id::NodeId;
use paceline_health::preflight::{Fact, Metric, Place, Report};
use paceline_health::verdict::Severity;
use paceline_nccl_bench::preflight::{
    Expected, Failed, Found, Launch, Lead, Limits, Machine, Mode, Nccl, Tools, TransportChoice, attend, lead,
};
use paceline_nccl_bench::transport::Deadline;
use tempfile::TempDir;

use super::{me, names, problems};

/// Duration of every collective. It is long compared with the noise of a busy machine.
const USUAL_MS: u64 = 120;

/// Runs a test, and repeats it once if it fails, because it uses real processes on a busy machine.
fn twice(test: fn()) {
    if std::panic::catch_unwind(test).is_err() {
        eprintln!("once more");
        test();
    }
}

/// A node with fake GPUs.
struct Played {
    _dir: TempDir,
    machine: Machine,
    nccl: Nccl,
    facts: Vec<Fact>,
}

/// Returns a node with this many GPUs. `wrong` has the GPUs' faults as lines of the scenario's GPU tables.
fn node(gpus: u32, wrong: &[(u32, &str)]) -> Played {
    scripted(gpus, "", wrong)
}

/// Returns a node with this many GPUs, for tests that do not compare nodes.
fn brisk(gpus: u32) -> Played {
    let wrong: Vec<(u32, &str)> = (0..gpus).map(|gpu| (gpu, "delay_ms = 5")).collect();
    node(gpus, &wrong)
}

fn scripted(gpus: u32, head: &str, wrong: &[(u32, &str)]) -> Played {
    let dir = TempDir::new().unwrap();
    let library = dir.path().join("libfake.so");
    let program = std::env::current_exe().unwrap();
    let built = program.parent().unwrap().join("libpaceline_fake_nccl.so");
    fs::copy(&built, &library).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    let mut scenario = format!("gpus = {gpus}\n{head}\n");
    for gpu in 0..gpus {
        let own = wrong.iter().filter(|(of, _)| *of == gpu);
        let own: Vec<&str> = own.map(|(_, line)| *line).collect();
        // Divide the lines into those of the GPU (such as `open`) and those of the rank.
        let (of_gpu, of_rank): (Vec<&str>, Vec<&str>) =
            own.into_iter().partition(|line| line.starts_with("open"));
        let delay = if of_rank.iter().any(|line| line.starts_with("delay_ms")) {
            String::new()
        } else {
            format!("delay_ms = {USUAL_MS}")
        };
        let (of_gpu, of_rank) = (of_gpu.join("\n"), of_rank.join("\n"));
        writeln!(
            scenario,
            "[gpu.{gpu}]\n{of_gpu}\n[gpu.{gpu}.comm]\n{delay}\n{of_rank}"
        )
        .unwrap();
    }
    fs::write(dir.path().join("libfake.so.toml"), scenario).unwrap();
    let machine = Machine {
        nccl_lib: Some(library.clone()),
        cuda_lib: Some(library),
        rank: vec![
            env!("CARGO_BIN_EXE_paceline-nccl-bench").into(),
            "--preflight-rank".into(),
        ],
        ..Machine::default()
    };
    let (_dir, version) = (dir, "2.30.7".into());
    Played {
        _dir,
        machine,
        nccl: Nccl::Ready { version, gpus },
        facts: Vec::new(),
    }
}

impl Tools for Played {
    fn snapshot(&self, node: &NodeId, _: &Deadline) -> Result<Found, Failed> {
        let own = |fact: &Fact| Fact {
            node: node.clone(),
            ..fact.clone()
        };
        Ok(Found {
            model: "played".into(),
            facts: self.facts.iter().map(own).collect(),
            ..Found::default()
        })
    }

    fn work(&self, _: &NodeId, _: u32, _: &Limits, _: &Deadline) -> Result<Found, Failed> {
        Ok(Found {
            nccl: Some(self.nccl.clone()),
            ..Found::default()
        })
    }

    fn local(
        &self,
        node: &NodeId,
        round: u32,
        over: &TransportChoice,
        limits: &Limits,
        deadline: &Deadline,
    ) -> Result<Found, Failed> {
        self.machine.local(node, round, over, limits, deadline)
    }

    fn launch(&self) -> Launch {
        self.machine.launch()
    }
}

/// Runs a preflight of these nodes, of which n1 is the first.
fn preflight(mode: Mode, nodes: Vec<Played>) -> Report {
    let begun = Instant::now();
    let count = nodes.len();
    let wait = Duration::from_secs(10);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut nodes = nodes.into_iter();
    let first = nodes.next().unwrap();
    let members: Vec<_> = nodes
        .zip(2..)
        .map(|(node, n)| {
            let address = address.clone();
            thread::spawn(move || attend(&address, &me(&format!("n{n}"), 1), &node, wait, &mut |_| ()))
        })
        .collect();
    let expected = Expected {
        count,
        names: names(count),
    };
    let lead_by = Lead {
        listener,
        expected,
        mode,
        wait,
        min_busbw: None,
        past: &|_| Ok(Vec::new()),
    };
    let report = lead(lead_by, &me("n1", 1), &first, &mut |_, _, _| ()).unwrap();
    for member in members {
        assert_eq!(member.join().unwrap().unwrap(), report);
    }
    assert!(begun.elapsed() < mode.limits().total, "{:?}", report.phases);
    report
}

/// Returns the confirmed critical findings, each with its metric or fact and its place.
fn accused(report: &Report) -> Vec<String> {
    let sure = report
        .findings
        .iter()
        .filter(|noted| noted.severity == Severity::Critical && noted.sure && noted.or.is_empty());
    sure.map(|noted| format!("{} {}", noted.what, noted.place))
        .collect()
}

fn carried(report: &Report) -> Vec<String> {
    report
        .carried
        .iter()
        .map(|carried| {
            format!(
                "{} {}: {} {}",
                carried.groups, carried.phase, carried.transport, carried.why
            )
        })
        .collect()
}

fn values(report: &Report, metric: Metric) -> usize {
    let is_it = |sample: &&paceline_health::preflight::Sample| sample.metric == metric && sample.value > 0.0;
    report.samples.iter().filter(is_it).count()
}

#[test]
fn all_phases_go_over_nccl_where_all_have_it() {
    twice(|| {
        let report = preflight(Mode::Quick, (0..4).map(|_| node(2, &[])).collect());
        assert_eq!(problems(&report), Vec::<String>::new());
        assert_eq!(accused(&report), Vec::<String>::new());
        assert_eq!(values(&report, Metric::LocalBusbwHost), 0);
        for (metric, least) in [
            (Metric::LocalBusbw, 4),
            (Metric::PairBusbw, 2),
            (Metric::AllBusbw, 1),
        ] {
            assert!(values(&report, metric) >= least, "{metric}: {:?}", report.samples);
        }
        for carried in &report.carried {
            assert_eq!(
                (&*carried.transport, &*carried.why),
                ("nccl 2.30.7", ""),
                "{carried:?}"
            );
        }
        let conditions = report
            .samples
            .iter()
            .find(|sample| sample.metric == Metric::AllBusbw);
        assert_eq!(
            &*conditions.unwrap().conditions,
            "nccl float 8 ranks, nccl 2.30.7"
        );
    });
}

#[test]
fn eight_gpus_of_two_nodes() {
    twice(|| {
        let report = preflight(Mode::Quick, (0..2).map(|_| brisk(8)).collect());
        assert_eq!(problems(&report), Vec::<String>::new());
        // On a busy machine, slow values are measured again, so those phases are separated.
        let (_, carried): (Vec<_>, Vec<_>) = carried(&report)
            .into_iter()
            .partition(|one| one.contains(" again: "));
        assert_eq!(
            carried,
            ["2 local: nccl 2.30.7 ", "1 pairs, round 1: nccl 2.30.7 "]
        );
        for (metric, least) in [(Metric::LocalBusbw, 2), (Metric::PairBusbw, 1)] {
            assert!(values(&report, metric) >= least, "{metric}: {:?}", report.samples);
        }
    });
}

#[test]
fn a_node_that_is_slow_inside_or_only_towards_others() {
    twice(|| {
        let inside = [(0, "delay_ms = 300"), (1, "delay_ms = 300")];
        let outside = [(0, "net_delay_ms = 180"), (1, "net_delay_ms = 180")];
        for (wrong, metric) in [(inside, "local_busbw"), (outside, "pair_busbw")] {
            let nodes = vec![node(2, &[]), node(2, &[]), node(2, &wrong), node(2, &[])];
            let report = preflight(Mode::Quick, nodes);
            let accused = accused(&report);
            assert!(accused.contains(&format!("{metric} node n3")), "{accused:?}");
            assert!(
                accused.iter().all(|accused| accused.ends_with("node n3")),
                "{accused:?}"
            );
            let bad: Vec<NodeId> = report.bad_nodes().into_iter().collect();
            assert_eq!(bad, ["n3".into()]);
        }
    });
}

#[test]
fn a_rail_that_is_slow_is_named() {
    twice(|| {
        // These delays are long enough that no pair, not even the slow one, tries a larger message. Only delays count
        // then.
        let usual = [(0, "delay_ms = 240"), (1, "delay_ms = 240")];
        let wrong = [usual[0], usual[1], (1, "net_delay_ms = 300")];
        let nodes = vec![node(2, &usual), node(2, &usual), node(2, &wrong), node(2, &usual)];
        let report = preflight(Mode::Full, nodes);
        let accused = accused(&report);
        assert!(
            accused.contains(&"pair_busbw port rail 1 of node n3".to_owned()),
            "{accused:?} {:?}",
            report.findings
        );
        assert!(
            accused.iter().all(|accused| accused.ends_with("node n3")),
            "{accused:?}"
        );
        assert!(
            !accused.iter().any(|accused| accused.contains("rail 0")),
            "{accused:?}"
        );
    });
}

#[test]
fn a_gpu_that_does_not_open_is_named_by_the_deadline() {
    twice(|| {
        let nodes = vec![node(4, &[]), node(4, &[(2, "open_hang = true")])];
        let report = preflight(Mode::Quick, nodes);
        let told = problems(&report);
        let named = |text: &String| text.starts_with("n2 local: ") && text.contains("rank 2 is GPU 2 of n2");
        assert!(told.iter().any(named), "{told:?}");
        assert!(
            told.iter().any(|text| text.contains("opening its GPU")),
            "{told:?}"
        );
        assert!(
            accused(&report).contains(&"local_busbw node n2".to_owned()),
            "{:?}",
            report.findings
        );
    });
}

#[test]
fn a_communicator_that_hangs_costs_its_node_and_no_other() {
    twice(|| {
        let wrong = [(0, "init_hang = true")];
        let nodes = vec![node(2, &[]), node(2, &[]), node(2, &[]), node(2, &wrong)];
        let report = preflight(Mode::Quick, nodes);
        let told = problems(&report);
        assert!(
            told.iter().any(|text| text.starts_with("n4 local: local: ")),
            "{told:?}"
        );
        let bad: Vec<NodeId> = report.bad_nodes().into_iter().collect();
        assert_eq!(bad, ["n4".into()], "{:?}", report.findings);
        // The other nodes were judged, also by comparison with each other.
        let good = report.samples.iter().any(|sample| {
            sample.metric == Metric::PairBusbw
                && sample.value > 0.0
                && sample.place == Place::pair(&"n1".into(), &"n2".into())
        });
        assert!(good, "{:?}", report.samples);
    });
}

#[test]
fn a_rank_that_dies_is_named() {
    twice(|| {
        let nodes = vec![node(2, &[]), node(2, &[(1, "die = true")])];
        let report = preflight(Mode::Quick, nodes);
        let told = problems(&report);
        let named = |text: &String| {
            text.contains("the process of rank 1 ended") && text.contains("(rank 1 is GPU 1 of n2)")
        };
        assert!(told.iter().any(named), "{told:?}");
    });
}

#[test]
fn where_one_has_no_nccl_its_groups_say_so() {
    twice(|| {
        let mut without = node(2, &[]);
        without.nccl = Nccl::Not {
            why: "no libnccl.so.2 found".into(),
        };
        let report = preflight(
            Mode::Quick,
            vec![node(2, &[]), node(2, &[]), without, node(2, &[])],
        );
        let carried = carried(&report);
        for wanted in [
            "3 local: nccl 2.30.7 ",
            "1 local: tcp n3: no libnccl.so.2 found",
            "1 pairs, round 1: nccl 2.30.7 ",
            "1 pairs, round 1: tcp n3: no libnccl.so.2 found",
            "1 all: tcp n3: no libnccl.so.2 found",
        ] {
            assert!(
                carried.iter().any(|carried| carried == wanted),
                "{wanted}: {carried:?}"
            );
        }
    });
}

#[test]
fn a_node_that_falls_back_to_sockets_is_told_by_nccl_itself() {
    twice(|| {
        let mut fallen = scripted(2, "network = \"Socket\"", &[]);
        fallen.facts.push(Fact {
            node: "n2".into(),
            gpu: None,
            port: Some("mlx5_0/1".into()),
            name: "nic_state".into(),
            value: Some("ACTIVE".into()),
        });
        let nodes = vec![node(2, &[]), fallen, node(2, &[])];
        let report = preflight(Mode::Quick, nodes);
        let accused = accused(&report);
        assert_eq!(accused, ["nccl_network node n2", "socket_fallback node n2"]);
        let says = |text: &str| report.findings.iter().any(|noted| noted.says.contains(text));
        assert!(
            says("Socket instead of IB") && says("though mlx5_0/1 is active"),
            "{:?}",
            report.findings
        );
    });
}
