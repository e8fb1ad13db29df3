//! Defines how a pod reaches the cluster's remediator. The pod gets the remediator's address in addition to its own
//! receivers, a token that is valid only for the remediator, and a CA certificate.
//!
//! The pod starts even if the certificate does not exist yet, because undelivered notifications are kept and retried.
//! The kubelet renews the token like that of the pod's ServiceAccount.

use serde_json::{Value, json};

use super::merge::list;
use crate::Note;
use crate::request::Mode;

/// The volume with the token and the CA certificate.
pub const VOLUME: &str = "paceline-remediator";
/// The volume's mount path.
pub const PLACE: &str = "/paceline/remediator";
/// Name of the ConfigMap in the pod's namespace whose `ca.crt` is the CA certificate to trust.
pub const AUTHORITY: &str = "paceline-remediator-ca";
/// The token's audience. The API server itself does not accept a token for this audience.
pub const AUDIENCE: &str = "paceline-remediator";
/// The token's lifetime in seconds. The kubelet renews the token when a fifth of its lifetime is left.
const LIFE_S: u32 = 1800;

/// Variable with the receivers of a sidecar's notifications.
pub(crate) const NOTIFY: &str = "PACELINE_NOTIFY";
const BEFORE: &str = "PACELINE_NOTIFY_BEFORE";

/// Returns true if the text can be a remediator's address, `https://HOST[:PORT]/PATH`. Characters that separate the
/// options of a receiver, and characters that the kubelet would expand, are not allowed.
pub fn is_address(text: &str) -> bool {
    let Some((host, _)) = text
        .strip_prefix("https://")
        .and_then(|rest| rest.split_once('/'))
    else {
        return false;
    };
    let good = |c: char| c.is_ascii_alphanumeric() || "-._:/[]".contains(c);
    !host.is_empty() && text.len() <= 512 && text.chars().all(good)
}

/// Returns the remediator as a receiver in the syntax of PACELINE_NOTIFY.
fn receiver(address: &str) -> String {
    format!("webhook={address},bearer=file:{PLACE}/token,ca=file:{PLACE}/ca.crt")
}

/// Returns the volume with the token and the CA certificate. Each file appears as soon as its source exists.
pub(crate) fn volume() -> Value {
    json!({ "name": VOLUME, "projected": {
        // Every user can read the files, because the user of the training container may be defined only in its image.
        // Only injected containers mount the volume.
        "defaultMode": 0o444,
        "sources": [
            { "serviceAccountToken": { "path": "token", "audience": AUDIENCE, "expirationSeconds": LIFE_S } },
            { "configMap": { "name": AUTHORITY, "items": [{ "key": "ca.crt", "path": "ca.crt" }], "optional": true } },
        ],
    } })
}

/// Appends the remediator to the receivers of a container. `trainers` is the training container's variable, if
/// `container` is not the training container itself.
pub(crate) fn tell(
    container: &mut Value,
    trainers: Option<Value>,
    address: &str,
    mode: Mode,
    notes: &mut Vec<Note>,
) {
    let Some(container) = container.as_object_mut() else {
        return;
    };
    let env = list(container, "env");
    let ours = receiver(address);
    let at = env.iter().rposition(|entry| entry["name"] == NOTIFY).or_else(|| {
        env.push(trainers?);
        Some(env.len() - 1)
    });
    let Some(at) = at else {
        env.push(json!({ "name": NOTIFY, "value": ours }));
        return;
    };
    if env[at]["valueFrom"].is_object() {
        if mode == Mode::Wrap {
            // The variable is left unchanged, because `paceline run` would reject an empty or missing value, and the
            // job would not start.
            let says = "PACELINE_NOTIFY comes from elsewhere (valueFrom), so this job does not report to the \
                remediator: add it there";
            notes.push(Note::new("notify-from-elsewhere", says));
            return;
        }
        let mut before = env[at].clone();
        before["name"] = json!(BEFORE);
        env[at] = json!({ "name": NOTIFY, "value": format!("{ours} $({BEFORE})") });
        env.insert(at, before);
        return;
    }
    let old = env[at]["value"].as_str().unwrap_or("");
    let is_ours =
        |word: &str| word.starts_with("webhook=") && word.contains(&format!("bearer=file:{PLACE}/"));
    if !old.split_whitespace().any(is_ours) {
        let words: Vec<&str> = old.split_whitespace().chain([ours.as_str()]).collect();
        env[at] = json!({ "name": NOTIFY, "value": words.join(" ") });
    }
}

