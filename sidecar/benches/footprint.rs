//! The cost of a sidecar on its node: a real process that reads eight real rings at ten steps a second each, reads
//! eight GPUs once a second, and includes the aggregator. The gate is half a percent of a core and 20 MB with simulated
//! GPUs, and half a percent and 15 MB when it reads the node itself: eight GPUs through the real code and a fake NVML
//! (tests/fake-nvml), the processes of eight ranks with a hundred threads and eight workers each, and eight ports.
//!
//! `cargo bench -p paceline-sidecar --bench footprint [-- SECONDS]`

#![allow(clippy::print_stdout, reason = "its output is the table")]

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use paceline_ring::{Attach, Detach, PhaseWord, Record, Step, Writer};

const RANKS: u32 = 8;
/// For each rank's process: threads besides the main one, how many of them are busy, and data loader workers.
const THREADS: usize = 99;
const BUSY: usize = 20;
const WORKERS: usize = 8;
const STEP: Duration = Duration::from_millis(100);
/// Start and warm-up, not measured.
const SETTLE: Duration = Duration::from_secs(3);

fn main() -> anyhow::Result<()> {
    let seconds = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(20);
    let dir = std::env::temp_dir().join(format!("paceline-footprint-{}", std::process::id()));
    let span = Duration::from_secs(seconds);
    let _family = Family::new()?;
    let measured = [Load::Job, Load::Node].map(|load| {
        fs::create_dir_all(dir.join("rings"))?;
        let measured = measure(&dir, load, span);
        let _ = fs::remove_dir_all(&dir);
        measured
    });
    measured.into_iter().collect()
}

/// The load on the sidecar.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    /// Eight ranks and eight simulated GPUs.
    Job,
    /// Eight GPUs through NVML, the processes of eight ranks that do not step, and eight ports.
    Node,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Load::Job => "8 ranks, 10 steps/s",
            Load::Node => "8 GPUs, ranks, ports",
        }
    }

    /// Upper limit of resident memory, kilobytes.
    fn gate_kb(self) -> u64 {
        match self {
            Load::Job => 20_000,
            Load::Node => 15_000,
        }
    }

    /// Whether the ranks step.
    fn steps(self) -> bool {
        self == Load::Job
    }

    fn arguments(self, dir: &Path) -> anyhow::Result<Vec<OsString>> {
        match self {
            Load::Job => Ok(vec!["--sim-gpus".into(), "gpus=8".into()]),
            Load::Node => {
                let program = std::env::current_exe()?;
                let library = program.with_file_name("libpaceline_fake_nvml.so");
                let own = dir.join("libnvidia-ml.so.1");
                fs::copy(&library, &own).with_context(|| library.display().to_string())?;
                fs::write(
                    dir.join("libnvidia-ml.so.1.toml"),
                    "gpus = 8\nprofile = \"h100\"\n",
                )?;
                let root = dir.join("root");
                ports(&root)?;
                Ok(vec![
                    "--nvml-lib".into(),
                    own.into(),
                    "--host-root".into(),
                    root.into(),
                ])
            }
        }
    }
}

