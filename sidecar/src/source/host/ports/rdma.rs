//! Ports of RDMA devices (InfiniBand, RoCE and EFA), in /sys/class/infiniband.
//!
//! For the counters and their meaning, see <https://docs.kernel.org/infiniband/sysfs.html>, NVIDIA's "Understanding
//! mlx5 Linux counters" for mlx5, and <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-working-monitor.html>
//! for EFA. Out-of-sequence packets and congestion marks are not read, because adaptive routing and a busy network
//! cause them without a fault.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_health::event::PortLink;

use super::super::files::{Files, Kept};
use super::super::grown::Grown;
use super::interface::{self, Interface};

const CLASS: &str = "sys/class/infiniband";
/// Counters in `counters/` of link errors, damaged packets and discards.
const ERRORS: [&str; 6] = [
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
];
const LINK_DOWNED: &str = "link_downed";
/// Counters in `hw_counters/` of packets that an EFA dropped.
const EFA_ERRORS: [&str; 1] = ["rx_drops"];
/// Counters in `hw_counters/` of retransmissions and failed transmissions, first those of mlx5, then those of EFA.
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

/// One port; see the module.
#[derive(Debug)]
pub struct RdmaPort {
    dir: PathBuf,
    link: PortLink,
    /// Names of the network interfaces of the same device.
    interfaces: Vec<String>,
    /// Error counters available on this port.
    errors: Vec<&'static str>,
    hardware_errors: Vec<&'static str>,
    /// Files that stay open because they are read every second.
    state: Option<Kept>,
    retransmits: Vec<(&'static str, Kept)>,
}

/// Finds all ports. Their names are such as `mlx5_0/1`.
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
            // EFA has its own transport, for which the file says "Unspecified".
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

    /// Returns its directory in sysfs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the kind of its network.
    pub fn link(&self) -> PortLink {
        self.link
    }

    /// Returns true if an interface belongs to this device.
    pub fn has_interface(&self, name: &str) -> bool {
        self.interfaces.iter().any(|own| own == name)
    }

    /// Returns true if the port can carry data, which is the case if `state` reads `4: ACTIVE`. `None` if unknown.
    pub fn is_up(&self) -> Option<bool> {
        let state = self.state.as_ref()?;
        state.read(|state| Some(state.split(':').next()?.trim() == "4"))
    }

    /// Returns the rate in bits per second. The file `rate` reads, for example, `400 Gb/sec (4X NDR)`.
    pub fn rate_bps(&self, files: &mut Files) -> Option<f64> {
        let rate = files.text(self.dir.join("rate")).ok()?;
        let (number, rest) = rate.split_once(' ')?;
        let number: f64 = number.parse().ok()?;
        rest.starts_with("Gb/sec").then_some(number * 1e9)
    }

    /// Adds lost links and errors to the sums.
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
        // A RoCE port does not count lost links, but its interface does. With several interfaces it is unknown which
        // one belongs to this port.
        if let ([own], PortLink::Roce) = (self.interfaces.as_slice(), self.link) {
            Interface::new(own).count_downs(files, interface::CARRIER, downs);
        }
    }

    /// Adds repeated transmissions to the sum.
    pub fn count_retransmits(&self, sum: &mut Grown<&'static str>) {
        for (name, counter) in &self.retransmits {
            if let Some(count) = counter.read(|count| count.parse().ok()) {
                sum.take(name, count);
            }
        }
    }
}
