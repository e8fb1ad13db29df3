//! Tests responses to a fault in the kernel log. Each response runs with real processes, and nothing else may be done.

use std::io::Write;

use serde_json::Value;

use crate::launched::{Place, Running, until};

/// A test's files, with an empty log at the start and short waiting times.
struct Scene {
    place: Place,
    options: Vec<String>,
}

impl Scene {
    fn new(words: &str) -> Scene {
        let place = Place::new();
        place.write("kmsg", "");
        let common = "--kmsg kmsg --remedy-limit hold_s=0 --remedy-ledger site/ledger.json";
        let wait = if words.contains("--checkpoint-wait") {
            ""
        } else {
            "--checkpoint-wait 2"
        };
        let options = [common, wait, words].into_iter().flat_map(str::split_whitespace);
        Scene {
            options: options.map(str::to_owned).collect(),
            place,
        }
    }

    fn start(&self, script: &str) -> Running<'_> {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let running = self.place.start(&options, script);
        running.until_watched();
        running
    }

    /// Logs that a GPU's firmware does not respond, a fault that only a reset clears.
    fn fault(&self, gpu: u32) {
        let log = std::fs::OpenOptions::new()
            .append(true)
            .open(self.place.path("kmsg"));
        writeln!(
            log.unwrap(),
            "4,{gpu},77000000,-;NVRM: Xid (PCI:0000:{gpu:02x}:00): 119, pid=7, name=a, Timeout of GSP"
        )
        .unwrap();
    }

    fn lines(&self, kind: &str) -> Vec<Value> {
        let text = self.place.read("run/remedies.ndjson");
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter_map(|line| line.get(kind).cloned()).collect()
    }

    /// Returns the outcomes of all decisions.
    fn decided(&self) -> Vec<String> {
        self.lines("decision")
            .iter()
            .map(|line| line["outcome"].to_string())
            .collect()
    }

    /// Returns the steps of the remedies.
    fn course(&self) -> Vec<String> {
        let what = |line: &Value| line["what"].as_str().unwrap().to_owned();
        self.lines("course").iter().map(what).collect()
    }

    fn until_decided(&self, count: usize) {
        until("a decision", || (self.decided().len() >= count).then_some(()));
    }
}

const WAITS: &str = "trap 'echo term; exit 3' TERM; trap 'echo usr1' USR1; echo ready; while [ ! -e end ]; do sleep 0.05; done; exit 7";