/// Returns true if a pod is configured to report to a remediator.
pub fn is_told(pod: &Value) -> bool {
    let volumes = pod["spec"]["volumes"].as_array();
    volumes.is_some_and(|volumes| volumes.iter().any(|volume| volume["name"] == VOLUME))
}

/// Returns the ConfigMap with the CA certificate, for a namespace whose pods report to a remediator.
pub fn authority(namespace: &str, ca: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": AUTHORITY, "namespace": namespace, "labels": { "app.kubernetes.io/managed-by": "paceline-injector" },
        },
        "data": { "ca.crt": ca },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "https://r.ns.svc/verdicts";
    const OURS: &str = "webhook=https://r.ns.svc/verdicts,bearer=file:/paceline/remediator/token,ca=file:/paceline/remediator/ca.crt";

    fn told(env: Value, trainers: Option<Value>, mode: Mode) -> (Value, usize) {
        let mut container = json!({ "env": env });
        let mut notes = Vec::new();
        tell(&mut container, trainers.clone(), URL, mode, &mut notes);
        let once = container.clone();
        tell(&mut container, trainers, URL, mode, &mut Vec::new());
        assert_eq!(container, once, "again changes nothing");
        (container["env"].clone(), notes.len())
    }

    #[test]
    fn the_remediator_comes_behind_whom_the_author_named() {
        let plain = |value: &str| json!({ "name": "PACELINE_NOTIFY", "value": value });
        let from = json!({ "name": "PACELINE_NOTIFY", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } });
        let both = plain(&format!("slack=env:A alertmanager=http://am {OURS}"));
        for mode in [Mode::Sidecar, Mode::Wrap] {
            assert_eq!(told(json!(null), None, mode), (json!([plain(OURS)]), 0));
            assert_eq!(
                told(json!([plain("")]), None, mode),
                (json!([plain(OURS)]), 0),
                "no empty word"
            );
            let author = plain(" slack=env:A  alertmanager=http://am ");
            assert_eq!(told(json!([author]), None, mode), (json!([both]), 0));
        }
        // A sidecar uses the receivers of its training container, unless it has its own.
        let author = plain("slack=env:A alertmanager=http://am");
        assert_eq!(
            told(json!([]), Some(author.clone()), Mode::Sidecar),
            (json!([both]), 0)
        );
        let own = told(json!([plain("exec=/x")]), Some(author), Mode::Sidecar);
        assert_eq!(own, (json!([plain(&format!("exec=/x {OURS}"))]), 0));
        // In sidecar mode, a value from another source is moved to another variable, which the new value references. In
        // wrap mode, nothing is added, because a bad value would end the job.
        let mut before = from.clone();
        before["name"] = json!("PACELINE_NOTIFY_BEFORE");
        let after = plain(&format!("{OURS} $(PACELINE_NOTIFY_BEFORE)"));
        assert_eq!(
            told(json!([from]), None, Mode::Sidecar),
            (json!([before, after]), 0)
        );
        assert_eq!(told(json!([from]), None, Mode::Wrap), (json!([from]), 1));
    }

    #[test]
    fn addresses() {
        for good in [URL, "https://10.0.0.1:9445/verdicts", "https://[fd00::1]/v"] {
            assert!(is_address(good), "{good}");
        }
        for bad in [
            "",
            "https:///v",
            "http://r.ns.svc/verdicts",
            "https://r.ns.svc",
            "https://u@r/v",
            "https://r/v,hmac=env:A",
            "https://r/v x",
            "https://$(A)/v",
            "https://r/v?a=b",
        ] {
            assert!(!is_address(bad), "{bad}");
        }
    }
}
