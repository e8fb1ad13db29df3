//! Manifests are read by kubectl and helm, and these by YAML 1.1 (sigs.k8s.io/yaml): a plain `n`, `off` or `Yes` is no text there but a
//! truth value, as a key too. A key of a schema that is read so takes its field away from every object.

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::{files, read};

/// What YAML 1.1 takes for a truth value and people for a word: <https://yaml.org/type/bool.html>.
const WORDS: [&str; 8] = ["y", "n", "yes", "no", "on", "off", "true", "false"];

/// In any case, as sigs.k8s.io/yaml takes them: `Yes` and `YES`, not `yEs`; which nobody writes either.
fn is_word(text: &str) -> bool {
    WORDS.contains(&text.to_lowercase().as_str())
}

/// A value that is no text to YAML 1.1; `true` and `false` are meant so.
fn is_odd_value(text: &str) -> bool {
    is_word(text) && !["true", "false"].contains(&text.to_lowercase().as_str())
}

/// A key that is no text: `null` and `~` are none either.
fn is_odd_key(text: &str) -> bool {
    is_word(text) || ["null", "~", ""].contains(&text.to_lowercase().as_str())
}

/// Words without quotes that are none: line and word.
fn odd(text: &str) -> Vec<(usize, String)> {
    // What is open: of a map, whether a key comes next.
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
        // A node has ended: behind a key comes its value.
        if let Some(Some(is_key_next)) = open.last_mut() {
            *is_key_next = !*is_key_next;
        }
    }
    found
}

/// The same of a template, which is no YAML yet: by its lines, with what is between braces of helm's left out.
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
    // GitHub reads its workflows by a reader of its own, and calls a key `on`.
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
