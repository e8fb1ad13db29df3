//! Answers an API server's admission requests
//! (<https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/>).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use paceline_inject::{Settings, inject, is_wanted, patch};
use serde_json::{Value, json};

/// Kubernetes' own namespaces. Their pods are never changed, because they keep the cluster running.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];
/// Size limit of a warning. API servers truncate longer ones.
const LONGEST_WARNING: usize = 250;
/// Limit of warnings in one response.
const MOST_WARNINGS: usize = 5;

/// The settings for pods, and the excluded namespaces.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The defaults for pods.
    pub settings: Settings,
    /// Namespaces that are excluded, besides Kubernetes' own.
    pub exclude: Vec<String>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The AdmissionReview to send.
    pub review: Value,
    /// What was done with the pod, for metrics: `injected`, `unchanged`, `skipped`, `refused`.
    pub outcome: &'static str,
    /// The mode, or the reason in lower case with dashes.
    pub reason: &'static str,
    /// True if the request is a dry run.
    pub dry_run: bool,
}

/// A request that is not an admission review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

struct Verdict {
    outcome: &'static str,
    reason: &'static str,
    patch: Vec<Value>,
    warnings: Vec<String>,
}

impl Verdict {
    fn no(outcome: &'static str, reason: &'static str) -> Verdict {
        Verdict {
            outcome,
            reason,
            patch: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// Answers a request. The pod is always allowed.
///
/// # Errors
/// Returns [`Malformed`] if the request is not an AdmissionReview v1, because no response is possible then.
pub fn answer(body: &[u8], rules: &Rules) -> Result<Answer, Malformed> {
    let review: Value = serde_json::from_slice(body).map_err(|_| Malformed("no JSON"))?;
    if review["kind"] != "AdmissionReview" || review["apiVersion"] != "admission.k8s.io/v1" {
        return Err(Malformed("no AdmissionReview of admission.k8s.io/v1"));
    }
    let request = &review["request"];
    let uid = request["uid"]
        .as_str()
        .filter(|uid| !uid.is_empty())
        .ok_or(Malformed("no request.uid"))?;
    let verdict = judge(request, rules);
    let mut response = json!({
        "uid": uid,
        "allowed": true,
        "auditAnnotations": { "outcome": verdict.outcome, "reason": verdict.reason },
    });
    if !verdict.patch.is_empty() {
        let patch = serde_json::to_vec(&verdict.patch).map_err(|_| Malformed("no patch"))?;
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(patch));
    }
    if !verdict.warnings.is_empty() {
        response["warnings"] = verdict.warnings.into();
    }
    Ok(Answer {
        review: json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }),
        outcome: verdict.outcome,
        reason: verdict.reason,
        dry_run: request["dryRun"] == true,
    })
}

/// Returns true if pods of this namespace are never changed.
pub fn is_left_alone(namespace: &str, rules: &Rules) -> bool {
    SYSTEM.contains(&namespace) || rules.exclude.iter().any(|name| name == namespace)
}

fn judge(request: &Value, rules: &Rules) -> Verdict {
    let is_pod = request["resource"]["resource"] == "pods"
        && request["resource"]["group"].as_str().is_none_or(str::is_empty);
    let is_made =
        request["operation"] == "CREATE" && request["subResource"].as_str().is_none_or(str::is_empty);
    if !is_pod || !is_made {
        return Verdict::no("skipped", "not-a-new-pod");
    }
    let namespace = request["namespace"].as_str().unwrap_or("");
    if is_left_alone(namespace, rules) {
        return Verdict::no("skipped", "namespace");
    }
    let pod = &request["object"];
    if is_wanted(pod) != Some(true) {
        return Verdict::no("skipped", "not-asked-for");
    }
    match inject(pod, &rules.settings, None) {
        Ok(done) => {
            let patch = patch::difference(pod, &done.pod);
            Verdict {
                outcome: if patch.is_empty() { "unchanged" } else { "injected" },
                reason: done.mode.word(),
                warnings: warnings(done.notes.iter().map(ToString::to_string)),
                patch,
            }
        }
        Err(refusal) => Verdict {
            warnings: warnings([refusal.to_string()].into_iter()),
            ..Verdict::no("refused", refusal.code)
        },
    }
}

