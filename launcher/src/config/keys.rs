//! The table of all configuration keys, used for flags, variables, files, `paceline config` and error messages.

/// Prefix of keys that are constants of the detector. The rest of the key is the dotted name in the policy tables.
pub(crate) const DETECTOR: &str = "detector.";
/// Prefix of keys for findings that are only observed. The policy uses the same names.
pub(crate) const OBSERVE: &str = "observe.";
/// Prefix of keys for prices. The policy uses the same names.
pub(crate) const COST: &str = "cost.";
/// Key of the price for every GPU model without its own price.
pub(crate) const PRICE: &str = "cost.gpu_hour_price";
/// The environment variable of [`PRICE`].
pub(crate) const PRICE_VARIABLE: &str = "PACELINE_GPU_HOUR_PRICE";

/// The type of a key's value in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A string.
    Text,
    /// true or false.
    Switch,
    /// A whole number.
    Number,
    /// A string, or a list whose items are joined with this separator.
    Words(&'static str),
}

/// One key outside `[detector]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    /// The key's name in a file. The environment variable is `PACELINE_` and this name in capitals.
    pub(crate) name: &'static str,
    /// The type of the key's value.
    pub(crate) kind: Kind,
    /// The default value, or a description of it if it is not a constant.
    pub(crate) default: &'static str,
}

/// Every key, in the order of `paceline config`.
pub(crate) const KEYS: [Key; 35] = [
    Key {
        name: "job",
        kind: Kind::Text,
        default: "(from torchrun or Slurm, else generated)",
    },
    Key {
        name: "node",
        kind: Kind::Text,
        default: "(SLURMD_NODENAME, else the host name)",
    },
    Key {
        name: "run_dir",
        kind: Kind::Text,
        default: "(./paceline-JOB)",
    },
    Key {
        name: "journal_bytes",
        kind: Kind::Text,
        default: "(8GiB)",
    },
    Key {
        name: "aggregator",
        kind: Kind::Text,
        default: "(this host, a port derived from the job)",
    },
    Key {
        name: "key_file",
        kind: Kind::Text,
        default: "(a key of this user, created when needed: ~/.config/paceline/key)",
    },
    Key {
        name: "http",
        kind: Kind::Text,
        default: "(127.0.0.1, any free port)",
    },
    Key {
        name: "http_token_file",
        kind: Kind::Text,
        default: "(none: no access control)",
    },
    Key {
        name: "http_hosts",
        kind: Kind::Words(","),
        default: "(this machine's name, localhost and addresses)",
    },
    Key {
        name: "http_cert",
        kind: Kind::Text,
        default: "(none: no TLS)",
    },
    Key {
        name: "http_key",
        kind: Kind::Text,
        default: "(none)",
    },
    Key {
        name: "metrics",
        kind: Kind::Text,
        default: "\"auto\"",
    },
    Key {
        name: "metrics_compat",
        kind: Kind::Text,
        default: "(none)",
    },
    Key {
        name: "sim_gpus",
        kind: Kind::Text,
        default: "(none)",
    },
    Key {
        name: "nvml_lib",
        kind: Kind::Text,
        default: "(libnvidia-ml.so.1 of the system)",
    },
    Key {
        name: "kmsg",
        kind: Kind::Text,
        default: "(/dev/kmsg where NVIDIA's driver is loaded)",
    },
    Key {
        name: "ras",
        kind: Kind::Text,
        default: "(NCCL_RAS_ADDR, else localhost:28028)",
    },
    Key {
        name: "step_log",
        kind: Kind::Text,
        default: "(none)",
    },
    Key {
        name: "step_regex",
        kind: Kind::Text,
        default: "(the formats of known frameworks)",
    },
    Key {
        name: "inspector",
        kind: Kind::Text,
        default: "(none)",
    },
    Key {
        name: "textfile",
        kind: Kind::Text,
        default: "(none)",
    },
    Key {
        name: "metrics_textfile",
        kind: Kind::Text,
        default: "(none)",
    },
    Key {
        name: "otlp",
        kind: Kind::Text,
        default: "(nowhere)",
    },
    Key {
        name: "quiet",
        kind: Kind::Switch,
        default: "false",
    },
    Key {
        name: "json",
        kind: Kind::Switch,
        default: "false",
    },
    Key {
        name: "slurm_comment",
        kind: Kind::Switch,
        default: "false",
    },
    Key {
        name: "act",
        kind: Kind::Switch,
        default: "false",
    },
    Key {
        name: "on_fault",
        kind: Kind::Words(","),
        default: "\"log\"",
    },
    Key {
        name: "remedy_limit",
        kind: Kind::Words(" "),
        default: "(health/policy/remedies.toml)",
    },
    Key {
        name: "remedy_ledger",
        kind: Kind::Text,
        default: "(a file of this user: ~/.local/state/paceline/remedies.json)",
    },
    Key {
        name: "checkpoint_signal",
        kind: Kind::Text,
        default: "\"USR1\"",
    },
    Key {
        name: "checkpoint_wait",
        kind: Kind::Number,
        default: "300",
    },
    Key {
        name: "stop_grace",
        kind: Kind::Number,
        default: "30",
    },
    Key {
        name: "requeue_command",
        kind: Kind::Text,
        default: "(paceline slurm requeue, in a Slurm job)",
    },
    Key {
        name: "notify",
        kind: Kind::Words(" "),
        default: "(none)",
    },
];

/// The keys for automatic actions and notifications, except the switch `act`.
pub(crate) const REMEDIES: [&str; 8] = [
    "on_fault",
    "remedy_limit",
    "remedy_ledger",
    "checkpoint_signal",
    "checkpoint_wait",
    "stop_grace",
    "requeue_command",
    "notify",
];

/// Returns the policy's name for a value that files and `paceline config` call `shown`, or `None` if it is not a policy
/// value.
pub(crate) fn policy_key(shown: &str) -> Option<&str> {
    let own = shown.starts_with(OBSERVE) || shown.starts_with(COST);
    shown.strip_prefix(DETECTOR).or(own.then_some(shown))
}

/// Returns the name of a policy value in files and `paceline config`. Accepts this name or the policy's.
pub(crate) fn shown_key(key: &str) -> String {
    if policy_key(key).is_some() {
        key.to_owned()
    } else {
        format!("{DETECTOR}{key}")
    }
}

/// Returns the name of a key's environment variable.
pub(crate) fn variable(name: &str) -> String {
    format!("PACELINE_{}", name.to_ascii_uppercase())
}
