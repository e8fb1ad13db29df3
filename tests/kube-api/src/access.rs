//! Authentication by bearer token, and authorization by the Roles and bindings in the store.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::stamp;
use crate::store::{Place, Store};

/// The default audience of a token.
const AUDIENCE: &str = "https://kubernetes.default.svc";
const RBAC: &str = "rbac.authorization.k8s.io";

/// A user.
#[derive(Clone, Debug, PartialEq)]
pub struct User {
    /// The user's name: `system:serviceaccount:NAMESPACE:NAME`, or a person's name.
    pub name: String,
    /// The user's groups. `system:masters` is allowed everything.
    pub groups: Vec<String>,
    /// Extra information. For a pod's token, it contains the pod and the node.
    pub extra: Value,
    audiences: Vec<String>,
    /// The pod's namespace, name and uid. The token becomes invalid when this pod is deleted.
    pod: Option<(String, String, String)>,
}

impl User {
    /// Returns a user without a pod.
    pub fn new(name: &str, groups: &[&str]) -> User {
        let mut all: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        all.push("system:authenticated".into());
        User {
            name: name.to_owned(),
            groups: all,
            extra: json!({}),
            audiences: vec![AUDIENCE.into()],
            pod: None,
        }
    }

    /// Returns the stored form of a token.
    fn line(&self, token: &str) -> Value {
        json!({
            "token": token, "name": self.name, "groups": self.groups, "extra": self.extra,
            "audiences": self.audiences, "pod": self.pod,
        })
    }

    fn of_line(line: &Value) -> Option<User> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let list = |value: &Value| value.as_array()?.iter().map(text).collect::<Option<Vec<_>>>();
        let pod = match line["pod"].as_array().map(Vec::as_slice) {
            Some([namespace, name, uid]) => Some((text(namespace)?, text(name)?, text(uid)?)),
            _ => None,
        };
        Some(User {
            name: text(&line["name"])?,
            groups: list(&line["groups"])?,
            extra: line["extra"].clone(),
            audiences: list(&line["audiences"])?,
            pod,
        })
    }

    /// Returns the form used in reviews.
    pub fn info(&self) -> Value {
        json!({ "username": self.name, "groups": self.groups, "extra": self.extra })
    }
}

/// A requested operation.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The verb: get, list, watch, create, update, patch, delete or deletecollection.
    pub verb: &'a str,
    /// The API group.
    pub group: &'a str,
    /// The resource, such as `pods` or `pods/eviction`.
    pub resource: &'a str,
    /// The namespace; empty for all namespaces or for a cluster-scoped resource.
    pub namespace: &'a str,
    /// The object's name; empty for all objects.
    pub name: &'a str,
}

/// All tokens and their users.
#[derive(Debug, Default)]
pub struct Tokens(Mutex<BTreeMap<String, User>>);

impl Tokens {
    /// Registers a token for a user.
    pub fn add(&self, token: &str, user: User) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(token.to_owned(), user);
    }

    /// Returns the user of a token, or `None` if the token is unknown or its pod is deleted.
    pub fn user(&self, token: &str, store: &Store) -> Option<User> {
        let user = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(token)
            .cloned()?;
        if let Some((namespace, name, uid)) = &user.pod {
            let pod = store.at(&Place::new("", "pods", namespace, name))?;
            if pod["metadata"]["uid"] != *uid {
                return None;
            }
        }
        Some(user)
    }

    /// Creates a token for a ServiceAccount in response to a TokenRequest.
    pub fn request(&self, namespace: &str, account: &str, request: &Value, store: &Store) -> Value {
        let name = format!("system:serviceaccount:{namespace}:{account}");
        let spaces = format!("system:serviceaccounts:{namespace}");
        let mut user = User::new(&name, &["system:serviceaccounts", &spaces]);
        let spec = &request["spec"];
        if let Some(audiences) = spec["audiences"].as_array().filter(|list| !list.is_empty()) {
            user.audiences = audiences
                .iter()
                .filter_map(|one| one.as_str().map(str::to_owned))
                .collect();
        }
        let bound = spec["boundObjectRef"]["name"].as_str();
        if let Some(pod) = bound.and_then(|name| store.at(&Place::new("", "pods", namespace, name))) {
            let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
            let (name, uid) = (text(&pod["metadata"]["name"]), text(&pod["metadata"]["uid"]));
            user.extra = json!({
                "authentication.kubernetes.io/pod-name": [name], "authentication.kubernetes.io/pod-uid": [uid],
                "authentication.kubernetes.io/node-name": [pod["spec"]["nodeName"]],
            });
            user.pod = Some((namespace.to_owned(), name, uid));
        }
        let token = stamp::hex(24);
        store.note(&user.line(&token));
        self.add(&token, user);
        let mut answer = request.clone();
        answer["status"] = json!({ "token": token, "expirationTimestamp": "2099-01-01T00:00:00Z" });
        answer
    }

    /// Restores a stored token. Returns `None` if the line is not a token.
    pub fn restore(&self, line: &Value) -> Option<()> {
        self.add(line["token"].as_str()?, User::of_line(line)?);
        Some(())
    }

    /// Returns the response to a TokenReview.
    pub fn review(&self, review: &Value, store: &Store) -> Value {
        let mut answer = review.clone();
        let user = self.user(review["spec"]["token"].as_str().unwrap_or(""), store);
        let wanted = review["spec"]["audiences"].as_array().cloned();
        let wanted = wanted.unwrap_or_else(|| vec![json!(AUDIENCE)]);
        answer["status"] = match user {
            Some(user) => {
                let common: Vec<&Value> = wanted
                    .iter()
                    .filter(|one| user.audiences.iter().any(|audience| **one == *audience))
                    .collect();
                if common.is_empty() {
                    json!({ "authenticated": false, "error": "token audiences are invalid for the target audiences" })
                } else {
                    json!({ "authenticated": true, "user": user.info(), "audiences": common })
                }
            }
            None => json!({ "authenticated": false, "error": "invalid bearer token" }),
        };
        answer
    }
}

