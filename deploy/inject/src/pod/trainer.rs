//! Finds the container that trains, and its environment variables for ranks.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::identity::{Kind, NODE};

/// Variables with which launchers and operators set ranks and the rendezvous.
const RANKS: [&str; 14] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "NNODES",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JOB_COMPLETION_INDEX",
    "TORCHELASTIC_RUN_ID",
    "RDZV_ENDPOINT",
    "RAY_IP",
    "FQ_RAY_IP",
];
/// Prefixes of further variables for ranks, set by torchrun, LeaderWorkerSet and Volcano.
const FAMILIES: [&str; 3] = ["PET_", "LWS_", "VC_"];

/// Returns the index of the training container in `spec.containers`. `named` is the name from the annotation.
pub(crate) fn find(pod: &Value, kind: Kind, named: Option<&str>) -> Result<usize, String> {
    let containers = pod["spec"]["containers"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let by_name = |name: &str| containers.iter().position(|container| container["name"] == name);
    if containers.is_empty() {
        return Err("the pod has no containers".to_owned());
    }
    if let Some(name) = named {
        return by_name(name).ok_or_else(|| format!("there is no container {name:?}"));
    }
    let by_operator = match kind {
        Kind::PyTorchJob => by_name("pytorch"),
        Kind::TrainJob => by_name(NODE),
        // KubeRay uses the first container too.
        Kind::RayJob => Some(0),
        _ => None,
    };
    let default = pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"].as_str();
    let mut with_gpus = containers
        .iter()
        .enumerate()
        .filter(|(_, container)| has_gpus(container));
    let only_with_gpus = with_gpus.next().filter(|_| with_gpus.next().is_none());
    Ok(by_operator
        .or_else(|| default.and_then(by_name))
        .or(only_with_gpus.map(|(at, _)| at))
        .unwrap_or(0))
}

fn has_gpus(container: &Value) -> bool {
    let of = |which: &str| container["resources"][which].as_object();
    let mut names = [of("limits"), of("requests")]
        .into_iter()
        .flatten()
        .flatten()
        .filter(|(_, count)| **count != 0 && **count != "0");
    names.any(|(name, _)| name.ends_with("/gpu") || name.starts_with("nvidia.com/mig-"))
}

/// Returns the value of a variable that is set literally, without references.
pub(crate) fn literal<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let value = entry(container, name)?["value"].as_str()?;
    (!value.is_empty() && !value.contains("$(")).then_some(value)
}

/// Returns the entry of a variable. If there are several entries, the last one applies.
pub(crate) fn entry<'a>(container: &'a Value, name: &str) -> Option<&'a Value> {
    let mut env = container["env"].as_array()?.iter().rev();
    env.find(|entry| entry["name"] == name)
}

/// Returns the rendezvous address from torchrun's options in the container's command. The options can be separate
/// arguments or part of a script.
pub(crate) fn meeting(container: &Value) -> Option<&str> {
    let lists = ["command", "args"].map(|list| container[list].as_array());
    let texts = lists.into_iter().flatten().flatten().filter_map(Value::as_str);
    let words: Vec<&str> = texts
        .flat_map(|text| text.split([' ', '\t', '\n', '=']))
        .collect();
    let behind = |names: [&str; 2]| {
        let at = words.iter().rposition(|word| names.contains(word))?;
        Some(words.get(at + 1)?.trim_matches(['"', '\'']))
    };
    // An external store may run outside the job's pods, so its address is not used.
    let is_store =
        behind(["--rdzv-backend", "--rdzv_backend"]).is_some_and(|backend| backend.starts_with("etcd"));
    let endpoint = behind(["--rdzv-endpoint", "--rdzv_endpoint"]).filter(|_| !is_store);
    // A text that a shell or the kubelet would expand is skipped, because the result of the expansion is unknown.
    let place = endpoint.or_else(|| behind(["--master-addr", "--master_addr"]));
    place.filter(|place| !place.contains(['$', '`']))
}

