//! JSON patches (RFC 6902): computes the difference of two values, and applies it.
//!
//! The common prefix and suffix of two lists stay untouched, so an insertion results in a small patch.

use serde_json::{Value, json};

/// Returns the `add`, `remove` and `replace` operations that change `before` into `after`.
pub fn difference(before: &Value, after: &Value) -> Vec<Value> {
    let mut operations = Vec::new();
    compare(&mut String::new(), before, after, &mut operations);
    operations
}

fn compare(path: &mut String, before: &Value, after: &Value, out: &mut Vec<Value>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(old), Value::Object(new)) => {
            for key in old.keys().filter(|key| !new.contains_key(*key)) {
                at(path, key, |path| {
                    out.push(json!({ "op": "remove", "path": path }))
                });
            }
            for (key, value) in new {
                at(path, key, |path| match old.get(key) {
                    Some(old) => compare(path, old, value, out),
                    None => out.push(json!({ "op": "add", "path": path, "value": value })),
                });
            }
        }
        (Value::Array(old), Value::Array(new)) => compare_lists(path, old, new, out),
        _ => out.push(json!({ "op": "replace", "path": path, "value": after })),
    }
}

fn compare_lists(path: &mut String, old: &[Value], new: &[Value], out: &mut Vec<Value>) {
    let front = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[front..], &new[front..]);
    let common = old_rest
        .iter()
        .rev()
        .zip(new_rest.iter().rev())
        .take_while(|(old, new)| old == new)
        .count();
    let old_middle = &old_rest[..old_rest.len() - common];
    let new_middle = &new_rest[..new_rest.len() - common];
    // In lists of named entries, entries with equal names are matched with each other, and new names are inserted.
    let mut place = front;
    let mut left = old_middle.iter().peekable();
    for wanted in new_middle {
        let is_new = name(wanted).is_some_and(|name_of| {
            !old_middle.iter().any(|old| name(old) == Some(name_of)) && old_middle.len() < new_middle.len()
        });
        match left.peek().filter(|_| !is_new) {
            Some(old) => {
                at(path, &place.to_string(), |path| compare(path, old, wanted, out));
                left.next();
            }
            None => at(path, &place.to_string(), |path| {
                out.push(json!({ "op": "add", "path": path, "value": wanted }));
            }),
        }
        place += 1;
    }
    for _ in left {
        at(path, &place.to_string(), |path| {
            out.push(json!({ "op": "remove", "path": path }))
        });
    }
}

fn name(value: &Value) -> Option<&str> {
    value.get("name")?.as_str()
}

fn at(path: &mut String, key: &str, then: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push('/');
    path.push_str(&key.replace('~', "~0").replace('/', "~1"));
    then(path);
    path.truncate(length);
}

/// Returns the segments of a JSON pointer.
pub fn words(pointer: &str) -> Vec<String> {
    let unescape = |word: &str| word.replace("~1", "/").replace("~0", "~");
    pointer.split('/').skip(1).map(unescape).collect()
}

/// Applies a patch made by [`difference`]. Returns `None` if the patch does not fit this value.
pub fn apply(value: &mut Value, patch: &[Value]) -> Option<()> {
    for operation in patch {
        let mut words = words(operation["path"].as_str()?);
        let Some(last) = words.pop() else {
            *value = operation["value"].clone();
            continue;
        };
        let place = words.iter().try_fold(&mut *value, |value, word| match value {
            Value::Object(map) => map.get_mut(word),
            Value::Array(list) => list.get_mut(word.parse::<usize>().ok()?),
            _ => None,
        })?;
        let (op, new) = (operation["op"].as_str()?, operation["value"].clone());
        match place {
            Value::Object(map) if op == "remove" => drop(map.remove(&last)?),
            Value::Object(map) => drop(map.insert(last, new)),
            Value::Array(list) => {
                let index: usize = last.parse().ok()?;
                match op {
                    "remove" if index < list.len() => drop(list.remove(index)),
                    "add" if index <= list.len() => list.insert(index, new),
                    "replace" => *list.get_mut(index)? = new,
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_put_in_is_added_and_nothing_else_is_touched() {
        let before = json!({ "list": [{ "name": "a" }, { "name": "b", "x": 1 }], "a/b~": { "c": 1 } });
        let after = json!({
            "list": [{ "name": "new" }, { "name": "a" }, { "name": "b", "x": 2 }, { "name": "end" }],
            "a/b~": { "d": null },
        });
        let patch = difference(&before, &after);
        let ops: Vec<(&str, &str)> = patch
            .iter()
            .map(|op| (op["op"].as_str().unwrap(), op["path"].as_str().unwrap()))
            .collect();
        assert_eq!(
            ops,
            [
                ("remove", "/a~1b~0/c"),
                ("add", "/a~1b~0/d"),
                ("add", "/list/0"),
                ("replace", "/list/2/x"),
                ("add", "/list/3"),
            ]
        );
        let mut value = before.clone();
        apply(&mut value, &patch).unwrap();
        assert_eq!(value, after);
        assert_eq!(difference(&before, &before), Vec::<Value>::new());
    }

    #[test]
    fn a_patch_for_something_else_is_refused() {
        let removes = [json!({ "op": "remove", "path": "/a/b" })];
        for value in [json!({}), json!({ "a": 1 }), json!({ "a": [] }), json!(null)] {
            assert_eq!(apply(&mut value.clone(), &removes), None, "{value}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..3).prop_map(Value::from),
            "[a-c~/]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map("name|[a-c~/]{1,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_difference_makes_one_of_the_other(before in values(), after in values()) {
            let patch = difference(&before, &after);
            let mut value = before.clone();
            prop_assert_eq!(apply(&mut value, &patch), Some(()));
            prop_assert_eq!(value, after);
        }
    }
}
