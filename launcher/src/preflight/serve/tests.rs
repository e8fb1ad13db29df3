use std::io::Read as _;

use http::Request;
use paceline_health::preflight::Fact;
use paceline_nccl_bench::preflight::{Failed, Found, Limits, TransportChoice};

use super::*;
use crate::preflight::gate::sample::report;

/// A simulated machine with this reading.
struct Seen(Option<(&'static str, &'static str)>);

impl Tools for Seen {
    fn snapshot(&self, node: &NodeId, _: &Deadline) -> Result<Found, Failed> {
        let fact = self.0.map(|(name, value)| Fact {
            node: node.clone(),
            gpu: Some("GPU-a".into()),
            port: None,
            name: name.into(),
            value: Some(value.into()),
        });
        Ok(Found {
            facts: fact.into_iter().collect(),
            ..Found::default()
        })
    }

    fn work(&self, _: &NodeId, _: u32, _: &Limits, _: &Deadline) -> Result<Found, Failed> {
        unreachable!("nothing is measured")
    }

    fn local(
        &self,
        _: &NodeId,
        _: u32,
        _: &TransportChoice,
        _: &Limits,
        _: &Deadline,
    ) -> Result<Found, Failed> {
        unreachable!("nothing is measured")
    }
}

fn clinic(run_dir: Option<&Path>, read: Option<(&'static str, &'static str)>) -> Clinic {
    Clinic {
        node: "n2".into(),
        run_dir: run_dir.map(Path::to_owned),
        tools: Box::new(Seen(read)),
        busy: Mutex::new(()),
    }
}

#[test]
fn a_node_is_ill_by_its_preflight_or_by_what_is_read_now() {
    let folder = tempfile::tempdir().unwrap();
    let write = |report: &Report| {
        let text = serde_json::to_string(report).unwrap();
        fs::write(folder.path().join(FILE), text).unwrap();
    };
    let keep = |lost: &[&str]| write(&report(3, lost));
    let none = clinic(None, None).examine();
    assert_eq!((none.fail_count, &*none.notes[0]), (0, "no preflight was done"));
    keep(&["n2"]);
    let ill = clinic(Some(folder.path()), None).examine();
    assert_eq!(ill.failed_checks, ["gone"]);
    // A simulated preflight excludes no node.
    write(&Report {
        simulated: true,
        ..report(3, &["n2"])
    });
    let played = clinic(Some(folder.path()), None).examine();
    assert_eq!(
        (played.fail_count, &*played.notes[0]),
        (0, "the preflight was simulated")
    );
    // A bad peer does not affect this node.
    keep(&["n3"]);
    assert_eq!(clinic(Some(folder.path()), None).examine().fail_count, 0);
    let now = clinic(Some(folder.path()), Some(("remap_failed", "1"))).examine();
    assert_eq!(now.fail_count, 1, "{now:?}");
    assert!(now.failed_checks[0].contains("could not be remapped"), "{now:?}");
    // A pending reset alone does not exclude a node.
    let pending = clinic(Some(folder.path()), Some(("remap_pending", "1"))).examine();
    assert_eq!(pending.fail_count, 0, "{pending:?}");
    fs::write(folder.path().join(FILE), "{").unwrap();
    let broken = clinic(Some(folder.path()), None).examine();
    assert!(broken.fail_count == 0 && broken.notes[0].starts_with("the preflight cannot be read"));
}

/// Sends a request by HTTP/2 like a gRPC client. Returns the message, `grpc-status`, and true if the status came as a
/// trailer.
async fn ask(socket: &Path, path: &str, question: &'static [u8]) -> (Vec<u8>, String, bool) {
    let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder()
        .method("POST")
        .uri(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let (response, mut send) = client.send_request(request.body(()).unwrap(), false).unwrap();
    send.send_data(question.into(), true).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/grpc");
    let early = response.headers().get("grpc-status").cloned();
    let mut body = response.into_body();
    let mut message = Vec::new();
    while let Some(data) = body.data().await {
        message.extend(data.unwrap());
    }
    let late = body
        .trailers()
        .await
        .unwrap()
        .and_then(|trailers| trailers.get("grpc-status").cloned());
    let is_late = late.is_some();
    let status = early.or(late).unwrap();
    (message, status.to_str().unwrap().to_owned(), is_late)
}

fn start(listener: UnixListener, clinic: Clinic) {
    std::thread::spawn(move || {
        grpc::serve(&listener, move || clinic.answer());
    });
}

#[test]
fn a_client_of_grpc_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = listen(&socket).unwrap();
    // A live server's socket is not replaced.
    assert!(listen(&socket).is_err());
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let clinic = clinic(None, Some(("remap_failed", "1")));
    start(listener, clinic);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let question = b"\0\0\0\0\x04\x0a\x02--";
        let (message, status, is_trailer) = ask(&socket, grpc::PATH, question).await;
        assert_eq!((&*status, is_trailer), ("0", true));
        let text = String::from_utf8_lossy(&message);
        // The message has no `success` (so it is false), then exit code 2, then the JSON.
        assert_eq!(message[5..7], [0x10, 2]);
        assert!(
            text.contains("\"fail_count\":1") && text.contains("could not be remapped"),
            "{text}"
        );
        let (message, status, _) = ask(&socket, grpc::PATH, b"\0\0\0\0\x09x").await;
        assert_eq!((message.len(), &*status), (0, "3"));
        let (_, status, _) = ask(&socket, "/nvhcd.HealthCheckService/Other", b"\0\0\0\0\0").await;
        assert_eq!(status, "12");
        let (_, status, _) = ask(&socket, grpc::PATH, &[0; 70_000]).await;
        assert_eq!(status, "8");
    });
    drop(runtime);
}

#[test]
fn only_so_many_are_attended_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    start(listen(&socket).unwrap(), clinic(None, None));
    let connect = |_| UnixStream::connect(&socket).unwrap();
    let mut taken: Vec<_> = (0..grpc::MOST).map(connect).collect();
    // All accepted peers get our settings, but one connection too many is closed.
    for peer in &mut taken {
        assert_eq!(peer.read(&mut [0]).unwrap(), 1);
    }
    assert_eq!(connect(0).read(&mut [0]).unwrap(), 0);
    drop(taken);
    // After one peer has disconnected, another is accepted.
    while connect(0).read(&mut [0]).unwrap() == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn what_a_killed_one_left_is_replaced_and_a_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(listen(&socket).is_ok());
    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    assert!(listen(&file).is_err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}
