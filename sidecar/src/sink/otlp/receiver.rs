//! The receiver of pushed metrics, and OpenTelemetry's own variables for it. The variables are used only if a push is
//! requested, because on many clusters they are set for all processes
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).

use std::fmt;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri};
use paceline_health::id::{JobId, NodeId};

/// The value of the option that selects the environment variables.
const BY_VARIABLES: &str = "env";
/// OpenTelemetry's default receiver.
const USUAL: &str = "http://localhost:4318";
/// The path that is appended to an endpoint.
const PATH: &str = "/v1/metrics";
const EVERY: Duration = Duration::from_secs(15);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum of both the interval and the timeout.
const LEAST: Duration = Duration::from_millis(100);

/// What is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint is not a valid address.
    #[error("{0}: expected env, or an address such as http://collector:4318")]
    NoAddress(String),
    /// The endpoint may contain a secret, which must not be in an address because addresses are shown in messages.
    #[error("an address has no user name, key or query: put those into OTEL_EXPORTER_OTLP_HEADERS")]
    Secret,
    /// Another protocol is configured.
    #[error("{0}={1}: metrics are pushed as http/protobuf only")]
    Protocol(&'static str, String),
    /// A header is invalid. Its value is not shown.
    #[error("OTEL_EXPORTER_OTLP_HEADERS: `{0}` is not a header")]
    Header(String),
}

/// Address and options of a receiver.
#[derive(Clone, PartialEq, Eq)]
pub struct Receiver {
    url: String,
    whom: String,
    headers: Vec<(String, String)>,
    resource: Vec<(String, String)>,
    /// Push interval.
    pub every: Duration,
    /// Timeout of a request.
    pub timeout: Duration,
    /// True if bodies are compressed.
    pub is_packed: bool,
}

impl Receiver {
    /// Parses `asked`, which is an endpoint, or `env` to use the environment variables. `variable` looks up a variable.
    ///
    /// # Errors
    /// [`OtlpError`]
    pub fn of(asked: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Receiver, OtlpError> {
        let said = |name: &str| {
            let own = variable(&format!("OTEL_EXPORTER_OTLP_METRICS_{name}"));
            own.or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")))
                .filter(|text| !text.trim().is_empty())
        };
        let whole = variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT").filter(|text| !text.is_empty());
        let base = variable("OTEL_EXPORTER_OTLP_ENDPOINT").filter(|text| !text.is_empty());
        let by_variables = match (&whole, &base) {
            (Some(whole), _) => Some(whole.clone()),
            (None, base) => base.as_ref().map(|base| with_path(base)),
        };
        let (url, is_theirs) = if asked == BY_VARIABLES {
            if let Some(protocol) = said("PROTOCOL").filter(|protocol| protocol != "http/protobuf") {
                return Err(OtlpError::Protocol("OTEL_EXPORTER_OTLP_PROTOCOL", protocol));
            }
            (by_variables.unwrap_or_else(|| with_path(USUAL)), true)
        } else {
            let url = with_path(asked);
            // The headers in the variables may be credentials of another receiver, which must not be sent to this one.
            let is_theirs = by_variables.is_none_or(|theirs| whom(&theirs) == whom(&url));
            (url, is_theirs)
        };
        check(&url)?;
        let headers = said("HEADERS").filter(|_| is_theirs).unwrap_or_default();
        let ms = |text: String| text.trim().parse().ok().map(Duration::from_millis);
        let every = variable("OTEL_METRIC_EXPORT_INTERVAL").and_then(ms);
        let every = every.unwrap_or(EVERY).max(LEAST);
        Ok(Receiver {
            whom: whom(&url).unwrap_or_default(),
            headers: checked(pairs(&headers))?,
            resource: resource(variable),
            timeout: said("TIMEOUT").and_then(ms).unwrap_or(TIMEOUT).max(LEAST),
            every,
            is_packed: said("COMPRESSION").is_some_and(|how| how == "gzip"),
            url,
        })
    }

    /// Returns the URL of the requests.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the address for messages, without anything that could be a secret.
    pub fn whom(&self) -> &str {
        &self.whom
    }

    /// Returns the headers of each request.
    pub(super) fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// Returns the resource attributes of the metrics. Variables take precedence.
    pub(super) fn resource(&self, job: &JobId, node: &NodeId) -> Vec<(String, String)> {
        let own = [
            ("service.name", "paceline".to_owned()),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("service.instance.id", job.to_string()),
            ("host.name", node.to_string()),
            ("paceline.job", job.to_string()),
        ];
        let mut all = self.resource.clone();
        for (name, value) in own {
            if !all.iter().any(|(known, _)| known == name) {
                all.push((name.to_owned(), value));
            }
        }
        all
    }
}

/// Shows neither the headers, which are secrets, nor the path, which may be one.
impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("whom", &self.whom)
            .finish_non_exhaustive()
    }
}

fn with_path(base: &str) -> String {
    let base = base.trim().trim_end_matches('/');
    if base.ends_with(PATH) {
        base.to_owned()
    } else {
        format!("{base}{PATH}")
    }
}

