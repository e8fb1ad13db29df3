//! The kinds of objects: Kubernetes' own, as far as tests need them, and those of CustomResourceDefinitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

/// The built-in kinds as in the real server's discovery: GROUP/VERSION PLURAL KIND cluster|namespaced SHORT
/// SUBRESOURCES.
const OWN: &str = "
/v1 namespaces Namespace cluster ns status
/v1 nodes Node cluster no status
/v1 pods Pod namespaced po status,eviction,log,binding
/v1 services Service namespaced svc status
/v1 endpoints Endpoints namespaced ep -
/v1 secrets Secret namespaced - -
/v1 configmaps ConfigMap namespaced cm -
/v1 serviceaccounts ServiceAccount namespaced sa token
/v1 events Event namespaced ev -
/v1 persistentvolumeclaims PersistentVolumeClaim namespaced pvc status
events.k8s.io/v1 events Event namespaced ev -
discovery.k8s.io/v1 endpointslices EndpointSlice namespaced - -
apps/v1 deployments Deployment namespaced deploy status,scale
apps/v1 replicasets ReplicaSet namespaced rs status,scale
apps/v1 statefulsets StatefulSet namespaced sts status,scale
apps/v1 daemonsets DaemonSet namespaced ds status
batch/v1 jobs Job namespaced - status
batch/v1 cronjobs CronJob namespaced cj status
policy/v1 poddisruptionbudgets PodDisruptionBudget namespaced pdb status
coordination.k8s.io/v1 leases Lease namespaced - -
networking.k8s.io/v1 networkpolicies NetworkPolicy namespaced netpol -
rbac.authorization.k8s.io/v1 roles Role namespaced - -
rbac.authorization.k8s.io/v1 rolebindings RoleBinding namespaced - -
rbac.authorization.k8s.io/v1 clusterroles ClusterRole cluster - -
rbac.authorization.k8s.io/v1 clusterrolebindings ClusterRoleBinding cluster - -
admissionregistration.k8s.io/v1 mutatingwebhookconfigurations MutatingWebhookConfiguration cluster - -
apiextensions.k8s.io/v1 customresourcedefinitions CustomResourceDefinition cluster crd,crds status
scheduling.k8s.io/v1 priorityclasses PriorityClass cluster pc -
node.k8s.io/v1 runtimeclasses RuntimeClass cluster - -
authentication.k8s.io/v1 tokenreviews TokenReview cluster - -
authorization.k8s.io/v1 subjectaccessreviews SubjectAccessReview cluster - -
authorization.k8s.io/v1 selfsubjectaccessreviews SelfSubjectAccessReview cluster - -
";

/// One kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// The API group; empty for the core group.
    pub group: String,
    /// All served versions, of which the first is preferred.
    pub versions: Vec<String>,
    /// The name used in URLs.
    pub plural: String,
    /// The name used in objects.
    pub kind: String,
    /// True if its objects are namespaced.
    pub is_namespaced: bool,
    /// kubectl's short names.
    pub short: Vec<String>,
    /// The subresources.
    pub subresources: Vec<String>,
    /// True if it is built in, and false if it comes from a definition.
    pub is_own: bool,
    /// The columns for kubectl by version, from a definition's additionalPrinterColumns.
    pub columns: BTreeMap<String, Vec<Value>>,
    /// The schema of its objects by version, from a definition's openAPIV3Schema.
    pub schemas: BTreeMap<String, Arc<Value>>,
}

impl Kind {
    fn of_line(line: &str) -> Option<Kind> {
        let words: Vec<&str> = line.split(' ').collect();
        let [at, plural, kind, scope, short, subresources] = words.as_slice() else {
            return None;
        };
        let (group, version) = at.split_once('/')?;
        let list = |text: &str| -> Vec<String> {
            text.split(',')
                .filter(|word| *word != "-")
                .map(str::to_owned)
                .collect()
        };
        Some(Kind {
            group: group.to_owned(),
            versions: vec![version.to_owned()],
            plural: (*plural).to_owned(),
            kind: (*kind).to_owned(),
            is_namespaced: *scope == "namespaced",
            short: list(short),
            subresources: list(subresources),
            is_own: true,
            columns: BTreeMap::new(),
            schemas: BTreeMap::new(),
        })
    }

