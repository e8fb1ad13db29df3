//! Parses requests.

use std::collections::BTreeMap;

use axum::body::Bytes;
use serde_json::Value;

use crate::access::User;
use crate::cluster::Cluster;
use crate::failure::{Answer, Failure};
use crate::kinds::Kind;
use crate::store::Place;

/// A request for objects.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The user.
    pub user: User,
    /// The verb: get, list, watch, create, update, patch, delete or deletecollection.
    pub verb: String,
    /// The kind.
    pub kind: Kind,
    /// The version.
    pub version: String,
    /// The namespace; empty for all namespaces or for a cluster-scoped resource.
    pub namespace: String,
    /// The object's name; empty for all objects, or if it is not known yet.
    pub name: String,
    /// The subresource; empty for the object itself.
    pub sub: String,
    /// The query parameters.
    pub query: BTreeMap<String, String>,
    /// The body.
    pub body: Bytes,
    /// The body's content type, without parameters.
    pub content_type: String,
    /// True if the response must be a table, for people.
    pub wants_table: bool,
}

impl Ask {
    /// Returns the resource, such as `pods` or `pods/eviction`.
    pub fn resource(&self) -> String {
        if self.sub.is_empty() {
            self.kind.plural.clone()
        } else {
            format!("{}/{}", self.kind.plural, self.sub)
        }
    }

    /// Returns the place of the object, whether it exists or is new.
    pub fn place(&self, name: &str) -> Place {
        Place::new(&self.kind.group, &self.kind.plural, &self.namespace, name)
    }

    /// Returns a query parameter; empty if it is missing.
    pub fn query(&self, word: &str) -> &str {
        self.query.get(word).map_or("", String::as_str)
    }

    /// Returns true if it is a dry run.
    pub fn is_dry(&self) -> bool {
        self.query("dryRun") == "All"
    }

    /// Parses the body as an object.
    ///
    /// # Errors
    /// Returns BadRequest or UnsupportedMediaType.
    pub fn object(&self) -> Answer<Value> {
        if self.content_type.contains("protobuf") {
            return Err(Failure::new("UnsupportedMediaType", "only JSON is read here"));
        }
        let object: Value = serde_json::from_slice(&self.body).map_err(|error| {
            Failure::new(
                "BadRequest",
                format!("the object provided is unrecognized: {error}"),
            )
        })?;
        if !object.is_object() {
            return Err(Failure::new("BadRequest", "the object provided is no object"));
        }
        Ok(object)
    }
}

/// A parsed URL, which is the request without user and body.
#[derive(Debug)]
pub struct Target {
    /// The kind.
    pub kind: Kind,
    /// The version.
    pub version: String,
    /// See [`Ask::namespace`].
    pub namespace: String,
    /// See [`Ask::name`].
    pub name: String,
    /// See [`Ask::sub`].
    pub sub: String,
}

/// Parses a URL.
///
/// # Errors
/// Returns NotFound if the kind or the subresource does not exist.
pub fn target(cluster: &Cluster, path: &str) -> Answer<Target> {
    let none = || Failure::new("NotFound", "the server could not find the requested resource");
    let words: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match words.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return Err(none()),
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..]
            if !rest.is_empty() && !matches!(rest, ["status"] | ["finalize"]) =>
        {
            (*namespace, rest)
        }
        _ => ("", rest),
    };
    let (plural, name, sub) = match rest {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, sub] => (*plural, *name, *sub),
        _ => return Err(none()),
    };
    let kind = cluster.kind(group, version, plural).ok_or_else(none)?;
    if !(sub.is_empty() || kind.has(sub)) || (!kind.is_namespaced && !namespace.is_empty()) {
        return Err(none());
    }
    if kind.is_namespaced && namespace.is_empty() && !name.is_empty() {
        return Err(none());
    }
    Ok(Target {
        kind,
        version: version.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        sub: sub.to_owned(),
    })
}

/// Returns the query parameters, percent-decoded.
pub fn query(text: &str) -> BTreeMap<String, String> {
    let plain = |text: &str| {
        let text = text.replace('+', " ");
        let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
        while let Some((first, after)) = rest.split_first() {
            let code = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
            match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) if *first == b'%' => {
                    bytes.push(byte);
                    rest = &after[2..];
                }
                _ => {
                    bytes.push(*first);
                    rest = after;
                }
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let pairs = text.split('&').filter(|part| !part.is_empty());
    pairs
        .map(|part| part.split_once('=').unwrap_or((part, "")))
        .map(|(key, value)| (plain(key), plain(value)))
        .collect()
}
