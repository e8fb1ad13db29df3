//! Reads YAML as kubectl does, into a tree that preserves the order of keys and the user's spelling of plain words. For
//! example, `defaultMode: 0400` is a number to kubectl, and is kept as written. Comments are not kept.

mod edit;
mod scalar;
mod write;

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use serde_json::Value;

pub(super) use edit::apply;
pub(super) use write::text;

/// Maximum nesting, which is more than real manifests have.
const DEEPEST: usize = 100;
/// Maximum number of nodes of a stream after aliases are expanded, because a few lines of aliases can mean billions of
/// nodes.
const MOST: usize = 1_000_000;

/// A YAML value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// A mapping, with its keys in order.
    Map(Vec<(String, Node)>),
    List(Vec<Node>),
    /// A word without quotes. It is a number, a boolean, null or a string, depending on its text.
    Plain(String),
    /// A string.
    Text(String),
}

/// One document of a stream.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) node: Node,
    /// The number of the document's first line.
    pub(super) line: usize,
}

/// An error with its position. Line and column start at 1.
#[derive(Debug, thiserror::Error)]
#[error("{line}:{column}: {says}")]
pub(super) struct Problem {
    line: usize,
    column: usize,
    says: String,
}

impl Problem {
    fn at(span: Span, says: impl Into<String>) -> Problem {
        Problem {
            line: span.start.line().max(1),
            column: span.start.col() + 1,
            says: says.into(),
        }
    }
}

impl From<ScanError> for Problem {
    fn from(error: ScanError) -> Problem {
        let marker = error.marker();
        Problem {
            line: marker.line().max(1),
            column: marker.col() + 1,
            says: error.info().to_owned(),
        }
    }
}

/// Reads a stream. Empty documents are omitted.
pub(super) fn read(text: &str) -> Result<Vec<Document>, Problem> {
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        anchors: BTreeMap::new(),
        nodes: 0,
    };
    let mut documents = Vec::new();
    while let Some(next) = reader.events.next() {
        match next? {
            (Event::DocumentStart(_), _) => {
                let (event, span) = reader.event()?;
                let node = reader.node(event, span, 0)?;
                if node.json() != Value::Null {
                    let line = span.start.line().max(1);
                    documents.push(Document { node, line });
                }
            }
            (Event::StreamEnd, _) => break,
            _ => {}
        }
    }
    Ok(documents)
}