    /// Returns the kind that a CustomResourceDefinition defines, or `None` if the definition is incomplete.
    pub fn of_definition(definition: &Value) -> Option<Kind> {
        let spec = &definition["spec"];
        let versions = spec["versions"].as_array()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let has_status = versions
            .iter()
            .any(|version| version["subresources"]["status"].is_object());
        let short = spec["names"]["shortNames"].as_array();
        Some(Kind {
            group: text(&spec["group"])?,
            versions: versions
                .iter()
                .filter(|version| version["served"] == true)
                .map(|version| text(&version["name"]))
                .collect::<Option<_>>()?,
            plural: text(&spec["names"]["plural"])?,
            kind: text(&spec["names"]["kind"])?,
            is_namespaced: spec["scope"] == "Namespaced",
            short: short.map_or_else(Vec::new, |short| short.iter().filter_map(text).collect()),
            subresources: if has_status {
                vec!["status".into()]
            } else {
                Vec::new()
            },
            is_own: false,
            columns: versions
                .iter()
                .filter_map(|version| {
                    let columns = version["additionalPrinterColumns"].as_array()?;
                    Some((text(&version["name"])?, columns.clone()))
                })
                .collect(),
            schemas: versions
                .iter()
                .filter_map(|version| {
                    let schema = version["schema"]["openAPIV3Schema"].clone();
                    Some((text(&version["name"])?, Arc::new(schema)))
                })
                .collect(),
        })
    }

    /// Returns true if this subresource exists.
    pub fn has(&self, subresource: &str) -> bool {
        self.subresources.iter().any(|known| known == subresource)
    }

    /// Returns the API version, such as `v1` or `apps/v1`.
    pub fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() {
            version.to_owned()
        } else {
            format!("{}/{version}", self.group)
        }
    }
}

/// Returns the built-in kinds.
pub fn own() -> Vec<Kind> {
    OWN.lines().filter_map(Kind::of_line).collect()
}

/// Returns the response for /apis.
pub fn groups(kinds: &[Kind]) -> Value {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for kind in kinds.iter().filter(|kind| !kind.group.is_empty()) {
        let place = groups.iter().position(|(group, _)| *group == kind.group);
        let place = place.unwrap_or_else(|| {
            groups.push((kind.group.clone(), Vec::new()));
            groups.len() - 1
        });
        for version in &kind.versions {
            if !groups[place].1.contains(version) {
                groups[place].1.push(version.clone());
            }
        }
    }
    let groups: Vec<Value> = groups
        .into_iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| json!({ "groupVersion": format!("{group}/{version}"), "version": version }))
                .collect();
            json!({ "name": group, "preferredVersion": versions[0], "versions": versions })
        })
        .collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

/// Returns the response for /api/v1 and /apis/GROUP/VERSION, or `None` if there is no such version.
pub fn resources(kinds: &[Kind], group: &str, version: &str) -> Option<Value> {
    let verbs = json!([
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch"
    ]);
    let mut listed = Vec::new();
    let mut at = String::new();
    for kind in kinds {
        if kind.group != group || !kind.versions.iter().any(|served| served == version) {
            continue;
        }
        at = kind.api_version(version);
        let one = json!({
            "name": kind.plural, "singularName": kind.kind.to_lowercase(), "namespaced": kind.is_namespaced,
            "kind": kind.kind, "verbs": verbs, "shortNames": kind.short,
        });
        listed.push(one);
        for subresource in &kind.subresources {
            listed.push(json!({
                "name": format!("{}/{subresource}", kind.plural), "singularName": "", "namespaced": kind.is_namespaced,
                "kind": kind.kind, "verbs": ["create", "get", "patch", "update"],
            }));
        }
    }
    (!listed.is_empty()).then(
        || json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": at, "resources": listed }),
    )
}

/// Returns the response for /openapi/v3. It has no schemas. It only declares that the server itself validates fields,
/// which kubectl checks before it applies.
pub fn openapi(kinds: &[Kind], path: &str) -> Option<Value> {
    let mut documents: Vec<(String, &Kind, &str)> = Vec::new();
    for kind in kinds {
        for version in &kind.versions {
            let root = if kind.group.is_empty() { "api" } else { "apis" };
            documents.push((format!("{root}/{}", kind.api_version(version)), kind, version));
        }
    }
    if path == "/openapi/v3" {
        let paths: serde_json::Map<String, Value> = documents
            .iter()
            .map(|(at, _, _)| {
                (
                    at.clone(),
                    json!({ "serverRelativeURL": format!("/openapi/v3/{at}") }),
                )
            })
            .collect();
        return Some(json!({ "paths": paths }));
    }
    let wanted = path.strip_prefix("/openapi/v3/")?;
    let mut paths = serde_json::Map::new();
    for (at, kind, version) in documents.iter().filter(|(at, _, _)| at == wanted) {
        let parameters = json!([
            { "name": "fieldValidation", "in": "query", "schema": { "type": "string" } },
            { "name": "dryRun", "in": "query", "schema": { "type": "string" } },
        ]);
        let operation = json!({
            "x-kubernetes-group-version-kind": { "group": kind.group, "version": version, "kind": kind.kind },
            "x-kubernetes-action": "patch", "parameters": parameters, "responses": {},
        });
        let space = if kind.is_namespaced {
            "namespaces/{namespace}/"
        } else {
            ""
        };
        paths.insert(
            format!("/{at}/{space}{}/{{name}}", kind.plural),
            json!({ "parameters": [], "patch": operation }),
        );
    }
    (!paths.is_empty())
        .then(|| json!({ "openapi": "3.0.0", "info": { "title": "tests", "version": "v1" }, "paths": paths }))
}
