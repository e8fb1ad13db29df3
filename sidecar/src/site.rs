//! Facts about this node: its rack, and the versions that should be the same on all nodes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Returns the rack or switch of this node: the value of PACELINE_RACK, or else the leaf switch in SLURM_TOPOLOGY_ADDR,
/// which Slurm sets with its tree topology plugin. Empty if unknown.
pub fn rack() -> Arc<str> {
    let variable = |name: &str| std::env::var(name).ok();
    rack_by(variable).into()
}

fn rack_by(variable: impl Fn(&str) -> Option<String>) -> String {
    if let Some(rack) = variable("PACELINE_RACK").filter(|rack| !rack.trim().is_empty()) {
        return rack.trim().to_owned();
    }
    let address = variable("SLURM_TOPOLOGY_ADDR").unwrap_or_default();
    let pattern = variable("SLURM_TOPOLOGY_ADDR_PATTERN").unwrap_or_default();
    leaf_switch(&address, &pattern).to_owned()
}

/// Returns the leaf switch in an address such as `core.leaf3.node17` with the pattern `switch.switch.node`, which runs
/// from the top switch down to the node (<https://slurm.schedmd.com/sbatch.html>). A node's name may contain dots; a
/// switch's name does not.
fn leaf_switch<'a>(address: &'a str, pattern: &str) -> &'a str {
    let parts: Vec<&str> = address.split('.').collect();
    let above_node = if pattern.is_empty() {
        parts.len() - 1
    } else {
        pattern.split('.').take_while(|part| *part != "node").count()
    };
    match above_node.checked_sub(1) {
        Some(leaf) => parts.get(leaf).copied().unwrap_or(""),
        None => "",
    }
}

/// Returns versions by name: `kernel`, and `driver` if NVIDIA's driver is loaded.
pub fn versions() -> BTreeMap<Arc<str>, Arc<str>> {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let driver = driver(Path::new("/proc/driver/nvidia/version"));
    [("kernel", Some(kernel)), ("driver", driver)]
        .into_iter()
        .filter_map(|(name, version)| Some((name.into(), version?.into())))
        .collect()
}

fn driver(file: &Path) -> Option<String> {
    parse_driver(&fs::read_to_string(file).ok()?)
}

/// Returns the first word of digits and dots in the first line, which is for example `NVRM version: NVIDIA UNIX x86_64
/// Kernel Module  535.104.05 Sat Aug ...` or `NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ...`.
fn parse_driver(text: &str) -> Option<String> {
    let is_version = |word: &&str| {
        let mut parts = word.split('.');
        word.contains('.') && parts.all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    text.lines()
        .next()?
        .split_ascii_whitespace()
        .find(is_version)
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racks() {
        let check = |env: &[(&str, &str)], wanted: &str| {
            let found = rack_by(|name| {
                let pair = env.iter().find(|(known, _)| *known == name);
                pair.map(|(_, value)| (*value).to_owned())
            });
            assert_eq!(found, wanted, "{env:?}");
        };
        let (address, pattern) = ("SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN");
        check(&[], "");
        check(&[("PACELINE_RACK", " r7 "), (address, "s0.s1.n")], "r7");
        check(&[("PACELINE_RACK", ""), (address, "s0.s1.n")], "s1");
        check(&[(address, "s0.s1.n3"), (pattern, "switch.switch.node")], "s1");
        check(&[(address, "s1.n3.site.org"), (pattern, "switch.node")], "s1");
        check(&[(address, "n3"), (pattern, "node")], "");
        check(&[(address, "n3")], "");
        check(&[(address, "n3"), (pattern, "switch.switch.node")], "");
    }

    #[test]
    fn drivers() {
        let check = |line: &str, wanted| assert_eq!(parse_driver(line).as_deref(), wanted, "{line}");
        check(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version:  gcc version 12.3.0\n",
            Some("535.104.05"),
        );
        check(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)\n",
            Some("570.86.15"),
        );
        check("", None);
        check("nothing 12 here.\nGCC 12.3.0", None);
        assert_eq!(driver(Path::new("/nowhere/version")), None);
    }

    #[test]
    fn this_node_has_a_kernel() {
        assert!(
            versions()
                .get("kernel")
                .is_some_and(|release| !release.is_empty())
        );
    }
}
