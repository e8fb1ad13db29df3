//! Serves HTTP requests. This includes authentication, authorization and routing.

use std::sync::Arc;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::access::{self, User, Wish};
use crate::cluster::Cluster;
use crate::failure::{Answer, Failure};
use crate::request::{Ask, query, target};
use crate::{kinds, leaving, objects, pods, table, watching};

const MOST_BYTES: usize = 3 << 20;

/// Returns the router for all requests.
pub fn pages(cluster: &Arc<Cluster>) -> Router {
    Router::new().fallback(any).with_state(Arc::clone(cluster))
}

fn page(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

async fn any(State(cluster): State<Arc<Cluster>>, request: Request) -> Response {
    answer(&cluster, request)
        .await
        .unwrap_or_else(Failure::into_response)
}

async fn answer(cluster: &Arc<Cluster>, request: Request) -> Answer<Response> {
    let slow = cluster.trouble().slow;
    sleep(slow).await;
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    if matches!(path.as_str(), "/healthz" | "/readyz" | "/livez") {
        return Ok("ok".into_response());
    }
    let user = caller(cluster, &head.headers)?;
    let body = to_bytes(axum::body::Body::new(body), MOST_BYTES)
        .await
        .map_err(|_| {
            Failure::new(
                "RequestEntityTooLarge",
                "Request entity too large: limit is 3145728",
            )
        })?;
    if let Some(found) = discovery(cluster, &path) {
        return found.map(|found| page(&found));
    }
    if let Some(rest) = path.strip_prefix("/_test/") {
        return test(cluster, &user, rest, &body);
    }
    let target = target(cluster, &path)?;
    let query = query(head.uri.query().unwrap_or(""));
    let is_watch = matches!(query.get("watch").map(String::as_str), Some("true" | "1"));
    let verb = match (head.method.as_str(), target.name.is_empty()) {
        ("GET" | "HEAD", _) if is_watch => "watch",
        ("GET" | "HEAD", true) => "list",
        ("GET" | "HEAD", false) => "get",
        ("POST", _) => "create",
        ("PUT", false) => "update",
        ("PATCH", false) => "patch",
        ("DELETE", true) => "deletecollection",
        ("DELETE", false) => "delete",
        _ => {
            return Err(Failure::new(
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            ));
        }
    };
    let content = head
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let content = content.unwrap_or("").split(';').next().unwrap_or("").trim();
    let ask = Ask {
        user,
        verb: verb.to_owned(),
        kind: target.kind,
        version: target.version,
        namespace: target.namespace,
        name: target.name,
        sub: target.sub,
        query,
        body,
        content_type: content.to_owned(),
        wants_table: head
            .headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .is_some_and(table::is_wanted),
    };
    let done = allowed(cluster, &ask, &ask.verb).map(|()| ask.clone());
    let done = match done {
        // The request is rejected before it is processed, so the response is plain text and not a Status.
        Ok(ask) if cluster.is_crowded(&ask.resource()) => Ok((
            StatusCode::TOO_MANY_REQUESTS,
            [(header::RETRY_AFTER, "1")],
            "Too many requests, please try again later.\n",
        )
            .into_response()),
        Ok(ask) => dispatch(cluster, ask).await,
        Err(failure) => Err(failure),
    };
    let code = match &done {
        Ok(response) => response.status().as_u16(),
        Err(failure) => failure.code,
    };
    let resource = format!("{}/{}", ask.kind.group, ask.resource());
    cluster.audited((
        ask.user.name.clone(),
        ask.verb.clone(),
        resource,
        ask.namespace.clone(),
        ask.name.clone(),
        code,
    ));
    done
}

fn caller(cluster: &Cluster, headers: &HeaderMap) -> Answer<User> {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    let user = token.and_then(|token| cluster.tokens.user(token.trim(), &cluster.store()));
    user.ok_or_else(|| Failure::new("Unauthorized", "Unauthorized"))
}

fn allowed(cluster: &Cluster, ask: &Ask, verb: &str) -> Answer<()> {
    let resource = ask.resource();
    let wish = Wish {
        verb,
        group: &ask.kind.group,
        resource: &resource,
        namespace: &ask.namespace,
        name: &ask.name,
    };
    // All users may review their own permissions.
    if ask.kind.kind == "SelfSubjectAccessReview" || access::may(&ask.user, wish, &cluster.store()) {
        return Ok(());
    }
    let place = if ask.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", ask.namespace)
    };
    let message = format!(
        "{} {:?} is forbidden: User {:?} cannot {verb} resource {resource:?} in API group {:?} {place}",
        ask.kind.plural, ask.name, ask.user.name, ask.kind.group
    );
    Err(Failure::new("Forbidden", message)
        .with(json!({ "name": ask.name, "group": ask.kind.group, "kind": ask.kind.plural })))
}

fn discovery(cluster: &Cluster, path: &str) -> Option<Answer<Value>> {
    let none = || Failure::new("NotFound", "the server could not find the requested resource");
    let words: Vec<&str> = path.trim_matches('/').split('/').collect();
    match words.as_slice() {
        ["version"] => Some(Ok(
            json!({ "major": "1", "minor": "33", "gitVersion": "v1.33.0+paceline-tests", "platform": "linux/amd64" }),
        )),
        ["api"] => Some(Ok(
            json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }),
        )),
        ["apis"] => Some(Ok(kinds::groups(&cluster.kinds()))),
        ["api", version] => Some(kinds::resources(&cluster.kinds(), "", version).ok_or_else(none)),
        ["apis", group, version] => Some(kinds::resources(&cluster.kinds(), group, version).ok_or_else(none)),
        ["openapi", "v3", ..] => {
            Some(kinds::openapi(&cluster.kinds(), path.trim_end_matches('/')).ok_or_else(none))
        }
        ["openapi", ..] => Some(Err(none())),
        _ => None,
    }
}

