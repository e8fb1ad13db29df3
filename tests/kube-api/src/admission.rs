//! Mutating webhooks: which ones are called, in which order, and the HTTPS call itself.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use axum::body::{Body, to_bytes};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::cluster::Cluster;
use crate::failure::{Answer, Failure};
use crate::request::Ask;
use crate::select::Selector;
use crate::stamp;
use crate::store::Place;

const GROUP: &str = "admissionregistration.k8s.io";
/// The real server's size limit for a webhook's response.
const MOST_BYTES: usize = 3 << 20;
/// Maximum number of idle connections to each webhook. The real server uses HTTP/1.1 for webhooks and keeps this many
/// (client-go/transport/cache.go). Concurrent calls are not limited, and need a handshake if no connection is idle.
const MOST_IDLE: usize = 25;

/// Idle connections by webhook, CA and address, and statistics of the calls.
#[derive(Debug, Default)]
pub struct Callers {
    idle: Mutex<HashMap<String, Vec<SendRequest<Body>>>>,
    told: Mutex<Told>,
    turn: AtomicUsize,
}

#[derive(Debug, Default)]
struct Told {
    called: u64,
    failed: u64,
    last: String,
    handshakes: u64,
    /// Duration of each call, in milliseconds.
    times: Vec<f64>,
}

impl Callers {
    /// Returns the statistics: the number of calls, the failed ones, the last failure, the number of connections, and
    /// each call's duration in milliseconds.
    pub fn told(&self) -> Value {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "called": told.called, "failed": told.failed, "last_failure": told.last, "handshakes": told.handshakes,
            "ms": told.times,
        })
    }

    fn shook(&self) {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .handshakes += 1;
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<String, Vec<SendRequest<Body>>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self, key: &str) -> Option<SendRequest<Body>> {
        self.idle().get_mut(key)?.pop()
    }

    fn keep(&self, key: String, connection: SendRequest<Body>) {
        let mut idle = self.idle();
        let with_it = idle.entry(key).or_default();
        if with_it.len() < MOST_IDLE {
            with_it.push(connection);
        }
    }

    fn tell(&self, came: &anyhow::Result<Value>, took: Duration) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.called += 1;
        told.times.push(took.as_secs_f64() * 1e3);
        if let Err(error) = came {
            told.failed += 1;
            told.last = format!("{error:#}");
        }
    }
}

/// Calls the webhooks for an object that is about to be written. Returns the changed object and their warnings.
///
/// # Errors
/// Returns Forbidden if a webhook denies the request, and InternalError if a required webhook fails.
pub async fn mutate(
    cluster: &Cluster,
    ask: &Ask,
    object: Value,
    old: &Value,
) -> Answer<(Value, Vec<String>)> {
    let operation = match ask.verb.as_str() {
        "create" => "CREATE",
        "delete" => "DELETE",
        _ => "UPDATE",
    };
    let webhooks = registered(cluster, ask, operation);
    let (mut object, mut warnings) = (object, Vec::new());
    if webhooks.is_empty() {
        return Ok((object, warnings));
    }
    let space = cluster
        .store()
        .at(&Place::new("", "namespaces", "", &ask.namespace));
    let mut seen = Vec::new();
    for round in 0..2 {
        for (number, (key, webhook)) in webhooks.iter().enumerate() {
            let is_chosen = Selector::of_object(&webhook["objectSelector"]).matches(&object)
                && space
                    .as_ref()
                    .is_none_or(|space| Selector::of_object(&webhook["namespaceSelector"]).matches(space));
            // In the second round, calls only webhooks that request it, and only if the object has changed since their
            // first call.
            let is_again = webhook["reinvocationPolicy"] == "IfNeeded" && seen.get(number) != Some(&object);
            if !is_chosen || (round == 1 && !is_again) {
                seen.push(Value::Null);
                continue;
            }
            object = one(
                cluster,
                ask,
                operation,
                (key, webhook),
                object,
                old,
                &mut warnings,
            )
            .await?;
            if round == 0 {
                seen.push(object.clone());
            }
        }
    }
    Ok((object, warnings))
}

