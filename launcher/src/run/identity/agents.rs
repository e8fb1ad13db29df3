//! Finds the rendezvous of multi-node jobs that are started by hand on each node, and if all agents of such a job are
//! on this host.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::cluster::{Endpoint, Task, Variable, is_local, split, step, torchrun_option};

/// Maximum size of an accelerate configuration in bytes.
const MOST_BYTES: u64 = 64 << 10;

/// The agents of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Agents {
    /// Minimum and maximum number of agents. For accelerate, the two are the same.
    pub(super) least: u32,
    pub(super) most: u32,
    /// The agents' rendezvous.
    pub(super) endpoint: Endpoint,
}

impl Agents {
    /// Returns the agents of torchrun or accelerate if there is more than one node, from arguments or their defaults.
    pub(super) fn of(command: &[OsString], variable: Variable<'_>) -> Option<Agents> {
        let agents =
            Agents::of_torchrun(command, variable).or_else(|| Agents::of_accelerate(command, variable))?;
        (agents.most > 1).then_some(agents)
    }

    fn of_torchrun(command: &[OsString], variable: Variable<'_>) -> Option<Agents> {
        let option = |name: &str| torchrun_option(command, variable, name);
        let nodes = option("nnodes")?;
        let (least, most) = nodes.split_once(':').unwrap_or((&nodes, &nodes));
        // Skip a separate store such as etcd, because it may run on any host.
        if option("rdzv-backend").is_some_and(|backend| backend.starts_with("etcd")) {
            return None;
        }
        let (host, port) = match option("rdzv-endpoint") {
            Some(endpoint) => split(&endpoint),
            None => (option("master-addr")?, option("master-port")),
        };
        Some(Agents {
            least: least.parse().ok()?,
            most: most.parse().ok()?,
            endpoint: Endpoint::at(host, port),
        })
    }

    /// Returns the agents of `accelerate launch` (<https://huggingface.co/docs/accelerate/package_reference/cli>), from
    /// its arguments and then its configuration file.
    fn of_accelerate(command: &[OsString], variable: Variable<'_>) -> Option<Agents> {
        let words = accelerate(command)?;
        let file = file_of(&words, variable);
        let said = |name: &str| option(&words, name).or_else(|| in_file(&file, name));
        let machines = said("num_machines")?.parse().ok()?;
        let (host, port) = (said("main_process_ip")?, said("main_process_port"));
        Some(Agents {
            least: machines,
            most: machines,
            endpoint: Endpoint::at(host, port),
        })
    }

    /// Returns true if agents with this endpoint would not find each other, because each chooses its own port.
    fn is_anybodys(&self) -> bool {
        self.endpoint.port == "0"
    }
}

/// Returns the agents' rendezvous, on this host or another, which identifies their job. Agents on this host count as
/// separate jobs if their number is not known, because otherwise one node would appear twice.
pub(super) fn meeting(command: &[OsString], variable: Variable<'_>) -> Option<Endpoint> {
    let agents = Agents::of(command, variable)?;
    let is_sure = agents.least == agents.most || !is_local(&agents.endpoint.host);
    (is_sure && !agents.is_anybodys()).then_some(agents.endpoint)
}

/// Returns the tasks of this node if all agents are here, because the host of their rendezvous is this one. Their
/// number must be known.
pub(crate) fn on_this_host(command: &[OsString], variable: Variable<'_>) -> Option<Task> {
    if step(variable).is_some() || variable("LOCAL_RANK").is_some() {
        return None;
    }
    let agents = Agents::of(command, variable)?;
    let is_sure = agents.least == agents.most && is_local(&agents.endpoint.host) && !agents.is_anybodys();
    is_sure.then_some(Task { on_node: agents.most })
}

/// Returns the arguments after `accelerate launch`.
fn accelerate(command: &[OsString]) -> Option<Vec<&str>> {
    let words: Vec<&str> = command.iter().map(|word| word.to_str().unwrap_or("")).collect();
    let is_named = |word: &str, wanted: &str| Path::new(word).file_name().is_some_and(|name| name == wanted);
    // Skip the words before accelerate's options.
    let begin = words.iter().enumerate().find_map(|(at, word)| {
        let next = words.get(at + 1).copied();
        let pair = match next {
            Some("launch") => is_named(word, "accelerate"),
            Some("accelerate.commands.launch") => *word == "-m",
            _ => false,
        };
        match pair {
            true => Some(at + 2),
            false => is_named(word, "accelerate-launch").then_some(at + 1),
        }
    })?;
    Some(words[begin..].to_vec())
}

