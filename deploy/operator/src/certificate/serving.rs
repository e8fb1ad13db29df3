//! The certificate and its key. They are reloaded when the files change, so that a rotation needs no restart. The files
//! are written one after the other, so files that do not match each other yet are ignored.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Context as _;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// The size limit of a certificate file.
const MOST_BYTES: u64 = 1 << 20;

/// The serving certificate. It is empty until the files exist.
#[derive(Debug, Default)]
pub struct Certificate(RwLock<Option<Arc<CertifiedKey>>>);

impl Certificate {
    /// Returns true if there is a certificate.
    pub fn is_there(&self) -> bool {
        self.now().is_some()
    }

    /// Serves this certificate (PEM) from now on.
    ///
    /// # Errors
    /// Returns an error if the certificate cannot be read, or if certificate and key do not match. The previous
    /// certificate then stays in use.
    pub fn take(&self, cert: &[u8], key: &[u8]) -> anyhow::Result<()> {
        self.set(parse(cert, key)?);
        Ok(())
    }

    fn now(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, key: CertifiedKey) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(key));
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.now()
    }
}

/// Returns a configuration for TLS 1.2 and 1.3 that uses the current certificate.
///
/// # Errors
/// This cannot fail with the protocol versions that rustls itself offers.
pub fn config(certificate: Arc<Certificate>) -> anyhow::Result<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    // API servers and aggregators do not use session tickets when they reconnect, so none are sent.
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The certificate's files, and their contents when last read.
#[derive(Debug)]
pub struct Files {
    cert: PathBuf,
    key: PathBuf,
    known: Option<(Vec<u8>, Vec<u8>)>,
    problem: String,
}

/// The result of a check of the files.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing changed.
    Same,
    /// A certificate was loaded.
    New,
    /// The files cannot be used, and this was not reported before. The old certificate stays in use.
    Bad(String),
}

impl Files {
    /// Creates the check of these files.
    pub fn of(cert: &Path, key: &Path) -> Files {
        Files {
            cert: cert.to_owned(),
            key: key.to_owned(),
            known: None,
            problem: String::new(),
        }
    }

    /// Checks the files again.
    pub fn look(&mut self, certificate: &Certificate) -> Look {
        let read = read(&self.cert)
            .and_then(|cert| Ok((cert, read(&self.key)?)))
            .and_then(|files| {
                if self.known.as_ref() == Some(&files) {
                    return Ok(None);
                }
                Ok(Some((parse(&files.0, &files.1)?, files)))
            });
        match read {
            Ok(None) => Look::Same,
            Ok(Some((key, files))) => {
                certificate.set(key);
                self.known = Some(files);
                self.problem.clear();
                Look::New
            }
            Err(error) => {
                let problem = format!("{error:#}");
                if problem == self.problem {
                    return Look::Same;
                }
                self.problem.clone_from(&problem);
                Look::Bad(problem)
            }
        }
    }
}

/// Returns the certificates of a file (PEM), unchanged.
///
/// # Errors
/// Returns an error if the file cannot be read or contains no certificate.
pub fn authorities(path: &Path) -> anyhow::Result<String> {
    let text = String::from_utf8(read(path)?).context("it is not text")?;
    let all = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    anyhow::ensure!(
        !all.is_empty(),
        "{}: there is no certificate in it",
        path.display()
    );
    Ok(text)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let name = || path.display().to_string();
    let length = fs::metadata(path).with_context(name)?.len();
    if length > MOST_BYTES {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge)).with_context(name);
    }
    fs::read(path).with_context(name)
}

fn parse(cert: &[u8], key: &[u8]) -> anyhow::Result<CertifiedKey> {
    let chain = CertificateDer::pem_slice_iter(cert)
        .collect::<Result<Vec<_>, _>>()
        .context("the certificate")?;
    anyhow::ensure!(!chain.is_empty(), "the certificate: the file contains none");
    let key = PrivateKeyDer::from_pem_slice(key).context("the private key")?;
    CertifiedKey::from_der(chain, key, &default_provider()).context("certificate and key")
}
