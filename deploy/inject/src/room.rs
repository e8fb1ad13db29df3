//! Pods with resources of their own (`spec.resources`, Kubernetes 1.34): no API server takes one whose containers ask for more than the
//! pod does, and what the pod may have is its containers' together. So ours brings what it asks for along, and takes nothing of the trainer's
//! (<https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/2837-pod-level-resource-spec>).

use serde_json::{Map, Value, json};

use crate::complete::object;

/// Whether a pod has some.
pub(crate) fn is_bounded(spec: &Value) -> bool {
    spec["resources"].as_object().is_some_and(|map| !map.is_empty())
}

/// Adds what a container asks for that is about to come into a pod, and is limited to.
pub(crate) fn make(spec: &mut Map<String, Value>, ours: &Value) {
    for resource in ["cpu", "memory"] {
        let of = |list: &str| {
            spec.get("resources")
                .and_then(|all| all[list].get(resource))
                .cloned()
        };
        let (request, limit) = (of("requests"), of("limits"));
        // It would follow from what ours asks for alone, and did follow from the limit.
        let request = request.or_else(|| limit.clone().filter(|_| !is_asked_for(spec, resource)));
        for (list, there) in [("requests", request), ("limits", limit)] {
            let more = there.and_then(|there| sum(&there, &ours[resource], resource));
            if let Some(more) = more {
                object(object(spec, "resources"), list).insert(resource.to_owned(), more);
            }
        }
    }
}

fn is_asked_for(spec: &Map<String, Value>, resource: &str) -> bool {
    let lists = ["containers", "initContainers"].map(|list| spec.get(list).and_then(Value::as_array));
    lists.into_iter().flatten().flatten().any(|container| {
        let asked = &container["resources"];
        !(asked["requests"][resource].is_null() && asked["limits"][resource].is_null())
    })
}

fn sum(one: &Value, other: &Value, resource: &str) -> Option<Value> {
    let sum = amount(one)? + amount(other)?;
    Some(match resource {
        "cpu" => json!(format!("{}m", (sum * 1e3).ceil())),
        _ if sum % MI == 0.0 => json!(format!("{}Mi", sum / MI)),
        _ => json!(format!("{}", sum.ceil())),
    })
}

const MI: f64 = 1_048_576.0;

/// A quantity (<https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>). Of bytes in use a double has each.
fn amount(quantity: &Value) -> Option<f64> {
    let text = quantity
        .as_str()
        .map_or_else(|| quantity.to_string(), str::to_owned);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => MI,
        "Gi" => MI * 1024.0,
        "Ti" => MI * MI,
        "Pi" => MI * MI * 1024.0,
        exponent => format!("1{exponent}").parse().ok()?,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(spec: Value) -> Value {
        let Value::Object(mut map) = spec else {
            unreachable!("a spec is an object");
        };
        make(&mut map, &json!({ "cpu": "200m", "memory": "256Mi" }));
        map.remove("resources").unwrap_or(Value::Null)
    }

    #[test]
    fn what_ours_asks_for_comes_on_top() {
        let both = json!({ "cpu": "2", "memory": "4Gi" });
        let more = json!({ "cpu": "2200m", "memory": "4352Mi" });
        let guaranteed = json!({ "resources": { "requests": both, "limits": both } });
        assert_eq!(made(guaranteed), json!({ "requests": more, "limits": more }));
        // Of memory nothing was said, and is not now; a number is a quantity too.
        let cpu = json!({ "resources": { "requests": { "cpu": 1, "hugepages-2Mi": "4Mi" } } });
        assert_eq!(
            made(cpu),
            json!({ "requests": { "cpu": "1200m", "hugepages-2Mi": "4Mi" } })
        );
        for none in [json!({}), json!({ "resources": null })] {
            assert!(made(none).is_null());
        }
    }

    #[test]
    fn a_limit_alone_stays_the_request() {
        let limit = json!({ "limits": { "memory": "1e9" } });
        let alone = made(json!({ "resources": limit, "containers": [{ "name": "t" }] }));
        let sum = (1_000_000_000 + (256 << 20)).to_string();
        assert_eq!(
            alone,
            json!({ "limits": { "memory": sum }, "requests": { "memory": sum } })
        );
        let asks = json!({ "requests": { "memory": "1Gi" } });
        let asked = made(json!({ "resources": limit, "containers": [{ "resources": asks }] }));
        assert_eq!(
            asked,
            json!({ "limits": { "memory": sum } }),
            "it is the containers' together"
        );
    }
}
