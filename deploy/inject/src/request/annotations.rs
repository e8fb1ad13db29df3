//! Reads and validates settings from a pod's annotations. An invalid value is reported and replaced by the default.

use std::net::{Ipv6Addr, SocketAddr};

use serde_json::Value;

use super::spelling;
use crate::pod::is_key_secret;
use crate::{INJECT, Note, PREFIX, quantity};

/// How Paceline is injected into a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A separate container beside the training container. The hook is loaded into the trainer.
    #[default]
    Sidecar,
    /// `paceline run -- ...` in the training container. Paceline then has access to everything that the trainer has,
    /// including the GPUs.
    Wrap,
}

impl Mode {
    /// Returns the mode's name in annotations.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Sidecar => "sidecar",
            Mode::Wrap => "wrap",
        }
    }

    /// Parses a mode's name.
    pub fn parse(word: &str) -> Option<Mode> {
        [Mode::Sidecar, Mode::Wrap]
            .into_iter()
            .find(|mode| mode.word() == word)
    }
}

/// The site's defaults, which apply where a pod has no annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The image with the program.
    pub image: String,
    /// Kubernetes' pull policy.
    pub pull_policy: String,
    /// The default mode.
    pub mode: Mode,
    /// CPU of an injected container, used as both request and limit. If the two differed, a Guaranteed pod would become
    /// Burstable.
    pub cpu: String,
    /// Memory of an injected container, as request and limit.
    pub memory: String,
    /// The address of the cluster's remediator, to which pods send verdicts ([`crate::remediator::is_address`]). With
    /// `None`, pods get no address.
    pub remediator: Option<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            image: concat!("ghcr.io/paceline/paceline:", env!("CARGO_PKG_VERSION")).to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
            mode: Mode::Sidecar,
            cpu: "200m".to_owned(),
            memory: "256Mi".to_owned(),
            remediator: None,
        }
    }
}

/// The injection settings of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The mode.
    pub mode: Mode,
    /// The training container, if named.
    pub container: Option<String>,
    /// The job's name.
    pub job: Option<String>,
    /// HOST or HOST:PORT of the aggregator.
    pub aggregator: Option<String>,
    /// The aggregator's port, if it is not derived from the job's name.
    pub aggregator_port: Option<u16>,
    /// The port of the metrics page, or INTERFACE:PORT. With `None`, the page listens on loopback only.
    pub metrics: Option<String>,
    /// `quick` or `full`.
    pub preflight: Option<String>,
    /// The RuntimeClass that gives the sidecar access to the node's GPUs. It is empty if the node's default runtime
    /// gives access.
    pub gpus: Option<String>,
    /// CPU of an injected container.
    pub cpu: String,
    /// Memory of an injected container.
    pub memory: String,
    /// Size limit of the journal.
    pub journal: String,
    /// The PersistentVolumeClaim for the run directory.
    pub run_claim: Option<String>,
    /// PYTHONPATH set by the image, which the pod's environment would replace.
    pub python_path: Option<String>,
    /// The Secret with the job's key.
    pub key_secret: Option<String>,
    /// True if only problems are logged.
    pub quiet: bool,
    /// True if a sidecar's log is the status stream for launchers.
    pub status_json: bool,
}

/// Returns the values of the inject label and annotation.
fn words(pod: &Value) -> impl Iterator<Item = &str> {
    let said = |place: &str| pod["metadata"][place][INJECT].as_str();
    [said("labels"), said("annotations")].into_iter().flatten()
}

fn is_yes(word: &str) -> bool {
    matches!(word, "true" | "enabled" | "yes") || Mode::parse(word).is_some()
}

fn is_no(word: &str) -> bool {
    matches!(word, "false" | "disabled" | "no")
}

/// Returns whether a pod (or a pod template) requests injection, or `None` if it has neither label nor annotation. A
/// label that opts out takes precedence. An invalid word counts as a request, so that it is reported (`misspelt`).
pub fn is_wanted(pod: &Value) -> Option<bool> {
    let opts_out = words(pod).any(is_no);
    words(pod).next().map(|_| !opts_out)
}

/// Returns an invalid word of the label or annotation, unless another word there is valid.
pub(crate) fn misspelt(pod: &Value) -> Option<&str> {
    let is_said = words(pod).any(|word| is_yes(word) || is_no(word));
    words(pod).next().filter(|_| !is_said)
}

