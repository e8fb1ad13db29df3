//! The last readings of each network port.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::event::{PortLink, PortReading, PortSignal, Reading};
use paceline_health::id::NodeId;
use serde::{Deserialize, Serialize};

use super::format::families::{Families, counters, gauges};

/// The state of each node's ports, by port name.
pub(super) type Ports = BTreeMap<NodeId, Arc<BTreeMap<Arc<str>, Port>>>;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Port {
    link: PortLink,
    readings: BTreeMap<PortSignal, Reading>,
}

/// Applies a reading, which may contain only changes.
pub(super) fn observe(ports: &mut Ports, node: &NodeId, reading: &PortReading) {
    let of_node = Arc::make_mut(ports.entry(node.clone()).or_default());
    let port = of_node.entry(Arc::clone(&reading.port)).or_insert_with(|| Port {
        link: reading.link,
        readings: BTreeMap::new(),
    });
    port.link = reading.link;
    let news = reading.readings.iter();
    port.readings
        .extend(news.map(|(signal, reading)| (*signal, reading.clone())));
}

/// Adds the families of every port that was read.
pub(super) fn families(out: &mut Families<'_>, ports: &Ports) {
    let all = || {
        ports.iter().flat_map(|(node, of_node)| {
            of_node
                .iter()
                .map(move |(name, port)| (node.to_string(), name.to_string(), port))
        })
    };
    let values = |signal: PortSignal| {
        all().filter_map(move |(node, name, port)| {
            let value = port.readings.get(&signal)?.value()?;
            Some(((node, name, port.link), value))
        })
    };
    let up = values(PortSignal::Up).map(|((node, port, link), up)| ([node, port, kind(link).to_owned()], up));
    let help = "Whether a network port can carry data.";
    gauges(out, "paceline_fabric_port_up", help, ["node", "port", "link"], up);
    let rate = values(PortSignal::RateBps).map(|((node, port, _), bits)| ([node, port], bits / 8.0));
    let (name, help) = (
        "paceline_fabric_port_rate_bytes_per_second",
        "Rate of a network port's link.",
    );
    gauges(out, name, help, ["node", "port"], rate);
    let counts = [
        ("link_down", PortSignal::LinkDowns),
        ("error", PortSignal::Errors),
        ("retransmit", PortSignal::Retransmits),
    ];
    let errors = counts.into_iter().flat_map(|(counter, signal)| {
        values(signal).map(move |((node, port, _), count)| ([node, port, counter.to_owned()], count))
    });
    let help = "Lost links, damaged or dropped packets, and repeated transmissions of a network port, since the sidecar began.";
    let labels = ["node", "port", "counter"];
    counters(out, "paceline_fabric_errors_total", help, labels, errors);
}

fn kind(link: PortLink) -> &'static str {
    match link {
        PortLink::Infiniband => "infiniband",
        PortLink::Roce => "roce",
        PortLink::Efa => "efa",
        PortLink::Ethernet => "ethernet",
    }
}
