//! Applies the four kinds of patches: JSON patch, merge patch, strategic merge patch, and apply.

use serde_json::{Map, Value};

use crate::failure::{Answer, Failure};

/// Applies `body` to `object`. The content type determines the kind of patch.
///
/// # Errors
/// Returns UnsupportedMediaType, BadRequest for a malformed body, or Invalid for a JSON patch that does not fit.
pub fn change(object: &Value, content_type: &str, body: &[u8], is_own: bool) -> Answer<Value> {
    let unreadable = |error: serde_json::Error| Failure::new("BadRequest", error.to_string());
    let mut changed = object.clone();
    match content_type {
        "application/json-patch+json" => {
            let patch: Vec<json_patch::PatchOperation> = serde_json::from_slice(body).map_err(unreadable)?;
            json_patch::patch(&mut changed, &patch).map_err(|error| {
                Failure::new("Invalid", format!("the server rejected our request: {error}"))
            })?;
        }
        "application/merge-patch+json" => {
            let patch: Value = serde_json::from_slice(body).map_err(unreadable)?;
            json_patch::merge(&mut changed, &patch);
        }
        "application/strategic-merge-patch+json" if is_own => {
            let patch: Value = serde_json::from_slice(body).map_err(unreadable)?;
            merge(&mut changed, &patch);
        }
        _ => {
            return Err(Failure::new(
                "UnsupportedMediaType",
                format!("the body of the request was in an unknown format - {content_type}"),
            ));
        }
    }
    if !changed.is_object() {
        return Err(Failure::new("BadRequest", "what comes out is no object"));
    }
    Ok(changed)
}

/// Returns the field that identifies the entries of a list, or `None` if the list is replaced as a whole.
fn key(list: &str, things: &[Value]) -> Option<&'static str> {
    match list {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "webhooks" => Some("name"),
        "volumeMounts" => Some("mountPath"),
        "ports" if things.iter().any(|thing| thing["containerPort"].is_number()) => Some("containerPort"),
        "ports" => Some("port"),
        "conditions" | "addresses" => Some("type"),
        "ownerReferences" => Some("uid"),
        _ => None,
    }
}

/// Applies a strategic merge patch. It is like a merge patch, but merges lists of named entries entry by entry.
pub fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if patch.get("$patch").is_some_and(|word| word == "replace") || !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Some(object) = object.as_object_mut() else {
        return;
    };
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().map_or(&[][..], Vec::as_slice);
            if let Some(things) = object.get_mut(list).and_then(Value::as_array_mut) {
                things.retain(|thing| !gone.contains(thing));
            }
        } else if name.starts_with('$') {
            // Directives for order and retained keys are ignored, because the result has the same entries.
        } else if value.is_null() {
            object.remove(name);
        } else if let Some(things) = value.as_array() {
            merge_list(object.entry(name.clone()).or_insert(Value::Null), name, things);
        } else if value.is_object() {
            merge(object.entry(name.clone()).or_insert(Value::Null), value);
        } else {
            object.insert(name.clone(), value.clone());
        }
    }
}

fn merge_list(place: &mut Value, name: &str, things: &[Value]) {
    if name == "finalizers" {
        let mut all = place.as_array().cloned().unwrap_or_default();
        all.extend(
            things
                .iter()
                .filter(|thing| !all.contains(thing))
                .cloned()
                .collect::<Vec<_>>(),
        );
        *place = Value::Array(all);
        return;
    }
    let known = place.as_array().cloned().unwrap_or_default();
    let Some(key) = key(name, things).or_else(|| key(name, &known)) else {
        *place = Value::Array(things.to_vec());
        return;
    };
    let replaces = things
        .iter()
        .any(|thing| thing["$patch"] == "replace" && thing.get(key).is_none());
    let mut all = if replaces { Vec::new() } else { known };
    for thing in things.iter().filter(|thing| thing.get(key).is_some()) {
        let at = all.iter().position(|one| one[key] == thing[key]);
        match (at, thing["$patch"] == "delete") {
            (Some(at), true) => drop(all.remove(at)),
            (None, true) => {}
            (Some(at), false) => merge(&mut all[at], thing),
            (None, false) => {
                let mut new = Value::Null;
                merge(&mut new, thing);
                all.push(new);
            }
        }
    }
    *place = Value::Array(all);
}

