//! Tests a preflight of several nodes, which are processes on this host. Some of them are faulty.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use paceline_seal::{Key, Sealed, dial};
use serde_json::{Value, json};

use crate::launched::{Place, until};

const JOB: &str = "nodes";

/// The nodes of a preflight. The first one is called localhost and is the coordinator.
struct Nodes {
    place: Place,
    list: &'static str,
    port: u16,
}

/// A node process, killed when the test ends.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Nodes {
    fn of(list: &'static str) -> Nodes {
        let place = Place::new();
        let key = place.write("key", "0123456789abcdef0123456789abcdef");
        fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
        // The system does not give out the port again that soon.
        let free = TcpListener::bind(("::", 0)).or_else(|_| TcpListener::bind(("0.0.0.0", 0)));
        let port = free.unwrap().local_addr().unwrap().port();
        Nodes { place, list, port }
    }

    fn start(&self, node: &str) -> Node {
        let port = self.port.to_string();
        let words = [
            "preflight",
            "quick",
            "--json",
            "--job",
            JOB,
            "--nodes",
            self.list,
            "--node",
            node,
            "--port",
            &port,
        ];
        let file = |ending: &str| fs::File::create(self.place.path(&format!("{node}.{ending}"))).unwrap();
        let mut command = self.place.paceline(words);
        command.env("PACELINE_KEY_FILE", self.place.path("key"));
        command
            .stdout(file("out"))
            .stderr(file("err"))
            .stdin(Stdio::null());
        Node(command.spawn().unwrap())
    }

    /// Connects as a node that the test simulates, with the key.
    fn meet(&self) -> Sealed {
        let key = Key::read(&self.place.path("key")).unwrap().of_job(JOB);
        until("the first node", || {
            let stream = TcpStream::connect(("localhost", self.port)).ok()?;
            dial(stream, &key, "paceline preflight control", soon()).ok()
        })
    }

    fn said(&self, node: &str) -> String {
        self.place.read(&format!("{node}.out")) + &self.place.read(&format!("{node}.err"))
    }
}

impl Node {
    /// Polls until the node has started threads for its measurements. Before that, it waits.
    fn until_it_works(&self) {
        let threads = format!("/proc/{}/task", self.0.id());
        until("a node that works", || {
            (fs::read_dir(&threads).unwrap().count() > 1).then_some(())
        });
    }

    fn code(&mut self) -> Option<i32> {
        until("the end of a node", || self.0.try_wait().unwrap()).code()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn hello(node: &str, protocol: u32) -> Vec<u8> {
    let hello = json!({ "protocol": protocol, "paceline": "9.9.9", "node": node, "job": JOB, "port": 1 });
    hello.to_string().into_bytes()
}

/// Returns why a node was lost.
fn lost<'a>(report: &'a Value, node: &str) -> Option<&'a str> {
    let problems = report["problems"].as_array().unwrap();
    let is_of = |problem: &&Value| problem["node"] == node && problem["lost"] == true;
    let mut of_node = problems.iter().filter(is_of);
    let why = of_node.next().map(|problem| problem["what"].as_str().unwrap());
    assert_eq!(of_node.next(), None, "{problems:?}");
    why
}

#[test]
fn of_nodes_that_are_no_good_each_is_named_with_its_reason() {
    let nodes = Nodes::of("localhost,well,killed,absent,newer,garbled");
    let mut first = nodes.start("localhost");
    let mut well = nodes.start("well");
    let mut killed = nodes.start("killed");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = nodes.meet();
            stream.send(&hello("newer", 99), soon()).unwrap();
            let answer = String::from_utf8(stream.receive(1 << 20, soon()).unwrap()).unwrap();
            assert!(answer.contains("speaks version 99"), "{answer}");
        });
        scope.spawn(|| {
            let mut stream = nodes.meet();
            stream.send(&hello("garbled", 2), soon()).unwrap();
            // The node is accepted and gets a request.
            stream.receive(1 << 20, soon()).unwrap();
            stream.receive(1 << 20, soon()).unwrap();
            stream.send(b"\xff\xfe no JSON at all", soon()).unwrap();
        });
        // Connects a client without the key.
        let mut stranger = until("the first node", || {
            TcpStream::connect(("localhost", nodes.port)).ok()
        });
        stranger.write_all(&[0xff; 4096]).unwrap();
        killed.until_it_works();
        killed.0.kill().unwrap();
    });
    assert_eq!(first.code(), Some(2), "{}", nodes.said("localhost"));
    let report = nodes.place.report("localhost.out");
    for (node, wanted) in [
        ("killed", ": connection lost: "),
        ("absent", "did not come in time"),
        (
            "newer",
            "it runs paceline 9.9.9, whose preflight speaks version 99",
        ),
        ("garbled", "snapshot: connection lost: message"),
    ] {
        let why = lost(&report, node).unwrap_or_default();
        assert!(
            why.contains(wanted) && !why.contains("::ffff:"),
            "{node}: {why:?} of {report}"
        );
    }
    assert!(report["seconds"].as_f64().unwrap() < 60.0, "{report}");
    // On a busy machine the node may be too slow for a phase.
    if lost(&report, "well").is_none() {
        assert_eq!(well.code(), Some(2), "{}", nodes.said("well"));
        assert_eq!(report, nodes.place.report("well.out"), "all know the same");
        let values = &report["nodes"]["well"]["values"];
        assert!(
            values["cpu_gemm"].is_number(),
            "who is left was measured: {report}"
        );
    }
}

#[test]
fn a_first_node_that_dies_is_told_by_the_others() {
    let nodes = Nodes::of("localhost,well");
    let mut first = nodes.start("localhost");
    let mut well = nodes.start("well");
    well.until_it_works();
    first.0.kill().unwrap();
    let killed = Instant::now();
    assert_eq!(well.code(), Some(3), "{}", nodes.said("well"));
    let said = nodes.said("well");
    let wanted = format!(": the first node, localhost:{}, was lost: ", nodes.port);
    assert!(said.contains(&wanted), "{said}");
    assert!(
        killed.elapsed() < Duration::from_secs(15),
        "{:?}",
        killed.elapsed()
    );
}
