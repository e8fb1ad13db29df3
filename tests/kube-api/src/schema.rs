//! Structural schemas of CustomResourceDefinitions, used like in the real server: unknown fields are dropped silently,
//! and values of a wrong type are rejected.
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#field-pruning>

use serde_json::Value;

use crate::failure::{Answer, Failure};
use crate::kinds::Kind;

/// Fields that every resource has, regardless of its schema.
const ROOT: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Drops fields that the definition of this kind does not have. Objects of built-in kinds are not changed.
///
/// # Errors
/// Returns Invalid if a field has a wrong type, or is none of the schema's enum values.
pub fn apply(kind: &Kind, version: &str, object: &mut Value) -> Answer<()> {
    let Some(schema) = kind.schemas.get(version) else {
        return Ok(());
    };
    prune(schema, object, true);
    let mut wrong = Vec::new();
    check(schema, object, "", &mut wrong);
    match wrong.first() {
        None => Ok(()),
        Some(first) => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let message = format!("{} {name:?} is invalid: {first}", kind.kind);
            Err(Failure::new("Invalid", message))
        }
    }
}

/// Checks that each version of a definition has an object schema, which the real server requires.
///
/// # Errors
/// Returns Invalid if a version has none.
pub fn is_whole(definition: &Value) -> Answer<()> {
    let versions = definition["spec"]["versions"].as_array();
    for version in versions.into_iter().flatten() {
        if version["schema"]["openAPIV3Schema"]["type"] != "object" {
            let name = &definition["metadata"]["name"];
            let message = format!(
                "CustomResourceDefinition {name} is invalid: spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required"
            );
            return Err(Failure::new("Invalid", message));
        }
    }
    Ok(())
}

fn prune(schema: &Value, value: &mut Value, is_root: bool) {
    match value {
        Value::Object(map) => {
            let keeps = schema["x-kubernetes-preserve-unknown-fields"] == true;
            let is_root = is_root || schema["x-kubernetes-embedded-resource"] == true;
            let (known, others) = (&schema["properties"], &schema["additionalProperties"]);
            map.retain(|key, value| {
                if is_root && ROOT.contains(&key.as_str()) {
                    return true;
                }
                if let Some(schema) = known.get(key) {
                    prune(schema, value, false);
                    return true;
                }
                if others.is_object() {
                    prune(others, value, false);
                }
                others.is_object() || *others == true || keeps
            });
        }
        Value::Array(list) => list
            .iter_mut()
            .for_each(|item| prune(&schema["items"], item, false)),
        _ => {}
    }
}

fn check(schema: &Value, value: &Value, path: &str, wrong: &mut Vec<String>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    let is_it = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        _ => true,
    };
    if !is_it {
        let kind = schema["type"].as_str().unwrap_or_default();
        return wrong.push(format!("{path}: Invalid value: {value}: must be of type {kind}"));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        wrong.push(format!(
            "{path}: Unsupported value: {value}: supported values: {words:?}"
        ));
    }
    let most = |word: &str| schema[word].as_u64().unwrap_or(u64::MAX);
    let is_over = |count: usize, word: &str| u64::try_from(count).is_ok_and(|count| count > most(word));
    match value {
        Value::Object(map) => {
            if is_over(map.len(), "maxProperties") {
                wrong.push(format!(
                    "{path}: Too many: {}: must have at most {} items",
                    map.len(),
                    most("maxProperties")
                ));
            }
            for word in schema["required"].as_array().into_iter().flatten() {
                if word.as_str().is_some_and(|word| !map.contains_key(word)) {
                    wrong.push(format!("{path}.{word}: Required value"));
                }
            }
            for (key, value) in map {
                let schema = schema["properties"]
                    .get(key)
                    .unwrap_or(&schema["additionalProperties"]);
                check(schema, value, &format!("{path}.{key}"), wrong);
            }
        }
        Value::Array(list) => {
            if is_over(list.len(), "maxItems") {
                wrong.push(format!(
                    "{path}: Too many: {}: must have at most {} items",
                    list.len(),
                    most("maxItems")
                ));
            }
            for (index, value) in list.iter().enumerate() {
                check(&schema["items"], value, &format!("{path}[{index}]"), wrong);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn thing() -> Kind {
        let schema = json!({ "type": "object", "properties": { "status": { "type": "object", "properties": {
            // This is the key `n` as YAML 1.1 parses it.
            "false": { "type": "integer" },
            "words": { "type": "array", "maxItems": 2, "items": { "type": "object", "properties": { "at": { "type": "string" } } } },
            "by": { "type": "object", "additionalProperties": { "type": "object", "properties": { "kept": { "type": "boolean" } } } },
            "any": { "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": { "deep": { "type": "object" } } },
            "left": { "type": "integer", "nullable": true },
            "state": { "type": "string", "enum": ["Good", "Bad"] },
        } } } });
        let definition = json!({ "spec": {
            "group": "x.dev", "scope": "Cluster", "names": { "plural": "things", "kind": "Thing" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        } });
        is_whole(&definition).unwrap();
        Kind::of_definition(&definition).unwrap()
    }

    #[test]
    fn what_a_schema_does_not_have_is_dropped() {
        let mut object = json!({
            "apiVersion": "x.dev/v1", "kind": "Thing", "metadata": { "name": "t", "labels": { "a": "b" } }, "spec": { "a": 1 },
            "status": {
                "n": 1, "words": [{ "at": "1", "n": 1 }], "by": { "one": { "kept": true, "n": 1 } },
                "any": { "of": { "them": 1 }, "deep": { "n": 1 } }, "left": null, "state": "Good",
            },
        });
        apply(&thing(), "v1", &mut object).unwrap();
        let wanted = json!({
            "apiVersion": "x.dev/v1", "kind": "Thing", "metadata": { "name": "t", "labels": { "a": "b" } },
            "status": {
                "words": [{ "at": "1" }], "by": { "one": { "kept": true } }, "any": { "of": { "them": 1 }, "deep": {} },
                "left": null, "state": "Good",
            },
        });
        assert_eq!(object, wanted);
    }

    #[test]
    fn what_is_of_another_type_is_refused() {
        for (status, says) in [
            (json!({ "state": "Odd" }), ".status.state: Unsupported value"),
            (json!({ "state": null }), ".status.state: Invalid value: null"),
            (
                json!({ "words": [{ "at": 1 }] }),
                ".status.words[0].at: Invalid value: 1: must be of type string",
            ),
            (json!({ "words": [{}, {}, {}] }), ".status.words: Too many"),
        ] {
            let mut object = json!({ "metadata": { "name": "t" }, "status": status });
            let failure = apply(&thing(), "v1", &mut object).unwrap_err();
            assert!(
                failure.message.contains(says) && failure.reason == "Invalid",
                "{}",
                failure.message
            );
        }
        let own = crate::kinds::own();
        let node = own.iter().find(|kind| kind.kind == "Node").unwrap();
        let mut object = json!({ "spec": { "any": 1 } });
        apply(node, "v1", &mut object).unwrap();
        assert_eq!(
            object["spec"]["any"], 1,
            "Kubernetes' own kinds have no schema here"
        );
        let none = json!({ "spec": { "versions": [{ "name": "v1" }] } });
        assert!(is_whole(&none).is_err());
    }
}