#[test]
fn by_default_all_is_decided_and_nothing_is_done() {
    let scene = Scene::new("--on-fault requeue --requeue-command ./again");
    let running = scene.start(WAITS);
    scene.fault(1);
    scene.until_decided(1);
    scene.place.write("end", "");
    assert_eq!(running.wait(), 7);
    assert_eq!(scene.decided(), [r#"{"refuse":"dry-run"}"#]);
    assert_eq!(
        (scene.course(), scene.place.read("stdout")),
        (vec![], "ready\n".to_owned())
    );
}

/// Slurm numbers restarts, so each run of a job has its own name and run directory. The job must still count as the
/// same one.
#[test]
fn a_requeued_job_has_no_new_budget() {
    let scene = Scene::new("--act --on-fault checkpoint-and-stop");
    let decided = ["0", "1"].map(|restart| {
        let options: Vec<&str> = scene.options.iter().map(String::as_str).collect();
        let mut command = scene.place.shell(&options, WAITS);
        command
            .env("SLURM_JOB_ID", "4711")
            .env("SLURM_RESTART_COUNT", restart);
        let running = scene.place.start_as(command);
        running.until_watched();
        scene.fault(1);
        scene.until_decided(1);
        scene.place.write("end", "");
        running.wait();
        let decided = scene.decided();
        std::fs::remove_file(scene.place.path("end")).unwrap();
        std::fs::rename(
            scene.place.path("run"),
            scene.place.path(&format!("run{restart}")),
        )
        .unwrap();
        scene.place.write("kmsg", "");
        decided
    });
    assert_eq!(decided[0], ["\"act\""]);
    let refused = r#"{"refuse":{"cool-down":"#;
    assert!(
        decided[1].len() == 1 && decided[1][0].starts_with(refused),
        "{decided:?}"
    );
    let reports = ["run0", "run1"].map(|run| scene.place.report(&format!("{run}/report.json")));
    assert_ne!(reports[0]["job"], reports[1]["job"]);
}

#[test]
fn nothing_is_asked_for_and_nothing_is_written() {
    let scene = Scene::new("--act");
    let running = scene.start(WAITS);
    scene.fault(1);
    until("the verdict", || {
        scene
            .place
            .read("run/verdicts.ndjson")
            .contains("gpu-fault")
            .then_some(())
    });
    scene.place.write("end", "");
    assert_eq!(running.wait(), 7);
    assert!(!scene.place.path("run/remedies.ndjson").exists() && !scene.place.path("site").exists());
}

#[test]
fn a_job_is_requeued_once_without_the_bad_node() {
    let scene = Scene::new("--act --on-fault requeue --node n1 --job j");
    let script = "#!/bin/sh\necho \"$@ $PACELINE_REMEDY_FINDING\" >> requeued\n";
    let again = scene.place.write("again", script);
    std::fs::set_permissions(&again, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let command = format!("{} {{job}} without {{node}}", again.display());
    let mut options: Vec<&str> = scene.options.iter().map(String::as_str).collect();
    options.extend(["--requeue-command", &command]);
    let running = scene.place.start(&options, WAITS);
    running.until_watched();
    scene.fault(1);
    until("the requeue", || {
        scene.course().contains(&"requeued".to_owned()).then_some(())
    });
    // Adds another fault of the job, and the first line again. Only one requeue is allowed.
    scene.fault(2);
    scene.fault(1);
    scene.until_decided(2);
    scene.place.write("end", "");
    assert_eq!(running.wait(), 7);
    let decided = scene.decided();
    assert_eq!((decided.len(), &*decided[0]), (2, "\"act\""));
    assert!(
        decided[1].starts_with(r#"{"refuse":{"cool-down":"#),
        "{decided:?}"
    );
    assert_eq!(scene.place.read("requeued"), "j without n1 gpu-fault\n");
    // No trainer had attached, so no signal may have been sent.
    assert_eq!(scene.place.read("stdout"), "ready\n");
    assert!(
        scene
            .course()
            .contains(&"no checkpoint was written in time".to_owned())
    );
    assert!(scene.place.read("site/ledger.json").contains("paceline:j:"));
    let told = &scene.place.report("run/report.json")["remedies"];
    assert_eq!(
        told["latest"][0]["course"].as_array().unwrap().last().unwrap(),
        "requeued",
        "{told}"
    );
    let outcomes = [&told["counts"][0]["outcome"], &told["counts"][1]["outcome"]];
    assert_eq!(outcomes, ["act", "cool-down"], "{told}");
    let said = scene.place.read("stderr");
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("remedies requeue for gpu-fault of"), "{said}");
    assert!(
        flat.contains(": requeued; 1 not done (1 requeue cool-down)"),
        "{said}"
    );
    // Without the report, journal and audit must give the same result.
    std::fs::remove_file(scene.place.path("run/report.json")).unwrap();
    let output = scene
        .place
        .paceline(["report", "--json", "run"])
        .output()
        .unwrap();
    let folded: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(&folded["remedies"], told);
}

#[test]
fn a_command_is_stopped_and_the_report_says_by_whom() {
    let scene = Scene::new("--act --on-fault checkpoint-and-stop --job j");
    let running = scene.start(WAITS);
    scene.fault(1);
    assert_eq!(running.wait(), 3);
    assert_eq!(scene.place.read("stdout"), "ready\nterm\n");
    let end = scene.place.report("run/report.json")["end"].clone();
    assert_eq!(end["reason"], "stopped", "{end}");
    assert!(
        end["says"]
            .as_str()
            .unwrap()
            .starts_with("SIGTERM by paceline:j:"),
        "{end}"
    );
}

#[test]
fn a_command_that_does_not_stop_is_killed() {
    let scene = Scene::new("--act --on-fault checkpoint-and-stop --stop-grace 1");
    let running = scene.start("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    scene.fault(1);
    assert_eq!(running.wait(), 137);
}

/// The trainer must get the signal and its parent must not, because a shell would die from it.
#[test]
fn trainers_are_signalled_and_their_checkpoint_is_waited_for() {
    let scene =
        Scene::new("--act --on-fault checkpoint-and-stop --checkpoint-wait 60 --checkpoint-signal USR2");
    scene.place.write(
        "train.py",
        "import signal, time, paceline\nasked = []\n\
         signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))\n\
         print('ready', flush=True)\n\
         while True:\n    time.sleep(0.02)\n    if asked and not asked.clear():\n        \
         paceline.mark('checkpoint')\n        print('saved', flush=True)\n    paceline.step()\n",
    );
    let script = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 python3 train.py & trap 'echo term; kill $!; exit 3' TERM; wait $!; echo gone";
    let running = scene.start(script);
    until("the rank", || {
        scene
            .place
            .read("run/journal.ndjson")
            .contains("\"ranks\":[{\"rank\":0")
            .then_some(())
    });
    scene.fault(1);
    assert_eq!(running.wait(), 3);
    assert_eq!(scene.place.read("stdout"), "ready\nsaved\nterm\n");
    let course = scene.course();
    let wanted = [
        "SIGUSR2 to the trainers",
        "a checkpoint was written",
        "the command is stopped",
    ];
    assert_eq!(course, wanted);
}

#[test]
fn what_nobody_can_do_is_refused_before_the_job_starts() {
    let place = Place::new();
    for (words, why) in [
        (&["--on-fault", "requeue"][..], "this is not a Slurm job"),
        (
            &["--on-fault", "leave-node"],
            "--on-fault leave-node: only torchrun continues without a node",
        ),
        (
            &["--on-fault", "signal,rank-silent=leave-node"],
            "start `paceline run -- torchrun --nnodes MIN:MAX --max-restarts N ...` once on each node",
        ),
        (
            &["--on-fault", "kill"],
            "`kill` is not one of log, signal, leave-node, checkpoint-and-stop, requeue",
        ),
        (
            &["--notify", "slack=https://hooks.slack.com/x"],
            "does not appear on a command line",
        ),
        (&["--remedy-limit", "hold=1"], "is not a limit"),
    ] {
        let output = place.run(words, "echo started");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(64), 0),
            "{stderr}"
        );
        let flat = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(why), "{stderr}");
    }
}
