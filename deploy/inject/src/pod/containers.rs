//! The containers, volumes and variables that injection adds.

use serde_json::{Map, Value, json};

use super::{remediator, resources, trainer};
use crate::identity::{Identity, Kind, label_variable};
use crate::request::{Mode, Request, Settings, is_name};

/// The sidecar container.
pub const SIDECAR: &str = "paceline";
/// The init container.
pub const INSTALL: &str = "paceline-init";
/// Path of the program in Paceline's image.
pub const PROGRAM: &str = "/usr/bin/paceline";
/// Directory of all of Paceline's mounts.
pub const BASE: &str = "/paceline";
/// The directory with the files of the hook, or with the program.
pub const FILES: &str = "/paceline/files";
/// The directory with the ring files.
pub const RINGS: &str = "/paceline/rings";
/// The directory with the journal and the report.
pub const RUN: &str = "/paceline/run";
/// The directory where the Secret is mounted. The key is the Secret's entry `key`.
pub const KEY: &str = "/paceline/key";
/// The user ID and group ID in the image.
const NOBODY: u32 = 65_532;
/// Path of the program in the training container.
pub const WRAPPER: &str = "/paceline/files/paceline";

/// Fields and variables that users or other webhooks can change after injection. Their existing values are kept.
pub(crate) const KEPT: [&str; 10] = [
    "image",
    "imagePullPolicy",
    "resources",
    "PACELINE_JOB",
    "PACELINE_AGGREGATOR",
    "PACELINE_JOURNAL_BYTES",
    "PACELINE_HTTP",
    "PACELINE_NODE",
    "PACELINE_RUN_DIR",
    "PACELINE_KEY_FILE",
];

/// Everything that determines the injected parts of one pod.
pub(crate) struct Plan<'a> {
    pub(crate) request: &'a Request,
    pub(crate) settings: &'a Settings,
    pub(crate) identity: &'a Identity,
    pub(crate) mode: Mode,
    pub(crate) spec: &'a Value,
    pub(crate) trainer: &'a Value,
    /// True if the pod was injected with a sidecar before, even if the sidecar has been removed since. The pod's own
    /// resources already include the sidecar in that case.
    pub(crate) is_again: bool,
}

fn field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } })
}

fn plain(name: &str, value: impl Into<String>) -> Value {
    json!({ "name": name, "value": value.into() })
}

