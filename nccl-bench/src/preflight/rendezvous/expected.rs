//! The nodes that a preflight waits for.

use std::net::IpAddr;

use paceline_health::id::NodeId;

/// The nodes that the first node waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Number of nodes, including the first node.
    pub count: usize,
    /// The nodes' names, in order, if known.
    pub names: Vec<String>,
}

impl Expected {
    /// Returns the index of `node` in the list. It is found by its name, or by the first part of its name.
    pub(in crate::preflight) fn position(&self, node: &NodeId) -> Option<usize> {
        let name = node.as_str();
        let by = |same: &dyn Fn(&str) -> bool| self.names.iter().position(|known| same(known));
        by(&|known| known == name).or_else(|| by(&|known| short(known) == short(name)))
    }
}

/// Returns a name without its domain. An address has no domain.
fn short(name: &str) -> &str {
    if name.parse::<IpAddr>().is_ok() {
        return name;
    }
    name.split('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_its_name_or_the_first_part_of_it() {
        let check = |names: &[&str], node: &str, wanted| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let expected = Expected {
                count: names.len(),
                names,
            };
            assert_eq!(expected.position(&node.into()), wanted, "{node}");
        };
        check(&["n1", "n2"], "n2", Some(1));
        check(&["n1", "n2.a"], "n2.b", Some(1));
        check(&["n1.a", "n1.b"], "n1.b", Some(1));
        check(&["10.0.0.1", "10.0.0.2"], "10.0.0.2", Some(1));
        check(&["10.0.0.1", "10.0.0.2"], "10.0.0.3", None);
        check(&["n1"], "n2", None);
        check(&[], "n1", None);
    }
}