/// Returns the webhooks with matching rules, in call order.
fn registered(cluster: &Cluster, ask: &Ask, operation: &str) -> Vec<(String, Value)> {
    let store = cluster.store();
    let resource = (GROUP.to_owned(), "mutatingwebhookconfigurations".to_owned());
    let mut webhooks = Vec::new();
    for (place, configuration) in store.all(&resource, None) {
        for webhook in configuration["webhooks"].as_array().into_iter().flatten() {
            let mut rules = webhook["rules"].as_array().into_iter().flatten();
            if rules.any(|rule| fits(rule, ask, operation)) {
                webhooks.push((place.name.clone(), webhook.clone()));
            }
        }
    }
    webhooks
}

fn fits(rule: &Value, ask: &Ask, operation: &str) -> bool {
    let has = |list: &str, word: &str| {
        let list = rule[list].as_array();
        list.is_some_and(|list| list.iter().any(|one| one == word || one == "*"))
    };
    let scope = rule["scope"].as_str().unwrap_or("*");
    has("operations", operation)
        && has("apiGroups", &ask.kind.group)
        && has("apiVersions", &ask.version)
        && has("resources", &ask.resource())
        && (scope == "*" || (scope == "Namespaced") == ask.kind.is_namespaced)
}

async fn one(
    cluster: &Cluster,
    ask: &Ask,
    operation: &str,
    (configuration, webhook): (&str, &Value),
    object: Value,
    old: &Value,
    warnings: &mut Vec<String>,
) -> Answer<Value> {
    let name = webhook["name"].as_str().unwrap_or("");
    if ask.is_dry() && webhook["sideEffects"] != "None" && webhook["sideEffects"] != "NoneOnDryRun" {
        return Err(Failure::new(
            "BadRequest",
            format!("admission webhook {name:?} does not support dry run"),
        ));
    }
    let uid = stamp::uid();
    let gvk = json!({ "group": ask.kind.group, "version": ask.version, "kind": ask.kind.kind });
    let gvr = json!({ "group": ask.kind.group, "version": ask.version, "resource": ask.kind.plural });
    let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": uid, "kind": gvk, "resource": gvr, "requestKind": gvk, "requestResource": gvr, "subResource": ask.sub,
        "name": object["metadata"]["name"], "namespace": ask.namespace, "operation": operation,
        "userInfo": ask.user.info(), "object": object, "oldObject": old, "dryRun": ask.is_dry(),
    } });
    let began = std::time::Instant::now();
    let patience = Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(10));
    let came = match timeout(patience, call(cluster, configuration, webhook, &review, &uid)).await {
        Ok(came) => came,
        Err(_) => Err(anyhow!("context deadline exceeded")),
    };
    cluster.callers.tell(&came, began.elapsed());
    let response = match came {
        Ok(response) => response,
        Err(_) if webhook["failurePolicy"] == "Ignore" => return Ok(object),
        Err(error) => {
            let message = format!(
                "Internal error occurred: failed calling webhook {name:?}: failed to call webhook: {error:#}"
            );
            return Err(Failure::new("InternalError", message));
        }
    };
    let told = response["warnings"].as_array().into_iter().flatten();
    warnings.extend(told.filter_map(|text| text.as_str().map(str::to_owned)));
    if response["allowed"] != true {
        let why = response["status"]["message"].as_str().unwrap_or("unknown reason");
        let message = format!("admission webhook {name:?} denied the request: {why}");
        return Err(Failure::new("Forbidden", message));
    }
    let Some(patch) = response["patch"].as_str() else {
        return Ok(object);
    };
    let broken =
        |error: String| Failure::new("InternalError", format!("admission webhook {name:?}: {error}"));
    if response["patchType"] != "JSONPatch" {
        return Err(broken("invalid patchType".into()));
    }
    let patch = STANDARD
        .decode(patch)
        .map_err(|error| broken(error.to_string()))?;
    crate::patch::change(&object, "application/json-patch+json", &patch, true)
        .map_err(|failure| broken(failure.message))
}

