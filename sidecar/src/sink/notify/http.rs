//! Sends one POST request. It has timeouts, follows no redirects, and uses TLS with the system's certificates.

use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::hmac;
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

use super::body::Letter;
use super::courier::Delivery;
use super::receiver::Proof;
use super::secret::Secret;

/// Timeout of a request.
const WHOLE: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum size of an answer. An answer is only used in a warning.
const ANSWER: u64 = 4096;
/// Paths of the system's CA certificates: Debian, Red Hat, SUSE, Alpine.
const ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A client that is created on first use. It is created again when other CAs are to be trusted.
#[derive(Debug, Default)]
pub struct Client(Mutex<Option<(Option<String>, Agent)>>);

/// The credentials for a request. They are read again for each request, because keys and tokens are rotated.
#[derive(Clone, Default)]
pub struct Shown {
    /// The key that signs the request.
    pub hmac: Option<String>,
    /// The bearer token.
    pub bearer: Option<String>,
    /// CAs (PEM) to trust in place of the system's.
    pub ca: Option<String>,
}

impl Shown {
    /// Reads the credentials for a webhook.
    pub fn read(proof: &Proof) -> Result<Shown, String> {
        let read = |secret: &Option<Secret>| secret.as_ref().map(Secret::read).transpose();
        Ok(Shown {
            hmac: read(&proof.hmac)?,
            bearer: read(&proof.bearer)?,
            ca: read(&proof.ca)?,
        })
    }
}

impl Client {
    fn agent(&self, ca: Option<&String>) -> Agent {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*made {
            Some((of, agent)) if of.as_ref() == ca => agent.clone(),
            _ => made.insert((ca.cloned(), agent_of(ca))).1.clone(),
        }
    }

    /// Sends a request, signed if there is a key.
    pub fn post(&self, url: &str, letter: &Letter, shown: &Shown) -> Delivery {
        let body = letter.body.to_string();
        let mut request = self
            .agent(shown.ca.as_ref())
            .post(url)
            .header("Content-Type", "application/json")
            .header("User-Agent", concat!("paceline/", env!("CARGO_PKG_VERSION")))
            .header("Paceline-Delivery", &letter.id);
        if let Some(token) = &shown.bearer {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(key) = &shown.hmac {
            request = request.header("Paceline-Signature", &sign(key, &letter.id, &body));
        }
        match request.send(body.as_bytes()) {
            Ok(mut answer) => {
                let status = answer.status().as_u16();
                let after = answer.headers().get("Retry-After");
                let after = after.and_then(|value| value.to_str().ok()?.parse().ok());
                let text = answer.body_mut().with_config().limit(ANSWER).read_to_string();
                judge(status, after.map(Duration::from_secs), &text.unwrap_or_default())
            }
            // The address may be a secret, so the error does not contain it.
            Err(ureq::Error::BadUri(_) | ureq::Error::Http(_)) => {
                Delivery::Later("its address is invalid".to_owned(), None)
            }
            Err(error) => Delivery::Later(error.to_string(), None),
        }
    }
}

/// Interprets a status. 408 and 429 are temporary, and most other refusals are permanent.
fn judge(status: u16, after: Option<Duration>, text: &str) -> Delivery {
    let words: String = text.chars().filter(|c| !c.is_control()).collect();
    match status {
        200..=299 => Delivery::Taken,
        408 | 425 | 429 => Delivery::Later(format!("status {status}"), after),
        // A wrong address or key may be corrected while the job runs, so try again later.
        401 | 403 | 404 => Delivery::Later(format!("status {status} {words}"), after),
        400..=499 => Delivery::Never(format!("status {status} {words}")),
        _ => Delivery::Later(format!("status {status} {words}"), after),
    }
}

/// Returns HMAC-SHA256 over the delivery's id, a period and the body, as `sha256=` and hexadecimal digits.
pub fn sign(key: &str, id: &str, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    let tag = hmac::sign(&key, format!("{id}.{body}").as_bytes());
    let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={digits}")
}

/// Returns a client without redirects, with this system's certificates.
pub(in crate::sink) fn agent() -> Agent {
    agent_of(None)
}

/// Returns a client without redirects that trusts these CAs, or the system's.
fn agent_of(ca: Option<&String>) -> Agent {
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(trusted(ca))
        .build();
    Agent::config_builder()
        .timeout_global(Some(WHOLE))
        .timeout_connect(Some(CONNECT))
        .http_status_as_error(false)
        // Requests must only go to the configured host, so redirects are not followed.
        .max_redirects(0)
        .tls_config(tls)
        .build()
        .into()
}

/// Returns the CAs trusted by this system. Without any, TLS fails, and the warning mentions that.
pub(in crate::sink) fn roots() -> RootCerts {
    trusted(None)
}

/// Returns these CAs, or those of the system.
fn trusted(ca: Option<&String>) -> RootCerts {
    let own = std::env::var("SSL_CERT_FILE").ok();
    let system = || {
        let mut paths = own.iter().map(String::as_str).chain(ROOTS);
        paths.find_map(|path| fs::read(path).ok()).unwrap_or_default()
    };
    let pem = ca.map_or_else(system, |ca| ca.clone().into_bytes());
    let items = parse_pem(&pem).filter_map(Result::ok);
    let certificates = items.filter_map(|item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    });
    RootCerts::Specific(Arc::new(certificates.collect()))
}