struct Reader<'a> {
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn event(&mut self) -> Result<(Event<'a>, Span), Problem> {
        match self.events.next() {
            Some(next) => Ok(next?),
            None => Err(Problem::at(Span::default(), "unexpected end of the text")),
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Problem> {
        self.nodes += 1;
        if depth > DEEPEST || self.nodes > MOST {
            return Err(Problem::at(
                span,
                "too deep, or too large with its aliases written out",
            ));
        }
        let (node, anchor) = match event {
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor).cloned();
                let node = node.ok_or_else(|| Problem::at(span, "an alias within its own anchor"))?;
                self.nodes += node.count();
                (node, 0)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.map(|tag| tag.suffix.clone()).unwrap_or_default();
                let node = match tag.as_str() {
                    "" | "!" if style != ScalarStyle::Plain => Node::Text(text.into_owned()),
                    "binary" => match scalar::decoded(&text) {
                        Some(text) => Node::Text(text),
                        None => return Err(Problem::at(span, "!!binary that is not base64")),
                    },
                    "" | "null" | "bool" | "int" | "float" => Node::Plain(text.into_owned()),
                    _ => Node::Text(text.into_owned()),
                };
                (node, anchor)
            }
            Event::SequenceStart(anchor, _) => {
                let mut list = Vec::new();
                loop {
                    match self.event()? {
                        (Event::SequenceEnd, _) => break,
                        (event, span) => list.push(self.node(event, span, depth + 1)?),
                    }
                }
                (Node::List(list), anchor)
            }
            Event::MappingStart(anchor, _) => (self.map(depth)?, anchor),
            other => return Err(Problem::at(span, format!("{other:?} is not expected here"))),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn map(&mut self, depth: usize) -> Result<Node, Problem> {
        let mut map: Vec<(String, Node)> = Vec::new();
        let mut merged = Vec::new();
        loop {
            let (event, span) = self.event()?;
            if event == Event::MappingEnd {
                break;
            }
            let key = self.node(event, span, depth + 1)?;
            let (event, value_span) = self.event()?;
            let value = self.node(event, value_span, depth + 1)?;
            match key {
                Node::Plain(key) if key == "<<" => merged.push(value),
                Node::Plain(key) | Node::Text(key) => {
                    if map.iter().any(|(known, _)| *known == key) {
                        return Err(Problem::at(span, format!("duplicate key {key:?}")));
                    }
                    map.push((key, value));
                }
                _ => return Err(Problem::at(span, "a key must be a scalar")),
            }
        }
        for value in merged.into_iter().flat_map(Node::into_list) {
            let Node::Map(entries) = value else { continue };
            for (key, value) in entries {
                if !map.iter().any(|(known, _)| *known == key) {
                    map.push((key, value));
                }
            }
        }
        Ok(Node::Map(map))
    }
}

impl Node {
    fn into_list(self) -> Vec<Node> {
        match self {
            Node::List(list) => list,
            one => vec![one],
        }
    }

    fn count(&self) -> usize {
        match self {
            Node::Map(map) => 1 + map.iter().map(|(_, node)| node.count()).sum::<usize>(),
            Node::List(list) => 1 + list.iter().map(Node::count).sum::<usize>(),
            Node::Plain(_) | Node::Text(_) => 1,
        }
    }

    /// Returns the node as a JSON value.
    pub(super) fn json(&self) -> Value {
        match self {
            Node::Map(map) => map.iter().map(|(key, node)| (key.clone(), node.json())).collect(),
            Node::List(list) => list.iter().map(Node::json).collect(),
            Node::Plain(word) => scalar::meaning(word),
            Node::Text(text) => Value::from(text.as_str()),
        }
    }

    /// Converts a JSON value to a tree.
    pub(super) fn of(value: &Value) -> Node {
        match value {
            // Put the name first, as is customary.
            Value::Object(map) => {
                let (names, others): (Vec<_>, Vec<_>) = map.iter().partition(|(key, _)| *key == "name");
                let entries = names.into_iter().chain(others);
                Node::Map(
                    entries
                        .map(|(key, value)| (key.clone(), Node::of(value)))
                        .collect(),
                )
            }
            Value::Array(list) => Node::List(list.iter().map(Node::of).collect()),
            Value::String(text) => Node::Text(text.clone()),
            other => Node::Plain(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(text: &str) -> Node {
        let mut all = read(text).unwrap();
        assert_eq!(all.len(), 1, "{text}");
        all.remove(0).node
    }

    #[test]
    fn it_means_what_kubectl_reads() {
        let text = "a: &x {b: yes, c: 'yes', d: 0644, e: \"0644\", f: 1e3, g: ~, h: , i: 1_000, j: 0x1f, k: -7}\n\
                    l: [*x, off, y, .5, 1.2.3, 2026-11-22, 12:30, 0o17, 089]\n\
                    m: {<<: *x, b: 1}\n\
                    n: !!str 7\n\
                    bin: !!binary |\n  aGVsbG8g\n  w6Q=\n\
                    int: !!int \"7\"\n\
                    o: |\n  one\n  two\n\
                    8080: p\n";
        let x = json!({ "b": true, "c": "yes", "d": 420, "e": "0644", "f": 1000.0, "g": null, "h": null, "i": 1000, "j": 31, "k": -7 });
        let mut m = x.clone();
        m["b"] = json!(1);
        let wanted = json!({
            "a": x,
            "l": [x, false, true, 0.5, "1.2.3", "2026-11-22", "12:30", 15, 89.0],
            "m": m,
            "n": "7",
            "bin": "hello ä",
            "int": 7,
            "o": "one\ntwo\n",
            "8080": "p",
        });
        assert_eq!(one(text).json(), wanted);
        assert_eq!(
            read("---\na: 1\n---\n# nothing\n---\nb: 2\n...\n").unwrap().len(),
            2
        );
        assert_eq!(
            one(r#"{"json": [1, "a\u00e4", {"b": null}]}"#).json(),
            json!({ "json": [1, "aä", { "b": null }] })
        );
    }

    #[test]
    fn what_is_written_means_the_same() {
        for value in [
            json!({ "a": ["yes", "0644", "1e3", "", " x", "x ", "a: b", "a #b", "#", "-", "- a", "--flag", "null", "~", "=", "<<"] }),
            json!({ "b": ["12:30", "2026-11-22", "1.5", "1.2.3", "v1", "{", "[x", "*a", "&a", "!a", "%a", "@a", "`", "'", "\"", "a\\b"] }),
            json!({ "c": ["one\ntwo", "one\ntwo\n", "one\n\n", "\nx", " x\ny", "x\n  y\n\nz\n", "\n", "a\tb", "a\r\nb", "\u{7f}\u{85}\u{2028}\u{feff}", "a:", "?"] }),
            json!({ "d": [[], {}, [[1, [2]], [{ "x": [{ "y": 1, "z": { "w": [] } }] }]], null, true, -1, 1.5] }),
            json!({ "yes": 1, "a b": 2, "8": 3, "": 4, "x: y": 5, "nested": { "list": [{ "name": "n", "args": ["-c", "set -e\necho $A | b\n"] }] } }),
            json!("word"),
            json!([1]),
        ] {
            let written = text(&Node::of(&value));
            assert_eq!(one(&written).json(), value, "{written}");
            // Text that was read is also written unchanged.
            assert_eq!(text(&one(&written)), written);
        }
    }

    /// kubectl parses the first word as a number that JSON does not have, and the others as numbers in various ways.
    #[test]
    fn what_some_reader_takes_for_a_number_is_quoted() {
        for word in [
            ".inf",
            "-.Inf",
            "+.INF",
            ".nan",
            ".NaN",
            ".NAN",
            ".iNf",
            "1e999",
            "-1_0e999",
            "+12:30:45",
            "-190:20:30.15",
            "._5",
            "1_0.5",
        ] {
            assert_eq!(text(&Node::of(&json!([word]))), format!("- \"{word}\"\n"));
            assert_eq!(
                text(&Node::of(&json!({ word: "v1.2.3" }))),
                format!("\"{word}\": v1.2.3\n")
            );
        }
        for word in [
            "inf", "nan", ".info", "-inf", "1.2.3", "10.0.0.1", "infinity", "e5", "a:1",
        ] {
            assert_eq!(text(&Node::of(&json!([word]))), format!("- {word}\n"));
        }
    }

    #[test]
    fn plain_words_stay_as_they_stood_and_keys_in_their_order() {
        let manifest = "kind: Job\napiVersion: batch/v1\nspec:\n  template:\n    volumes:\n    - name: v\n      secret:\n        defaultMode: 0400\n        optional: yes\n    args:\n    - --lr\n    - 1e-3\n";
        assert_eq!(text(&one(manifest)), manifest);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let says = |text: &str| read(text).unwrap_err().to_string();
        assert_eq!(says("a: !!binary \"/w==\"\n"), "1:4: !!binary that is not base64");
        assert!(
            says("a: 1\nb: [\n").starts_with("3:1: "),
            "{}",
            says("a: 1\nb: [\n")
        );
        assert_eq!(says("a: 1\na: 2\n"), "2:1: duplicate key \"a\"");
        assert_eq!(says("{[a]: 1}"), "1:2: a key must be a scalar");
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(says(&deep).contains("too deep"));
        let bomb: String = (0..12)
            .map(|n| {
                format!(
                    "k{n}: &a{n} [{}]\n",
                    vec![
                        if n == 0 {
                            "x".to_owned()
                        } else {
                            format!("*a{}", n - 1)
                        };
                        10
                    ]
                    .join(", ")
                )
            })
            .collect();
        assert!(says(&bomb).contains("too large"));
    }
}
