//! Label and field selectors, in URLs and in objects.

use serde_json::Value;

use crate::failure::{Answer, Failure};

/// Selectable fields by plural, in addition to metadata.name and metadata.namespace.
const FIELDS: [(&str, &[&str]); 3] = [
    (
        "pods",
        &[
            "spec.nodeName",
            "status.phase",
            "spec.restartPolicy",
            "spec.schedulerName",
        ],
    ),
    (
        "events",
        &[
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "reason",
            "type",
        ],
    ),
    ("secrets", &["type"]),
];

#[derive(Clone, Debug, PartialEq)]
enum Test {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Field(Vec<String>, String, bool),
}

/// The conditions for an object. Without conditions, any object matches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector(Vec<Test>);

impl Selector {
    /// Parses `labelSelector` and `fieldSelector`.
    ///
    /// # Errors
    /// Returns BadRequest if a selector is malformed or a field is not selectable.
    pub fn parse(plural: &str, labels: &str, fields: &str) -> Answer<Selector> {
        let mut tests = Vec::new();
        for part in split(labels) {
            tests.push(
                label(part).ok_or_else(|| {
                    Failure::new("BadRequest", format!("unable to parse requirement: {part}"))
                })?,
            );
        }
        for part in fields.split(',').filter(|part| !part.is_empty()) {
            tests.push(field(plural, part)?);
        }
        Ok(Selector(tests))
    }

    /// Parses a LabelSelector in an object.
    pub fn of_object(selector: &Value) -> Selector {
        let mut tests = Vec::new();
        for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
            tests.push(Test::In(key.clone(), vec![text(value)]));
        }
        for one in selector["matchExpressions"].as_array().into_iter().flatten() {
            let key = text(&one["key"]);
            let values = one["values"].as_array().into_iter().flatten().map(text).collect();
            tests.push(match one["operator"].as_str() {
                Some("In") => Test::In(key, values),
                Some("NotIn") => Test::NotIn(key, values),
                Some("Exists") => Test::Exists(key),
                _ => Test::Absent(key),
            });
        }
        Selector(tests)
    }

    /// Returns true if the object meets all conditions.
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|test| {
            let labels = |key: &str| object["metadata"]["labels"][key].as_str();
            match test {
                Test::In(key, values) => {
                    labels(key).is_some_and(|value| values.iter().any(|one| one == value))
                }
                Test::NotIn(key, values) => {
                    !labels(key).is_some_and(|value| values.iter().any(|one| one == value))
                }
                Test::Exists(key) => labels(key).is_some(),
                Test::Absent(key) => labels(key).is_none(),
                Test::Field(path, value, is_equal) => {
                    let found = path.iter().fold(object, |object, key| &object[key.as_str()]);
                    (found.as_str().unwrap_or("") == value) == *is_equal
                }
            }
        })
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("").to_owned()
}

/// Splits at commas that are not between parentheses.
fn split(labels: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    labels
        .split(move |c| {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0
        })
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

fn label(part: &str) -> Option<Test> {
    let owned = |text: &str| text.trim().to_owned();
    for (word, is_in) in [(" notin ", false), (" in ", true)] {
        if let Some((key, values)) = part.split_once(word) {
            let values = values.trim().strip_prefix('(')?.strip_suffix(')')?;
            let values = values.split(',').map(owned).collect();
            return Some(if is_in {
                Test::In(owned(key), values)
            } else {
                Test::NotIn(owned(key), values)
            });
        }
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Some(Test::NotIn(owned(key), vec![owned(value)]));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Some(Test::In(owned(key), vec![owned(value)]));
    }
    if part.contains(char::is_whitespace) {
        return None;
    }
    Some(match part.strip_prefix('!') {
        Some(key) => Test::Absent(owned(key)),
        None => Test::Exists(owned(part)),
    })
}

fn field(plural: &str, part: &str) -> Answer<Test> {
    let (key, value, is_equal) = if let Some((key, value)) = part.split_once("!=") {
        (key, value, false)
    } else {
        let (key, value) = part
            .split_once("==")
            .or_else(|| part.split_once('='))
            .ok_or_else(|| Failure::new("BadRequest", format!("invalid field selector: {part}")))?;
        (key, value, true)
    };
    let more = FIELDS
        .iter()
        .find(|(of, _)| *of == plural)
        .map_or(&[][..], |(_, fields)| fields);
    if key != "metadata.name" && key != "metadata.namespace" && !more.contains(&key) {
        return Err(Failure::new(
            "BadRequest",
            format!("field label not supported: {key}"),
        ));
    }
    Ok(Test::Field(
        key.split('.').map(str::to_owned).collect(),
        value.to_owned(),
        is_equal,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_chosen() {
        let pod = json!({
            "metadata": { "name": "a", "labels": { "app": "x", "tier": "back" } },
            "spec": { "nodeName": "n1" },
        });
        let check = |labels: &str, fields: &str, expected: bool| {
            let selector = Selector::parse("pods", labels, fields).unwrap();
            assert_eq!(selector.matches(&pod), expected, "{labels} {fields}");
        };
        check("", "", true);
        check("app=x,tier in (front, back)", "", true);
        check("app==y", "", false);
        check("app!=y,none notin (a)", "", true);
        check("app,!none", "", true);
        check("!app", "", false);
        check("", "spec.nodeName=n1,metadata.name!=b", true);
        check("", "spec.nodeName=", false);
        assert!(Selector::parse("pods", "a b", "").is_err());
        assert!(Selector::parse("pods", "", "spec.hostname=x").is_err());
        let object = json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["x"] }] });
        assert!(!Selector::of_object(&object).matches(&pod));
        assert!(Selector::of_object(&json!({})).matches(&pod));
    }
}
