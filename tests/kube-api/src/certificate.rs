//! Certificates signed by a CA that exists only as long as the test.

use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use crate::stamp;

/// The server's identity. If it is stored in a file, it persists across restarts.
#[derive(Debug)]
pub struct Identity {
    /// The CA's certificate (PEM).
    pub ca: String,
    /// The administrator's bearer token.
    pub token: String,
    certificate: String,
    key: String,
}

impl Identity {
    /// Creates a new identity.
    ///
    /// # Errors
    /// Fails if no certificate can be created.
    pub fn new() -> anyhow::Result<Identity> {
        let (ca, certificate, key) = make(&["127.0.0.1", "localhost", "kubernetes.default.svc"])?;
        let token = stamp::hex(16);
        Ok(Identity {
            ca,
            token,
            certificate,
            key,
        })
    }

    /// Returns the stored form.
    pub fn line(&self) -> Value {
        json!({ "ca": self.ca, "token": self.token, "certificate": self.certificate, "key": self.key })
    }

    /// Parses the stored form.
    ///
    /// # Errors
    /// Fails if the stored form is invalid.
    pub fn read(line: &Value) -> anyhow::Result<Identity> {
        let text = |word: &str| {
            line[word]
                .as_str()
                .map(str::to_owned)
                .context("what is kept is no identity")
        };
        Ok(Identity {
            ca: text("ca")?,
            token: text("token")?,
            certificate: text("certificate")?,
            key: text("key")?,
        })
    }

    /// Returns the server's TLS configuration.
    ///
    /// # Errors
    /// Fails if the certificate or the key is invalid.
    pub fn config(&self) -> anyhow::Result<ServerConfig> {
        config(&self.certificate, &self.key)
    }
}

/// Returns a CA's certificate (PEM), and the TLS configuration of a server with a certificate for these names, signed
/// by this CA.
///
/// # Errors
/// Fails if a name is invalid.
pub fn server(names: &[&str]) -> anyhow::Result<(String, ServerConfig)> {
    let (ca, certificate, key) = make(names)?;
    Ok((ca, config(&certificate, &key)?))
}

/// Returns a CA's certificate, a certificate for these names, and that certificate's key, all in PEM.
fn make(names: &[&str]) -> anyhow::Result<(String, String, String)> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(rcgen::DnType::CommonName, "tests");
    let key = KeyPair::generate()?;
    let ca = params.self_signed(&key)?;
    let issuer = Issuer::new(params, key);
    let own = KeyPair::generate()?;
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names)?.signed_by(&own, &issuer)?;
    Ok((ca.pem(), certificate.pem(), own.serialize_pem()))
}

fn config(certificate: &str, key: &str) -> anyhow::Result<ServerConfig> {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).context("the key")?;
    Ok(ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?)
}
