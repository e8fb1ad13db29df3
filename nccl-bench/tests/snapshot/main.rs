//! Tests snapshots of a node with a generated file system and a fake management library (tests/fake-nvml).

#![allow(clippy::unwrap_used)] // A test that cannot continue fails.

mod node;

use std::collections::BTreeMap;

use paceline_health::event::{Access, GpuSignal, Missing, PortLink, Reading};
use paceline_health::id::NodeId;
use paceline_health::preflight::{Fact, PreflightTable};
use paceline_nccl_bench::snapshot::{PciPath, Snapshot, Text, facts, take};

use node::{GPU, Node};

/// Returns the facts that have a value, by name and place.
fn told(snapshot: &Snapshot) -> BTreeMap<(String, String), String> {
    let of = |fact: &Fact| match (&fact.gpu, &fact.port) {
        (Some(gpu), _) => gpu.as_str().to_owned(),
        (None, port) => port.as_deref().unwrap_or("").to_owned(),
    };
    let facts = facts(snapshot, &NodeId::from("n1"));
    facts
        .iter()
        .filter_map(|fact| {
            Some((
                (fact.name.to_string(), of(fact)),
                fact.value.as_ref()?.to_string(),
            ))
        })
        .collect()
}

#[test]
fn a_healthy_node_with_gpus_and_rdma() {
    let node = Node::new("gpus = 2\nprofile = \"h200\"").with_rdma();
    let snapshot = take(&node.options(&[]));
    assert_eq!(
        (snapshot.gpus.access, snapshot.gpus.list.len()),
        (Access::Readable, 2)
    );
    assert_eq!(snapshot.gpus.driver, Text::Text("580.82.07".into()));
    let gpu = &snapshot.gpus.list[0];
    assert_eq!(
        (gpu.model.as_str(), gpu.pci.as_str(), gpu.access),
        ("NVIDIA H200", GPU, Access::Readable)
    );
    for (signal, value) in [
        (GpuSignal::EccEnabled, 1.0),
        (GpuSignal::RemapPending, 0.0),
        (GpuSignal::PcieGenMax, 5.0),
        (GpuSignal::PcieWidth, 16.0),
        (GpuSignal::NvlinkUp, 18.0),
    ] {
        assert_eq!(gpu.signals[&signal], Reading::Value(value), "{signal:?}");
    }
    assert!(
        !gpu.signals.contains_key(&GpuSignal::UtilizationRatio),
        "what changes all the time is left out"
    );
    assert_eq!(gpu.place.numa_node, Reading::Value(0.0));
    assert_eq!(gpu.place.cpus, Text::Text("0-31".into()));
    assert_eq!(gpu.place.speed_max, Text::Text("32.0 GT/s PCIe".into()));
    assert_eq!(
        gpu.place.acs,
        Text::Text("0000:17:00.0".into()),
        "one bridge redirects"
    );

    let names: Vec<&str> = snapshot.nics.iter().map(|nic| nic.name.as_str()).collect();
    assert_eq!(names, ["mlx5_0/1", "mlx5_1/1", "eth0"]);
    let near = &snapshot.nics[0];
    assert_eq!(
        (near.link, near.state.text()),
        (PortLink::Infiniband, Some("ACTIVE"))
    );
    assert_eq!(
        (&near.rate_bps, &near.mtu),
        (&Reading::Value(400e9), &Reading::Value(4092.0))
    );
    assert_eq!(
        (near.driver.text(), near.firmware.text()),
        (Some("mlx5_core"), Some("28.39.1002"))
    );
    assert_eq!(
        (near.pci.text(), near.interfaces.as_slice()),
        (Some("0000:19:00.0"), &["ib0".to_owned()][..])
    );
    let ethernet = &snapshot.nics[2];
    assert_eq!(
        (ethernet.link, ethernet.state.text()),
        (PortLink::Ethernet, Some("up"))
    );
    assert_eq!(
        ethernet.rate_bps,
        Reading::Missing(Missing::Unsupported),
        "-1 is no rate"
    );

    let path = |gpu: &str, nic: &str| {
        snapshot
            .paths
            .iter()
            .find(|path| path.gpu == gpu && path.nic == nic)
            .unwrap()
            .path
    };
    assert_eq!(path(GPU, "mlx5_0/1"), PciPath::Pix);
    assert_eq!(
        path(GPU, "mlx5_1/1"),
        PciPath::Sys,
        "under another host bridge and NUMA node"
    );
    assert_eq!(path(GPU, "eth0"), PciPath::Phb);

    assert_eq!(snapshot.host.kernel, Text::Text("6.8.0-test".into()));
    assert_eq!(
        (snapshot.host.cuda.text(), snapshot.host.nccl.text()),
        (Some("13.0"), Some("2.30.7"))
    );
    assert_eq!(
        snapshot.host.cpu_limit,
        Reading::Value(1.5),
        "the least on the way up"
    );
    assert_eq!(snapshot.host.peermem, Reading::Value(1.0));
    assert!(snapshot.host.shm_bytes.value().unwrap() > 0.0);
    assert!(
        snapshot.socket_fallback.is_empty(),
        "{:?}",
        snapshot.socket_fallback
    );

    let json = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), snapshot);
}

