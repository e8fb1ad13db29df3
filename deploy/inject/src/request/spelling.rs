//! Reports unknown Paceline annotations.

use serde_json::Value;
use strsim::damerau_levenshtein;

use crate::{Note, PREFIX};

/// All annotations that are read from or written to a pod.
const KNOWN: [&str; 18] = [
    "aggregator",
    "aggregator-port",
    "container",
    "cpu",
    "gpu-runtime-class",
    "image-python-path",
    "inject",
    "injected",
    "job",
    "journal-bytes",
    "key-secret",
    "log-format",
    "log-level",
    "memory",
    "metrics",
    "mode",
    "preflight",
    "run-claim",
];
/// The largest edit distance for a suggestion.
const WRONG: usize = 2;

/// Reports each unknown annotation with the most likely intended one.
pub(crate) fn tell(pod: &Value, notes: &mut Vec<Note>) {
    let all = pod["metadata"]["annotations"].as_object();
    let ours = all
        .into_iter()
        .flatten()
        .filter_map(|(name, _)| name.strip_prefix(PREFIX));
    for name in ours.filter(|name| !is_known(name)) {
        let name: String = name.chars().take(60).collect();
        let nearest = KNOWN
            .iter()
            .map(|known| (damerau_levenshtein(&name.to_lowercase(), known), known))
            .min();
        let meant = match nearest {
            Some((wrong, known)) if wrong <= WRONG => format!("did you mean {known}?"),
            _ => format!("known are {}", KNOWN.join(", ")),
        };
        let says = format!("annotation {PREFIX}{name} is unknown and ignored: {meant}");
        notes.push(Note::new("annotation", says));
    }
}

/// Returns true if the annotation is known. Each new annotation must be added to the list [`KNOWN`].
pub(crate) fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_meant_is_told() {
        let pod = json!({ "metadata": { "annotations": {
            "paceline.dev/metric": "9810",
            "paceline.dev/Mode": "wrap",
            "paceline.dev/colour": "red",
            "paceline.dev/cpu": "1",
            "other.dev/metric": "",
        } } });
        let mut notes = Vec::new();
        tell(&pod, &mut notes);
        let says: Vec<&str> = notes.iter().map(|note| note.says.as_str()).collect();
        let has = |name: &str, meant: &str| {
            let begins = format!("annotation paceline.dev/{name} is unknown and ignored: {meant}");
            assert!(says.iter().any(|says| says.starts_with(&begins)), "{says:?}");
        };
        has("metric", "did you mean metrics?");
        has("Mode", "did you mean mode?");
        has("colour", "known are aggregator, ");
        assert_eq!(says.len(), 3);
    }
}
