//! Lists as tables for kubectl: a definition's columns (`additionalPrinterColumns`), with each object's values
//! (<https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#additional-printer-columns>).
//! The real server computes the columns of built-in kinds in code; here they have none, and kubectl prints name and
//! age.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::kinds::Kind;

const VERSION: &str = "meta.k8s.io/v1";

/// Returns true if an Accept header prefers a table.
pub fn is_wanted(accept: &str) -> bool {
    let first = accept.split(',').next().unwrap_or("");
    first.contains("as=Table") && first.contains("v=v1") && first.contains("g=meta.k8s.io")
}

/// Returns a table of these objects. With `include` set to `Object` or `None`, each row has the whole object or
/// nothing; otherwise it has the metadata.
pub fn of(kind: &Kind, version: &str, objects: &[Value], meta: &Value, include: &str) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let columns = columns(kind, version);
    let row = |object: &Value| {
        let mut cells = vec![object["metadata"]["name"].clone()];
        cells.extend(columns.iter().map(|column| cell(column, object, now)));
        let with_it = match include {
            "Object" => object.clone(),
            "None" => Value::Null,
            _ => {
                json!({ "kind": "PartialObjectMetadata", "apiVersion": VERSION, "metadata": object["metadata"] })
            }
        };
        json!({ "cells": cells, "object": with_it })
    };
    let mut definitions = vec![json!({
        "name": "Name", "type": "string", "format": "name", "priority": 0,
        "description": "Name must be unique within a namespace.",
    })];
    definitions.extend(columns.iter().map(|column| {
        json!({
            "name": column["name"], "type": column["type"], "format": column["format"].as_str().unwrap_or(""),
            "description": column["description"].as_str().unwrap_or("Custom resource definition column"),
            "priority": column["priority"].as_u64().unwrap_or(0),
        })
    }));
    json!({
        "kind": "Table", "apiVersion": VERSION, "metadata": meta, "columnDefinitions": definitions,
        "rows": objects.iter().map(row).collect::<Vec<_>>(),
    })
}

/// Returns the columns of a kind. A definition without columns has one, which is the age.
fn columns(kind: &Kind, version: &str) -> Vec<Value> {
    let own = kind.columns.get(version).cloned().unwrap_or_default();
    if own.is_empty() {
        return vec![json!({ "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" })];
    }
    own
}

fn cell(column: &Value, object: &Value, now: Duration) -> Value {
    let found = at(object, column["jsonPath"].as_str().unwrap_or(""));
    match (column["type"].as_str().unwrap_or(""), found) {
        (_, Value::Null) => Value::Null,
        ("integer", Value::Number(_)) | ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => {
            found.clone()
        }
        ("date", Value::String(text)) => json!(age(text, now)),
        ("string", Value::String(_)) => found.clone(),
        ("string", other) => json!(other.to_string()),
        _ => Value::Null,
    }
}

/// Finds a value by the JSONPath subset that Paceline's definitions use: keys and indices (`.status.gpus[0].name`). A
/// path with a filter finds nothing.
fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    let words = path.split(['.', '[', ']']).filter(|word| !word.is_empty());
    words.fold(object, |value, word| match word.parse::<usize>() {
        Ok(index) if value.is_array() => &value[index],
        _ => &value[word],
    })
}

fn age(text: &str, now: Duration) -> String {
    let Ok(then) = text.parse::<k8s_openapi::jiff::Timestamp>() else {
        return "<invalid>".into();
    };
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    lasting(now - then.as_second())
}

/// Formats a duration in Kubernetes' format for people, with two units while they are small
/// (<https://pkg.go.dev/k8s.io/apimachinery/pkg/util/duration#HumanDuration>).
fn lasting(seconds: i64) -> String {
    let two = |large: i64, unit: &str, small: i64, of: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{of}"),
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..-1 => "<invalid>".into(),
        -1 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        let check = |seconds, expected: &str| assert_eq!(lasting(seconds), expected);
        check(-5, "<invalid>");
        check(-1, "0s");
        check(119, "119s");
        check(120, "2m");
        check(125, "2m5s");
        check(3600, "60m");
        check(3 * 3600 + 60, "3h1m");
        check(30 * 3600, "30h");
        check(49 * 3600, "2d1h");
        check(20 * 86_400, "20d");
        check(800 * 86_400, "2y70d");
        check(9 * 365 * 86_400, "9y");
    }

    #[test]
    fn cells() {
        let object = json!({
            "metadata": { "name": "n1" },
            "status": { "state": "Held", "count": 3, "since": "1970-01-01T00:00:00Z", "list": [{ "a": true }] },
        });
        let check = |of: &str, path: &str, expected: Value| {
            let column = json!({ "type": of, "jsonPath": path });
            assert_eq!(
                cell(&column, &object, Duration::from_secs(300)),
                expected,
                "{path}"
            );
        };
        check("string", ".status.state", json!("Held"));
        check("string", ".status.count", json!("3"));
        check("integer", ".status.count", json!(3));
        check("integer", ".status.state", Value::Null);
        check("boolean", ".status.list[0].a", json!(true));
        check("date", ".status.since", json!("5m"));
        check("string", ".status.none.deeper", Value::Null);
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert!(is_wanted(table) && !is_wanted("application/json") && !is_wanted("*/*"));
    }
}
