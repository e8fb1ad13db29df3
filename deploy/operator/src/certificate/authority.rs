//! A private certificate authority and its renewal. Except for key generation, this module does no I/O, and the caller
//! passes the time.
//!
//! An authority is valid twice as long as a certificate. Its successor is first added to the trust bundle, and it signs
//! only after the callers have the new bundle. The previous authority stays trusted until it expires, although its key
//! is deleted, because a replica may still serve a certificate that the previous authority signed.

use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use serde_json::{Value, json};

/// Allowance for clock skew. Certificates become valid this many seconds before now.
const EARLIER: u64 = 300;
/// The Secret's key under which this module stores its state.
const NOTES: &str = "notes.json";

/// An authority with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    name: String,
    key: String,
    cert: String,
    /// Expiry, in seconds since 1970.
    ends: u64,
}

/// The contents of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    signer: Authority,
    next: Option<Authority>,
    /// Previous authorities, each with its certificate and expiry.
    old: Vec<(String, u64)>,
    /// When the successor was added to the trust bundle.
    since: u64,
    /// The serving certificate (PEM).
    pub cert: String,
    /// The certificate's private key (PEM).
    pub key: String,
    /// The certificate's expiry, in seconds since 1970.
    pub ends: u64,
}

/// A required change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The new contents of the Secret.
    pub state: State,
    /// What was renewed: `certificate`, `authority` or `bundle`.
    pub what: &'static str,
}

/// The name and validity of certificates.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The host name by which callers connect.
    pub host: String,
    /// Validity of a certificate, seconds.
    pub life: u64,
    /// The upper limit of [`Terms::settle`].
    pub settle_most: Duration,
}

impl Terms {
    /// Returns how long to wait after a change of the trust bundle until all callers have it. This is a twentieth of a
    /// certificate's life, within limits.
    pub fn settle(&self) -> Duration {
        Duration::from_millis(self.life * 1000 / 20).clamp(Duration::from_millis(500), self.settle_most)
    }
}

/// Returns the next required change; the caller applies it and calls again. `is_trusted` is true if callers are
/// configured to trust [`State::bundle`].
///
/// # Errors
/// Returns an error if no certificate can be created, for example because the host name is invalid.
pub fn step(
    state: Option<&State>,
    terms: &Terms,
    now: u64,
    is_trusted: bool,
) -> anyhow::Result<Option<Change>> {
    let changed = |state: State, what: &'static str| Ok(Some(Change { state, what }));
    let Some(state) = state.filter(|state| state.signer.ends > now + 1) else {
        let signer = Authority::make(terms, now)?;
        let (cert, key, ends) = signer.sign(terms, now)?;
        let state = State {
            signer,
            next: None,
            old: Vec::new(),
            since: now,
            cert,
            key,
            ends,
        };
        return changed(state, "authority");
    };
    let mut state = state.clone();
    let count = state.old.len();
    state.old.retain(|(_, ends)| *ends > now);
    let is_lighter = state.old.len() < count;
    match state.next.take() {
        None if state.signer.ends < now + terms.life * 2 / 3 => {
            state.next = Some(Authority::make(terms, now)?);
            state.since = now;
            return changed(state, "authority");
        }
        Some(next) if is_trusted && now >= state.since + terms.settle().as_secs().max(1) => {
            let before = std::mem::replace(&mut state.signer, next);
            state.old.push((before.cert, before.ends));
            (state.cert, state.key, state.ends) = state.signer.sign(terms, now)?;
            return changed(state, "certificate");
        }
        waiting => state.next = waiting,
    }
    // If the signer itself expires soon, a new certificate would expire with it. In that case, wait for the signer's
    // successor.
    if state.ends < now + terms.life / 3 && state.signer.ends > state.ends + terms.life / 3 {
        (state.cert, state.key, state.ends) = state.signer.sign(terms, now)?;
        return changed(state, "certificate");
    }
    if is_lighter {
        return changed(state, "bundle");
    }
    Ok(None)
}

