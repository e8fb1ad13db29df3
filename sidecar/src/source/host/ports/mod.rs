//! The meter of network ports: RDMA devices, and interfaces that belong to no RDMA device. It runs in its own thread.

mod interface;
mod rdma;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use paceline_health::event::{HostSignal, Missing, PortLink, PortReading, PortSignal, Reading};

use self::interface::Interface;
use self::rdma::RdmaPort;
use super::Readings;
use super::board::Board;
use super::files::Files;
use super::grown::Grown;
use super::pace::{Meter, Pace};

/// Maximum number of ports read on a node.
const MOST: usize = 64;
const SNMP: &str = "proc/net/snmp";

/// The meter; see the module.
#[derive(Debug)]
pub struct Ports {
    files: Files,
    ports: BTreeMap<Arc<str>, Port>,
    tcp: Grown<()>,
}

/// Where the counters of a port are.
#[derive(Debug)]
enum Place {
    Rdma(RdmaPort),
    Interface(Interface),
}

impl Place {
    fn dir(&self) -> &Path {
        match self {
            Place::Rdma(port) => port.dir(),
            Place::Interface(port) => port.dir(),
        }
    }
}

/// One port.
#[derive(Debug)]
struct Port {
    place: Place,
    /// Set if the port was up at some time since monitoring began. Ports that were never plugged in are ignored.
    was_up: bool,
    up: Option<bool>,
    rate_bps: Option<f64>,
    downs: Grown<&'static str>,
    errors: Grown<&'static str>,
    /// Retransmissions of an RDMA port. TCP has no such counters per port.
    retransmits: Grown<&'static str>,
}

impl Ports {
    /// Creates the meter of the ports under `root`.
    pub fn new(root: &Path) -> Ports {
        Ports {
            files: Files::new(root),
            ports: BTreeMap::new(),
            tcp: Grown::default(),
        }
    }

    /// Finds the current ports. Keeps a port that disappeared, for example during a driver reload, and counts it as
    /// down.
    fn find(&mut self) {
        let rdma = rdma::find(&mut self.files);
        let interfaces = interface::find(&self.files, |interface| {
            rdma.iter().any(|(_, port)| port.has_interface(interface))
        });
        let found = rdma
            .into_iter()
            .map(|(name, port)| (name, Place::Rdma(port)))
            .chain(
                interfaces
                    .into_iter()
                    .map(|port| (port.name().into(), Place::Interface(port))),
            );
        for (name, place) in found {
            if let Some(port) = self.ports.get_mut(&name) {
                port.place = place;
            } else if self.ports.len() < MOST {
                self.ports.insert(name, Port::new(place));
            }
        }
    }

    /// Returns the sums over the ports.
    fn sums(&self, pace: Pace) -> Readings {
        let mut sums = Readings::new();
        let ports = || self.ports.values();
        let repeated = ports().filter_map(|port| port.retransmits.reading().value());
        let repeated = repeated.chain(self.tcp.reading().value());
        sums.insert(HostSignal::NetRetransmits, sum(repeated));
        if pace == Pace::Fast {
            return sums;
        }
        let errors = ports().filter_map(|port| port.errors.reading().value());
        sums.insert(HostSignal::NetErrors, sum(errors));
        let any_rdma = ports().any(Port::is_rdma);
        let used = ports().filter(|port| port.was_up && port.is_rdma() == any_rdma);
        let slowest = used.filter_map(Port::carries_bps).reduce(f64::min);
        let slowest = slowest.map_or(Reading::Missing(Missing::Unsupported), Reading::Value);
        sums.insert(HostSignal::NetRateBps, slowest);
        sums
    }
}

impl Meter for Ports {
    const NAME: &'static str = "network ports";

