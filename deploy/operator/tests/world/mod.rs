//! A test API server with the permissions that the chart grants, and the real program.

#![allow(dead_code)] // Each test file uses only a part of this module.

pub mod hostile;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline_kube_api::Server;
use paceline_kube_api::client::Caller;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Timeout for any operation, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(90);
pub const PODS: &str = "/api/v1/namespaces/ml/pods";
pub const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
pub const NAME: &str = "paceline-injector";
pub const SECRET: &str = "paceline-injector-own";

pub struct World {
    pub server: Server,
    pub admin: Caller,
    dir: TempDir,
}

/// Returns the chart's roles with all optional rules. This needs no helm, because the template contains only conditions
/// and names. A permission that the chart lacks is denied here too.
fn roles() -> Vec<Value> {
    let chart = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../helm/paceline/templates/injector/rights.yaml"
    );
    let text = std::fs::read_to_string(chart).unwrap();
    let mut plain = String::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("{{")) {
        let (before, rest) = line.split_once("{{").unwrap_or((line, ""));
        let (inside, after) = rest.split_once("}}").unwrap_or(("", ""));
        let name = match inside {
            "" => "",
            inside if inside.contains("secret") => SECRET,
            _ => NAME,
        };
        plain += &format!("{before}{name}{after}\n");
    }
    let documents = plain
        .split("---\n")
        .map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    let roles: Vec<Value> = documents.filter(|one| one["rules"].is_array()).collect();
    let kinds: Vec<&Value> = roles.iter().map(|role| &role["kind"]).collect();
    assert_eq!(kinds, ["Role", "ClusterRole"]);
    roles
}

impl World {
    pub async fn begin() -> World {
        let server = Server::start(([127, 0, 0, 1], 0).into()).await.unwrap();
        let admin = Caller::new(&server, &server.token).unwrap();
        for name in ["paceline", "ml"] {
            admin
                .post("/api/v1/namespaces", &json!({ "metadata": { "name": name } }))
                .await
                .unwrap();
        }
        let token = admin.token("paceline", "injector", &json!({})).await.unwrap();
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let subjects = json!([{ "kind": "ServiceAccount", "name": "injector", "namespace": "paceline" }]);
        for role in roles() {
            let kind = role["kind"].as_str().unwrap().to_owned();
            let place = match &*kind {
                "Role" => format!("{rbac}/namespaces/paceline"),
                _ => rbac.to_owned(),
            };
            let (meta, kinds) = (
                json!({ "name": NAME }),
                format!("{place}/{}", kind.to_lowercase()),
            );
            admin
                .post(
                    &format!("{kinds}s"),
                    &json!({ "metadata": meta, "rules": role["rules"] }),
                )
                .await
                .unwrap();
            let body =
                json!({ "metadata": meta, "subjects": subjects, "roleRef": { "kind": kind, "name": NAME } });
            let (code, _) = admin.post(&format!("{kinds}bindings"), &body).await.unwrap();
            assert_eq!(code, 201);
        }
        let dir = TempDir::new().unwrap();
        std::fs::write(
            dir.path().join("kubeconfig"),
            server.kubeconfig(&token).to_string(),
        )
        .unwrap();
        let world = World { server, admin, dir };
        world.register("Fail").await;
        world
    }