impl Plan<'_> {
    /// Returns the variables of the sidecar or of `paceline run`. Each variable comes after those that it references.
    pub(crate) fn variables(&self) -> Vec<Value> {
        let (request, identity) = (self.request, self.identity);
        let mut all = vec![
            field("PACELINE_POD", "metadata.name"),
            field("PACELINE_NAMESPACE", "metadata.namespace"),
            field("PACELINE_KUBE_NODE", "spec.nodeName"),
        ];
        all.extend(identity.env.iter().cloned());
        if self.mode == Mode::Sidecar {
            all.extend(self.ranks());
        }
        // Two pods of a job can share a machine. The node name therefore consists of the machine's name and the pod's
        // name.
        all.push(plain("PACELINE_NODE", "$(PACELINE_KUBE_NODE)/$(PACELINE_POD)"));
        let job = request.job.clone();
        let job = job.unwrap_or_else(|| format!("$(PACELINE_NAMESPACE)/{}", identity.name));
        all.push(plain("PACELINE_JOB", job));
        if let Some(aggregator) = self.aggregator() {
            all.push(plain("PACELINE_AGGREGATOR", aggregator));
        }
        all.push(plain("PACELINE_RUN_DIR", RUN));
        if self.mode == Mode::Sidecar {
            all.push(plain("PACELINE_RING_DIR", RINGS));
        }
        all.push(plain("PACELINE_JOURNAL_BYTES", request.journal.clone()));
        all.push(plain("PACELINE_KEY_FILE", format!("{KEY}/key")));
        all.push(plain("PACELINE_KEY_OPTIONAL", "true"));
        if let Some(place) = &request.metrics {
            if place.contains(':') {
                all.push(plain("PACELINE_HTTP", place.clone()));
            } else {
                all.push(field("PACELINE_POD_IP", "status.podIP"));
                all.push(plain("PACELINE_HTTP", format!("$(PACELINE_POD_IP):{place}")));
            }
        }
        if request.quiet && self.mode == Mode::Wrap {
            all.push(plain("PACELINE_QUIET", "true"));
        }
        if request.gpus.is_some() && self.mode == Mode::Sidecar {
            // These are settings for NVIDIA's container runtime. The capability "utility" provides the management
            // library.
            all.push(plain("NVIDIA_VISIBLE_DEVICES", "all"));
            all.push(plain("NVIDIA_DRIVER_CAPABILITIES", "utility"));
        }
        all
    }

    /// Returns the variables for ranks. The Job controller sets the index variable before injection, so the sidecar can
    /// get the index only from the label.
    fn ranks(&self) -> Vec<Value> {
        const INDEX: &str = "JOB_COMPLETION_INDEX";
        let mut ranks = trainer::rank_variables(self.trainer);
        let has_index = matches!(self.identity.kind, Kind::Job | Kind::JobSet | Kind::TrainJob);
        if has_index && !ranks.iter().any(|entry| entry["name"] == INDEX) {
            ranks.push(label_variable(INDEX, "batch.kubernetes.io/job-completion-index"));
        }
        ranks
    }

    fn aggregator(&self) -> Option<String> {
        let asked = self.request.aggregator.clone();
        let host = asked.or_else(|| self.identity.first.clone())?;
        match self.request.aggregator_port {
            Some(port) if !host.contains(':') => Some(format!("{host}:{port}")),
            _ => Some(host),
        }
    }

    /// Returns the sidecar container. It has no probes, because a failing startup probe would keep the trainer from
    /// starting.
    pub(crate) fn sidecar(&self) -> Value {
        let mut mounts = vec![mount("paceline-rings", RINGS, false), self.run_mount()];
        mounts.push(mount("paceline-key", KEY, true));
        mounts.extend(self.told_mount());
        let mut command = vec![PROGRAM, "sidecar", "--pod"];
        if self.request.quiet {
            command.push("--quiet");
        }
        if self.request.status_json {
            command.push("--status-json");
        }
        let mut container = self.own(SIDECAR, &command, mounts);
        container["restartPolicy"] = json!("Always");
        container["env"] = self.variables().into();
        if let Some(ports) = self.ports() {
            container["ports"] = ports;
        }
        container
    }

    /// Returns the port of the metrics page. With hostNetwork there is none, because a declared port would be reserved
    /// on the machine and could keep the pod from being scheduled.
    fn ports(&self) -> Option<Value> {
        let place = self.request.metrics.as_deref()?;
        let port: u16 = place.rsplit(':').next()?.parse().ok()?;
        let is_free = self.spec["hostNetwork"] != true;
        is_free.then(|| json!([{ "name": "paceline-http", "containerPort": port, "protocol": "TCP" }]))
    }

    /// Returns the init container that copies the files for the trainer.
    pub(crate) fn install(&self) -> Value {
        let what = match self.mode {
            Mode::Sidecar => "--hook",
            Mode::Wrap => "--program",
        };
        let mounts = vec![mount("paceline-files", FILES, false)];
        let mut container = self.own(INSTALL, &[PROGRAM, "install", what, FILES], mounts);
        if resources::is_bounded(self.spec)
            && let Some(container) = container.as_object_mut()
        {
            // The init container needs no resources of its own. It runs within the pod's resources and exits before the
            // trainer starts.
            container.remove("resources");
        }
        container
    }

    /// Returns the CPU and memory of an injected container, used as both request and limit.
    pub(crate) fn amount(&self) -> Value {
        json!({ "cpu": self.request.cpu, "memory": self.request.memory })
    }

    fn own(&self, name: &str, command: &[&str], mounts: Vec<Value>) -> Value {
        let amount = self.amount();
        json!({
            "name": name,
            "image": self.settings.image,
            "imagePullPolicy": self.settings.pull_policy,
            "command": command,
            "resources": { "requests": amount, "limits": amount },
            "securityContext": self.security(),
            "volumeMounts": mounts,
        })
    }

    /// Returns the security context required by the "restricted" Pod Security standard. User and group come from the
    /// pod if its user is not root, otherwise from the image. The root group is avoided too, because site policies can
    /// forbid it.
    fn security(&self) -> Value {
        let mut context = json!({
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "seccompProfile": { "type": "RuntimeDefault" },
        });
        let pod = &self.spec["securityContext"];
        if pod["runAsUser"] == 0 {
            context["runAsUser"] = json!(NOBODY);
            // A pod that runs as root usually has the root group too. The injected containers must not use that group.
            context["runAsGroup"] = json!(NOBODY);
        }
        context
    }

    fn run_mount(&self) -> Value {
        let mut mount = mount("paceline-run", RUN, false);
        if self.request.run_claim.is_some() {
            mount["subPathExpr"] = json!("paceline/$(PACELINE_NAMESPACE)/$(PACELINE_POD)");
        }
        mount
    }

    /// Returns the volume mounts for the training container.
    pub(crate) fn trainer_mounts(&self) -> Vec<Value> {
        let files = mount("paceline-files", FILES, true);
        match self.mode {
            Mode::Sidecar => vec![files, mount("paceline-rings", RINGS, false)],
            Mode::Wrap => {
                let mut all = vec![files, self.run_mount(), mount("paceline-key", KEY, true)];
                all.extend(self.told_mount());
                all
            }
        }
    }

    /// Returns the volumes that injection adds to the pod.
    pub(crate) fn volumes(&self) -> Vec<Value> {
        let room = match self.mode {
            Mode::Sidecar => "16Mi",
            Mode::Wrap => "512Mi",
        };
        let run = match &self.request.run_claim {
            Some(claim) => {
                json!({ "name": "paceline-run", "persistentVolumeClaim": { "claimName": claim } })
            }
            // This volume has no size limit, because exceeding the limit would evict the pod. The journal limits its
            // own size.
            None => json!({ "name": "paceline-run", "emptyDir": {} }),
        };
        let key = json!({ "name": "paceline-key", "secret": {
            "secretName": self.request.key_secret.clone().unwrap_or_else(|| key_secret(&self.identity.owner)),
            "defaultMode": self.key_mode(),
            // Without this field, the pod would wait for the Secret.
            "optional": true,
        } });
        let mut all = vec![json!({ "name": "paceline-files", "emptyDir": { "sizeLimit": room } })];
        if self.mode == Mode::Sidecar {
            // A write to a full memory volume fails with an error. A write to a full disk volume does not fail, and the
            // pod is evicted later.
            let rings = json!({ "medium": "Memory", "sizeLimit": "64Mi" });
            all.push(json!({ "name": "paceline-rings", "emptyDir": rings }));
        }
        all.extend([run, key]);
        all.extend(self.settings.remediator.as_ref().map(|_| remediator::volume()));
        all
    }

    fn told_mount(&self) -> Option<Value> {
        let is_told = self.settings.remediator.is_some();
        is_told.then(|| mount(remediator::VOLUME, remediator::PLACE, true))
    }

    /// Returns the file mode of the key. The key is readable for the owner if that is root, or for the pod's fsGroup,
    /// which the kubelet assigns. Otherwise it is readable for every user in the one container that mounts it, because
    /// that container's user and group may be defined only in its image.
    fn key_mode(&self) -> u32 {
        let (own, pod) = (&self.trainer["securityContext"], &self.spec["securityContext"]);
        let user = if own["runAsUser"].is_null() {
            &pod["runAsUser"]
        } else {
            &own["runAsUser"]
        };
        match self.mode {
            Mode::Wrap if *user == 0 => 0o400,
            _ if pod["fsGroup"].is_u64() => 0o440,
            _ => 0o444,
        }
    }
}

