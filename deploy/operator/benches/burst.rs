//! Benchmarks a burst of 5,000 pods. Measures the latency per response that an API server sees, including TLS, and the
//! program's CPU and memory. Run with `cargo bench -p paceline-operator --bench burst`. Results are in
//! docs/measurements/kubernetes.md.
//!
//! An API server uses HTTP/1.1 for webhooks, without a limit of concurrent requests, and keeps 25 idle connections
//! (kubernetes/kubernetes, apiserver/pkg/util/webhook/client.go and client-go/transport/cache.go). The callers here do
//! the same. They run in a separate process on the same cores, so the webhook gets only the rest of the CPU.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)] // The output is for people.

#[allow(dead_code)] // Other functions are used by the tests.
#[path = "../tests/client/mod.rs"]
mod client;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client::{Caller, question, trust, write_certificate};
use rustls::ClientConfig;
use tempfile::TempDir;

const PODS: usize = 5000;
const NAME: &str = "paceline.paceline.svc";
/// Idle connections kept by an API server.
const MOST_IDLE: usize = 25;
/// Numbers of concurrent requests. Each client of an API server creates a pod and waits for the response. By default, a
/// Kubernetes controller creates 20 pods per second.
const IN_FLIGHT: [usize; 4] = [1, 4, 16, 50];
/// Request rates per second. Requests are sent at these rates regardless of pending responses.
const RATES: [u32; 2] = [200, 1000];

/// The latency of a request, and whether the request needed a new connection.
type Answered = (Duration, bool);

/// The API server's side.
struct Server {
    port: u16,
    trust: Arc<ClientConfig>,
    idle: Mutex<Vec<Caller>>,
    handshakes: AtomicUsize,
    failures: AtomicUsize,
    /// Requests that are prepared in advance, because the callers use the same cores as the program.
    questions: Vec<Vec<u8>>,
}

impl Server {
    /// Sends the request for one pod. Returns true if the request needed a new connection.
    async fn ask(&self, pod: usize) -> bool {
        let idle = self.idle.lock().unwrap().pop();
        let is_new = idle.is_none();
        let mut caller = match idle {
            Some(caller) => caller,
            None => {
                self.handshakes.fetch_add(1, Ordering::Relaxed);
                match Caller::connect_by(self.port, Arc::clone(&self.trust), NAME).await {
                    Ok(caller) => caller,
                    Err(_) => return self.failed(is_new),
                }
            }
        };
        match caller.ask("/inject", &self.questions[pod]).await {
            Ok((status, ..)) => assert_eq!(status, 200),
            Err(_) => return self.failed(is_new),
        }
        let mut idle = self.idle.lock().unwrap();
        if idle.len() < MOST_IDLE {
            idle.push(caller);
        }
        is_new
    }

    /// Counts a failure. In a real cluster, the pod would be created without Paceline.
    fn failed(&self, is_new: bool) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed);
        is_new
    }
}