fn check(url: &str) -> Result<(), OtlpError> {
    let shown = || OtlpError::NoAddress(url.trim_end_matches(PATH).chars().take(80).collect());
    if url.contains('@') || url.contains('?') {
        return Err(OtlpError::Secret);
    }
    let uri: Uri = url.parse().map_err(|_| shown())?;
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    match uri.scheme_str() {
        Some("http" | "https") if has_host => Ok(()),
        _ => Err(shown()),
    }
}

fn whom(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
}

fn resource(variable: &dyn Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    let said = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let mut all = pairs(&said);
    if let Some(name) = variable("OTEL_SERVICE_NAME").filter(|name| !name.is_empty()) {
        all.retain(|(known, _)| known != "service.name");
        all.push(("service.name".to_owned(), name));
    }
    all
}

/// Parses `name=value,name=value`. Values may contain `%xx`.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    let plain = |text: &str| unescaped(text.trim());
    let pairs = pairs.map(|(name, value)| (plain(name), plain(value)));
    pairs.filter(|(name, _)| !name.is_empty()).collect()
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn checked(headers: Vec<(String, String)>) -> Result<Vec<(String, String)>, OtlpError> {
    for (name, value) in &headers {
        let is_name = name.parse::<HeaderName>().is_ok();
        if !is_name || HeaderValue::from_str(value).is_err() {
            return Err(OtlpError::Header(name.chars().take(40).collect()));
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(asked: &str, variables: &[(&str, &str)]) -> Result<Receiver, OtlpError> {
        let variables: Vec<(String, String)> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Receiver::of(asked, &move |name: &str| {
            let found = variables.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn where_it_goes() {
        let here = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://otel:4318/");
        let metrics = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://m:1/x");
        for (asked, variables, wanted) in [
            ("http://c:4318", &[][..], "http://c:4318/v1/metrics"),
            ("http://c/otlp/", &[], "http://c/otlp/v1/metrics"),
            ("http://c/v1/metrics", &[], "http://c/v1/metrics"),
            // The endpoint variables apply only to `env`.
            ("http://c:4318", &[here, metrics], "http://c:4318/v1/metrics"),
            ("env", &[here], "https://otel:4318/v1/metrics"),
            ("env", &[here, metrics], "https://m:1/x"),
            ("env", &[], "http://localhost:4318/v1/metrics"),
        ] {
            assert_eq!(of(asked, variables).unwrap().url(), wanted, "{asked}");
        }
        for (asked, variables, wanted) in [
            ("collector:4318", &[][..], "collector:4318: expected env"),
            ("ftp://c", &[], "expected env"),
            ("http://", &[], "expected env"),
            ("http://u:secret@c", &[], "an address has no user name"),
            ("http://c/?key=secret", &[], "an address has no user name"),
            (
                "env",
                &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
                "grpc: metrics are pushed as http/protobuf",
            ),
            (
                "env",
                &[("OTEL_EXPORTER_OTLP_HEADERS", "a b=secret")],
                "`a b` is not a header",
            ),
        ] {
            let error = of(asked, variables).unwrap_err().to_string();
            assert!(
                error.contains(wanted) && !error.contains("secret"),
                "{asked}: {error}"
            );
        }
    }

    #[test]
    fn a_key_is_for_one_receiver_and_is_not_shown() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://vendor:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s%2Fecret, x-team = ml "),
        ];
        let headers = [("api-key", "s/ecret"), ("x-team", "ml")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (asked, wanted) in [
            ("env", &headers[..]),
            ("https://vendor:4318/elsewhere", &headers),
            ("https://other:4318", &[]),
        ] {
            let receiver = of(asked, &variables).unwrap();
            assert_eq!(receiver.headers(), wanted, "{asked}");
            assert!(!format!("{receiver:?}").contains("ecret"));
        }
        // Without an endpoint variable, the headers apply to this receiver.
        let receiver = of("http://c", &variables[1..]).unwrap();
        assert_eq!(receiver.headers(), headers);
    }

    #[test]
    fn the_rest_of_the_variables() {
        let receiver = of(
            "env",
            &[
                ("OTEL_METRIC_EXPORT_INTERVAL", "2500"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "700"),
                ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip"),
                (
                    "OTEL_RESOURCE_ATTRIBUTES",
                    "service.name=x,team=a%20b,host.name=h",
                ),
                ("OTEL_SERVICE_NAME", "train"),
            ],
        )
        .unwrap();
        assert_eq!(
            (receiver.every, receiver.timeout),
            (Duration::from_millis(2500), Duration::from_millis(700))
        );
        assert!(receiver.is_packed);
        let resource = receiver.resource(&"7".into(), &"n1".into());
        let of = |name: &str| {
            let mut all = resource.iter().filter(|(known, _)| known == name);
            let value = all.next().map(|(_, value)| value.as_str());
            assert!(all.next().is_none(), "{name} twice");
            value
        };
        assert_eq!(of("service.name"), Some("train"));
        assert_eq!(of("team"), Some("a b"));
        assert_eq!(of("host.name"), Some("h"));
        assert_eq!(of("paceline.job"), Some("7"));
    }
}