impl Request {
    /// Reads the annotations. The inject label can also set the mode.
    pub fn of(pod: &Value, settings: &Settings, notes: &mut Vec<Note>) -> Request {
        spelling::tell(pod, notes);
        let mut reader = Reader { pod, notes };
        let mode = reader.said("mode").map(str::to_owned);
        let mode = mode.or_else(|| {
            let of = |place: &str| pod["metadata"][place][INJECT].as_str();
            let mut words = [of("annotations"), of("labels")].into_iter().flatten();
            words.find(|word| Mode::parse(word).is_some()).map(str::to_owned)
        });
        let mode = mode.map_or(settings.mode, |word| {
            Mode::parse(&word).unwrap_or_else(|| {
                reader.wrong("mode", &word, "sidecar or wrap");
                settings.mode
            })
        });
        if let Some(odd) = words(pod).find(|word| !is_yes(word) && !is_no(word)) {
            reader.wrong("inject", odd, "true, sidecar, wrap or false");
        }
        Request {
            mode,
            container: reader.text("container"),
            job: reader.checked("job", "a name of 1 to 200 printed characters", |job| {
                job.len() <= 200 && !job.contains("$(") && job.chars().all(|c| !c.is_control())
            }),
            aggregator: reader.checked("aggregator", "HOST or HOST:PORT", is_aggregator),
            aggregator_port: reader.port("aggregator-port"),
            metrics: reader.checked("metrics", "a port, or INTERFACE:PORT", |place| {
                port(place).is_some() || is_place(place)
            }),
            preflight: reader.checked("preflight", "quick or full", |mode| {
                matches!(mode, "quick" | "full")
            }),
            gpus: match reader.raw("gpu-runtime-class") {
                Some("") => Some(String::new()),
                _ => reader.checked("gpu-runtime-class", "the name of a RuntimeClass", is_name),
            },
            cpu: reader
                .checked("cpu", "cores such as 500m", quantity::is_cpu)
                .unwrap_or_else(|| settings.cpu.clone()),
            memory: reader
                .checked("memory", "an amount of memory such as 512Mi", quantity::is_memory)
                .unwrap_or_else(|| settings.memory.clone()),
            journal: reader
                .checked("journal-bytes", "a size such as 512MiB", is_size)
                .unwrap_or_else(|| "256MiB".to_owned()),
            run_claim: reader.checked("run-claim", "the name of a PersistentVolumeClaim", is_name),
            python_path: reader.text("image-python-path"),
            key_secret: reader.key_secret(),
            quiet: reader.checked("log-level", "info or warning", |level| {
                matches!(level, "info" | "warning")
            }) == Some("warning".to_owned()),
            status_json: reader.checked("log-format", "lines or json", |format| {
                matches!(format, "lines" | "json")
            }) == Some("json".to_owned()),
        }
    }
}

struct Reader<'a> {
    pod: &'a Value,
    notes: &'a mut Vec<Note>,
}

impl<'a> Reader<'a> {
    fn raw(&self, name: &str) -> Option<&'a str> {
        debug_assert!(spelling::is_known(name), "{name}");
        let value = &self.pod["metadata"]["annotations"][format!("{PREFIX}{name}")];
        value.as_str().map(str::trim)
    }

    fn said(&self, name: &str) -> Option<&'a str> {
        self.raw(name).filter(|text| !text.is_empty())
    }

    fn text(&self, name: &str) -> Option<String> {
        self.said(name).map(str::to_owned)
    }

    fn checked(&mut self, name: &str, wanted: &str, is_good: impl Fn(&str) -> bool) -> Option<String> {
        let text = self.said(name)?;
        if is_good(text) {
            return Some(text.to_owned());
        }
        self.wrong(name, text, wanted);
        None
    }

    fn key_secret(&mut self) -> Option<String> {
        let name = self.checked("key-secret", "the name of a Secret", is_name)?;
        if !is_key_secret(&name) {
            let says = format!(
                "the operator does not create the Secret {name}, because its name does not begin with paceline-: \
                 create it yourself"
            );
            self.notes.push(Note::new("key-secret", says));
        }
        Some(name)
    }

    fn port(&mut self, name: &str) -> Option<u16> {
        self.checked(name, "a port from 1 to 65535", |text| port(text).is_some())
            .and_then(|text| port(&text))
    }

    fn wrong(&mut self, name: &str, text: &str, wanted: &str) {
        let text: String = text.chars().take(60).collect();
        let says = format!("annotation {PREFIX}{name}: {text:?} is not {wanted}, and is ignored");
        self.notes.push(Note::new("annotation", says));
    }
}

fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_plain && *port > 0)
}

/// Returns true if `paceline run --http` accepts this as a page's address: ADDRESS:PORT, INTERFACE:PORT or HOST:PORT. A
/// test of the launcher, which depends on both crates, checks that the program accepts the same addresses.
fn is_place(text: &str) -> bool {
    let Some((name, _)) = text.rsplit_once(':').filter(|(_, end)| port(end).is_some()) else {
        return false;
    };
    let is_named = (1..=253).contains(&name.len())
        && name.bytes().any(|byte| byte.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"/:[]".contains(&byte));
    is_named || text.parse::<SocketAddr>().is_ok() || name.parse::<Ipv6Addr>().is_ok()
}

