//! Replaces the host of torchrun's rendezvous if that node was excluded. The command line then names the first good
//! node. Without this, agents would wait in vain for a rendezvous host that never starts.
//!
//! It changes only torchrun's own options before the script, and not the script's.

use std::ffi::OsString;
use std::net::{IpAddr, ToSocketAddrs};

use paceline_health::id::NodeId;
use paceline_health::preflight::{NodeRow, Report};

use crate::run::cluster::Variable;
use crate::run::torchrun::Options;

/// Options that name a host, and the variables that torchrun reads instead.
const HOSTS: [(&str, &str); 2] = [
    ("--rdzv-endpoint", "PET_RDZV_ENDPOINT"),
    ("--master-addr", "PET_MASTER_ADDR"),
];
const NODE_RANK: (&str, &str) = ("--node-rank", "PET_NODE_RANK");

/// The changes to the requested command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Redirected {
    /// The changed command, or `None` if it is unchanged.
    pub(super) command: Option<Vec<OsString>>,
    /// The changed variables.
    pub(super) env: Vec<(&'static str, OsString)>,
    /// A description of each change, for users.
    pub(super) said: Vec<String>,
}

/// Returns the node of the report that the training command's rendezvous names, if any.
pub(super) fn host(command: &[OsString], variable: Variable<'_>, report: &Report) -> Option<NodeId> {
    let options = Options::of(command);
    HOSTS.iter().find_map(|(option, name)| {
        let value = options.value(command, option).or_else(|| variable(name))?;
        node_of(split(&value).0, report)
    })
}

/// Returns true if `aggregator` was given and can stay, because its node starts or is not in the report.
pub(super) fn starts(aggregator: Option<&str>, report: &Report, starting: &[&NodeId]) -> bool {
    // The aggregator is the last one in the list, after any relays.
    let own = aggregator.and_then(|given| given.rsplit(',').next());
    own.is_some_and(|given| node_of(split(given).0, report).is_none_or(|node| starting.contains(&&node)))
}

/// Replaces every excluded node that the command names with the first of the starting nodes. Also sets the node rank to
/// `rank`, its position among the starting nodes.
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

/// Splits an endpoint into `host` and either `:port` or an empty text.
fn split(endpoint: &str) -> (&str, &str) {
    let after = endpoint.rfind(']').map_or(0, |at| at + 1);
    match endpoint[after..].find(':') {
        // Without brackets, more than one colon means an IPv6 address without a port.
        Some(at) if !endpoint[after + at + 1..].contains(':') => endpoint.split_at(after + at),
        _ => (endpoint, ""),
    }
}

/// Returns the node with this host name or address.
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

/// Returns the address at which other nodes reach a node. It is the address from the preflight or, if there is none,
/// the node's name.
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