fn mount(volume: &str, path: &str, read_only: bool) -> Value {
    match read_only {
        true => json!({ "name": volume, "mountPath": path, "readOnly": true }),
        false => json!({ "name": volume, "mountPath": path }),
    }
}

/// Puts the hook first in a container's PYTHONPATH. A value that the image sets is not visible here, so `image` passes
/// that value from the annotation.
pub(crate) fn extend_python_path(env: &mut Vec<Value>, image: Option<&str>) {
    const NAME: &str = "PYTHONPATH";
    const BEFORE: &str = "PACELINE_PYTHONPATH_BEFORE";
    let Some(at) = env.iter().rposition(|entry| entry["name"] == NAME) else {
        let path = image.map_or_else(|| FILES.to_owned(), |image| format!("{FILES}:{image}"));
        env.push(plain(NAME, path));
        return;
    };
    if env[at].get("valueFrom").is_some_and(Value::is_object) {
        let mut before = env[at].clone();
        before["name"] = json!(BEFORE);
        env[at] = plain(NAME, format!("{FILES}:$({BEFORE})"));
        env.insert(at, before);
        return;
    }
    let old = env[at]["value"].as_str().unwrap_or("");
    if old.split(':').any(|part| part == FILES) {
        return;
    }
    let path = if old.is_empty() {
        FILES.to_owned()
    } else {
        format!("{FILES}:{old}")
    };
    env[at] = plain(NAME, path);
}

/// Prefix of the names of Secrets that hold job keys. The operator creates no Secrets with other names, because
/// permission to create pods must not imply permission to create arbitrary Secrets.
const KEY_SECRETS: &str = "paceline-";

/// Returns true if this is the name of a Secret that holds a job key.
pub fn is_key_secret(name: &str) -> bool {
    name.starts_with(KEY_SECRETS)
}

/// Returns the name of the Secret that holds a job's key.
pub fn key_secret(owner: &str) -> String {
    let name = format!("{KEY_SECRETS}{owner}");
    if is_name(&name) {
        return name;
    }
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let short: String = owner.chars().map(plain).take(40).collect();
    let short = short.trim_matches('-');
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in owner.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let short = if short.is_empty() { "job" } else { short };
    format!("{KEY_SECRETS}{short}-{hash:016x}")
}

/// Returns true if Paceline injected this container. A matching name alone is not enough.
pub(crate) fn is_ours(container: &Map<String, Value>) -> bool {
    let word = |at: usize| {
        container
            .get("command")
            .and_then(|command| command.get(at)?.as_str())
    };
    word(0) == Some(PROGRAM) && matches!(word(1), Some("sidecar" | "install"))
}
