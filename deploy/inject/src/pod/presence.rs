//! Checks whether an existing pod contains Paceline, and whether other webhooks or clients have removed parts of it.

use serde_json::Value;

use super::containers::{INSTALL, SIDECAR, WRAPPER};

/// How much of Paceline a pod contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The pod contains all parts that run.
    Whole,
    /// The pod was injected, but a part has been lost since. The value names the part, in lower case with dashes.
    Broken(&'static str),
    /// The pod contains no part.
    Absent,
}

/// Determines how much of Paceline a pod contains.
pub fn presence(pod: &Value) -> Presence {
    let list = |name: &str| pod["spec"][name].as_array().map_or(&[][..], Vec::as_slice);
    let inits = list("initContainers");
    let sidecar = inits.iter().find(|container| container["name"] == SIDECAR);
    let Some(install) = inits.iter().find(|container| container["name"] == INSTALL) else {
        return match sidecar {
            Some(_) => Presence::Broken("init-container-lost"),
            None => Presence::Absent,
        };
    };
    if install["command"][2] == "--program" {
        let is_wrapped = list("containers")
            .iter()
            .any(|container| container["command"][0] == WRAPPER);
        return if is_wrapped {
            Presence::Whole
        } else {
            Presence::Broken("command-replaced")
        };
    }
    match sidecar {
        None => Presence::Broken("sidecar-lost"),
        // Another webhook with an old client has dropped this field. Without the field, the sidecar keeps the trainer
        // from starting.
        Some(sidecar) if sidecar["restartPolicy"] != "Always" => Presence::Broken("restart-policy-lost"),
        Some(_) => Presence::Whole,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Settings, inject};

    fn injected(mode: &str) -> Value {
        let pod = json!({
            "metadata": { "name": "p", "annotations": { "paceline.dev/inject": mode } },
            "spec": { "containers": [{ "name": "t", "image": "i", "command": ["train"] }] },
        });
        assert_eq!(presence(&pod), Presence::Absent);
        inject(&pod, &Settings::default(), None).unwrap().pod
    }

    #[test]
    fn what_is_there_and_what_was_lost() {
        let mut sidecar = injected("sidecar");
        assert_eq!(presence(&sidecar), Presence::Whole);
        if let Some(container) = sidecar["spec"]["initContainers"][1].as_object_mut() {
            container.remove("restartPolicy");
        }
        assert_eq!(presence(&sidecar), Presence::Broken("restart-policy-lost"));
        if let Some(inits) = sidecar["spec"]["initContainers"].as_array_mut() {
            inits.remove(1);
        }
        assert_eq!(presence(&sidecar), Presence::Broken("sidecar-lost"));
        let mut wrap = injected("wrap");
        assert_eq!(presence(&wrap), Presence::Whole);
        wrap["spec"]["containers"][0]["command"] = json!(["train"]);
        assert_eq!(presence(&wrap), Presence::Broken("command-replaced"));
    }
}