    fn read(&mut self, pace: Pace, board: &Board) {
        if pace == Pace::Slow {
            self.find();
        }
        if let Ok(text) = self.files.text(SNMP)
            && let Some(repeated) = tcp_retransmissions(text)
        {
            self.tcp.take((), repeated);
        }
        for (name, port) in &mut self.ports {
            let before = port.up;
            port.read(&mut self.files, pace);
            // Send a port that is down every second, because the duration matters.
            let is_news = port.up != before || (port.was_up && port.up == Some(false));
            if pace == Pace::Slow || is_news {
                board.port(port.reading(name, pace));
            }
        }
        board.network(self.sums(pace));
    }
}

impl Port {
    fn new(place: Place) -> Port {
        Port {
            place,
            was_up: false,
            up: None,
            rate_bps: None,
            downs: Grown::default(),
            errors: Grown::default(),
            retransmits: Grown::default(),
        }
    }

    fn is_rdma(&self) -> bool {
        matches!(self.place, Place::Rdma(_))
    }

    fn read(&mut self, files: &mut Files, pace: Pace) {
        let Port {
            place,
            downs,
            errors,
            retransmits,
            ..
        } = self;
        self.up = match place {
            Place::Rdma(port) => {
                port.count_retransmits(retransmits);
                port.is_up()
            }
            Place::Interface(port) => port.is_up(files),
        };
        if self.up.is_none() && self.was_up && !files.at(place.dir()).exists() {
            // The port was removed from the machine.
            self.up = Some(false);
        }
        self.was_up |= self.up == Some(true);
        if pace == Pace::Slow {
            self.rate_bps = match place {
                Place::Rdma(port) => {
                    port.count(files, downs, errors);
                    port.rate_bps(files)
                }
                Place::Interface(port) => {
                    port.count(files, downs, errors);
                    port.rate_bps(files)
                }
            };
        }
    }

    /// Returns the rate at which the port can carry data now.
    fn carries_bps(&self) -> Option<f64> {
        match self.up {
            Some(false) => Some(0.0),
            _ => self.rate_bps,
        }
    }

    fn reading(&self, name: &Arc<str>, pace: Pace) -> PortReading {
        let known = |value: Option<f64>| value.map_or(Reading::Missing(Missing::Unsupported), Reading::Value);
        let up = known(self.up.map(|up| f64::from(u8::from(up))));
        let mut readings = BTreeMap::from([(PortSignal::Up, up)]);
        if pace == Pace::Slow {
            readings.insert(PortSignal::RateBps, known(self.rate_bps));
            readings.insert(PortSignal::LinkDowns, self.downs.reading());
            readings.insert(PortSignal::Errors, self.errors.reading());
            if self.is_rdma() {
                readings.insert(PortSignal::Retransmits, self.retransmits.reading());
            }
        }
        PortReading {
            port: Arc::clone(name),
            link: match &self.place {
                Place::Rdma(port) => port.link(),
                Place::Interface(_) => PortLink::Ethernet,
            },
            readings,
        }
    }
}

fn sum(of: impl Iterator<Item = f64>) -> Reading {
    of.reduce(|sum, part| sum + part)
        .map_or(Reading::Missing(Missing::Unsupported), Reading::Value)
}

/// Returns the TCP retransmissions on all networks of this namespace: column `RetransSegs` of `/proc/net/snmp`.
fn tcp_retransmissions(text: &str) -> Option<f64> {
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (rows.next()?, rows.next()?);
    let column = names
        .split_ascii_whitespace()
        .position(|name| name == "RetransSegs")?;
    values.split_ascii_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_counts() {
        let text = "Ip: Forwarding DefaultTTL\nIp: 2 64\nTcp: RtoAlgorithm MaxConn RetransSegs InErrs\nTcp: 1 -1 6235 0\n";
        assert_eq!(tcp_retransmissions(text), Some(6235.0));
        assert_eq!(tcp_retransmissions("Tcp: RetransSegs\n"), None);
        assert_eq!(tcp_retransmissions(""), None);
    }
}
