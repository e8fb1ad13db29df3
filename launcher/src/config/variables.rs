//! The names of the PACELINE_ variables that Paceline reads or sets, and warnings about others.

use std::ffi::OsString;

use paceline_health::text::sanitize;

use super::keys::{KEYS, PRICE_VARIABLE, variable};
use crate::output::nearest;

/// Variables that are not settings. The hook, the plugin, tools and sidecars read them, Paceline sets them for
/// commands, or deploy/ sets them in pods.
const OTHERS: [&str; 44] = [
    "PACELINE_CUBLAS_LIB",
    "PACELINE_CUDA_LIB",
    "PACELINE_DELIVERY",
    "PACELINE_EXCLUDED_NODES",
    "PACELINE_FIRST_NODE",
    "PACELINE_GROUP",
    "PACELINE_HOOK",
    "PACELINE_HOST_ROOT",
    "PACELINE_IMAGE",
    "PACELINE_JOBSET",
    "PACELINE_JOB_NAME",
    "PACELINE_KEY_OPTIONAL",
    "PACELINE_KUBE_NODE",
    "PACELINE_LAYOUT",
    "PACELINE_NAMESPACE",
    "PACELINE_NCCL_AFTER",
    "PACELINE_NCCL_BUDGET_PPM",
    "PACELINE_NCCL_LIB",
    "PACELINE_NCCL_SAMPLE",
    "PACELINE_NNODES",
    "PACELINE_NODES",
    "PACELINE_NODE_RANK",
    "PACELINE_NOTIFY_BEFORE",
    "PACELINE_OBJECT",
    "PACELINE_PASSPORTS",
    "PACELINE_POD",
    "PACELINE_POD_IP",
    "PACELINE_PREFLIGHT_PORT",
    "PACELINE_PYTHONPATH_BEFORE",
    "PACELINE_RACK",
    "PACELINE_RANK_PID",
    "PACELINE_RAY_CLUSTER",
    "PACELINE_REMEDY_FINDING",
    "PACELINE_REMEDY_MARK",
    "PACELINE_REMEDY_NODE",
    "PACELINE_RING_DIR",
    "PACELINE_RING_SHARED",
    "PACELINE_SCHEDULE",
    "PACELINE_STACKS",
    "PACELINE_STEPS_AFTER",
    "PACELINE_TRACK",
    "PACELINE_TRACK_EVERY",
    "PACELINE_TRACK_FROM",
    "PACELINE_WATCH",
];
/// Prefixes of variables whose full names are chosen outside Paceline.
const FAMILIES: [&str; 4] = [
    "PACELINE_OPERATOR",
    "PACELINE_REMEDIATOR",
    "PACELINE_FUZZ_",
    "PACELINE_FAKE_",
];
/// Maximum number of unknown variables that are reported, because a site may have its own.
const MAX_NAMED: usize = 5;

/// Returns the name of every variable that Paceline reads.
fn known() -> Vec<String> {
    let settings = KEYS.iter().map(|key| variable(key.name));
    settings
        .chain([PRICE_VARIABLE.to_owned()])
        .chain(OTHERS.map(str::to_owned))
        .collect()
}

/// Returns a warning for each PACELINE_ variable that nothing reads. Most of these are misspelled.
pub(crate) fn unknown(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let known = known();
    let mut strange: Vec<String> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with("PACELINE_") && !known.contains(name))
        .filter(|name| !FAMILIES.iter().any(|family| name.starts_with(family)))
        .collect();
    strange.sort();
    let sentence = |name: &String| {
        let ends: Vec<&str> = known
            .iter()
            .filter_map(|name| name.strip_prefix("PACELINE_"))
            .collect();
        // Compare the names without the common prefix, which would make any two of them similar.
        let own = name.strip_prefix("PACELINE_").unwrap_or_default();
        let begun = format!("{own}_");
        let longer = ends.iter().copied().find(|end| end.starts_with(&begun));
        let near = longer.or_else(|| nearest(own, ends));
        let hint = match near {
            Some(near) => format!("did you mean PACELINE_{near}?"),
            None => "docs/settings.md lists all variables".to_owned(),
        };
        format!("{}: unknown variable, ignored; {hint}", sanitize::name(name))
    };
    strange.iter().take(MAX_NAMED).map(sentence).collect()
}

/// Valid values of the variables that only the hook reads.
const HOOK_VALUES: [(&str, &[&str]); 2] = [
    ("PACELINE_HOOK", &["off", "on", ""]),
    ("PACELINE_TRACK", &["wandb", "mlflow", "off", ""]),
];

