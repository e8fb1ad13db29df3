//! kubectl and helm parse manifests as YAML 1.1 (sigs.k8s.io/yaml), where an unquoted `n`, `off` or `Yes` is a boolean,
//! even as a key. Such a key in a schema drops its field from every object.

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::{files, read};

/// Words that are booleans in YAML 1.1: <https://yaml.org/type/bool.html>.
const WORDS: [&str; 8] = ["y", "n", "yes", "no", "on", "off", "true", "false"];

/// Returns true if the text is such a word. It ignores case, as sigs.k8s.io/yaml does for `Yes` and `YES`; `yEs` does
/// not occur.
fn is_word(text: &str) -> bool {
    WORDS.contains(&text.to_lowercase().as_str())
}

/// Returns true for a value that is a boolean in YAML 1.1, except `true` and `false`, which are intended.
fn is_odd_value(text: &str) -> bool {
    is_word(text) && !["true", "false"].contains(&text.to_lowercase().as_str())
}

/// Returns true for a key that is not a string, such as a boolean, `null` or `~`.
fn is_odd_key(text: &str) -> bool {
    is_word(text) || ["null", "~", ""].contains(&text.to_lowercase().as_str())
}

/// Returns the unquoted words that are not strings, each with its line number.
fn odd(text: &str) -> Vec<(usize, String)> {
    // The open collections. For a map, whether a key comes next.
    let mut open: Vec<Option<bool>> = Vec::new();
    let mut found = Vec::new();
    for next in Parser::new_from_str(text) {
        let (event, span) = next.unwrap_or_else(|error| panic!("{error}: {text}"));
        let is_key = open.last() == Some(&Some(true));
        match event {
            Event::Scalar(word, style, _, tag) => {
                let is_odd = if is_key {
                    is_odd_key(&word)
                } else {
                    is_odd_value(&word)
                };
                if style == ScalarStyle::Plain && tag.is_none() && is_odd {
                    found.push((span.start.line(), word.into_owned()));
                }
            }
            Event::MappingStart(..) => {
                open.push(Some(true));
                continue;
            }
            Event::SequenceStart(..) => {
                open.push(None);
                continue;
            }
            Event::MappingEnd | Event::SequenceEnd => drop(open.pop()),
            Event::Alias(_) => {}
            _ => continue,
        }
        // A node has ended. If it was a key, its value follows.
        if let Some(Some(is_key_next)) = open.last_mut() {
            *is_key_next = !*is_key_next;
        }
    }
    found
}

/// Like [`odd`], for a template. A template is not valid YAML, so it is checked line by line, without helm's
/// expressions.
fn odd_in_template(text: &str) -> Vec<(usize, String)> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (inside, after) = after.split_once("}}").unwrap_or((after, ""));
        plain += before;
        plain += "x";
        plain.extend(inside.chars().filter(|one| *one == '\n'));
        rest = after;
    }
    plain += rest;
    let mut found = Vec::new();
    for (index, line) in plain.lines().enumerate() {
        if line.trim_start().starts_with('#') {
            continue;
        }
        let line = line.split(" #").next().unwrap_or_default();
        for piece in line.split(['{', '}', '[', ']', ',']) {
            let mut piece = piece.trim();
            while let Some(item) = piece.strip_prefix("- ") {
                piece = item.trim_start();
            }
            let (key, value) = match piece.split_once(": ") {
                Some((key, value)) => (Some(key), value.trim()),
                None => match piece.strip_suffix(':') {
                    Some(key) => (Some(key), ""),
                    None => (None, piece),
                },
            };
            let words = key.filter(|key| is_odd_key(key.trim()));
            let words = words
                .into_iter()
                .chain(Some(value).filter(|value| is_odd_value(value)));
            found.extend(words.map(|word| (index + 1, word.to_owned())));
        }
    }
    found
}

#[test]
fn no_word_of_a_manifest_is_a_truth_value_to_yaml_1_1() {
    let mut all = Vec::new();
    let mut count = 0;
    // Skips workflows, because GitHub has its own parser for them and uses the key `on`.
    let ours = files(&[".yaml", ".yml", ".tpl"])
        .into_iter()
        .filter(|path| !path.starts_with(".github/"));
    for path in ours {
        let text = read(&path);
        let is_template = text.contains("{{");
        let found = if is_template {
            odd_in_template(&text)
        } else {
            odd(&text)
        };
        count += 1;
        all.extend(
            found
                .into_iter()
                .map(|(line, word)| format!("{path}:{line}: {word:?} without quotes")),
        );
    }
    assert!(count > 30, "only {count} manifests were found");
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn such_words_are_seen() {
    let whole = "a:\n  n: 1\nb: { Yes: 1, on: true }\nc: [off, \"off\", 'no']\n";
    let words = |found: Vec<(usize, String)>| found.into_iter().map(|(_, word)| word).collect::<Vec<_>>();
    let wanted = ["n", "Yes", "on", "off"];
    assert_eq!(words(odd(whole)), wanted);
    assert_eq!(odd(whole)[0].0, 2);
    assert_eq!(
        words(odd_in_template(&format!("{{{{ if n }}}}\n{whole}"))),
        wanted
    );
    assert_eq!(words(odd("null: 1\n\"y\": no\nx: |\n  n: 1\n")), ["null", "no"]);
    assert_eq!(odd("a: { true_: 1, nn: yess, b: true, c: ~ }\n"), []);
}