/// The process under test.
struct Program {
    child: Child,
    port: u16,
    health: u16,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(dir: &TempDir) -> Program {
        let file = |name: &str| dir.path().join(name);
        let mut child = Command::new(env!("CARGO_BIN_EXE_paceline-operator"))
            .args(["inject", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0"])
            .arg("--cert")
            .arg(file("tls.crt"))
            .arg("--key")
            .arg(file("tls.key"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        // Drains the pipe, so that the program never blocks on its log.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let ports = first.split("127.0.0.1:").skip(1);
        let ports: Vec<u16> = ports
            .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap())
            .map(|port| port.parse().unwrap())
            .collect();
        let program = Program {
            child,
            port: ports[0],
            health: ports[1],
        };
        let began = Instant::now();
        while !program.page("/readyz").contains(" 200 ") {
            assert!(began.elapsed() < Duration::from_secs(60), "not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        program
    }

    fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.health)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Returns a value of the process's memory status, in kB.
    fn memory(&self, word: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(word)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn cpu(&self) -> Duration {
        cpu(self.child.id())
    }
}

/// Returns the CPU time of all threads of a process, with the scheduler's precision.
fn cpu(process: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let nanos = tasks.map(|task| {
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    Duration::from_nanos(nanos.sum())
}

/// Returns the CPU time of all processes of the machine, without idle time and I/O wait. /proc/stat has it in
/// hundredths of a second.
fn machine() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let all = text.lines().next().unwrap().split_whitespace().skip(1);
    let busy = all
        .enumerate()
        .filter(|(column, _)| ![3, 4, 8, 9].contains(column));
    Duration::from_millis(10 * busy.map(|(_, ticks)| ticks.parse::<u64>().unwrap()).sum::<u64>())
}

/// Measures the percentage of CPU that other processes used.
struct Others {
    began: Instant,
    machine: Duration,
    own: Duration,
}

impl Others {
    fn begin(program: &Program) -> Others {
        Others {
            began: Instant::now(),
            machine: machine(),
            own: program.cpu() + cpu(std::process::id()),
        }
    }

    fn share(&self, program: &Program) -> f64 {
        let own = program.cpu() + cpu(std::process::id()) - self.own;
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        let others = (machine() - self.machine).as_secs_f64() - own.as_secs_f64();
        100.0 * others.max(0.0) / (self.began.elapsed().as_secs_f64() * cores)
    }
}

fn main() {
    let dir = TempDir::new().unwrap();
    write_certificate(dir.path(), NAME);
    let program = Program::start(&dir);
    let trust = trust(&dir.path().join("tls.crt"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    println!(
        "load of the machine before: {}; resident before: {} kB",
        load.trim(),
        program.memory("VmRSS:")
    );
    runtime.block_on(async {
        let server = Arc::new(Server {
            port: program.port,
            trust,
            idle: Mutex::default(),
            handshakes: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
            questions: (0..PODS).map(question).collect(),
        });
        // The first responses of a process include page faults from disk. The round with one request at a time includes
        // these responses, like every other round.
        for in_flight in IN_FLIGHT {
            let what = format!("{in_flight} at a time");
            measured(&program, &server, &what, together(&server, in_flight)).await;
        }
        for rate in RATES {
            let what = format!("{rate} a second");
            measured(&program, &server, &what, paced(&server, rate)).await;
        }
    });
    let page = program.page("/metrics");
    let told = ["connections ", "handshakes_failed_total ", "malformed_total "];
    for line in page.lines().filter(|line| {
        told.iter()
            .any(|word| line.contains(word) && !line.starts_with('#'))
    }) {
        println!("{line}");
    }
    let buckets = page
        .lines()
        .filter_map(|line| line.strip_prefix("paceline_webhook_seconds_bucket{le="));
    println!("in the webhook: {}", buckets.collect::<Vec<_>>().join(", "));
}

async fn measured(
    program: &Program,
    server: &Server,
    what: &str,
    burst: impl Future<Output = Vec<Answered>>,
) {
    // With real-time priority (chrt --rr), the kernel throttles a process for a twentieth of each second. Each round
    // therefore starts in a new second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (cpu, handshakes) = (program.cpu(), server.handshakes.load(Ordering::Relaxed));
    let others = Others::begin(program);
    let mut times = burst.await;
    let (took, share) = (others.began.elapsed(), others.share(program));
    assert_eq!(times.len(), PODS);
    times.sort_unstable();
    let of = |times: &[Answered], share: f64| {
        times[((times.len() - 1) as f64 * share) as usize].0.as_secs_f64() * 1e3
    };
    let at = |share: f64| of(&times, share);
    let stood: Vec<Answered> = times.iter().filter(|(_, is_new)| !is_new).copied().collect();
    println!(
        "{what}: {PODS} pods in {:.2} s; p50 {:.2} ms, p99 {:.2} ms ({:.2} ms where the connection stood), worst {:.2} ms; {} handshakes, {} in vain; {:.0} us of CPU each; resident {} kB, most {} kB; others had {share:.0} % of the cores",
        took.as_secs_f64(),
        at(0.5),
        at(0.99),
        of(&stood, 0.99),
        at(1.0),
        server.handshakes.load(Ordering::Relaxed) - handshakes,
        server.failures.swap(0, Ordering::Relaxed),
        (program.cpu() - cpu).as_secs_f64() * 1e6 / PODS as f64,
        program.memory("VmRSS:"),
        program.memory("VmHWM:"),
    );
}

/// Sends each next request as soon as the response to the previous one arrives.
async fn together(server: &Arc<Server>, in_flight: usize) -> Vec<Answered> {
    let callers: Vec<_> = (0..in_flight)
        .map(|number| {
            let server = Arc::clone(server);
            tokio::spawn(async move {
                let mut times = Vec::new();
                for pod in (number..PODS).step_by(in_flight) {
                    let began = Instant::now();
                    let is_new = server.ask(pod).await;
                    times.push((began.elapsed(), is_new));
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await.unwrap());
    }
    times
}

/// Sends each request at its scheduled time. Time spent waiting for earlier requests counts as latency.
async fn paced(server: &Arc<Server>, rate: u32) -> Vec<Answered> {
    let began = Instant::now();
    let mut asked = Vec::new();
    for pod in 0..PODS {
        let due = began + Duration::from_secs(1) * pod as u32 / rate;
        tokio::time::sleep_until(due.into()).await;
        let server = Arc::clone(server);
        asked.push(tokio::spawn(async move {
            let is_new = server.ask(pod).await;
            (due.elapsed(), is_new)
        }));
    }
    let mut times = Vec::new();
    for one in asked {
        times.push(one.await.unwrap());
    }
    times
}