/// Returns a warning for each variable of the hook with another value. The hook itself prints nothing, because it runs
/// in a training process.
pub(crate) fn mistaken(value: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut said = Vec::new();
    for (name, known) in HOOK_VALUES {
        let Some(text) = value(name) else { continue };
        // Only a lowercase `off` disables the hook, so other spellings are not valid.
        let is_known = |word: &str| match word.to_lowercase() {
            lower if lower == "off" => word == "off",
            lower => known.contains(&&*lower),
        };
        if let Some(word) = text.split(',').map(str::trim).find(|word| !is_known(word)) {
            let all: Vec<&str> = known.iter().copied().filter(|word| !word.is_empty()).collect();
            said.push(format!(
                "{name}={}: {} is not one of {}, and is ignored",
                sanitize::name(&text),
                sanitize::name(word),
                all.join(", ")
            ));
        }
    }
    if let Some(text) = value(STACKS).filter(|text| !is_stacks(text)) {
        said.push(format!(
            "{STACKS}={}: must be on, off or the number of a real-time signal (34 to 64); no stacks are taken",
            sanitize::name(&text)
        ));
    }
    said
}

/// Variable that selects whether stacks of hanging ranks are taken, and by which signal
/// (sidecar/probe/python/paceline/_stacks.py).
const STACKS: &str = "PACELINE_STACKS";

fn is_stacks(text: &str) -> bool {
    let text = text.trim().to_lowercase();
    let is_signal = text
        .parse::<u32>()
        .is_ok_and(|number| (34..=64).contains(&number));
    is_signal || ["", "on", "1", "true", "yes", "off", "0", "false", "no"].contains(&&*text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn said(names: &[&str]) -> Vec<String> {
        unknown(names.iter().map(OsString::from))
    }

    #[test]
    fn a_misspelled_variable_is_named_with_the_one_that_was_meant() {
        let text = said(&["PACELINE_QUEIT", "PACELINE_JOB", "HOME", "PACELINE_OPERATOR_X"]);
        assert_eq!(
            text,
            ["PACELINE_QUEIT: unknown variable, ignored; did you mean PACELINE_QUIET?"]
        );
        let text = said(&["PACELINE_COLOR_SCHEME"]);
        assert!(
            text[0].ends_with("docs/settings.md lists all variables"),
            "{text:?}"
        );
        assert!(said(&["PACELINE_HTTP_TOKEN"])[0].contains("PACELINE_HTTP_TOKEN_FILE"));
    }

    #[test]
    fn a_value_that_the_hook_does_not_know_is_named() {
        let said = |name: &'static str, value: &'static str| {
            mistaken(|asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(
            said("PACELINE_TRACK", "wandb,mlfow"),
            ["PACELINE_TRACK=wandb,mlfow: mlfow is not one of wandb, mlflow, off, and is ignored"]
        );
        assert_eq!(said("PACELINE_HOOK", "OFF").len(), 1);
        for (value, count) in [("off", 0), ("61", 0), ("", 0), ("9", 1), ("of", 1)] {
            assert_eq!(said("PACELINE_STACKS", value).len(), count, "{value}");
        }
        for (name, value) in [
            ("PACELINE_HOOK", "off"),
            ("PACELINE_TRACK", "WandB, mlflow"),
            ("PACELINE_TRACK", ""),
        ] {
            assert!(said(name, value).is_empty(), "{name}={value}");
        }
    }

    /// Collects source files that may read variables.
    fn sources(dir: &Path, out: &mut Vec<String>) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let is_code = ["rs", "py"]
                .iter()
                .any(|end| path.extension().is_some_and(|it| it == *end));
            let is_test = name.to_string_lossy().contains("test");
            if path.is_dir() && !is_test && name != "target" {
                sources(&path, out);
            } else if is_code && !is_test {
                out.push(fs::read_to_string(path).unwrap());
            }
        }
    }

    /// Variables that our own code reads must not cause warnings.
    #[test]
    fn everything_that_is_read_is_known() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut texts = Vec::new();
        for room in ["launcher/src", "sidecar", "nccl-bench/src", "deploy/inject/src"] {
            sources(&root.join(room), &mut texts);
        }
        let mut read: Vec<&str> = Vec::new();
        for before in [
            "var(\"",
            "var_os(\"",
            "env = \"",
            "environ.get(\"",
            "surroundings(\"",
            "variable(\"",
        ] {
            for text in &texts {
                let found = text
                    .match_indices(before)
                    .map(|(at, _)| &text[at + before.len()..]);
                read.extend(
                    found
                        .filter_map(|rest| rest.split('"').next())
                        .filter(|name| name.starts_with("PACELINE_")),
                );
            }
        }
        assert!(read.len() > 30, "{read:?}");
        let strange = said(&read);
        assert!(strange.is_empty(), "{strange:?}");
    }
}