/// Returns the warnings of a response. The API server forwards them to its client as HTTP headers, so their characters
/// are restricted.
fn warnings(texts: impl Iterator<Item = String>) -> Vec<String> {
    let plain = |text: String| -> String {
        let text = format!("paceline: {text}");
        let words = text.chars().map(|c| if c.is_control() { ' ' } else { c });
        words.take(LONGEST_WARNING).collect()
    };
    texts.take(MOST_WARNINGS).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(change: impl Fn(&mut Value)) -> Vec<u8> {
        let mut request = json!({
            "uid": "u-1",
            "operation": "CREATE",
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "namespace": "ml",
            "object": {
                "metadata": { "generateName": "j-", "labels": { "paceline.dev/inject": "true", "job-name": "j" } },
                "spec": { "containers": [{ "name": "t", "image": "i", "command": ["train"] }] },
            },
        });
        change(&mut request);
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request })
            .to_string()
            .into_bytes()
    }

    fn answered(change: impl Fn(&mut Value)) -> Answer {
        let answer = answer(
            &review(change),
            &Rules {
                exclude: vec!["own".into()],
                ..Rules::default()
            },
        )
        .unwrap();
        assert_eq!(answer.review["response"]["allowed"], true, "it never says no");
        assert_eq!(answer.review["response"]["uid"], "u-1");
        answer
    }

    fn patched(answer: &Answer, object: &Value) -> Value {
        let patch = STANDARD
            .decode(answer.review["response"]["patch"].as_str().unwrap())
            .unwrap();
        let patch: Vec<Value> = serde_json::from_slice(&patch).unwrap();
        let mut object = object.clone();
        patch::apply(&mut object, &patch).unwrap();
        object
    }

    #[test]
    fn a_pod_that_asks_is_changed_and_asked_again_is_not() {
        let first = answered(|_| {});
        assert_eq!(
            (first.outcome, first.reason, first.dry_run),
            ("injected", "sidecar", false)
        );
        assert_eq!(first.review["response"]["patchType"], "JSONPatch");
        let warning = first.review["response"]["warnings"][0].as_str().unwrap();
        assert!(
            warning.starts_with("paceline: the address of the first pod") && warning.len() <= 250,
            "{warning}"
        );
        let question: Value = serde_json::from_slice(&review(|_| {})).unwrap();
        let pod = patched(&first, &question["request"]["object"]);
        let again = answered(|request| request["object"] = pod.clone());
        assert_eq!(
            (again.outcome, &again.review["response"]["patch"]),
            ("unchanged", &Value::Null)
        );
        // Another webhook with an old client has dropped the field that makes the container a sidecar.
        let mut broken = pod.clone();
        broken["spec"]["initContainers"][1]
            .as_object_mut()
            .unwrap()
            .remove("restartPolicy");
        let repaired = answered(|request| request["object"] = broken.clone());
        assert_eq!(patched(&repaired, &broken), pod);
        // A dry run gets the same response, because the webhook has no side effects.
        let dry = answered(|request| request["dryRun"] = json!(true));
        assert!(dry.dry_run);
        assert_eq!(dry.review, first.review);
    }

    #[test]
    fn what_is_left_alone() {
        let check = |outcome: &str, reason: &str, change: &dyn Fn(&mut Value)| {
            let answer = answered(change);
            assert_eq!((answer.outcome, answer.reason), (outcome, reason));
            assert_eq!(answer.review["response"]["patch"], Value::Null);
        };
        check("skipped", "not-a-new-pod", &|request| {
            request["operation"] = json!("UPDATE")
        });
        check("skipped", "not-a-new-pod", &|request| {
            request["subResource"] = json!("ephemeralcontainers")
        });
        check("skipped", "not-a-new-pod", &|request| {
            request["resource"]["resource"] = json!("nodes")
        });
        check("skipped", "namespace", &|request| {
            request["namespace"] = json!("kube-system")
        });
        check("skipped", "namespace", &|request| {
            request["namespace"] = json!("own")
        });
        check("skipped", "not-asked-for", &|request| {
            request["object"]["metadata"] = json!({})
        });
        check("skipped", "not-asked-for", &|request| {
            request["object"] = json!(null)
        });
        let label = |request: &mut Value, word: &str| {
            request["object"]["metadata"]["labels"]["paceline.dev/inject"] = json!(word)
        };
        check("skipped", "not-asked-for", &|request| label(request, "false"));
        check("refused", "inject-word", &|request| label(request, "Wrap"));
        check("refused", "no-trainer", &|request| {
            request["object"]["spec"]["containers"] = json!([])
        });
        check("refused", "windows", &|request| {
            request["object"]["spec"]["os"] = json!({ "name": "windows" })
        });
    }

    #[test]
    fn what_is_no_question() {
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        let no_uid = review(|request| request["uid"] = json!(""));
        let old = String::from_utf8(review(|_| {}))
            .unwrap()
            .replace("k8s.io/v1\"", "k8s.io/v1beta1\"");
        for body in [
            b"".as_slice(),
            b"{}",
            b"null",
            b"\xff",
            deep.as_bytes(),
            &no_uid,
            old.as_bytes(),
        ] {
            assert!(answer(body, &Rules::default()).is_err());
        }
    }
}