/// Returns the entries that set ranks, and the entries that these reference, in order.
pub(crate) fn rank_variables(container: &Value) -> Vec<Value> {
    let env = container["env"].as_array().map_or(&[][..], Vec::as_slice);
    let name = |entry: &Value| entry["name"].as_str().unwrap_or("").to_owned();
    let is_of_ranks =
        |name: &str| RANKS.contains(&name) || FAMILIES.iter().any(|family| name.starts_with(family));
    let mut wanted: BTreeSet<String> = env.iter().map(name).filter(|name| is_of_ranks(name)).collect();
    loop {
        let before = wanted.len();
        for entry in env
            .iter()
            .filter(|entry| wanted.contains(&name(entry)))
            .collect::<Vec<_>>()
        {
            let value = entry["value"].as_str().unwrap_or("");
            let parts = value
                .split("$(")
                .skip(1)
                .filter_map(|rest| rest.split(')').next());
            wanted.extend(parts.map(str::to_owned));
        }
        if wanted.len() == before {
            break;
        }
    }
    let of_ours = |name: &str| name.starts_with("PACELINE_") || name == "PYTHONPATH";
    env.iter()
        .filter(|entry| wanted.contains(&name(entry)) && !of_ours(&name(entry)))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_container_that_trains() {
        let gpu = json!({ "limits": { "nvidia.com/gpu": 8 } });
        let check = |kind, named, default: Option<&str>, containers: Value, wanted: Result<usize, &str>| {
            let pod = json!({
                "metadata": { "annotations": { "kubectl.kubernetes.io/default-container": default } },
                "spec": { "containers": containers },
            });
            let found = find(&pod, kind, named);
            assert_eq!(
                found.as_ref().map_err(String::as_str),
                wanted.as_ref().map_err(|text| *text),
                "{pod}"
            );
        };
        let two = json!([{ "name": "log" }, { "name": "pytorch", "resources": gpu }]);
        check(Kind::PyTorchJob, None, None, two.clone(), Ok(1));
        check(Kind::Job, None, None, two.clone(), Ok(1));
        check(Kind::Job, Some("log"), None, two.clone(), Ok(0));
        check(Kind::Job, None, Some("log"), two.clone(), Ok(0));
        check(Kind::Job, None, Some("gone"), two.clone(), Ok(1));
        check(Kind::RayJob, None, None, two.clone(), Ok(0));
        check(
            Kind::Job,
            Some("x"),
            None,
            two,
            Err("there is no container \"x\""),
        );
        check(
            Kind::TrainJob,
            None,
            None,
            json!([{ "name": "a" }, { "name": "node" }]),
            Ok(1),
        );
        let none = json!({ "requests": { "nvidia.com/gpu": 0 }, "limits": { "nvidia.com/gpu": "0" } });
        let slice = json!({ "limits": { "nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": 1 } });
        let mixed = json!([{ "name": "log", "resources": none }, { "name": "t", "resources": slice }]);
        check(Kind::Job, None, None, mixed, Ok(1));
        let both = json!([{ "name": "a", "resources": gpu }, { "name": "b", "resources": gpu }]);
        check(Kind::Job, None, None, both, Ok(0));
        for none in [json!([]), json!(null), json!("x")] {
            check(Kind::Job, None, None, none, Err("the pod has no containers"));
        }
    }

    #[test]
    fn where_a_command_says_that_ranks_meet() {
        let check = |command: Value, args: Value, wanted: Option<&str>| {
            let container = json!({ "command": command, "args": args });
            assert_eq!(meeting(&container), wanted, "{container}");
        };
        check(
            json!(["torchrun", "--rdzv-endpoint=a-0.s:7", "t.py"]),
            json!(null),
            Some("a-0.s:7"),
        );
        check(
            json!(["torchrun"]),
            json!(["--rdzv_endpoint", "a-0.s:7", "t.py"]),
            Some("a-0.s:7"),
        );
        let script = "set -e\nexec torchrun --nnodes=2 --master_addr=\"a-0.s\" t.py";
        check(json!(["sh", "-c", script]), json!(null), Some("a-0.s"));
        check(
            json!(["torchrun", "--rdzv-backend=etcd-v2", "--rdzv-endpoint=etcd:2379"]),
            json!(null),
            None,
        );
        check(
            json!(["sh", "-c", "torchrun --master-addr=$MASTER_ADDR t.py"]),
            json!(null),
            None,
        );
        check(json!(["torchrun", "--rdzv-endpoint"]), json!(null), None);
        check(json!("torchrun"), json!([1]), None);
    }

    #[test]
    fn what_stands_behind_an_option_and_is_no_host_is_none() {
        for script in [
            "torchrun --master-addr=a-0.s; sync",
            "torchrun --master-addr \\\n a-0.s",
            "torchrun --master-addr=<HOST>",
        ] {
            let container = json!({ "command": ["sh", "-c", script] });
            assert_eq!(crate::identity::said(&container), None, "{script}");
        }
        let container = json!({ "command": ["torchrun", "--master-addr", "10.0.0.7", "t.py"] });
        assert_eq!(crate::identity::said(&container).as_deref(), Some("10.0.0.7"));
    }

    #[test]
    fn rank_variables_with_what_they_are_made_of() {
        let container = json!({ "env": [
            { "name": "SET", "value": "s" },
            { "name": "SECRET", "value": "hush" },
            { "name": "HOST", "value": "$(SET)-0" },
            { "name": "MASTER_ADDR", "value": "$(HOST).svc" },
            { "name": "PET_NNODES", "value": "2" },
            { "name": "RANK", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['i']" } } },
            { "name": "VC_TASK_INDEX", "value": "1" },
            { "name": "VC_WORKER_HOSTS", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } },
            { "name": "LWS_WORKER_INDEX", "value": "1" },
            { "value": "nameless" },
        ] });
        let names: Vec<String> = rank_variables(&container)
            .iter()
            .map(|entry| entry["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            names,
            [
                "SET",
                "HOST",
                "MASTER_ADDR",
                "PET_NNODES",
                "RANK",
                "VC_TASK_INDEX",
                "VC_WORKER_HOSTS",
                "LWS_WORKER_INDEX"
            ]
        );
        assert_eq!(literal(&container, "MASTER_ADDR"), None);
        assert_eq!(literal(&container, "SET"), Some("s"));
    }
}
