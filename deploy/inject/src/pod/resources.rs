//! Handles pods with pod-level resources (`spec.resources`, Kubernetes 1.34). The API server rejects a pod whose
//! containers request more than the pod, and all containers share the pod's limits. The sidecar's resources are
//! therefore added to the pod's, so that the trainer loses nothing
//! (<https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/2837-pod-level-resource-spec>).

use serde_json::{Map, Value, json};

use super::merge::object;
use crate::quantity;

/// Returns true if a pod has pod-level resources.
pub(crate) fn is_bounded(spec: &Value) -> bool {
    spec["resources"].as_object().is_some_and(|map| !map.is_empty())
}

/// Adds the requests and limits of an injected container to those of the pod.
pub(crate) fn make(spec: &mut Map<String, Value>, ours: &Value) {
    for resource in ["cpu", "memory"] {
        let of = |list: &str| {
            spec.get("resources")
                .and_then(|all| all[list].get(resource))
                .cloned()
        };
        let (request, limit) = (of("requests"), of("limits"));
        // If no container requests this resource, the pod's request has defaulted to the pod's limit so far. With the
        // sidecar's request, it would default to the sidecar's request alone, so the limit is made the explicit
        // request.
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
    let sum = thousandths(one)?.checked_add(thousandths(other)?)?;
    let bytes = sum.div_ceil(1000);
    Some(match resource {
        "cpu" => json!(format!("{sum}m")),
        _ if bytes.is_multiple_of(MI) => json!(format!("{}Mi", bytes / MI)),
        _ => json!(bytes.to_string()),
    })
}

const MI: u128 = 1 << 20;

fn thousandths(quantity: &Value) -> Option<u128> {
    match quantity.as_str() {
        Some(text) => quantity::thousandths(text),
        None => quantity::thousandths(&quantity.to_string()),
    }
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
        // The pod sets no memory, and injection does not add any. The CPU is a JSON number, which is a valid quantity
        // too.
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
    fn sums_are_exact() {
        let cpu = |there: Value| {
            made(json!({ "resources": { "requests": { "cpu": there } } }))["requests"]["cpu"].clone()
        };
        for (there, sum) in [
            (json!("100m"), "300m"),
            (json!(0.1), "300m"),
            (json!("1.1"), "1300m"),
            (json!("1u"), "201m"),
        ] {
            assert_eq!(cpu(there), sum);
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
