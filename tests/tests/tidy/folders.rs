//! Checks rules for source folders: each has few files, and no module or type has a name that is unclear to new
//! readers.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{files, read};

/// The maximum number of Rust files directly in one folder, including `mod.rs` and tests.
const MAX_FILES: usize = 14;

/// Folders with more files, and their number, which may only decrease.
const LARGER: [(&str, usize); 2] = [("tests/kube-api/src", 24), ("tests/tests/system", 34)];

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

/// Old names of modules in the pure crate. They were replaced by terms of the field and must not come back.
const RENAMED_MODULES: [&str; 30] = [
    "away", "before", "birth", "blind", "board", "book", "exact", "fit", "front", "gauge", "hand", "hear",
    "keep", "kinds", "plain", "price", "raised", "rounds", "say", "scene", "seen", "shift", "signs",
    "slower", "stage", "tell", "tempo", "told", "wander", "words",
];

/// Old names of types, which must not come back either.
const RENAMED_TYPES: [&str; 20] = [
    "Away",
    "Before",
    "Birth",
    "BlindRule",
    "Board",
    "Case",
    "Exact",
    "Front",
    "Gauge",
    "Kinds",
    "Raised",
    "Rounds",
    "Scene",
    "Seat",
    "Seen",
    "Shift",
    "Slower",
    "Tempo",
    "Told",
    "Wander",
];

#[test]
fn the_pure_crate_uses_the_terms_of_the_field() {
    for path in files(&[".rs"]).iter().filter(|path| path.starts_with("health/")) {
        let mut names = Path::new(path).iter().filter_map(|name| name.to_str());
        let old = names.find(|name| RENAMED_MODULES.contains(&name.trim_end_matches(".rs")));
        assert!(
            old.is_none(),
            "{path}: `{}` has a better name",
            old.unwrap_or_default()
        );
        for line in read(path).lines().map(str::trim_start) {
            let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let is_public = line.starts_with("pub");
            let kind = words.find(|word| ["struct", "enum", "type", "trait"].contains(word));
            let name = kind.and_then(|_| words.next()).unwrap_or_default();
            assert!(
                !(is_public && RENAMED_TYPES.contains(&name)),
                "{path}: `{name}` has a better name"
            );
        }
    }
}

/// The maximum width of comment lines in the pure crate.
const MAX_COLUMNS: usize = 120;

#[test]
fn comments_of_the_pure_crate_are_no_wider_than_a_page() {
    let sources = files(&[".rs"]);
    let held = |path: &&String| path.starts_with("health/");
    for path in sources.iter().filter(held) {
        for (index, line) in read(path).lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            assert!(
                !is_comment || line.chars().count() <= MAX_COLUMNS,
                "{path}:{}: wider than {MAX_COLUMNS} columns",
                index + 1
            );
        }
    }
}
