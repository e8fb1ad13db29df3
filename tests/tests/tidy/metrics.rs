//! Checks docs/metrics.md, which is the contract of the metrics page.

use std::collections::BTreeSet;

use super::{files, read};

/// Returns the metric families in the code, from string literals.
fn in_code() -> BTreeSet<String> {
    let sources = files(&[".rs"]);
    let sources = sources
        .iter()
        .filter(|path| path.starts_with("sidecar/src/sink/metrics"));
    let texts: String = sources
        .filter(|path| !path.ends_with("_tests.rs"))
        .map(|path| read(path))
        .collect();
    let literals = texts.split("\"paceline_").skip(1);
    let names = literals.filter_map(|rest| Some(format!("paceline_{}", rest.split_once('"')?.0)));
    names
        .filter(|name| {
            name.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        })
        .collect()
}

#[test]
fn every_metric_is_in_the_contract_and_every_query_asks_for_one() {
    let page = read("docs/metrics.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `paceline_")?.split_once('`'));
    let told: BTreeSet<String> = rows.map(|(name, _)| format!("paceline_{name}")).collect();
    assert_eq!(in_code(), told);
    let mut asked = 0;
    for rules in files(&[".rules.yaml"]) {
        for query in read(&rules)
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("expr: "))
        {
            let names = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            for name in names.filter(|name| name.starts_with("paceline_")) {
                let family = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end));
                assert!(
                    told.contains(name) || family.is_some_and(|family| told.contains(family)),
                    "{rules}: {query}"
                );
                asked += 1;
            }
        }
    }
    assert!(asked > 20, "{asked}");
}