/// Returns true if the operation is allowed.
pub fn may(user: &User, wish: Wish<'_>, store: &Store) -> bool {
    if user.groups.iter().any(|group| group == "system:masters") {
        return true;
    }
    let resource = |plural: &str| (RBAC.to_owned(), plural.to_owned());
    let cluster = resource("clusterrolebindings");
    let mut bindings: Vec<_> = store.all(&cluster, None).map(|(_, binding)| binding).collect();
    let local = resource("rolebindings");
    if !wish.namespace.is_empty() {
        bindings.extend(
            store
                .all(&local, Some(wish.namespace))
                .map(|(_, binding)| binding),
        );
    }
    bindings.into_iter().any(|binding| {
        let subjects = binding["subjects"].as_array();
        if !subjects.is_some_and(|subjects| subjects.iter().any(|subject| is_meant(subject, user))) {
            return false;
        }
        let name = binding["roleRef"]["name"].as_str().unwrap_or("");
        let role = if binding["roleRef"]["kind"] == "ClusterRole" {
            store.at(&Place::new(RBAC, "clusterroles", "", name))
        } else {
            let namespace = binding["metadata"]["namespace"].as_str().unwrap_or("");
            store.at(&Place::new(RBAC, "roles", namespace, name))
        };
        let rules = role.as_ref().and_then(|role| role["rules"].as_array());
        rules.is_some_and(|rules| rules.iter().any(|rule| allows(rule, wish)))
    })
}

fn is_meant(subject: &Value, user: &User) -> bool {
    let name = subject["name"].as_str().unwrap_or("");
    match subject["kind"].as_str() {
        Some("User") => user.name == name,
        Some("Group") => user.groups.iter().any(|group| group == name),
        Some("ServiceAccount") => {
            let namespace = subject["namespace"].as_str().unwrap_or("");
            user.name == format!("system:serviceaccount:{namespace}:{name}")
        }
        _ => false,
    }
}

fn allows(rule: &Value, wish: Wish<'_>) -> bool {
    let has = |list: &str, word: &str| {
        let list = rule[list].as_array();
        list.is_some_and(|list| list.iter().any(|one| one == word || one == "*"))
    };
    let names = rule["resourceNames"].as_array().filter(|names| !names.is_empty());
    has("verbs", wish.verb)
        && has("apiGroups", wish.group)
        && has("resources", wish.resource)
        && names.is_none_or(|names| names.iter().any(|name| *name == wish.name))
}

/// Returns the response to a SubjectAccessReview, or to a SelfSubjectAccessReview if `own` is given.
pub fn review(review: &Value, own: Option<&User>, store: &Store) -> Value {
    let spec = &review["spec"];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let user = own.cloned().unwrap_or_else(|| {
        let groups = spec["groups"].as_array().into_iter().flatten();
        let groups: Vec<String> = groups.map(text).collect();
        User::new(
            &text(&spec["user"]),
            &groups.iter().map(String::as_str).collect::<Vec<_>>(),
        )
    });
    let asked = &spec["resourceAttributes"];
    let (resource, subresource) = (text(&asked["resource"]), text(&asked["subresource"]));
    let resource = if subresource.is_empty() {
        resource
    } else {
        format!("{resource}/{subresource}")
    };
    let wish = Wish {
        verb: asked["verb"].as_str().unwrap_or(""),
        group: asked["group"].as_str().unwrap_or(""),
        resource: &resource,
        namespace: asked["namespace"].as_str().unwrap_or(""),
        name: asked["name"].as_str().unwrap_or(""),
    };
    let mut answer = review.clone();
    answer["status"] = json!({ "allowed": may(&user, wish, store) });
    answer
}
