//! How sources lie in folders: few beside each other.

use std::collections::BTreeMap;
use std::path::Path;

use crate::files;

/// Rust files directly in one folder, `mod.rs` and tests included.
const MAX_FILES: usize = 14;

/// Folders that hold more, and how many: a number here only becomes smaller.
const LARGER: [(&str, usize); 14] = [
    ("deploy/inject/src", 19),
    ("deploy/operator/src", 15),
    ("deploy/operator/src/remediate/policy", 17),
    ("launcher/src", 20),
    ("launcher/src/report", 16),
    ("launcher/src/run", 30),
    ("launcher/src/top", 15),
    ("nccl-bench/src/preflight", 22),
    ("sidecar/src/aggregator", 23),
    ("sidecar/src/sink/metrics", 19),
    ("sidecar/src/sink/notify", 18),
    ("sidecar/src/source/nvml", 18),
    ("tests/kube-api/src", 24),
    ("tests/tests/system", 34),
];

#[test]
fn folders_hold_few_files() {
    let mut folders: BTreeMap<String, usize> = BTreeMap::new();
    for path in files(&[".rs"]) {
        let folder = Path::new(&path).parent().and_then(Path::to_str);
        *folders.entry(folder.unwrap_or_default().to_owned()).or_default() += 1;
    }
    for (folder, count) in folders {
        let larger = LARGER.iter().find(|(name, _)| *name == folder);
        let limit = larger.map_or(MAX_FILES, |(_, limit)| *limit);
        assert!(
            count <= limit,
            "{folder} holds {count} Rust files: make folders of at most {MAX_FILES} by what the files do"
        );
    }
}

#[test]
fn the_pure_crate_has_a_mod_rs_in_every_folder() {
    let sources = files(&[".rs"]);
    for path in sources.iter().filter(|path| path.starts_with("health/src/")) {
        let folder = path.trim_end_matches(".rs").to_owned() + "/";
        let beside = sources.iter().find(|other| other.starts_with(&folder));
        assert!(
            beside.is_none(),
            "{path} belongs in {folder} as mod.rs, beside {beside:?}"
        );
    }
}
