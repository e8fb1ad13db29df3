//! Injects Paceline into a pod.

use serde_json::{Map, Value, json};

use super::containers::{BASE, INSTALL, KEPT, Plan, RINGS, SIDECAR, WRAPPER, extend_python_path, is_ours};
use super::merge::{complete, list, object};
use super::{platform, remediator, resources, trainer};
use crate::identity::{Identity, kind_of};
use crate::request::{Mode, Request, Settings, is_wanted, misspelt};
use crate::{INJECT, INJECTED, Note};

/// Annotation that selects kubectl's default container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Annotation of a mirror pod, the API server's read-only copy of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod with Paceline in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Injected {
    /// The pod.
    pub pod: Value,
    /// The mode that was used.
    pub mode: Mode,
    /// The monitored container.
    pub trainer: String,
    /// Warnings for the user.
    pub notes: Vec<Note>,
}

/// Why a pod was not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of refusal, for metrics. It is in lower case with dashes.
    pub code: &'static str,
    /// The message.
    pub says: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.says, self.code)
    }
}

impl std::error::Error for Refusal {}

fn refuse<T>(code: &'static str, says: impl Into<String>) -> Result<T, Refusal> {
    let says = says.into();
    Err(Refusal { code, says })
}

/// Injects Paceline into a pod or pod template. `identity` is the pod's job if it is known from a manifest. With
/// `None`, the job is derived from the pod's labels.
///
/// # Errors
/// Returns a [`Refusal`] if the pod cannot be injected. The pod is then unchanged.
pub fn inject(pod: &Value, settings: &Settings, identity: Option<Identity>) -> Result<Injected, Refusal> {
    if !pod["spec"].is_object() {
        return refuse("no-pod", "this is not a pod: it has no spec");
    }
    if is_wanted(pod) == Some(false) {
        return refuse("opted-out", "the pod's annotations disable it");
    }
    if let Some(word) = misspelt(pod) {
        let word: String = word.chars().take(60).collect();
        return refuse(
            "inject-word",
            format!("{INJECT}: {word:?} is not one of true, sidecar, wrap and false"),
        );
    }
    if let Some((code, says)) = platform::foreign(&pod["spec"]) {
        return refuse(code, says);
    }
    if pod["metadata"]["annotations"][MIRROR].is_string() {
        return refuse(
            "static-pod",
            "this is a mirror pod: the kubelet runs the pod from a file",
        );
    }
    let mut notes = Vec::new();
    let request = Request::of(pod, settings, &mut notes);
    let kind = identity
        .as_ref()
        .map_or_else(|| kind_of(pod), |identity| identity.kind);
    let place = match trainer::find(pod, kind, request.container.as_deref()) {
        Ok(place) => place,
        Err(says) => return refuse("no-trainer", says),
    };
    let before = &pod["spec"]["containers"][place];
    check_names(&pod["spec"], before)?;
    let identity = identity.unwrap_or_else(|| Identity::of_pod(pod, before));
    let mode = choose_mode(pod, before, &request, &mut notes);
    let plan = Plan {
        request: &request,
        settings,
        identity: &identity,
        mode,
        spec: &pod["spec"],
        trainer: before,
        is_again: pod["metadata"]["annotations"][INJECTED] == Mode::Sidecar.word(),
    };
    note_what_is_missing(&plan, &mut notes);
    let mut after = pod.clone();
    let name = before["name"].as_str().unwrap_or("").to_owned();
    let Some(map) = after.as_object_mut() else {
        return refuse("no-pod", "this is not a pod");
    };
    let spec = object(map, "spec");
    put_in(spec, place, &plan, &mut notes);
    let annotations = object(object(map, "metadata"), "annotations");
    annotations.insert(INJECTED.to_owned(), json!(mode.word()));
    if !name.is_empty() {
        annotations
            .entry(DEFAULT_CONTAINER)
            .or_insert_with(|| json!(name));
    }
    Ok(Injected {
        pod: after,
        mode,
        trainer: name,
        notes,
    })
}

