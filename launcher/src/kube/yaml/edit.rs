//! Applies a JSON patch to a tree. Parts that the patch does not name keep their format and position.

use paceline_inject::patch::words;
use serde_json::Value;

use super::Node;

/// Applies the patch. Returns `None` if the patch does not match this tree.
pub(in crate::kube) fn apply(node: &mut Node, patch: &[Value]) -> Option<()> {
    for operation in patch {
        let path = words(operation["path"].as_str()?);
        one(node, &path, operation["op"].as_str()?, &operation["value"])?;
    }
    Some(())
}

fn one(node: &mut Node, path: &[String], op: &str, value: &Value) -> Option<()> {
    let Some((word, rest)) = path.split_first() else {
        *node = Node::of(value);
        return Some(());
    };
    match node {
        Node::Map(map) => {
            let place = map.iter().position(|(key, _)| key == word);
            match (place, rest.is_empty(), op) {
                (Some(at), true, "remove") => drop(map.remove(at)),
                (Some(at), true, _) => map[at].1 = Node::of(value),
                (None, true, "add") => map.push((word.clone(), Node::of(value))),
                (Some(at), false, _) => one(&mut map[at].1, rest, op, value)?,
                _ => return None,
            }
        }
        Node::List(list) => {
            let at: usize = word.parse().ok()?;
            match (rest.is_empty(), op) {
                (true, "add") if at <= list.len() => list.insert(at, Node::of(value)),
                (true, "remove") if at < list.len() => drop(list.remove(at)),
                (true, "replace") => *list.get_mut(at)? = Node::of(value),
                (false, _) => one(list.get_mut(at)?, rest, op, value)?,
                _ => return None,
            }
        }
        Node::Plain(_) | Node::Text(_) => return None,
    }
    Some(())
}
