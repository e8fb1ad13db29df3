//! Checks the platforms on which a pod can run, because Paceline's images exist only for Linux on two architectures.

use serde_json::Value;

const SYSTEM: &[&str] = &["kubernetes.io/os", "beta.kubernetes.io/os"];
const MACHINE: &[&str] = &["kubernetes.io/arch", "beta.kubernetes.io/arch"];
/// Architectures for which there are images.
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

/// Returns why Paceline's containers cannot run on the pod's platform, as a code and a message.
pub(crate) fn foreign(spec: &Value) -> Option<(&'static str, &'static str)> {
    let linux = (SYSTEM, "linux");
    if spec["os"]["name"] == "windows" || !may_run(spec, &[linux]) {
        return Some(("windows", "a pod for Windows, or not for Linux"));
    }
    let is_ours = |architecture: &&str| may_run(spec, &[linux, (MACHINE, *architecture)]);
    let says = "a pod for machines that are neither amd64 nor arm64";
    (!ARCHITECTURES.iter().any(is_ours)).then_some(("architecture", says))
}

/// Returns true if the pod can be scheduled on nodes with these labels. Constraints on other labels are ignored.
fn may_run(spec: &Value, labels: &[(&[&str], &str)]) -> bool {
    let value = |key: &str| {
        let mut found = labels.iter().filter(|(keys, _)| keys.contains(&key));
        found.next().map(|(_, value)| *value)
    };
    let selected = spec["nodeSelector"].as_object().into_iter().flatten();
    let is_selected = |(key, wanted): (&String, &Value)| value(key).is_none_or(|value| *wanted == value);
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = required["nodeSelectorTerms"].as_array();
    let is_met = |expression: &Value| {
        let Some(value) = value(expression["key"].as_str().unwrap_or_default()) else {
            return true;
        };
        let is_named = || {
            let values = expression["values"].as_array();
            values.is_some_and(|values| values.iter().any(|one| one == value))
        };
        match expression["operator"].as_str() {
            Some("In") => is_named(),
            Some("NotIn") => !is_named(),
            Some("DoesNotExist") => false,
            _ => true,
        }
    };
    let is_met = |term: &Value| {
        let mut all = term["matchExpressions"].as_array().into_iter().flatten();
        all.all(is_met)
    };
    selected.into_iter().all(is_selected) && terms.is_none_or(|terms| terms.iter().any(is_met))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(spec: &Value, wanted: Option<&str>) {
        assert_eq!(foreign(spec).map(|(code, _)| code), wanted, "{spec}");
    }

    #[test]
    fn what_a_selector_says() {
        check(&json!({}), None);
        check(&json!({ "os": { "name": "linux" }, "nodeSelector": null }), None);
        check(&json!({ "os": { "name": "windows" } }), Some("windows"));
        let windows = Some("windows");
        for (key, value, wanted) in [
            ("kubernetes.io/os", "windows", windows),
            ("beta.kubernetes.io/os", "windows", windows),
            ("kubernetes.io/os", "linux", None),
            ("kubernetes.io/arch", "arm64", None),
            ("kubernetes.io/arch", "ppc64le", Some("architecture")),
            ("beta.kubernetes.io/arch", "s390x", Some("architecture")),
            ("pool", "windows", None),
        ] {
            check(&json!({ "nodeSelector": { key: value } }), wanted);
        }
    }

    #[test]
    fn what_a_required_affinity_says() {
        let spec = |terms: Value| {
            let required = json!({ "nodeSelectorTerms": terms });
            json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } } })
        };
        let term = |key: &str, operator: &str, values: &[&str]| json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
        let (os, arch) = ("kubernetes.io/os", "kubernetes.io/arch");
        let windows = term(os, "In", &["windows"]);
        for (terms, wanted) in [
            (json!([windows]), Some("windows")),
            (json!([term(os, "NotIn", &["linux"])]), Some("windows")),
            (json!([term(os, "DoesNotExist", &[])]), Some("windows")),
            (json!([term(os, "In", &["windows", "linux"])]), None),
            (json!([term(os, "Exists", &[])]), None),
            // The terms are alternatives, so one matching term is enough.
            (json!([windows, term("pool", "In", &["gpu"])]), None),
            (
                json!([windows, term(arch, "In", &["riscv64"])]),
                Some("architecture"),
            ),
            (json!([term(arch, "NotIn", &["amd64"])]), None),
            (
                json!([term(arch, "NotIn", &["amd64", "arm64"])]),
                Some("architecture"),
            ),
        ] {
            check(&spec(terms), wanted);
        }
        // A preference excludes no node.
        let preferred = json!([{ "weight": 1, "preference": windows }]);
        check(
            &json!({ "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferred } } }),
            None,
        );
    }
}
