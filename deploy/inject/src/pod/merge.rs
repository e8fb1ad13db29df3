//! Merges wanted values into existing ones. The merge sets everything that is wanted, keeps everything else, and is
//! idempotent.

use serde_json::{Map, Value};

/// Lists whose entries are identified by a key, with the name of that key.
const KEYED: [(&str, &str); 4] = [
    ("env", "name"),
    ("volumeMounts", "mountPath"),
    ("ports", "name"),
    ("volumes", "name"),
];

/// Sets the values of `wanted` in `there`. Existing values under the keys in `kept` are not changed, because users or
/// other webhooks may have set them.
pub(crate) fn complete(there: &mut Value, wanted: &Value, kept: &[&str]) {
    let (Value::Object(map), Value::Object(new)) = (&mut *there, wanted) else {
        *there = wanted.clone();
        return;
    };
    for (key, value) in new {
        match map.get_mut(key) {
            Some(Value::Null) | None => drop(map.insert(key.clone(), value.clone())),
            Some(_) if kept.contains(&key.as_str()) => {}
            Some(old) => match (KEYED.iter().find(|(list, _)| list == key), &mut *old, value) {
                (Some((_, by)), Value::Array(old), Value::Array(new)) => {
                    for entry in new {
                        match old.iter_mut().find(|old| old[*by] == entry[*by]) {
                            Some(old) => complete_entry(old, entry, kept),
                            None => old.push(entry.clone()),
                        }
                    }
                }
                (None, Value::Object(_), Value::Object(_)) => complete(old, value, &[]),
                _ => *old = value.clone(),
            },
        }
    }
}

/// Sets an environment variable. A variable has only one value, so a different wanted value replaces the whole entry.
fn complete_entry(there: &mut Value, wanted: &Value, kept: &[&str]) {
    let name = wanted["name"].as_str().unwrap_or("");
    if kept.contains(&name) {
        return;
    }
    if wanted.get("value").is_some() || wanted.get("valueFrom").is_some() {
        // Defaults that the API server adds do not count as a difference.
        let is_same = match (wanted.get("value"), wanted.get("valueFrom")) {
            (Some(value), _) => there.get("value") == Some(value),
            (_, Some(from)) => there.get("valueFrom").is_some_and(|there| covers(there, from)),
            _ => true,
        };
        if !is_same {
            *there = wanted.clone();
        }
        return;
    }
    complete(there, wanted, &[]);
}

/// Returns true if `there` contains everything in `wanted`.
pub(crate) fn covers(there: &Value, wanted: &Value) -> bool {
    match (there, wanted) {
        (Value::Object(there), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, value)| there.get(key).is_some_and(|there| covers(there, value))),
        _ => there == wanted,
    }
}

/// Returns the list with this name, and creates it if it is missing.
pub(crate) fn list<'a>(map: &'a mut Map<String, Value>, name: &str) -> &'a mut Vec<Value> {
    let place = map.entry(name).or_insert(Value::Null);
    if !place.is_array() {
        *place = Value::Array(Vec::new());
    }
    match place {
        Value::Array(list) => list,
        _ => unreachable!("it was changed to a list"),
    }
}

/// Returns the object with this name, and creates it if it is missing.
pub(crate) fn object<'a>(map: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let place = map.entry(name).or_insert(Value::Null);
    if !place.is_object() {
        *place = Value::Object(Map::new());
    }
    match place {
        Value::Object(object) => object,
        _ => unreachable!("it was changed to an object"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_added_stays_and_what_they_took_comes_back() {
        let wanted = json!({
            "name": "paceline",
            "restartPolicy": "Always",
            "image": "ours:1",
            "env": [{ "name": "A", "value": "1" }, { "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "p" } } }],
            "volumeMounts": [{ "mountPath": "/a", "name": "v" }],
        });
        let mut there = wanted.clone();
        complete(&mut there, &wanted, &[]);
        assert_eq!(there, wanted);
        let mut there = json!({
            "name": "paceline",
            "image": "mirror/ours:1",
            "terminationMessagePath": "/dev/termination-log",
            "env": [
                { "name": "CLOUD", "value": "x" },
                { "name": "A", "value": "0" },
                { "name": "B", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "p" } } },
            ],
            "volumeMounts": [{ "mountPath": "/var/run/secrets", "name": "token", "readOnly": true }],
        });
        complete(&mut there, &wanted, &["image"]);
        assert_eq!(
            there,
            json!({
                "name": "paceline",
                "restartPolicy": "Always",
                "image": "mirror/ours:1",
                "terminationMessagePath": "/dev/termination-log",
                "env": [
                    { "name": "CLOUD", "value": "x" },
                    { "name": "A", "value": "1" },
                    { "name": "B", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "p" } } },
                ],
                "volumeMounts": [
                    { "mountPath": "/var/run/secrets", "name": "token", "readOnly": true },
                    { "mountPath": "/a", "name": "v" },
                ],
            })
        );
        let once = there.clone();
        complete(&mut there, &wanted, &["image"]);
        assert_eq!(there, once);
    }
}
