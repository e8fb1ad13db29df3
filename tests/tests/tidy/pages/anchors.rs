//! The anchors of links must exist, and so must the pages that source files mention.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::{lines, links, none};
use crate::{files, read, root};

/// Files in which `docs/` refers to another repository.
const FOREIGN: [&str; 1] = ["launcher/src/evaluate/baselines/median.rs"];
/// Kinds of files that mention pages.
const SOURCES: [&str; 14] = [
    ".rs", ".py", ".toml", ".yaml", ".yml", ".json", ".js", ".html", ".sh", ".tpl", ".tmpl", ".lua", ".c",
    ".h",
];

/// Returns a heading's anchor, as GitHub and mdBook generate it.
fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    // A link is replaced by its text.
    while let Some((before, (words, after))) = rest
        .split_once('[')
        .and_then(|(before, after)| Some((before, after.split_once("](")?)))
    {
        text += before;
        text += words;
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text += rest;
    let kept = text.trim().to_lowercase();
    let kept = kept.chars().filter_map(|one| match one {
        ' ' => Some('-'),
        '-' | '_' => Some(one),
        one => one.is_alphanumeric().then_some(one),
    });
    kept.collect()
}

/// Returns the anchors of a page, from its headings and each `<a id="...">`.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for line in lines(page) {
        let given = line.text.split("<a id=\"").skip(1);
        found.extend(given.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        let heading = line.text.trim_start_matches('#');
        if heading.len() < line.text.len() && heading.starts_with(' ') {
            let slug = slug(heading);
            let count = seen.entry(slug.clone()).or_default();
            found.insert(if *count == 0 {
                slug
            } else {
                format!("{slug}-{count}")
            });
            *count += 1;
        }
    }
    found
}

/// Normalizes `a/b/../c` to `a/c`.
fn normal(path: &Path) -> String {
    let mut whole = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            part => whole.push(part),
        }
    }
    whole.to_string_lossy().into_owned()
}

/// Returns true if a page has this anchor. A missing page has none.
fn has(page: &str, anchor: &str) -> bool {
    root().join(page).exists() && anchors(&read(page)).contains(anchor)
}

/// Returns each `docs/PAGE.md` or `docs/PAGE.md#ANCHOR` in a text.
fn mentions(text: &str) -> Vec<(String, Option<String>)> {
    let is_name = |one: char| one.is_ascii_alphanumeric() || matches!(one, '/' | '_' | '-');
    let mut found = Vec::new();
    for rest in text.split("docs/").skip(1) {
        let name = rest.split(|one| !is_name(one)).next().unwrap_or_default();
        let rest = rest.strip_prefix(name).and_then(|rest| rest.strip_prefix(".md"));
        if let Some(rest) = rest.filter(|rest| !rest.starts_with(is_name)) {
            let anchor = rest.strip_prefix('#').map(|rest| {
                let end = rest.split(|one: char| !is_name(one) || one == '/');
                end.take(1).collect::<String>()
            });
            found.push((
                format!("docs/{name}.md"),
                anchor.filter(|anchor| !anchor.is_empty()),
            ));
        }
    }
    found
}

#[test]
fn anchors_of_links_exist() {
    let mut found = Vec::new();
    let mut count = 0;
    for page in files(&[".md"]) {
        let base = Path::new(&page).parent().unwrap().to_owned();
        for link in links(&read(&page)) {
            let Some((path, anchor)) = link.split_once('#').filter(|_| !link.contains("://")) else {
                continue;
            };
            let target = match path {
                "" => page.clone(),
                path => normal(&base.join(path)),
            };
            count += 1;
            if target.ends_with(".md") && !has(&target, anchor) {
                found.push(format!("{page} links to {link}"));
            }
        }
    }
    assert!(count > 50, "only {count} anchors were found");
    none(&found);
}

#[test]
fn pages_that_sources_name_exist() {
    let mut found = Vec::new();
    let mut count = 0;
    let sources = files(&SOURCES).into_iter().filter(|path| {
        // Skips these tests, which contain examples.
        !FOREIGN.contains(&path.as_str()) && !path.contains("/tidy/pages/")
    });
    for source in sources {
        // Skips files that are not text. Fixtures are third-party files, and not all of them are text.
        let Ok(text) = std::fs::read_to_string(root().join(&source)) else {
            continue;
        };
        for (page, anchor) in mentions(&text) {
            count += 1;
            let is_there = match &anchor {
                Some(anchor) => has(&page, anchor),
                None => root().join(&page).exists(),
            };
            if !is_there {
                found.push(format!("{source} names {page}{}", anchor.unwrap_or_default()));
            }
        }
    }
    assert!(count > 100, "only {count} pages were named");
    none(&found);
}

#[test]
fn anchors_are_those_of_github() {
    let page =
        "# What `--help` says, of [A b](c.md)!\n<a id=\"own\"></a>\n## Twice\n## Twice\n```\n# no\n```\n";
    let wanted = ["own", "twice", "twice-1", "what---help-says-of-a-b"];
    assert_eq!(anchors(page).into_iter().collect::<Vec<_>>(), wanted);
    assert!(
        !has("docs/none.md", "a") && !has("docs/findings.md", "none") && has("docs/findings.md", "straggler")
    );
    let text = "see docs/a/b-c.md#d-e. docs/f.md, docs/g.mdx is none of docs/h, mydocs/";
    let wanted = [("docs/a/b-c.md", Some("d-e")), ("docs/f.md", None)];
    let named = mentions(text);
    let named = named
        .iter()
        .map(|(page, anchor)| (page.as_str(), anchor.as_deref()));
    assert_eq!(named.collect::<Vec<_>>(), wanted);
}
