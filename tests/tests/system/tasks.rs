//! Several commands on one node were started alike, as by `srun --ntasks-per-node=2 paceline run -- ...`. They must
//! share one ring directory and one sidecar, and leave neither behind.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use paceline_health::codec::hash::fnv;

use crate::launched::{Place, children, is_running, signal, until};

/// Starts task `rank` of two.
fn task(place: &Place, job: &str, rank: u32, command: &[&str]) -> Child {
    let mut args = vec![
        "run",
        "--run-dir",
        "run",
        "--quiet",
        "--job",
        job,
        "--node",
        "n",
        "--",
    ];
    args.extend(command);
    place
        .paceline(args)
        .env("RANK", rank.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")])
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn code(mut task: Child) -> Option<i32> {
    until("the end", || task.try_wait().unwrap()).code()
}

/// Returns the common ring directory. The job's name is unique to this test.
fn rings(job: &str) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    PathBuf::from(format!(
        "/dev/shm/paceline-{user}-{:016x}",
        fnv(format!("{job}\0n").as_bytes())
    ))
}

fn job(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

#[test]
fn commands_that_cannot_be_started_leave_nothing() {
    let (place, job) = (Place::new(), job("typo"));
    let tasks = [0, 1].map(|rank| task(&place, &job, rank, &["no-such-command"]));
    assert_eq!(tasks.map(code), [Some(127); 2]);
    assert!(!rings(&job).exists());
}

#[test]
fn one_that_cannot_be_started_is_in_the_nodes_report() {
    let (place, job) = (Place::new(), job("half"));
    let good = task(&place, &job, 0, &["sleep", "1"]);
    let bad = task(&place, &job, 1, &["no-such-command"]);
    assert_eq!((code(bad), code(good)), (Some(127), Some(0)));
    let report = place.report("run/report.json");
    let mut codes = report["exits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|exit| &exit["code"]);
    assert!(codes.any(|code| code == 127), "{report}");
    assert!(!rings(&job).exists());
}

/// The node's sidecar process, a child of this launcher.
fn sidecar_of(launcher: u32) -> u32 {
    until("the sidecar", || {
        children(launcher).into_iter().find(|pid| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with("paceline\0sidecar")
        })
    })
}

#[test]
fn whoever_is_last_ends_anothers_sidecar_that_hangs() {
    let (place, job) = (Place::new(), job("hangs"));
    let first = task(&place, &job, 0, &["sleep", "1"]);
    let sidecar = sidecar_of(first.id());
    let last = task(&place, &job, 1, &["sleep", "2"]);
    signal("STOP", sidecar);
    assert_eq!((code(first), code(last)), (Some(0), Some(0)));
    assert!(!is_running(sidecar) && !rings(&job).exists());
}

#[test]
fn anothers_sidecar_that_died_is_replaced_for_the_last_words() {
    let (place, job) = (Place::new(), job("dies"));
    let first = task(&place, &job, 0, &["sleep", "1"]);
    let sidecar = sidecar_of(first.id());
    let last = task(&place, &job, 1, &["sh", "-c", "sleep 2; exit 3"]);
    // The sidecar's parent has exited, and the last task has just checked the sidecar.
    assert_eq!(code(first), Some(0));
    signal("STOP", sidecar);
    std::thread::sleep(std::time::Duration::from_millis(700));
    signal("KILL", sidecar);
    assert_eq!(code(last), Some(3));
    assert_eq!(place.report("run/report.json")["exits"][0]["code"], 3);
    assert!(!rings(&job).exists());
}

/// Starts local rank `rank` of two on one node, with the environment of deepspeed's launcher and no other rank
/// variables.
/// variables.
fn deepspeed(place: &Place, port: u16, rank: u32) -> Child {
    let train = "import paceline, time\nfor _ in range(60):\n    time.sleep(0.02)\n    paceline.step()\n";
    place.write("train.py", train);
    place
        .paceline(["run", "--", "python3", "train.py"])
        .env_remove("LOCAL_WORLD_SIZE")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .envs([("WORLD_SIZE", "2"), ("LOCAL_SIZE", "2")])
        .envs([("CROSS_RANK", "0"), ("CROSS_SIZE", "1")])
        .env("CUDA_VISIBLE_DEVICES", "0,1")
        .env("RANK", rank.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .stderr(std::fs::File::create(place.path(&format!("err{rank}"))).unwrap())
        .spawn()
        .unwrap()
}

#[test]
fn ranks_of_deepspeed_are_one_job_with_one_sidecar() {
    let place = Place::new();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let ranks = [0, 1].map(|rank| deepspeed(&place, port, rank));
    assert_eq!(ranks.map(code), [Some(0); 2]);
    let job = format!("127.0.0.1-{port}");
    let report = place.report(&format!("paceline-{job}/report.json"));
    assert_eq!(
        (&report["job"], &report["world_size"]),
        (&job.into(), &2.into()),
        "{report}"
    );
    let coverage = &report["coverage"];
    assert_eq!(
        (&coverage["ranks_seen"], &coverage["steps_ratio"]),
        (&2.into(), &1.0.into()),
        "{report}"
    );
    assert_eq!(report["exits"].as_array().unwrap().len(), 1, "{report}");
    let journal = place.read(&format!("paceline-127.0.0.1-{port}/journal.ndjson"));
    assert_eq!(journal.matches("{\"agent\":{").count(), 1, "{journal}");
    for rank in [0, 1] {
        let who = format!("{{\"attach\":{{\"rank\":{rank},\"local_rank\":{rank},\"world_size\":2,");
        assert_eq!(journal.matches(&who).count(), 1, "{who} in {journal}");
    }
    let said = [0, 1].map(|rank| place.read(&format!("err{rank}")));
    let count = |words: &str| said.iter().map(|said| said.matches(words).count()).sum::<usize>();
    assert_eq!((count("paceline: job"), count("report    ")), (1, 1), "{said:?}");
}

/// Two torchruns on one host use the same rendezvous, each with one rank and without --job.
#[test]
fn agents_of_one_host_are_one_job() {
    let place = Place::new();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
        .to_string();
    place.write(
        "train.py",
        "import paceline, time\nfor _ in range(60):\n    time.sleep(0.02)\n    paceline.step()\n",
    );
    // Simulates torchrun, whose options end before the script and which gives the script the agent's rank.
    let torchrun = place.write(
        "torchrun",
        "#!/bin/sh\nexport RANK=$4 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1\nexec python3 train.py\n",
    );
    std::fs::set_permissions(&torchrun, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let agents = ["0", "1"].map(|rank| {
        let torchrun = torchrun.to_str().unwrap();
        let meet = ["--master-addr", "127.0.0.1", "--master-port", &port, "train.py"];
        let words = [
            &["run", "--", torchrun, "--nnodes", "2", "--node-rank", rank],
            &meet[..],
        ]
        .concat();
        let stderr = std::fs::File::create(place.path(&format!("err{rank}"))).unwrap();
        place.paceline(words).stderr(stderr).spawn().unwrap()
    });
    assert_eq!(
        agents.map(code),
        [Some(0); 2],
        "{} {}",
        place.read("err0"),
        place.read("err1")
    );
    let report = place.report(&format!("paceline-127.0.0.1-{port}/report.json"));
    assert_eq!(
        (&report["world_size"], &report["coverage"]["ranks_seen"]),
        (&2.into(), &2.into()),
        "{report}"
    );
    assert_eq!(report["exits"].as_array().unwrap().len(), 1, "{report}");
    let journal = place.read(&format!("paceline-127.0.0.1-{port}/journal.ndjson"));
    assert_eq!(journal.matches("{\"agent\":{").count(), 1, "{journal}");
}