/// Handles requests that only tests use. See the crate's documentation.
fn test(cluster: &Cluster, user: &User, word: &str, body: &[u8]) -> Answer<Response> {
    if !user.groups.iter().any(|group| group == "system:masters") {
        return Err(Failure::new("Forbidden", "only the administrator"));
    }
    match word {
        "trouble" => {
            let wish = serde_json::from_slice(body)
                .map_err(|error| Failure::new("BadRequest", error.to_string()))?;
            cluster.make_trouble(&wish);
            Ok(page(&json!({})))
        }
        "audit" => Ok(page(&cluster.audit())),
        "webhooks" => Ok(page(&cluster.callers.told())),
        _ => Err(Failure::new("NotFound", "trouble, audit or webhooks")),
    }
}

async fn dispatch(cluster: &Arc<Cluster>, ask: Ask) -> Answer<Response> {
    let options = || serde_json::from_slice::<Value>(&ask.body).unwrap_or(Value::Null);
    match (ask.verb.as_str(), ask.sub.as_str()) {
        ("watch", _) => watching::watch(cluster, ask),
        ("list", _) => watching::list(cluster, &ask).map(|list| read(&ask, &list["items"], &list)),
        ("get", _) => {
            let object = cluster.store().find(&ask.place(&ask.name))?;
            let object = watching::shown(&ask, &object);
            Ok(read(&ask, &json!([object]), &object))
        }
        ("create", _) => create(cluster, &ask).await,
        ("update", _) => {
            let object = ask.object()?;
            written(
                &ask,
                StatusCode::OK,
                objects::update(cluster, &ask, object).await?,
            )
        }
        ("patch", _) => {
            let is_there = cluster.store().at(&ask.place(&ask.name)).is_some();
            // Apply can create an object, which needs a separate permission.
            if !is_there && ask.content_type == "application/apply-patch+yaml" {
                allowed(cluster, &ask, "create")?;
            }
            let code = if is_there {
                StatusCode::OK
            } else {
                StatusCode::CREATED
            };
            written(&ask, code, objects::patch(cluster, &ask).await?)
        }
        ("delete", _) => {
            let mut options = options();
            if let Ok(grace) = ask.query("gracePeriodSeconds").parse::<u64>() {
                options["gracePeriodSeconds"] = json!(grace);
            }
            let gone = leaving::delete(cluster, &ask, &ask.name, &options)?;
            Ok(page(&watching::shown(&ask, &gone)))
        }
        ("deletecollection", _) => {
            let list = watching::list(cluster, &ask)?;
            for object in list["items"].as_array().into_iter().flatten() {
                leaving::delete(
                    cluster,
                    &ask,
                    object["metadata"]["name"].as_str().unwrap_or(""),
                    &options(),
                )?;
            }
            Ok(page(&list))
        }
        _ => Err(Failure::new(
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )),
    }
}

/// Returns objects as they are, or as a table if there are columns.
fn read(ask: &Ask, objects: &Value, whole: &Value) -> Response {
    match objects.as_array() {
        Some(objects) if ask.wants_table && !ask.kind.is_own && ask.sub.is_empty() => {
            let mut meta = whole["metadata"].clone();
            if ask.verb == "get" {
                meta = json!({ "resourceVersion": meta["resourceVersion"] });
            }
            page(&table::of(
                &ask.kind,
                &ask.version,
                objects,
                &meta,
                ask.query("includeObject"),
            ))
        }
        _ => page(whole),
    }
}

async fn create(cluster: &Arc<Cluster>, ask: &Ask) -> Answer<Response> {
    let object = ask.object()?;
    let created = |value: &Value| (StatusCode::CREATED, page(value)).into_response();
    match (ask.kind.kind.as_str(), ask.sub.as_str()) {
        ("TokenReview", _) => Ok(created(&cluster.tokens.review(&object, &cluster.store()))),
        ("SubjectAccessReview", _) => Ok(created(&access::review(&object, None, &cluster.store()))),
        ("SelfSubjectAccessReview", _) => Ok(created(&access::review(
            &object,
            Some(&ask.user),
            &cluster.store(),
        ))),
        ("ServiceAccount", "token") => {
            cluster.store().find(&ask.place(&ask.name))?;
            Ok(created(&cluster.tokens.request(
                &ask.namespace,
                &ask.name,
                &object,
                &cluster.store(),
            )))
        }
        ("Pod", "eviction") => pods::evict(cluster, ask, &object).map(|done| created(&done)),
        ("Pod", "binding") => {
            let place = ask.place(&ask.name);
            let mut store = cluster.store();
            let mut pod = Value::clone(&*store.find(&place)?);
            pod["spec"]["nodeName"] = object["target"]["name"].clone();
            store.put(&place, pod);
            Ok(created(
                &json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }),
            ))
        }
        (_, "") if ask.name.is_empty() => written(
            ask,
            StatusCode::CREATED,
            objects::create(cluster, ask, object).await?,
        ),
        _ => Err(Failure::new(
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )),
    }
}

fn written(ask: &Ask, code: StatusCode, (object, warnings): objects::Written) -> Answer<Response> {
    let mut response = (code, page(&watching::shown(ask, &object))).into_response();
    for warning in warnings {
        let text = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{text}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(response)
}
