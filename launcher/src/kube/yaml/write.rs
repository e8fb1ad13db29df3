//! Writes a tree as text in kubectl's style, which indents by two spaces but does not indent lists under their key.

use super::Node;
use super::scalar::{can_be_plain, is_special};

/// Returns one document as text, with a final newline.
pub(in crate::kube) fn text(node: &Node) -> String {
    let mut out = String::new();
    match node {
        Node::Map(map) if !map.is_empty() => map_at(map, 0, false, &mut out),
        Node::List(list) if !list.is_empty() => list_at(list, 0, false, &mut out),
        other => {
            scalar(other, 2, &mut out);
            out.push('\n');
        }
    }
    out
}

fn pad(by: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', by));
}

fn map_at(map: &[(String, Node)], at: usize, mut is_inline: bool, out: &mut String) {
    for (key, node) in map {
        if !std::mem::take(&mut is_inline) {
            pad(at, out);
        }
        match can_be_plain(key) {
            true => out.push_str(key),
            false => quoted(key, out),
        }
        out.push(':');
        match node {
            Node::Map(map) if !map.is_empty() => {
                out.push('\n');
                map_at(map, at + 2, false, out);
            }
            Node::List(list) if !list.is_empty() => {
                out.push('\n');
                list_at(list, at, false, out);
            }
            other => {
                out.push(' ');
                scalar(other, at + 2, out);
                out.push('\n');
            }
        }
    }
}

fn list_at(list: &[Node], at: usize, mut is_inline: bool, out: &mut String) {
    for node in list {
        if !std::mem::take(&mut is_inline) {
            pad(at, out);
        }
        out.push_str("- ");
        match node {
            Node::Map(map) if !map.is_empty() => map_at(map, at + 2, true, out),
            Node::List(list) if !list.is_empty() => list_at(list, at + 2, true, out),
            other => {
                scalar(other, at + 2, out);
                out.push('\n');
            }
        }
    }
}

/// Writes a scalar without a final newline. `at` is the indentation of further lines.
fn scalar(node: &Node, at: usize, out: &mut String) {
    match node {
        Node::Map(_) => out.push_str("{}"),
        Node::List(_) => out.push_str("[]"),
        Node::Plain(word) if matches!(word.as_str(), "" | "~") => out.push_str("null"),
        Node::Plain(word) if !word.contains('\n') => out.push_str(word),
        Node::Plain(text) | Node::Text(text) if can_be_plain(text) => out.push_str(text),
        Node::Plain(text) | Node::Text(text) if is_block(text) => block(text, at, out),
        Node::Plain(text) | Node::Text(text) => quoted(text, out),
    }
}

fn is_block(text: &str) -> bool {
    let begins_well = !text.starts_with([' ', '\t', '\n']);
    begins_well && text.contains('\n') && text.chars().all(|c| matches!(c, '\n' | '\t') || !is_special(c))
}

fn block(text: &str, at: usize, out: &mut String) {
    let body = text.trim_end_matches('\n');
    let newlines = text.len() - body.len();
    out.push_str(match newlines {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            pad(at, out);
            out.push_str(line);
        }
    }
    // Leave out the last newline, because the caller writes it.
    out.extend(std::iter::repeat_n('\n', newlines.saturating_sub(1)));
}

fn quoted(text: &str, out: &mut String) {
    use std::fmt::Write as _;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if is_special(c) => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