fn entries(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Rejects names and paths that collide with Paceline's.
fn check_names(spec: &Value, trainer: &Value) -> Result<(), Refusal> {
    let all = ["containers", "initContainers"].map(|list| entries(&spec[list]));
    for container in all.into_iter().flatten().filter_map(Value::as_object) {
        let name = container.get("name").and_then(Value::as_str).unwrap_or("");
        if matches!(name, SIDECAR | INSTALL) && !is_ours(container) {
            return refuse("name-taken", format!("another container is called {name}"));
        }
    }
    for volume in entries(&spec["volumes"]) {
        let kinds: &[&str] = match volume["name"].as_str() {
            Some("paceline-files" | "paceline-rings") => &["emptyDir"],
            Some("paceline-run") => &["emptyDir", "persistentVolumeClaim"],
            Some("paceline-key") => &["secret"],
            Some(remediator::VOLUME) => &["projected"],
            _ => continue,
        };
        if !kinds.iter().any(|kind| volume[*kind].is_object()) {
            return refuse(
                "name-taken",
                format!("another volume is called {}", volume["name"]),
            );
        }
    }
    for mount in entries(&trainer["volumeMounts"]) {
        let path = mount["mountPath"].as_str().unwrap_or("").trim_end_matches('/');
        let is_inside = path == BASE || path.strip_prefix(BASE).is_some_and(|rest| rest.starts_with('/'));
        let is_ours = mount["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("paceline-"));
        if is_inside && !is_ours {
            return refuse("path-taken", format!("another volume is mounted at {path}"));
        }
    }
    if runs_paceline(trainer) {
        return refuse("already-run", "the container's own command is paceline run");
    }
    Ok(())
}

/// Returns true if a user has put `paceline run` in front of the command.
fn runs_paceline(trainer: &Value) -> bool {
    let words = ["command", "args"].map(|list| trainer[list].as_array().map_or(&[][..], Vec::as_slice));
    let words: Vec<&str> = words.into_iter().flatten().filter_map(Value::as_str).collect();
    words.windows(2).any(|pair| {
        let program = pair[0].rsplit('/').next();
        pair[0] != WRAPPER && program == Some("paceline") && pair[1] == "run"
    })
}

/// Returns the mode for a pod. A pod that was injected before keeps its mode, because otherwise a changed default would
/// inject both modes.
fn choose_mode(pod: &Value, trainer: &Value, request: &Request, notes: &mut Vec<Note>) -> Mode {
    let inits = pod["spec"]["initContainers"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let ours = inits.iter().find(|container| container["name"] == INSTALL);
    let begun = ours.and_then(|container| container["command"][2].as_str());
    if begun == Some("--program") {
        return Mode::Wrap;
    }
    let command = trainer["command"].as_array();
    if request.mode == Mode::Wrap && command.is_none_or(Vec::is_empty) {
        let says =
            "the container has no command, and the image's command is unknown: sidecar mode instead of wrap";
        notes.push(Note::new("wrap-without-command", says));
        return Mode::Sidecar;
    }
    match begun {
        Some("--hook") => Mode::Sidecar,
        _ => request.mode,
    }
}

fn note_what_is_missing(plan: &Plan<'_>, notes: &mut Vec<Note>) {
    let (request, identity) = (plan.request, plan.identity);
    if request.aggregator.is_none() && identity.first.is_none() && !identity.is_alone {
        let kind = identity.kind.word();
        let says = format!(
            "the address of the first pod of this {kind} is unknown (set a headless service with spec.subdomain, \
             MASTER_ADDR or paceline.dev/aggregator): each pod is watched alone"
        );
        notes.push(Note::new("no-first-pod", says));
    }
    if plan.mode == Mode::Sidecar && request.preflight.is_some() {
        let says = "a preflight runs in the trainer's container before its command: it needs paceline.dev/mode: wrap";
        notes.push(Note::new("preflight-needs-wrap", says));
    }
    let class = plan.spec["runtimeClassName"].as_str();
    if let (Some(wanted), Some(class)) = (request.gpus.as_deref(), class)
        && !wanted.is_empty()
        && wanted != class
    {
        let says = format!("the pod already has the RuntimeClass {class}, and keeps it");
        notes.push(Note::new("runtime-class", says));
    }
}

fn put_in(spec: &mut Map<String, Value>, place: usize, plan: &Plan<'_>, notes: &mut Vec<Note>) {
    let mut ours = vec![plan.install()];
    if plan.mode == Mode::Sidecar {
        ours.push(plan.sidecar());
    }
    let inits = list(spec, "initContainers");
    let is_new = !plan.is_again && !inits.iter().any(|there| there["name"] == SIDECAR);
    if plan.mode == Mode::Sidecar && is_new && resources::is_bounded(plan.spec) {
        resources::make(spec, &plan.amount());
    }
    let inits = list(spec, "initContainers");
    for container in ours {
        match inits.iter_mut().find(|there| there["name"] == container["name"]) {
            Some(there) => complete(there, &container, &KEPT),
            // Append Paceline's init container, so that the user's init containers and a mesh's proxy run before it.
            None => inits.push(container),
        }
    }
    if let (Mode::Sidecar, Some(address)) = (plan.mode, &plan.settings.remediator)
        && let Some(sidecar) = inits.iter_mut().find(|there| there["name"] == SIDECAR)
    {
        let trainers = trainer::entry(plan.trainer, remediator::NOTIFY).cloned();
        remediator::tell(sidecar, trainers, address, plan.mode, notes);
    }
    let volumes = list(spec, "volumes");
    for volume in plan.volumes() {
        // An existing volume with this name stays as it is. Its kind was checked before, and the user can choose its
        // size and Secret.
        if !volumes.iter().any(|there| there["name"] == volume["name"]) {
            volumes.push(volume);
        }
    }
    if let Some(class) = plan.request.gpus.as_deref().filter(|class| !class.is_empty())
        && plan.mode == Mode::Sidecar
    {
        let there = spec.entry("runtimeClassName").or_insert(Value::Null);
        if there.is_null() {
            *there = json!(class);
        }
    }
    let trainer = list(spec, "containers")
        .get_mut(place)
        .and_then(Value::as_object_mut);
    if let Some(trainer) = trainer {
        change_trainer(trainer, plan, notes);
    }
}

fn change_trainer(trainer: &mut Map<String, Value>, plan: &Plan<'_>, notes: &mut Vec<Note>) {
    let mut wanted = json!({ "volumeMounts": plan.trainer_mounts() });
    match plan.mode {
        Mode::Sidecar => {
            wanted["env"] = json!([
                { "name": "PACELINE_RING_DIR", "value": RINGS },
                { "name": "PACELINE_RING_SHARED", "value": "true" },
            ]);
        }
        Mode::Wrap => wanted["env"] = plan.variables().into(),
    }
    let mut whole = Value::Object(std::mem::take(trainer));
    complete(&mut whole, &wanted, &KEPT);
    if let (Mode::Wrap, Some(address)) = (plan.mode, &plan.settings.remediator) {
        remediator::tell(&mut whole, None, address, plan.mode, notes);
    }
    if let Value::Object(map) = whole {
        *trainer = map;
    }
    match plan.mode {
        Mode::Sidecar => extend_python_path(list(trainer, "env"), plan.request.python_path.as_deref()),
        Mode::Wrap => wrap(list(trainer, "command"), plan.request),
    }
}

fn wrap(command: &mut Vec<Value>, request: &Request) {
    if command.first().is_some_and(|word| word == WRAPPER) {
        return;
    }
    let mut words = vec![WRAPPER.to_owned(), "run".to_owned()];
    words.extend(request.preflight.iter().map(|mode| format!("--preflight={mode}")));
    words.push("--".to_owned());
    command.splice(0..0, words.into_iter().map(Value::from));
}

#[cfg(test)]
#[path = "injection_tests.rs"]
mod tests;
