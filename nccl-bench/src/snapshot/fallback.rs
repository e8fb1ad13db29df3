//! Detects configurations in which NCCL falls back to sockets although the node has RDMA. A job with such a
//! configuration is many times slower, without any error.
//!
//! The environment variables are documented at <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html>.

use std::collections::BTreeMap;

use paceline_health::event::PortLink;
use paceline_sidecar::source::host::files::Files;

use super::Nic;

/// Returns all detectable reasons, each as one sentence.
pub(super) fn find(files: &Files, nics: &[Nic], environment: &BTreeMap<String, String>) -> Vec<String> {
    let set = |name: &str| {
        environment
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    };
    let mut found = Vec::new();
    if let Some(wanted) = set("NCCL_SOCKET_IFNAME") {
        let interfaces = files.names("sys/class/net");
        if !interfaces.iter().any(|name| matches(wanted, name)) {
            found.push(format!(
                "NCCL_SOCKET_IFNAME={wanted} does not match an interface of this node ({})",
                interfaces.join(" ")
            ));
        }
    }
    // Ignore EFA ports, because EFA needs a plugin, which cannot be detected from here.
    let is_verbs = |nic: &&Nic| matches!(nic.link, PortLink::Infiniband | PortLink::Roce);
    let rdma: Vec<&Nic> = nics.iter().filter(is_verbs).collect();
    if rdma.is_empty() {
        return found;
    }
    let active: Vec<&&Nic> = rdma
        .iter()
        .filter(|nic| nic.state.text() == Some("ACTIVE"))
        .collect();
    if active.is_empty() {
        let states = rdma
            .iter()
            .map(|nic| format!("{} {}", nic.name, nic.state.text().unwrap_or("unknown")));
        found.push(format!(
            "no RDMA port is active: {}",
            states.collect::<Vec<_>>().join(", ")
        ));
    }
    if let Some(value) = set("NCCL_IB_DISABLE").filter(|value| *value != "0") {
        found.push(format!("NCCL_IB_DISABLE={value}"));
    }
    if let Some(value) = set("NCCL_NET").filter(|value| value.eq_ignore_ascii_case("socket")) {
        found.push(format!("NCCL_NET={value}"));
    }
    if let Some(wanted) = set("NCCL_IB_HCA")
        && !active.is_empty()
        && !active.iter().any(|nic| matches_port(wanted, &nic.name))
    {
        let names: Vec<&str> = active.iter().map(|nic| nic.name.as_str()).collect();
        found.push(format!(
            "NCCL_IB_HCA={wanted} does not match an active port of this node ({})",
            names.join(" ")
        ));
    }
    if !files
        .names("dev/infiniband")
        .iter()
        .any(|name| name.starts_with("uverbs"))
    {
        found.push(
            "there is no /dev/infiniband/uverbs*: RDMA devices are not passed into this container".into(),
        );
    }
    found
}

/// Returns true if a list such as `eth,ib`, `=eth0` or `^docker,lo` permits `name`.
fn matches(list: &str, name: &str) -> bool {
    let (is_excluding, list) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
    let (is_exact, list) = list.strip_prefix('=').map_or((false, list), |rest| (true, rest));
    let is_listed = list
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .any(|item| {
            if is_exact {
                name == item
            } else {
                name.starts_with(item)
            }
        });
    is_listed != is_excluding
}

/// Returns true if a list permits a port such as `mlx5_0/1`, which the variable lists as `mlx5_0` or `mlx5_0:1`.
fn matches_port(list: &str, name: &str) -> bool {
    let (device, port) = name.split_once('/').unwrap_or((name, ""));
    let (is_excluding, rest) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
    let (is_exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
    let is_listed = rest
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .any(|item| {
            let (wanted, wanted_port) = item
                .split_once(':')
                .map_or((item, None), |(device, port)| (device, Some(port)));
            let is_device = if is_exact {
                device == wanted
            } else {
                device.starts_with(wanted)
            };
            is_device && wanted_port.is_none_or(|wanted| wanted == port)
        });
    is_listed != is_excluding
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_nccl_reads_them() {
        for (list, name, is) in [
            ("eth", "eth0", true),
            ("ib,eth", "eth1", true),
            ("ib", "eth0", false),
            ("=eth0", "eth0", true),
            ("=eth", "eth0", false),
            ("^docker,lo", "eth0", true),
            ("^docker,lo", "docker0", false),
            ("^=eth0", "eth01", true),
        ] {
            assert_eq!(matches(list, name), is, "{list} {name}");
        }
        for (list, name, is) in [
            ("mlx5", "mlx5_3/1", true),
            ("=mlx5_0", "mlx5_3/1", false),
            ("mlx5_3:2", "mlx5_3/1", false),
            ("mlx5_3:1,mlx5_4", "mlx5_3/1", true),
            ("^mlx5_3", "mlx5_3/1", false),
            ("^=mlx5_3:2", "mlx5_3/1", true),
        ] {
            assert_eq!(matches_port(list, name), is, "{list} {name}");
        }
    }
}