    /// Returns the path of a file in the test's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    /// Registers the webhook like the chart does, without a caBundle.
    pub async fn register(&self, policy: &str) {
        let webhook = json!({
            "name": "inject.paceline.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "timeoutSeconds": 5, "failurePolicy": policy, "reinvocationPolicy": "IfNeeded",
            "clientConfig": { "service": { "name": NAME, "namespace": "paceline", "path": "/inject", "port": 443 } },
            "rules": [{ "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"] }],
            "objectSelector": { "matchExpressions": [{ "key": "paceline.dev/inject", "operator": "NotIn", "values": ["false"] }] },
        });
        let body = json!({ "metadata": { "name": NAME }, "webhooks": [webhook] });
        assert_eq!(self.admin.post(CONFIGURATIONS, &body).await.unwrap().0, 201);
    }

    /// Sets the endpoints of the Service.
    pub async fn serve(&self, operators: &[&Operator]) {
        let subsets: Vec<Value> = operators
            .iter()
            .map(|operator| json!({ "addresses": [{ "ip": "127.0.0.1" }], "ports": [{ "port": operator.webhook }] }))
            .collect();
        let path = "/api/v1/namespaces/paceline/endpoints";
        let body = json!({ "metadata": { "name": NAME }, "subsets": subsets });
        if self.admin.post(path, &body).await.unwrap().0 == 409 {
            let (code, _) = self.admin.put(&format!("{path}/{NAME}"), &body).await.unwrap();
            assert_eq!(code, 200);
        }
    }

    /// Creates a pod that requests injection. Returns the status code and the pod.
    pub async fn pod(&self, name: &str, change: impl Fn(&mut Value)) -> (u16, Value) {
        let mut pod = json!({
            "metadata": { "name": name, "labels": { "paceline.dev/inject": "true" } },
            "spec": { "containers": [{ "name": "t", "image": "i", "command": ["train"] }] },
        });
        change(&mut pod);
        self.admin.post(PODS, &pod).await.unwrap()
    }

    pub async fn secret(&self, name: &str) -> Option<Value> {
        let path = format!("/api/v1/namespaces/ml/secrets/{name}");
        let (code, secret) = self.admin.get(&path).await.ok()?;
        (code == 200).then_some(secret)
    }

    pub async fn until_secret(&self, name: &str) -> Value {
        let began = Instant::now();
        loop {
            if let Some(secret) = self.secret(name).await {
                return secret;
            }
            assert!(began.elapsed() < PATIENCE, "no Secret {name}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits for an Event about this object with this code.
    pub async fn until_event(&self, about: &str, code: &str) -> Value {
        let began = Instant::now();
        loop {
            let (_, list) = self.admin.get("/api/v1/namespaces/ml/events").await.unwrap();
            let mut events = list["items"].as_array().unwrap().iter();
            let is_it = |event: &&Value| {
                event["involvedObject"]["name"] == about
                    && event["metadata"]["annotations"]["paceline.dev/code"] == code
            };
            if let Some(event) = events.find(is_it) {
                return event.clone();
            }
            assert!(
                began.elapsed() < PATIENCE,
                "no Event {code} about {about}: {list}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The real program, running as a process.
pub struct Operator {
    child: Child,
    pub webhook: u16,
    pub health: u16,
    said: Arc<Mutex<String>>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Operator {
    /// Starts the program with self-signed certificates.
    pub async fn start(world: &World, more: &[&str]) -> Operator {
        let own = ["--self-signed", SECRET, "--service", NAME];
        Operator::start_with(world, &own, more).await
    }

    pub async fn start_with(world: &World, certificates: &[&str], more: &[&str]) -> Operator {
        // The variable can name another build of the program, for measurements.
        let program = std::env::var("PACELINE_OPERATOR");
        let program = program.unwrap_or_else(|_| env!("CARGO_BIN_EXE_paceline-operator").to_owned());
        let mut child = Command::new(program)
            .args([
                "inject",
                "--listen",
                "127.0.0.1:0",
                "--health",
                "127.0.0.1:0",
                "--drain",
                "0",
                "--secrets",
            ])
            .args(["--webhook", NAME, "--namespace", "paceline"])
            .args(certificates)
            .args(more)
            .env("KUBECONFIG", world.kubeconfig())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        let ports: Vec<u16> = first
            .split("127.0.0.1:")
            .skip(1)
            .map(|rest| {
                rest.split(|c: char| !c.is_ascii_digit())
                    .next()
                    .unwrap()
                    .parse()
                    .unwrap()
            })
            .collect();
        let operator = Operator {
            child,
            webhook: ports[0],
            health: ports[1],
            said,
        };
        operator.until("/readyz", "ok").await;
        operator
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    pub async fn page(&self, path: &str) -> String {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.health)).await else {
            return String::new();
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes()).await;
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text).await;
        text
    }

    /// Waits until the page has this line.
    pub async fn until(&self, path: &str, line: &str) {
        let began = Instant::now();
        loop {
            let page = self.page(path).await;
            if page.lines().any(|one| one == line) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{line}: {page}\n{}", self.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the log contains this.
    pub async fn until_said(&self, words: &str) {
        let began = Instant::now();
        while !self.said().contains(words) {
            assert!(began.elapsed() < PATIENCE, "{words}: {}", self.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends SIGKILL and waits.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM and waits. Returns the exit code.
    pub fn end(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(asked.success());
        self.child.wait().unwrap().code()
    }
}