/// Returns true if `--aggregator` accepts this. The format is HOST or HOST:PORT, preceded by relays with their ports.
fn is_aggregator(text: &str) -> bool {
    let has_port = |text: &str| {
        let halves = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        halves.is_some_and(|(_, end)| port(end).is_some())
    };
    let is_bare = |text: &str| !text.is_empty() && !text.contains([':', '/']);
    let (relays, host) = text
        .rsplit_once(',')
        .map_or((None, text), |(relays, host)| (Some(relays), host));
    text.bytes().all(|byte| byte.is_ascii_graphic())
        && relays
            .into_iter()
            .flat_map(|relays| relays.split(','))
            .all(has_port)
        && (is_bare(host) || has_port(host) || host.parse::<Ipv6Addr>().is_ok())
}

/// Returns true if `paceline run --journal-bytes` accepts this size.
fn is_size(text: &str) -> bool {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    number
        .parse()
        .is_ok_and(|number: u32| (1..1_000_000).contains(&number))
        && ["MiB", "GiB", "TiB"].contains(&suffix)
}

/// Returns true if this is a DNS subdomain of at most 253 characters, like an object name.
pub(crate) fn is_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(good) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(annotations: Value, labels: Value) -> Value {
        json!({ "metadata": { "annotations": annotations, "labels": labels } })
    }

    #[test]
    fn who_asks() {
        let check = |annotation: Value, label: Value, wanted| {
            let pod = pod(json!({ INJECT: annotation }), json!({ INJECT: label }));
            assert_eq!(is_wanted(&pod), wanted, "{pod}");
        };
        check(json!("true"), json!(null), Some(true));
        check(json!(null), json!("wrap"), Some(true));
        check(json!("sidecar"), json!("false"), Some(false));
        check(json!("false"), json!("true"), Some(false));
        // The misspelt word must be reported, so it counts as a request.
        check(json!("Wrap"), json!(null), Some(true));
        check(json!("True"), json!("false"), Some(false));
        check(json!(true), json!(null), None); // This value is not a string, so the API server would have rejected it.
        for bare in [json!({}), json!(null), json!({ "metadata": null }), json!([])] {
            assert_eq!(is_wanted(&bare), None);
        }
    }

    #[test]
    fn nonsense_is_told_and_left_out() {
        let annotations = json!({
            "paceline.dev/inject": "True",
            "paceline.dev/mode": "magic",
            "paceline.dev/aggregator-port": "70000",
            "paceline.dev/cpu": "500Mi",
            "paceline.dev/memory": "256m",
            "paceline.dev/preflight": "maybe",
            "paceline.dev/journal-bytes": "8 GiB",
            "paceline.dev/run-claim": "../etc",
            "paceline.dev/job": "a$(B)",
            "paceline.dev/log-level": "debug",
            "paceline.dev/log-format": "xml",
            "paceline.dev/metrics": ":9810",
            "paceline.dev/aggregator": "host:99999",
            "paceline.dev/gpu-runtime-class": "NVIDIA!",
            "paceline.dev/key-secret": "a..b",
        });
        let mut notes = Vec::new();
        let settings = Settings::default();
        let request = Request::of(&pod(annotations.clone(), json!(null)), &settings, &mut notes);
        let plain = Request::of(&json!({}), &settings, &mut Vec::new());
        assert_eq!(request, plain);
        assert_eq!(notes.len(), annotations.as_object().unwrap().len(), "{notes:?}");
        assert!(notes.iter().all(|note| note.code == "annotation"));
    }

    #[test]
    fn what_is_asked_for() {
        let annotations = json!({
            "paceline.dev/inject": "wrap",
            "paceline.dev/container": "main",
            "paceline.dev/aggregator-port": "7777",
            "paceline.dev/metrics": "eth0:9810",
            "paceline.dev/memory": "1.5Gi",
            "paceline.dev/gpu-runtime-class": "",
            "paceline.dev/log-level": "warning",
            "paceline.dev/log-format": "json",
        });
        let mut notes = Vec::new();
        let request = Request::of(&pod(annotations, json!(null)), &Settings::default(), &mut notes);
        assert_eq!(notes, []);
        assert_eq!(request.mode, Mode::Wrap);
        assert_eq!(request.container.as_deref(), Some("main"));
        assert_eq!(request.aggregator_port, Some(7777));
        assert_eq!(request.metrics.as_deref(), Some("eth0:9810"));
        assert_eq!((request.memory.as_str(), request.cpu.as_str()), ("1.5Gi", "200m"));
        assert_eq!(request.gpus.as_deref(), Some(""));
        assert!(request.quiet && request.status_json);
    }
}
