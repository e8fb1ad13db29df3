//! The keys that there are: one table for flags, variables, files, `paceline config` and its complaints.

/// Keys under this prefix are constants of the detector, by their dotted name in the policy tables.
pub(crate) const DETECTOR: &str = "detector.";

/// What a key's value is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A string.
    Text,
    /// true or false.
    Switch,
}

/// One key outside `[detector]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    /// Its name in a file; `PACELINE_` and its capitals in the environment.
    pub(crate) name: &'static str,
    /// What it holds.
    pub(crate) kind: Kind,
    /// What holds when nobody says anything, in words where it is not a constant.
    pub(crate) default: &'static str,
}

/// Every key, in the order of `paceline config`.
pub(crate) const KEYS: [Key; 8] = [
    Key {
        name: "job",
        kind: Kind::Text,
        default: "(from torchrun or Slurm, else made up)",
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
        name: "aggregator",
        kind: Kind::Text,
        default: "(this host, a port derived from the job)",
    },
    Key {
        name: "http",
        kind: Kind::Text,
        default: "(127.0.0.1, any free port)",
    },
    Key {
        name: "sim_gpus",
        kind: Kind::Text,
        default: "(none)",
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
];

/// The variable that holds a key.
pub(crate) fn variable(name: &str) -> String {
    format!("PACELINE_{}", name.to_ascii_uppercase())
}