/// Applies a configuration: removes what this manager applied before and does not apply now, and merges the rest.
pub fn apply(live: &Value, before: &Value, now: &Value) -> Value {
    let mut object = live.clone();
    take_out(&mut object, before, now);
    merge(&mut object, now);
    object
}

fn take_out(object: &mut Value, before: &Value, now: &Value) {
    let (Some(object), Some(before)) = (object.as_object_mut(), before.as_object()) else {
        return;
    };
    for (name, old) in before {
        let Some(new) = now.get(name) else {
            object.remove(name);
            continue;
        };
        let Some(live) = object.get_mut(name) else {
            continue;
        };
        match (old.as_array(), new.as_array()) {
            (Some(old), Some(new)) => {
                let (Some(key), Some(live)) = (key(name, old), live.as_array_mut()) else {
                    continue;
                };
                let is_in = |list: &[Value], thing: &Value| list.iter().any(|one| one[key] == thing[key]);
                live.retain(|thing| is_in(new, thing) || !is_in(old, thing));
                for thing in live {
                    let same = |list: &[Value]| list.iter().find(|one| one[key] == thing[key]).cloned();
                    if let (Some(old), Some(new)) = (same(old), same(new)) {
                        take_out(thing, &old, &new);
                    }
                }
            }
            _ => take_out(live, old, new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_with_names_are_merged() {
        let pod = json!({ "spec": { "containers": [{ "name": "a", "image": "1" }, { "name": "b" }], "tolerations": [1] } });
        let patch = json!({ "spec": {
            "$setElementOrder/containers": [{ "name": "a" }],
            "containers": [{ "name": "a", "image": "2" }, { "name": "b", "$patch": "delete" }, { "name": "c" }],
            "tolerations": [2],
        }, "status": null });
        let changed = change(
            &pod,
            "application/strategic-merge-patch+json",
            patch.to_string().as_bytes(),
            true,
        );
        let expected = json!({ "spec": { "containers": [{ "name": "a", "image": "2" }, { "name": "c" }], "tolerations": [2] } });
        assert_eq!(changed.unwrap(), expected);
        let own = change(&pod, "application/strategic-merge-patch+json", b"{}", false);
        assert_eq!(own.unwrap_err().code, 415);
    }

    /// A container's mount must be removed together with its volume.
    #[test]
    fn what_a_manager_says_no_longer_goes_from_within_lists_too() {
        let of = |volumes: Value, mounts: Value| json!({ "spec": { "volumes": volumes, "containers": [{ "name": "a", "volumeMounts": mounts }] } });
        let before = of(
            json!([{ "name": "tls" }, { "name": "kept" }]),
            json!([{ "name": "tls", "mountPath": "/tls" }, { "name": "kept", "mountPath": "/kept" }]),
        );
        let now = of(
            json!([{ "name": "kept" }]),
            json!([{ "name": "kept", "mountPath": "/kept" }]),
        );
        let mut live = before.clone();
        live["spec"]["containers"][0]["image"] = json!("another's");
        let mut wanted = now.clone();
        wanted["spec"]["containers"][0]["image"] = json!("another's");
        assert_eq!(apply(&live, &before, &now), wanted);
    }

    #[test]
    fn a_json_patch_fits_or_does_nothing() {
        let object = json!({ "a": 1 });
        let with = |patch: &Value| {
            change(
                &object,
                "application/json-patch+json",
                patch.to_string().as_bytes(),
                true,
            )
        };
        let test = json!([{ "op": "test", "path": "/a", "value": 2 }, { "op": "remove", "path": "/a" }]);
        assert_eq!(with(&test).unwrap_err().reason, "Invalid");
        let add = json!([{ "op": "add", "path": "/b", "value": 2 }]);
        assert_eq!(with(&add).unwrap(), json!({ "a": 1, "b": 2 }));
    }

    #[test]
    fn what_a_manager_says_no_longer_goes() {
        let live = json!({ "data": { "a": "1", "b": "2", "theirs": "3" } });
        let before = json!({ "data": { "a": "1", "b": "2" } });
        let now = json!({ "data": { "a": "9" } });
        assert_eq!(
            apply(&live, &before, &now),
            json!({ "data": { "a": "9", "theirs": "3" } })
        );
    }
}
