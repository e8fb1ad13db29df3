//! Ports of RDMA devices: InfiniBand, RoCE and EFA, in /sys/class/infiniband.
//!
//! Counters and their meaning: <https://docs.kernel.org/infiniband/sysfs.html>, for mlx5 NVIDIA's "Understanding mlx5
//! Linux counters", for EFA <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-working-monitor.html>. Packets out
//! of sequence and congestion marks are left out: adaptive routing and a busy network make them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_health::event::PortLink;

use super::super::files::{Files, Kept};
use super::super::grown::Grown;
use super::interface::{self, Interface};

const CLASS: &str = "sys/class/infiniband";
/// Errors of the link, damaged packets and discards, in `counters/`.
const ERRORS: [&str; 6] = [
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
];
const LINK_DOWNED: &str = "link_downed";
/// Packets that an EFA dropped, in `hw_counters/`.
const EFA_ERRORS: [&str; 1] = ["rx_drops"];
/// Retransmissions and failed transmissions, in `hw_counters/`: mlx5, then EFA.
const RETRANSMITS: [&str; 9] = [
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "req_transport_retries_exceeded",
    "roce_adp_retrans",
    "retrans_pkts",
    "retrans_timeout_events",
    "impaired_remote_conn_events",
    "unresponsive_remote_events",
];

/// See the module.
#[derive(Debug)]
pub struct RdmaPort {
    dir: PathBuf,
    link: PortLink,
    /// The interfaces of the same device.
    interfaces: Vec<String>,
    /// Counters available on this port.
    errors: Vec<&'static str>,
    hardware_errors: Vec<&'static str>,
    /// Files read every second.
    state: Option<Kept>,
    retransmits: Vec<(&'static str, Kept)>,
}

/// All ports, with their names: `mlx5_0/1`.
pub fn find(files: &mut Files) -> Vec<(Arc<str>, RdmaPort)> {
    let mut found = Vec::new();
    for device in files.names(CLASS) {
        let ports = Path::new(CLASS).join(&device).join("ports");
        for port in files.names(&ports) {
            let name: Arc<str> = format!("{device}/{port}").into();
            found.push((name, RdmaPort::new(files, &device, ports.join(port))));
        }
    }
    found
}

impl RdmaPort {
    fn new(files: &mut Files, device: &str, dir: PathBuf) -> RdmaPort {
        let layer = files.text(dir.join("link_layer")).unwrap_or_default();
        let link = match layer {
            "InfiniBand" => PortLink::Infiniband,
            "Ethernet" => PortLink::Roce,
            // EFA has its own transport and reports "Unspecified".
            _ => PortLink::Efa,
        };
        let (counters, hardware) = (
            files.names(dir.join("counters")),
            files.names(dir.join("hw_counters")),
        );
        let among = |has: &[String], wanted: &[&'static str]| -> Vec<&'static str> {
            let wanted = wanted.iter().copied();
            wanted.filter(|name| has.iter().any(|has| has == name)).collect()
        };
        let kept = |name| Some((name, files.keep(dir.join("hw_counters").join(name)).ok()?));
        let retransmits = among(&hardware, &RETRANSMITS);
        RdmaPort {
            link,
            interfaces: files.names(Path::new(CLASS).join(device).join("device/net")),
            errors: among(&counters, &ERRORS),
            hardware_errors: among(&hardware, &EFA_ERRORS),
            retransmits: retransmits.into_iter().filter_map(kept).collect(),
            state: files.keep(dir.join("state")).ok(),
            dir,
        }
    }

    /// Its directory in sysfs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The kind of its network.
    pub fn link(&self) -> PortLink {
        self.link
    }

    /// Whether an interface belongs to this device.
    pub fn has_interface(&self, name: &str) -> bool {
        self.interfaces.iter().any(|own| own == name)
    }

    /// Whether it can carry data: `state` reads `4: ACTIVE`. `None` if unknown.
    pub fn is_up(&self) -> Option<bool> {
        let state = self.state.as_ref()?;
        state.read(|state| Some(state.split(':').next()?.trim() == "4"))
    }

    /// `rate` reads `400 Gb/sec (4X NDR)`.
    pub fn rate_bps(&self, files: &mut Files) -> Option<f64> {
        let rate = files.text(self.dir.join("rate")).ok()?;
        let (number, rest) = rate.split_once(' ')?;
        let number: f64 = number.parse().ok()?;
        rest.starts_with("Gb/sec").then_some(number * 1e9)
    }

    /// Lost links and errors.
    pub fn count(
        &self,
        files: &mut Files,
        downs: &mut Grown<&'static str>,
        errors: &mut Grown<&'static str>,
    ) {
        let mut take = |folder: &str, name: &'static str, sum: &mut Grown<&'static str>| {
            if let Ok(count) = files.number(self.dir.join(folder).join(name)) {
                sum.take(name, count);
            }
        };
        take("counters", LINK_DOWNED, downs);
        for name in &self.errors {
            take("counters", name, errors);
        }
        for name in &self.hardware_errors {
            take("hw_counters", name, errors);
        }
        // A RoCE port does not count lost links; its interface does, but which one is unknown if there are several.
        if let ([own], PortLink::Roce) = (self.interfaces.as_slice(), self.link) {
            Interface::new(own).count_downs(files, interface::CARRIER, downs);
        }
    }

    /// Repeated transmissions.
    pub fn count_retransmits(&self, sum: &mut Grown<&'static str>) {
        for (name, counter) in &self.retransmits {
            if let Some(count) = counter.read(|count| count.parse().ok()) {
                sum.take(name, count);
            }
        }
    }
}
