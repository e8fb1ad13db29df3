//! A webhook in this process, and the API server's side of the connection: TLS with the webhook's CA, and HTTP/1.1 with
//! persistent connections.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use clap::Parser as _;
use paceline_operator::options::Options;
use paceline_operator::webhook::server;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Timeout for any operation, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A webhook, its files, and the channel for its shutdown.
pub struct Webhook {
    pub dir: TempDir,
    pub port: u16,
    pub health: u16,
    end: Option<oneshot::Sender<()>>,
    served: JoinHandle<anyhow::Result<()>>,
}

/// Writes a self-signed certificate for `name` and its key, replacing existing ones.
pub fn write_certificate(dir: &Path, name: &str) {
    let (cert, key) = (dir.join("new.crt"), dir.join("new.key"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            &format!("/CN={name}"),
            "-addext",
            &format!("subjectAltName=DNS:{name}"),
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("openssl makes the test's certificates");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for (from, to) in [(cert, "tls.crt"), (key, "tls.key")] {
        std::fs::rename(from, dir.join(to)).unwrap();
    }
}

impl Webhook {
    pub async fn start(certificate: Option<&str>, more: &[&str]) -> Webhook {
        let dir = TempDir::new().unwrap();
        if let Some(name) = certificate {
            write_certificate(dir.path(), name);
        }
        let file = |name: &str| dir.path().join(name).display().to_string();
        let (cert, key) = (file("tls.crt"), file("tls.key"));
        let drain: &[&str] = if more.contains(&"--drain") {
            &[]
        } else {
            &["--drain", "0"]
        };
        let words = ["operator", "--cert", &cert, "--key", &key];
        let options = Options::try_parse_from(words.iter().chain(drain).chain(more)).unwrap();
        let listen = || TcpListener::bind("127.0.0.1:0");
        let (webhook, health) = (listen().await.unwrap(), listen().await.unwrap());
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let (webhook_port, health_port) = (port(&webhook), port(&health));
        let (end, ended) = oneshot::channel();
        let served = tokio::spawn(async move {
            let end = async {
                let _ = ended.await;
            };
            server::serve(&options, webhook, health, end).await
        });
        Webhook {
            dir,
            port: webhook_port,
            health: health_port,
            end: Some(end),
            served,
        }
    }

    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("tls.crt")
    }

    pub async fn page(&self, path: &str) -> (StatusCode, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.health)).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        (status, text)
    }

    pub async fn until_ready(&self) {
        let began = Instant::now();
        while self.page("/readyz").await.0 != StatusCode::OK {
            assert!(began.elapsed() < PATIENCE, "not ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Requests the shutdown and waits for it.
    pub async fn end(mut self) {
        self.ask_to_end();
        self.ended().await;
    }

    pub async fn ended(self) {
        tokio::time::timeout(PATIENCE, self.served)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }

    pub fn ask_to_end(&mut self) {
        let _ = self.end.take().unwrap().send(());
    }
}

/// Returns a TLS configuration that trusts this file and, like API servers, does not resume sessions.
pub fn trust(ca: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// A connection of an API server to the webhook.
pub struct Caller(TlsStream<TcpStream>);

impl Caller {
    /// Connects to the webhook. The connection trusts only `ca`.
    pub async fn connect(port: u16, ca: &Path, name: &str) -> std::io::Result<Caller> {
        Caller::connect_by(port, trust(ca), name).await
    }

    /// Connects like [`Caller::connect`], with a shared TLS configuration.
    pub async fn connect_by(port: u16, trust: Arc<ClientConfig>, name: &str) -> std::io::Result<Caller> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        Ok(Caller(TlsConnector::from(trust).connect(name, stream).await?))
    }

    /// Sends a request. Returns the status and body of the response, and the number of pieces in which it arrived.
    pub async fn ask(&mut self, path: &str, body: &[u8]) -> std::io::Result<(u16, Vec<u8>, usize)> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: paceline\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.0.write_all(&[head.as_bytes(), body].concat()).await?;
        self.0.flush().await?;
        let (mut got, mut pieces) = (Vec::new(), 0);
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(whole) = parse(&got) {
                return Ok((whole.0, whole.1, pieces));
            }
            let count = self.0.read(&mut buffer).await?;
            if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            pieces += 1;
            got.extend_from_slice(&buffer[..count]);
        }
    }

    pub async fn review(&mut self, body: &[u8]) -> Value {
        let (status, body, _) = self.ask("/inject", body).await.unwrap();
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }
}

fn parse(bytes: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).unwrap().to_lowercase();
    let length: usize = head
        .split("content-length: ")
        .nth(1)?
        .lines()
        .next()?
        .parse()
        .unwrap();
    let body = &bytes[end + 4..];
    (body.len() >= length).then(|| {
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            body[..length].to_vec(),
        )
    })
}

/// Returns an admission request for a pod of a large job, as an API server sends it.
pub fn question(number: usize) -> Vec<u8> {
    let env: Vec<Value> = (0..30)
        .map(|n| json!({ "name": format!("SETTING_{n}"), "value": "x".repeat(40) }))
        .collect();
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": format!("u-{number}"),
            "operation": "CREATE",
            "namespace": "ml",
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "object": {
                "metadata": {
                    "name": format!("big-worker-{number}"),
                    "labels": {
                        "training.kubeflow.org/job-name": "big",
                        "training.kubeflow.org/replica-type": "worker",
                        "training.kubeflow.org/replica-index": number.to_string(),
                        "paceline.dev/inject": "true",
                    },
                    "managedFields": [{ "manager": "operator", "fieldsV1": { "f:spec": { "f:containers": { "x": "y".repeat(3000) } } } }],
                },
                "spec": { "containers": [{
                    "name": "pytorch",
                    "image": "trainer",
                    "command": ["torchrun", "train.py"],
                    "env": env,
                    "resources": { "limits": { "nvidia.com/gpu": 8 } },
                }] },
            },
        },
    })
    .to_string()
    .into_bytes()
}
