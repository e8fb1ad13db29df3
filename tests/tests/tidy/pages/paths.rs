//! The architecture page lists files in the order of the data flow. Each path must exist.

use super::{lines, none};
use crate::{read, root};

const TOP_LEVEL: [&str; 6] = [
    "deploy/",
    "health/",
    "launcher/",
    "nccl-bench/",
    "sidecar/",
    "tests/",
];

#[test]
fn the_architecture_names_what_exists() {
    let page = read("ARCHITECTURE.md");
    let is_path = |word: &&str| TOP_LEVEL.iter().any(|folder| word.starts_with(folder));
    let mut named = Vec::new();
    for line in lines(&page) {
        let code = line.text.split('`').skip(1).step_by(2);
        named.extend(code.filter(is_path).map(|path| (line.number, path)));
    }
    assert!(named.len() > 40, "only {} paths were found", named.len());
    let missing = named.iter().filter(|(_, path)| !root().join(path).exists());
    let missing: Vec<String> = missing
        .map(|(line, path)| format!("ARCHITECTURE.md:{line} names {path}"))
        .collect();
    none(&missing);
}
