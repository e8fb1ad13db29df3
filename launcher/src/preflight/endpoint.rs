//! Where torchrun's nodes meet, when the node at which they should was left out: the command line names the first good
//! one instead. An agent whose rendezvous host never starts would wait for it in vain.
//!
//! Only torchrun's own options are touched, up to the script; what a script does inside is its own.

use std::ffi::OsString;
use std::net::{IpAddr, ToSocketAddrs};

use paceline_health::id::NodeId;
use paceline_health::preflight::{NodeRow, Report};

use crate::run::cluster::Variable;
use crate::run::torchrun::Options;

/// Options that name a host, and the variables that torchrun reads in their place.
const HOSTS: [(&str, &str); 2] = [
    ("--rdzv-endpoint", "PET_RDZV_ENDPOINT"),
    ("--master-addr", "PET_MASTER_ADDR"),
];
const NODE_RANK: (&str, &str) = ("--node-rank", "PET_NODE_RANK");

/// What is different from what was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Redirected {
    /// The command with other words; `None`: as it was.
    pub(super) command: Option<Vec<OsString>>,
    /// Variables with other values.
    pub(super) env: Vec<(&'static str, OsString)>,
    /// Each change, for people.
    pub(super) said: Vec<String>,
}

/// The node of a report that training's rendezvous names, if it names one.
pub(super) fn host(command: &[OsString], variable: Variable<'_>, report: &Report) -> Option<NodeId> {
    let options = Options::of(command);
    HOSTS.iter().find_map(|(option, name)| {
        let value = options.value(command, option).or_else(|| variable(name))?;
        node_of(split(&value).0, report)
    })
}

/// Whether `aggregator` was given and need not move: it is on a node that starts, or on none of them.
pub(super) fn starts(aggregator: Option<&str>, report: &Report, starting: &[&NodeId]) -> bool {
    // Relays come before it in a list.
    let own = aggregator.and_then(|given| given.rsplit(',').next());
    own.is_some_and(|given| node_of(split(given).0, report).is_none_or(|node| starting.contains(&&node)))
}

/// Points a command at `first` wherever it names a node that is not among those that start, and gives it its `rank`
/// among them.
pub(super) fn redirect(
    command: &[OsString],
    variable: Variable<'_>,
    report: &Report,
    starting: &[&NodeId],
    rank: usize,
) -> Redirected {
    let options = Options::of(command);
    let mut redirected = Redirected::default();
    let Some(first) = starting.first() else {
        return redirected;
    };
    let new_host = reach(first, report.nodes.get(*first));
    let is_out = |host: &str| node_of(host, report).is_some_and(|node| !starting.contains(&&node));
    for (option, name) in HOSTS {
        let given = options.value(command, option);
        let Some(value) = given.clone().or_else(|| variable(name)) else {
            continue;
        };
        let (host, port) = split(&value);
        if is_out(host) {
            let new = format!("{new_host}{port}");
            redirected.change(command, &options, (option, name), given.is_some(), &value, new);
        }
    }
    let given = options.value(command, NODE_RANK.0);
    if let Some(value) = given.clone().or_else(|| variable(NODE_RANK.1)) {
        let new = rank.to_string();
        if value != new {
            redirected.change(command, &options, NODE_RANK, given.is_some(), &value, new);
        }
    }
    if let Some(host) = variable("MASTER_ADDR").filter(|host| is_out(host)) {
        let said = format!(
            "MASTER_ADDR names {host}, which is excluded: the command should read PACELINE_FIRST_NODE ({first}) \
             instead"
        );
        redirected.said.push(said);
    }
    redirected
}

impl Redirected {
    fn change(
        &mut self,
        command: &[OsString],
        options: &Options,
        (option, name): (&'static str, &'static str),
        is_option: bool,
        was: &str,
        new: String,
    ) {
        let shown = if is_option { option } else { name };
        self.said.push(format!("{shown} {was} becomes {new}"));
        if is_option {
            let words = self.command.get_or_insert_with(|| command.to_vec());
            options.set(words, option, &new);
        } else {
            self.env.push((name, new.into()));
        }
    }
}

/// `host`, and `:port` or nothing.
fn split(endpoint: &str) -> (&str, &str) {
    let after = endpoint.rfind(']').map_or(0, |at| at + 1);
    match endpoint[after..].find(':') {
        // More than one colon and no bracket: an address of IPv6 without a port.
        Some(at) if !endpoint[after + at + 1..].contains(':') => endpoint.split_at(after + at),
        _ => (endpoint, ""),
    }
}

/// The node that a host name or address is of.
fn node_of(host: &str, report: &Report) -> Option<NodeId> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_address = host.parse::<IpAddr>().is_ok();
    let short = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
    let named = |(node, row): &(&NodeId, &NodeRow)| {
        node.as_str() == host || &*row.address == host || (!is_address && short(node.as_str()) == short(host))
    };
    if let Some((node, _)) = report.nodes.iter().find(named) {
        return Some(node.clone());
    }
    let known: Vec<IpAddr> = match (host, 0).to_socket_addrs() {
        Ok(found) if !is_address => found.map(|address| address.ip()).collect(),
        _ => return None,
    };
    let at = |row: &NodeRow| row.address.parse().is_ok_and(|ip: IpAddr| known.contains(&ip));
    let found = report.nodes.iter().find(|(_, row)| at(row));
    found.map(|(node, _)| node.clone())
}

/// How the others reach a node: as the preflight did, else by its name.
pub(super) fn reach(node: &NodeId, row: Option<&NodeRow>) -> String {
    let address = row.map_or("", |row| &*row.address);
    match address.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => node.to_string(),
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        Ok(ip) => ip.to_string(),
        Err(_) => node.to_string(),
    }
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