impl Authority {
    fn make(terms: &Terms, now: u64) -> anyhow::Result<Authority> {
        let key = KeyPair::generate()?;
        let ends = now + terms.life * 2;
        // The name must be unique, because verifiers look up the issuer by name.
        let mark: String = STANDARD
            .encode(key.public_key_raw())
            .chars()
            .skip(8)
            .take(12)
            .collect();
        let name = format!("paceline {mark}");
        let mut params = params(&name, now);
        params.not_after = time(ends);
        let cert = params.self_signed(&key)?.pem();
        Ok(Authority {
            name,
            key: key.serialize_pem(),
            cert,
            ends,
        })
    }

    fn sign(&self, terms: &Terms, now: u64) -> anyhow::Result<(String, String, u64)> {
        let issuer = Issuer::new(params(&self.name, now), KeyPair::from_pem(&self.key)?);
        let ends = (now + terms.life).min(self.ends);
        let names = [terms.host.clone(), format!("{}.cluster.local", terms.host)];
        let mut params = CertificateParams::new(names)?;
        params
            .distinguished_name
            .push(DnType::CommonName, terms.host.as_str());
        params.not_before = time(now.saturating_sub(EARLIER));
        params.not_after = time(ends);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &issuer)?;
        Ok((cert.pem(), key.serialize_pem(), ends))
    }

    fn json(&self) -> Value {
        json!({ "name": self.name, "key": self.key, "cert": self.cert, "ends": self.ends })
    }

    fn read(value: &Value) -> Option<Authority> {
        let text = |word: &str| value[word].as_str().map(str::to_owned);
        Some(Authority {
            name: text("name")?,
            key: text("key")?,
            cert: text("cert")?,
            ends: value["ends"].as_u64()?,
        })
    }
}

fn params(name: &str, now: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.not_before = time(now.saturating_sub(EARLIER));
    params
}

fn time(seconds: u64) -> time::OffsetDateTime {
    date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
}

impl State {
    /// Returns the trust bundle for callers (PEM).
    pub fn bundle(&self) -> String {
        let mut all = vec![self.signer.cert.as_str()];
        all.extend(self.next.as_ref().map(|next| next.cert.as_str()));
        all.extend(self.old.iter().map(|(cert, _)| cert.as_str()));
        all.concat()
    }

    /// Returns the authorities that no longer sign (PEM).
    pub fn retired(&self) -> String {
        self.old.iter().map(|(cert, _)| cert.as_str()).collect()
    }

    /// Returns the Secret's data.
    pub fn data(&self) -> Value {
        let old: Vec<Value> = self
            .old
            .iter()
            .map(|(cert, ends)| json!({ "cert": cert, "ends": ends }))
            .collect();
        let notes = json!({
            "signer": self.signer.json(), "next": self.next.as_ref().map(Authority::json), "old": old,
            "since": self.since, "ends": self.ends,
        });
        json!({
            "tls.crt": STANDARD.encode(&self.cert), "tls.key": STANDARD.encode(&self.key),
            "ca.crt": STANDARD.encode(self.bundle()), NOTES: STANDARD.encode(notes.to_string()),
        })
    }

    /// Parses a Secret's data.
    ///
    /// # Errors
    /// Returns an error if this program did not write it, or it is incomplete.
    pub fn read(data: &Value) -> anyhow::Result<State> {
        let text = |word: &str| -> anyhow::Result<String> {
            let coded = data[word]
                .as_str()
                .with_context(|| format!("{word} is missing"))?;
            Ok(String::from_utf8(STANDARD.decode(coded)?)?)
        };
        let notes: Value = serde_json::from_str(&text(NOTES)?)?;
        let old = notes["old"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(State {
            signer: Authority::read(&notes["signer"]).context("the signer is incomplete")?,
            next: Authority::read(&notes["next"]),
            old: old
                .iter()
                .filter_map(|one| Some((one["cert"].as_str()?.to_owned(), one["ends"].as_u64()?)))
                .collect(),
            since: notes["since"].as_u64().context("since is missing")?,
            ends: notes["ends"].as_u64().context("ends is missing")?,
            cert: text("tls.crt")?,
            key: text("tls.key")?,
        })
    }
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