#[test]
fn facts_have_the_names_of_the_policy_and_values() {
    let node = Node::new("gpus = 2\n[gpu.1]\npcie_width = 8\nremap_pending = 1\necc_enabled = \"unknown\"")
        .with_rdma();
    let snapshot = take(&node.options(&[("NCCL_IB_DISABLE", "1")]));
    let table = PreflightTable::default();
    let all = facts(&snapshot, &NodeId::from("n1"));
    for fact in &all {
        assert!(
            table.fact(&fact.name).is_some(),
            "the policy has no {}",
            fact.name
        );
    }
    let told = told(&snapshot);
    let value = |name: &str, of: &str| told.get(&(name.to_owned(), of.to_owned())).map(String::as_str);
    let (good, bad) = (
        "GPU-fa4e0000-0000-4000-8000-000000000000",
        "GPU-fa4e0000-0000-4000-8000-000000000001",
    );
    assert_eq!(
        (value("gpu_count", ""), value("nccl", "")),
        (Some("2"), Some("2.30.7"))
    );
    assert_eq!(
        (value("pcie_reduced", good), value("pcie_reduced", bad)),
        (Some("no"), Some("x8 of x16"))
    );
    assert_eq!(
        (value("remap_pending", good), value("remap_pending", bad)),
        (Some("0"), Some("1"))
    );
    assert_eq!(
        (value("ecc_mode", good), value("ecc_mode", bad)),
        (Some("1"), None),
        "an error is no value"
    );
    assert_eq!(
        (value("nic_state", "mlx5_0/1"), value("nic_rate", "mlx5_0/1")),
        (Some("ACTIVE"), Some("400000000000"))
    );
    assert_eq!(value("socket_fallback", ""), Some("NCCL_IB_DISABLE=1"));
}

#[test]
fn a_node_without_gpus_says_so_and_is_read_all_the_same() {
    let node = Node::new("gpus = 0");
    let mut options = node.options(&[]);
    options.nccl_lib = Some("/nonexistent/libnccl.so.2".into());
    options.cuda_lib = Some("/nonexistent/libcuda.so.1".into());
    let snapshot = take(&options);
    assert_eq!(snapshot.gpus.access, Access::NoDevice);
    assert!(snapshot.gpus.text.contains("no GPU"), "{}", snapshot.gpus.text);
    let Text::Missing(Missing::Error(text)) = &snapshot.host.nccl else {
        panic!("{:?}", snapshot.host.nccl)
    };
    assert!(text.contains("no libnccl.so.2 found"), "{text}");
    let told = told(&snapshot);
    assert!(
        !told
            .keys()
            .any(|(name, _)| ["gpu_count", "nccl", "cuda"].contains(&name.as_str())),
        "{told:?}"
    );
    assert_eq!(told[&("nic_state".to_owned(), "eth0".to_owned())], "up");
}

#[test]
fn a_gpu_that_does_not_answer_is_told_in_time() {
    let node = Node::new("gpus = 2\n[gpu.1]\nhang = true");
    let mut options = node.options(&[]);
    options.limit = std::time::Duration::from_secs(2);
    let began = std::time::Instant::now();
    let snapshot = take(&options);
    assert!(began.elapsed().as_secs() < 5);
    let access: Vec<Access> = snapshot.gpus.list.iter().map(|gpu| gpu.access).collect();
    assert_eq!(access, [Access::Readable, Access::Silent]);
    assert!(snapshot.gpus.list[1].text.contains("has not returned"));
}

#[test]
fn what_leads_to_sockets_is_told() {
    let check = |change: &dyn Fn(&Node), environment: &[(&str, &str)], expected: &[&str]| {
        let node = Node::new("gpus = 1").with_rdma();
        change(&node);
        let found = take(&node.options(environment)).socket_fallback;
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{found}");
        }
    };
    check(
        &|_| {},
        &[
            ("NCCL_IB_DISABLE", "0"),
            ("NCCL_SOCKET_IFNAME", "^lo"),
            ("NCCL_IB_HCA", "mlx5"),
        ],
        &[],
    );
    check(&|_| {}, &[("NCCL_NET", "Socket")], &["NCCL_NET=Socket"]);
    check(
        &|_| {},
        &[("NCCL_SOCKET_IFNAME", "ens")],
        &["NCCL_SOCKET_IFNAME=ens does not match an interface of this node (eth0"],
    );
    check(
        &|_| {},
        &[("NCCL_IB_HCA", "mlx4_0")],
        &["NCCL_IB_HCA=mlx4_0 does not match an active port of this node (mlx5_0/1 mlx5_1/1)"],
    );
    let down = |node: &Node| {
        for device in ["mlx5_0", "mlx5_1"] {
            node.write(&format!("sys/class/infiniband/{device}/ports/1/state"), "1: DOWN");
        }
    };
    check(
        &down,
        &[],
        &["no RDMA port is active: mlx5_0/1 DOWN, mlx5_1/1 DOWN"],
    );
    let unpassed = |node: &Node| std::fs::remove_file(node.path("dev/infiniband/uverbs0")).unwrap();
    check(
        &unpassed,
        &[],
        &["RDMA devices are not passed into this container"],
    );
    // On a node without RDMA, the use of sockets is not a fallback.
    let plain = Node::new("gpus = 1");
    assert!(
        take(&plain.options(&[("NCCL_IB_DISABLE", "1")]))
            .socket_fallback
            .is_empty()
    );
}