/// Returns the value of one of accelerate's options, spelled with `_` or `-`. The script's words are searched too,
/// because it is not known which of the other options take a value.
fn option(words: &[&str], name: &str) -> Option<String> {
    let found = words.iter().enumerate().rev().find_map(|(at, word)| {
        let (key, value) = word
            .split_once('=')
            .map_or((*word, None), |(key, value)| (key, Some(value)));
        let is_it = key
            .strip_prefix("--")
            .is_some_and(|key| key.replace('-', "_") == name);
        is_it.then(|| value.or(words.get(at + 1).copied()))
    })?;
    found.filter(|value| !value.is_empty()).map(str::to_owned)
}

/// Returns the text of accelerate's configuration. Empty if there is none.
fn file_of(words: &[&str], variable: Variable<'_>) -> String {
    let given = option(words, "config_file").map(PathBuf::from);
    let folder = || {
        let cache = || Some(PathBuf::from(variable("HOME")?).join(".cache/huggingface"));
        let home = variable("HF_HOME").map(PathBuf::from).or_else(cache)?;
        Some(home.join("accelerate/default_config.yaml"))
    };
    let mut text = String::new();
    let file = given.or_else(folder).and_then(|path| fs::File::open(path).ok());
    if let Some(file) = file {
        // Ignore an error, so that an unreadable file counts as empty.
        let _ = file.take(MOST_BYTES).read_to_string(&mut text);
    }
    text
}

/// Returns the value of a top-level `key: value`, as accelerate writes it.
fn in_file(text: &str, name: &str) -> Option<String> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty() && value != "null").then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::cluster::tests::among;
    use super::*;

    fn words(command: &str) -> Vec<OsString> {
        command.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn where_agents_meet_and_which_are_here() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        let text = "compute_environment: LOCAL_MACHINE\nmain_process_ip: 127.0.0.1\nmain_process_port: 7\nnum_machines: 2\n";
        fs::write(&file, text).unwrap();
        let with_file = format!(
            "accelerate launch --config_file {} --machine_rank 1 t.py",
            file.display()
        );
        for (command, variables, meets, here) in [
            (
                "torchrun --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port 8 t.py",
                "",
                Some("127.0.0.1-8"),
                Some(2),
            ),
            (
                "torchrun --nnodes 2 --master-addr a --master-port 8 t.py",
                "",
                Some("a-8"),
                None,
            ),
            (
                "torchrun --nnodes 1:2 --rdzv-endpoint localhost:8 t.py",
                "",
                None,
                None,
            ),
            (
                "torchrun --nnodes 1:2 --rdzv-endpoint a:8 t.py",
                "",
                Some("a-8"),
                None,
            ),
            (
                "torchrun --nnodes 2 --rdzv-endpoint localhost:0 t.py",
                "",
                None,
                None,
            ),
            ("torchrun --nnodes 1 --master-addr 127.0.0.1 t.py", "", None, None),
            ("torchrun --standalone t.py", "", None, None),
            (
                "torchrun t.py",
                "PET_NNODES=2 PET_MASTER_ADDR=127.0.0.1",
                Some("127.0.0.1-29500"),
                Some(2),
            ),
            // Slurm's own variables take precedence.
            (
                "torchrun --nnodes 2 --master-addr 127.0.0.1 t.py",
                "SLURM_JOB_ID=7 SLURM_STEP_ID=0",
                Some("127.0.0.1-29500"),
                None,
            ),
            (
                "accelerate launch --multi_gpu --num_machines 2 --machine_rank 0 --main_process_ip=a --main-process-port 9 t.py",
                "",
                Some("a-9"),
                None,
            ),
            (
                "python -m accelerate.commands.launch --num_machines 3 --main_process_ip 127.0.0.1 t.py",
                "",
                Some("127.0.0.1-29500"),
                Some(3),
            ),
            (
                "accelerate launch --num_machines 1 t.py",
                "HF_HOME=/nowhere",
                None,
                None,
            ),
            ("accelerate launch t.py", "HF_HOME=/nowhere", None, None),
            (
                "/opt/bin/accelerate-launch --num_machines 2 --main_process_ip a t.py",
                "",
                Some("a-29500"),
                None,
            ),
            (&with_file, "", Some("127.0.0.1-7"), Some(2)),
            ("python t.py --num_machines 2 --main_process_ip a", "", None, None),
        ] {
            let around = |name: &str| among(variables, name);
            let found = meeting(&words(command), &around).map(|at| format!("{}-{}", at.host, at.port));
            assert_eq!(found.as_deref(), meets, "{command} {variables}");
            let task = on_this_host(&words(command), &around).map(|task| task.on_node);
            assert_eq!(task, here, "{command} {variables}");
        }
    }
}