fn measure(dir: &Path, load: Load, span: Duration) -> anyhow::Result<()> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_paceline-sidecar"))
        .args(["--job", "footprint", "--run-dir"])
        .arg(dir.join("run"))
        .arg("--ring-dir")
        .arg(dir.join("rings"))
        .args(load.arguments(dir)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let rings: Vec<Writer> = (0..RANKS)
        .map(|rank| {
            let ring = Writer::create_named(&dir.join("rings"), &format!("{rank}.ring"), 4096)?;
            ring.write(&Record::Attach(Attach {
                rank,
                local_rank: rank,
                world_size: RANKS,
                ..Attach::default()
            }));
            Ok(ring)
        })
        .collect::<Result<_, paceline_ring::CreateError>>()?;
    let mut step = 0;
    train(&rings, &mut step, load, SETTLE);
    let (cpu_before, began) = (cpu(&child)?, Instant::now());
    train(&rings, &mut step, load, span);
    let (used, passed) = (cpu(&child)? - cpu_before, began.elapsed());
    let memory = status_kb(&child, "VmRSS:")?;
    let peak = status_kb(&child, "VmHWM:")?;
    let dropped: u64 = rings.iter().map(Writer::dropped).sum();
    finish(&mut child, &rings, step)?;
    let report: serde_json::Value = serde_json::from_slice(&fs::read(dir.join("run/report.json"))?)?;
    let share = 100.0 * used.as_secs_f64() / passed.as_secs_f64();
    println!(
        "{:<28} {:>10} {:>10}",
        format!("sidecar, {}", load.name()),
        "measured",
        "gate"
    );
    println!("{:<28} {share:>8.2} % {:>8.2} %", "CPU, share of a core", 0.5);
    println!(
        "{:<28} {:>7.1} MB {:>7.1} MB",
        "resident memory",
        memory as f64 / 1e3,
        load.gate_kb() as f64 / 1e3
    );
    println!("{:<28} {:>7.1} MB", "resident memory, peak", peak as f64 / 1e3);
    let journal = fs::read_to_string(dir.join("run/journal.ndjson"))?;
    let told = match load {
        Load::Job => ("steps in the report", report["steps"].as_u64().unwrap_or(0), step),
        // Each GPU once a second; the last reading may still be in flight.
        Load::Node => {
            let readings = journal.matches(r#""gpu":{"gpu":"#).count() as u64;
            ("readings in the journal", readings, 8 * (SETTLE + span).as_secs())
        }
    };
    println!("{:<28} {dropped:>10}", "records dropped");
    println!("{:<28} {:>10} {:>10}", told.0, told.1, told.2);
    println!(
        "{:<28} {:>10}\n",
        "bytes of journal a second",
        journal.len() as u64 / (SETTLE + span).as_secs()
    );
    let complete = match load {
        Load::Job => told.1 == told.2,
        Load::Node => told.1 >= told.2 - 8,
    };
    if share > 0.5 || peak > load.gate_kb() || !complete {
        bail!("the gate is missed");
    }
    Ok(())
}

/// The processes of a trainer: sleeping threads, and workers. All ranks here are this process.
struct Family(Vec<Child>);

impl Family {
    fn new() -> anyhow::Result<Family> {
        for thread in 0..THREADS {
            let nap = if thread < BUSY {
                Duration::from_millis(50)
            } else {
                Duration::from_secs(86_400)
            };
            std::thread::Builder::new().stack_size(16 << 10).spawn(move || {
                loop {
                    std::thread::sleep(nap);
                }
            })?;
        }
        let workers = (0..WORKERS).map(|_| Command::new("sleep").arg("86400").spawn());
        Ok(Family(workers.collect::<Result<_, _>>()?))
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

/// A file system root with the processes of this machine and eight fake ports.
fn ports(root: &Path) -> anyhow::Result<()> {
    let devices = root.join("sys/class/infiniband");
    fs::create_dir_all(&devices)?;
    for (name, place) in [("proc", "/proc"), ("sys/fs", "/sys/fs")] {
        std::os::unix::fs::symlink(place, root.join(name))?;
    }
    let tree = include_str!("../tests/host/infiniband.txt");
    for device in 0..8 {
        for line in tree
            .lines()
            .filter(|line| line.starts_with("sys/class/infiniband/mlx5_0/"))
        {
            let (path, text) = line.split_once(" = ").context("no text")?;
            let path = root.join(path.replace("mlx5_0", &format!("mlx5_{device}")));
            fs::create_dir_all(path.parent().context("no parent")?)?;
            fs::write(path, text)?;
        }
    }
    Ok(())
}

/// All ranks step at the same time, as in synchronous training, and publish their progress within the step.
fn train(rings: &[Writer], step: &mut u64, load: Load, span: Duration) {
    if !load.steps() {
        return std::thread::sleep(span);
    }
    let began = Instant::now();
    let mut due = began;
    while began.elapsed() < span {
        *step += 1;
        for (rank, ring) in rings.iter().enumerate() {
            ring.progress(*step, PhaseWord::Compute);
            ring.progress(*step, PhaseWord::Wait);
            let compute_us = 80_000 + (*step * 37 + rank as u64 * 101) as u32 % 400;
            ring.write(&Record::Step(Step {
                step: *step,
                duration_ns: 100_000_000,
                compute_us,
                wait_us: 90_000 - compute_us,
                micro_batches: 1,
                phases_known: true,
                ..Step::default()
            }));
        }
        due += STEP;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn finish(child: &mut Child, rings: &[Writer], step: u64) -> anyhow::Result<()> {
    rings
        .iter()
        .for_each(|ring| _ = ring.write(&Record::Detach(Detach { step })));
    let mut stdin = child.stdin.take().context("no stdin")?;
    writeln!(stdin, r#"{{"exit":{{"code":0}}}}"#)?;
    child.wait()?;
    Ok(())
}

/// User and system time of a process: the scheduler's own sum, finer than clock ticks.
fn cpu(child: &Child) -> anyhow::Result<Duration> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{}/task", child.id()))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let ns: u64 = text
            .split_ascii_whitespace()
            .next()
            .context("no schedstat")?
            .parse()?;
        sum += ns;
    }
    Ok(Duration::from_nanos(sum))
}

fn status_kb(child: &Child, key: &str) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{}/status", child.id()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .context("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