async fn call(
    cluster: &Cluster,
    configuration: &str,
    webhook: &Value,
    review: &Value,
    uid: &str,
) -> anyhow::Result<Value> {
    let client = &webhook["clientConfig"];
    let (address, name, path) = whereto(cluster, client)?;
    let bundle = client["caBundle"].as_str().unwrap_or("");
    let key = format!("{configuration} {} {address} {bundle}", webhook["name"]);
    let body = review.to_string();
    let mut answer = None;
    // An idle connection may have been closed in the meantime. In that case a new one is used, as HTTP clients do.
    while let Some(mut idle) = cluster.callers.pop(&key) {
        if let Ok(came) = send(&mut idle, &name, &path, &body).await {
            answer = Some((came, idle));
            break;
        }
    }
    let (answer, connection) = match answer {
        Some(answer) => answer,
        None => {
            let mut connection = connect(address, &name, bundle).await?;
            cluster.callers.shook();
            (send(&mut connection, &name, &path, &body).await?, connection)
        }
    };
    cluster.callers.keep(key, connection);
    ensure!(
        answer["kind"] == "AdmissionReview",
        "the answer is no AdmissionReview"
    );
    ensure!(
        answer["response"]["uid"] == uid,
        "expected response.uid={uid}, got {}",
        answer["response"]["uid"]
    );
    Ok(answer["response"].clone())
}

/// Returns the address, the expected name in its certificate, and the path. A Service resolves to each of its Endpoints
/// in turn.
fn whereto(cluster: &Cluster, client: &Value) -> anyhow::Result<(SocketAddr, String, String)> {
    if let Some(url) = client["url"].as_str() {
        let rest = url.strip_prefix("https://").context("the URL is not https")?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        return Ok((host.parse()?, name.to_owned(), format!("/{path}")));
    }
    let service = &client["service"];
    let text = |word: &str| service[word].as_str().context("the service is not whole");
    let (namespace, name) = (text("namespace")?, text("name")?);
    let endpoints = cluster
        .store()
        .at(&Place::new("", "endpoints", namespace, name))
        .with_context(|| format!("service {name:?} not found"))?;
    let mut all = Vec::new();
    for subset in endpoints["subsets"].as_array().into_iter().flatten() {
        let port = subset["ports"][0]["port"].as_u64().context("no port")?;
        for address in subset["addresses"].as_array().into_iter().flatten() {
            all.push(format!("{}:{port}", address["ip"].as_str().unwrap_or("")));
        }
    }
    ensure!(!all.is_empty(), "no endpoints available for service {name:?}");
    let turn = cluster.callers.turn.fetch_add(1, Ordering::Relaxed);
    let path = service["path"].as_str().unwrap_or("/").to_owned();
    Ok((
        all[turn % all.len()].parse()?,
        format!("{name}.{namespace}.svc"),
        path,
    ))
}

async fn connect(address: SocketAddr, name: &str, bundle: &str) -> anyhow::Result<SendRequest<Body>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&STANDARD.decode(bundle)?) {
        roots.add(certificate?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(name.to_owned())?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn send(
    connection: &mut SendRequest<Body>,
    host: &str,
    path: &str,
    body: &str,
) -> anyhow::Result<Value> {
    connection.ready().await?;
    let request = hyper::Request::post(path)
        .header("host", host)
        .header("content-type", "application/json")
        .header("accept", "application/json")
        .body(Body::from(body.to_owned()))?;
    let response = connection.send_request(request).await?;
    let status = response.status();
    let bytes = to_bytes(Body::new(response.into_body()), MOST_BYTES).await?;
    ensure!(
        status.is_success(),
        "{status}: {}",
        String::from_utf8_lossy(&bytes)
    );
    Ok(serde_json::from_slice(&bytes)?)
}
