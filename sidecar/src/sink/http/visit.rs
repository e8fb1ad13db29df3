//! The client side of the page. It requests an aggregator's data in the same way as a browser
//! ([`crate::sink::page::serve`]).

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

use crate::sink::notify::http::roots;

/// Timeout of a request. It is long because the aggregator may delay an answer without updates by ten seconds.
const WHOLE: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum size of an answer, which is thirty times the size for a job of 16,384 ranks.
const ANSWER: u64 = 64 << 20;
/// Maximum size of a token file.
const TOKEN: u64 = 4096;

/// Why a request got no data.
#[derive(Debug, thiserror::Error)]
pub enum VisitError {
    /// There is no server, or it uses another protocol.
    #[error("{0}")]
    Unreached(String),
    /// A token is required.
    #[error("a token is needed (--http-token-file)")]
    Token,
    /// The server has no such data.
    #[error("it has no live page (status {0})")]
    Status(u16),
    /// The server does not accept the host name of the request.
    #[error("it does not accept this host name: use its IP address, or start the job with --http-hosts NAME")]
    Name,
    /// The server has too many clients.
    #[error("it has too many clients")]
    Full,
}

/// Credentials of a client.
#[derive(Debug, Default)]
pub struct Passport {
    token: Option<String>,
    authorities: Option<Vec<Certificate<'static>>>,
}

impl Passport {
    /// Reads a file with the page's token, and a file with certificates (PEM) to trust in place of the system's.
    ///
    /// # Errors
    /// The problem and the path of the file.
    pub fn read(token: Option<&Path>, authorities: Option<&Path>) -> io::Result<Passport> {
        let named = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let token = token.map(|path| read_token(path).map_err(|error| named(path, error)));
        let authorities = authorities.map(|path| {
            let items = fs::read(path).map(|pem| certificates(&pem));
            items.map_err(|error| named(path, error))
        });
        Ok(Passport {
            token: token.transpose()?,
            authorities: authorities.transpose()?,
        })
    }
}

fn read_token(path: &Path) -> io::Result<String> {
    use io::Read as _;
    let mut text = String::new();
    fs::File::open(path)?.take(TOKEN).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

fn certificates(pem: &[u8]) -> Vec<Certificate<'static>> {
    let items = parse_pem(pem).filter_map(Result::ok);
    let certificates = items.filter_map(|item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    });
    certificates.collect()
}

/// A client of the page.
#[derive(Debug)]
pub struct Visitor {
    agent: Agent,
    token: Option<String>,
}

impl Visitor {
    /// Creates a client with these credentials.
    pub fn with(passport: Passport) -> Visitor {
        let own = passport.authorities.map(|own| RootCerts::Specific(Arc::new(own)));
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(own.unwrap_or_else(roots))
            .build();
        let agent = Agent::config_builder()
            .timeout_global(Some(WHOLE))
            .timeout_connect(Some(CONNECT))
            .http_status_as_error(false)
            // A redirect is not followed, because a request for one host must not be sent to another.
            .max_redirects(0)
            // The page is on this host or behind a tunnel from it, which a site's proxy cannot reach.
            .proxy(None)
            .tls_config(tls)
            .build()
            .into();
        Visitor {
            agent,
            token: passport.token,
        }
    }

    /// Returns true if requests have a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Requests all data, as JSON. With `after` (an epoch and its serial number), waits for updates after it and
    /// returns them as server-sent events. `base` is `http://HOST:PORT`.
    ///
    /// # Errors
    /// [`VisitError`].
    pub fn ask(&self, base: &str, after: Option<(&str, u64)>) -> Result<String, VisitError> {
        let path = if after.is_some() {
            "/v1/live/events"
        } else {
            "/v1/live"
        };
        let mut request = self.agent.get(format!("{base}{path}"));
        if let Some((epoch, serial)) = after {
            request = request.header("Last-Event-ID", format!("{epoch}-{serial}"));
        }
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let unreached = |error: ureq::Error| VisitError::Unreached(error.to_string());
        let mut answer = request.call().map_err(unreached)?;
        match answer.status().as_u16() {
            200 => answer
                .body_mut()
                .with_config()
                .limit(ANSWER)
                .read_to_string()
                .map_err(unreached),
            401 => Err(VisitError::Token),
            421 => Err(VisitError::Name),
            503 => Err(VisitError::Full),
            other => Err(VisitError::Status(other)),
        }
    }
}
