//! Tests the commands of pods' containers, and `paceline inject-manifest`. tests/kube/pods.py tests them together.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use paceline_sidecar::aggregator::place::candidates;

use crate::launched::{Children, Place, is_running, signal, text, until};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples");

fn inject(place: &Place, args: &[&str]) -> (i32, String, String) {
    let words = ["inject-manifest"].iter().chain(args);
    let out = place.paceline(words).output().unwrap();
    let said = |bytes: &[u8]| text(bytes).to_owned();
    (out.status.code().unwrap(), said(&out.stdout), said(&out.stderr))
}

#[test]
fn every_example_is_injected_and_injected_again_stays() {
    let mut count = 0;
    for entry in fs::read_dir(EXAMPLES).unwrap() {
        let path = entry.unwrap().path();
        let file = path.to_str().unwrap();
        for mode in ["sidecar", "wrap"] {
            let place = Place::new();
            let (code, once, said) = inject(&place, &["-f", file, "--mode", mode]);
            assert_eq!(code, 0, "{file}: {said}");
            assert!(once.contains("name: paceline-init"), "{file}");
            place.write("once.yaml", &once);
            for other in ["sidecar", "wrap"] {
                let (code, again, _) = inject(&place, &["-f", "once.yaml", "--mode", other]);
                assert!(code == 0 && again == once, "{file}: another default changes it");
            }
            assert_eq!(inject(&place, &["-f", "once.yaml", "--diff"]).1, "");
            let (_, patch, _) = inject(&place, &["-f", file, "-o", "patch", "--mode", mode]);
            for line in patch.lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                assert!(line["object"].as_str().unwrap().contains('/') && line["patch"][0]["op"].is_string());
            }
            count += 1;
        }
    }
    assert!(count >= 16, "{count}");
}

#[test]
fn a_manifest_on_standard_input_keeps_what_it_had() {
    let place = Place::new();
    let manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  script: |\n    one\n    two\n---\n\
                    apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  volumes:\n  - name: s\n    secret:\n      secretName: x\n      defaultMode: 0400\n  containers:\n  - name: t\n    args:\n    - \"yes\"\n";
    let file = place.write("in.yaml", manifest);
    let mut command = place.paceline(["inject-manifest", "-f", "-"]);
    command.stdin(Stdio::from(fs::File::open(file).unwrap()));
    let out = command.output().unwrap();
    let printed = text(&out.stdout);
    let (other, _) = manifest.split_once("---").unwrap();
    assert!(printed.starts_with(other), "{printed}");
    assert!(
        printed.contains("      defaultMode: 0400\n") && printed.contains("    - \"yes\"\n"),
        "{printed}"
    );
}

#[test]
fn what_cannot_be_done_is_told_with_its_place() {
    let place = Place::new();
    let check = |manifest: &str, wanted: &[&str]| {
        place.write("m.yaml", manifest);
        let (code, _, said) = inject(&place, &["-f", "m.yaml"]);
        assert_eq!(code, 1, "{said}");
        for part in wanted {
            assert!(said.contains(part), "{part}: {said}");
        }
    };
    check("a: [", &["m.yaml:"]);
    check("a: 1\na: 2\n", &["m.yaml:2:1: duplicate key \"a\""]);
    check("", &["nothing was injected"]);
    check(
        "apiVersion: v1\nkind: Service\n",
        &["m.yaml: nothing was injected: no document has pods"],
    );
    check(
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec: {}\n",
        &[
            "m.yaml:1: document 1, TrainJob/t: a TrainJob has no pod template",
            "nothing was injected",
        ],
    );
    check(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{name: paceline}]}}}\n",
        &["document 1, Job/j, /spec/template: another container is called paceline (name-taken)"],
    );
    check(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {paceline.dev/inject: \"false\"}}\nspec: {containers: [{name: t}]}\n",
        &["Pod/p, /: the pod's annotations disable it (opted-out)"],
    );
    // In a List with another object, it must be injected like a document of its own.
    let list = "apiVersion: v1\nkind: List\nitems:\n\
                - {apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, metadata: {name: t}, spec: {}}\n\
                - {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: t}]}}\n";
    place.write("list.yaml", list);
    let (code, printed, said) = inject(&place, &["-f", "list.yaml"]);
    assert!(code == 0 && printed.contains("name: paceline-init"), "{said}");
    assert!(
        said.contains("/items/0 t: a TrainJob has no pod template"),
        "{said}"
    );
    let (code, _, said) = inject(&place, &["-f", "nowhere.yaml"]);
    assert!(code == 1 && said.contains("nowhere.yaml: No such file"), "{said}");
    assert_eq!(inject(&place, &[]).0, 64);
}

#[test]
fn an_init_container_lays_out_the_hook_or_the_program() {
    let place = Place::new();
    let install = |what: &str| {
        fs::create_dir_all(place.path("files")).unwrap();
        // Runs the command twice, since a container can be restarted.
        for _ in 0..2 {
            let mut command = place.paceline(["install", what, "files"]);
            assert!(command.status().unwrap().success());
        }
    };
    install("--hook");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.path("files/paceline")), 0o755);
    assert_eq!(mode(&place.path("files/paceline/_hook.py")), 0o644);
    fs::remove_dir_all(place.path("files")).unwrap();
    install("--program");
    let copy = place.path("files/paceline");
    assert_eq!(mode(&copy), 0o755);
    let version = std::process::Command::new(copy)
        .arg("--version")
        .output()
        .unwrap();
    assert!(text(&version.stdout).starts_with("paceline "));
}

/// Even without input, key or directory, the sidecar must run until it is asked to end: an exit counts as a restart.
#[test]
fn a_pods_sidecar_ends_when_it_is_asked_and_with_zero() {
    for rings in ["rings", "nowhere/rings"] {
        let place = Place::new();
        fs::create_dir(place.path("rings")).unwrap();
        let file = |name: &str| fs::File::create(place.path(name)).unwrap();
        let mut command = place.paceline([
            "sidecar",
            "--pod",
            "--job",
            "j",
            "--node",
            "m/p",
            "--run-dir",
            "run",
        ]);
        command
            .args(["--ring-dir", rings])
            .env("PACELINE_KEY_FILE", place.path("no/key"))
            .env("PACELINE_KEY_OPTIONAL", "true")
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        let mut child = command.spawn().unwrap();
        let spoke = || place.read("run/journal.ndjson").contains("\"beat\"");
        let failed = || place.read("stderr").contains("retrying");
        until("a word of the sidecar", || (spoke() || failed()).then_some(()));
        assert_eq!(failed(), rings != "rings", "{}", place.read("stderr"));
        assert!(is_running(child.id()));
        signal("TERM", child.id());
        assert_eq!(until("its end", || child.try_wait().unwrap()).code(), Some(0));
    }
}

/// With hostNetwork, pods share ports. Two pods of a job must have one aggregator, and an occupied page port must end
/// neither.
#[test]
fn pods_on_one_machines_network_do_not_collide() {
    let place = Place::new();
    fs::create_dir(place.path("rings")).unwrap();
    fs::write(place.path("key"), "0123456789abcdef".repeat(4)).unwrap();
    fs::set_permissions(place.path("key"), Permissions::from_mode(0o600)).unwrap();
    let others = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let page = others.local_addr().unwrap().to_string();
    let start = |job: &str, pod: &str| {
        let file = |what: &str| fs::File::create(place.path(&format!("{pod}-{what}"))).unwrap();
        let mut command = place.paceline(["sidecar", "--pod", "--job", job, "--ring-dir", "rings"]);
        command
            .args(["--node", &format!("m/{pod}"), "--run-dir", pod])
            .env("PACELINE_AGGREGATOR", "127.0.0.1")
            .env("PACELINE_KEY_FILE", place.path("key"))
            .env("PACELINE_HTTP", &page)
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        command.spawn().unwrap()
    };
    let beats = |pod: &str, of: &str| {
        let (node, journal) = (format!("\"m/{of}\""), format!("{pod}/journal.ndjson"));
        let is_beat = |line: &str| line.contains("\"beat\"") && line.contains(&node);
        place.read(&journal).lines().any(is_beat).then_some(())
    };
    // Lets another program occupy the job's first port until the job has an aggregator on the next one.
    let first = candidates(Some("127.0.0.1"), &"pods".into(), &"n".into()).unwrap()[0];
    let holder = std::net::TcpListener::bind(first.at);
    let mut pods = Children(vec![start("pods", "a")]);
    until("the first of its job", || beats("a", "a"));
    drop(holder);
    pods.0.extend([start("pods", "b"), start("others", "c")]);
    until("the second, at the first's aggregator", || beats("a", "b"));
    until("another job's", || beats("c", "c"));
    assert!(!place.path("b/journal.ndjson").exists(), "one aggregator");
    for pod in pods.0.iter_mut().rev() {
        assert!(is_running(pod.id()));
        signal("TERM", pod.id());
        assert_eq!(until("its end", || pod.try_wait().unwrap()).code(), Some(0));
    }
}

/// The Secret is missing, or unreadable for this user. The trainer must neither wait for it nor fail.
#[test]
fn a_command_begins_without_its_jobs_key() {
    let place = Place::new();
    fs::write(place.path("short"), "too short").unwrap();
    for file in ["no/key", "short"] {
        let output = place
            .paceline([
                "run",
                "--run-dir",
                file.trim_start_matches("no/"),
                "--",
                "sh",
                "-c",
                "exit 7",
            ])
            .env("PACELINE_KEY_FILE", place.path(file))
            .env("PACELINE_KEY_OPTIONAL", "true")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    }
}

/// Invalid variables, as they result from a mistake in a manifest.
const UNREADABLE: [(&str, &str); 8] = [
    ("PACELINE_HTTP", ":9810"),
    ("PACELINE_HTTP_TOKEN_FILE", "no/token"),
    ("PACELINE_AGGREGATOR", "host:99999"),
    ("PACELINE_JOURNAL_BYTES", "much"),
    ("PACELINE_ON_FAULT", "requeue"),
    ("PACELINE_ACT", "perhaps"),
    ("PACELINE_METRICS", "everything"),
    ("PACELINE_NOTIFY", "nonsense  webhook=https://r.example/v"),
];

#[test]
fn a_pods_command_begins_whatever_variables_cannot_be_read() {
    let place = Place::new();
    let run = |is_in_pod: bool, typed: &[&str]| {
        let mut command = place.paceline(["run", "--run-dir", "run"]);
        command
            .args(typed)
            .args(["--", "sh", "-c", "exit 7"])
            .envs(UNREADABLE);
        if is_in_pod {
            command.env("PACELINE_POD", "p-0");
        }
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stderr).to_owned())
    };
    let (code, said) = run(true, &[]);
    assert_eq!(code, Some(7), "{said}");
    for (name, _) in UNREADABLE {
        // Without its token, a page keeps its default address.
        let is_said = said.contains(&format!("{name} is ignored: ")) || name == "PACELINE_HTTP_TOKEN_FILE";
        assert!(
            is_said || said.contains("a receiver of PACELINE_NOTIFY is ignored: "),
            "{name}: {said}"
        );
    }
    assert!(
        !said.contains("nonsense"),
        "what is written there may be a secret: {said}"
    );
    // Mistakes on the command line are still errors. Invalid variables are ignored outside of pods too.
    assert_eq!(run(true, &["--http", ":1"]).0, Some(64));
    assert_eq!(run(false, &[]).0, Some(7));
}

/// With two invalid variables, ignoring only one is not enough, and ignoring a valid one could fail earlier.
#[test]
fn what_cannot_be_read_is_called_by_its_own_name() {
    let place = Place::new();
    let mut command = place.paceline(["run", "--run-dir", "run", "--", "sh", "-c", "exit 7"]);
    command
        .env("PACELINE_POD", "p-0")
        .env("PACELINE_METRICS", "everything")
        .env("PACELINE_SIM_GPUS", "nonsense")
        .env("PACELINE_KEY_FILE", "no/key")
        .env("PACELINE_KEY_OPTIONAL", "true");
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    for name in ["PACELINE_METRICS", "PACELINE_SIM_GPUS"] {
        assert!(said.contains(&format!("{name} is ignored: {name}: ")), "{said}");
    }
    assert_eq!(said.matches("is ignored").count(), 2, "{said}");
}

/// An image may have a file with this name that serves another purpose or has a mistake.
#[test]
fn a_pods_command_begins_whatever_file_of_settings_cannot_be_read() {
    let place = Place::new();
    let run = |is_in_pod: bool| {
        let mut command = place.paceline(["run", "--run-dir", "run", "--", "sh", "-c", "exit 7"]);
        command.env("PACELINE_JOB", "j").env("PACELINE_HTTP", "0.0.0.0:0");
        if is_in_pod {
            command.env("PACELINE_POD", "p-0");
        }
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stderr).to_owned())
    };
    for content in [
        "[race]\npace = 12\n",
        "no toml at all",
        "journal_bytes = \"much\"\nhttp_token_file = \"t\"\n",
    ] {
        fs::write(place.path("paceline.toml"), content).unwrap();
        let (code, said) = run(true);
        assert_eq!(code, Some(7), "{content}: {said}");
        assert!(said.contains("./paceline.toml is ignored: "), "{content}: {said}");
        // The page must keep to loopback, because the file may have required a token for it.
        assert!(!said.contains("http://0.0.0.0"), "{content}: {said}");
        assert!(
            place.read("run/report.json").contains("schema_version"),
            "watched all the same"
        );
        assert_eq!(run(false).0, Some(64), "a person at a prompt");
    }
}

/// [observe] must apply despite a mistake elsewhere in the file. If the user cannot read the file, that must be
/// reported.
#[test]
fn what_a_left_out_file_wants_observed_only_is_not_forgotten() {
    let place = Place::new();
    fs::set_permissions(place.path("."), Permissions::from_mode(0o777)).unwrap();
    let file = place.path("paceline.toml");
    fs::write(&file, "[observe]\nstraggler = true\n\n[race]\npace = 12\n").unwrap();
    let run = || {
        let mut command = place.paceline(["run", "--run-dir", "run", "--", "true"]);
        command.env("PACELINE_JOB", "j").env("PACELINE_POD", "p-0");
        if fs::metadata(&file).unwrap().uid() == 0 {
            command.uid(65534);
        }
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stderr).to_owned())
    };
    let (code, said) = run();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("./paceline.toml is ignored: "), "{said}");
    let journal = place.read("run/journal.ndjson");
    assert!(journal.contains("observe.straggler"), "{journal}");
    fs::set_permissions(&file, Permissions::from_mode(0o000)).unwrap();
    let (code, said) = run();
    assert!(code == Some(0) && said.contains("its [observe]"), "{said}");
}

#[test]
fn a_pods_sidecar_watches_whatever_variables_cannot_be_read() {
    let place = Place::new();
    fs::create_dir(place.path("rings")).unwrap();
    let mut command = place.paceline(["sidecar", "--pod", "--job", "j", "--node", "m/p"]);
    let mut child = command
        .args(["--run-dir", "run", "--ring-dir", "rings"])
        .envs(UNREADABLE)
        .env("PACELINE_AGGREGATOR", "127.0.0.1")
        .stdout(fs::File::create(place.path("stdout")).unwrap())
        .stderr(fs::File::create(place.path("stderr")).unwrap())
        .spawn()
        .unwrap();
    let said = || place.read("stderr");
    until("a word of the sidecar", || {
        assert!(child.try_wait().unwrap().is_none(), "{}", said());
        place
            .read("run/journal.ndjson")
            .contains("\"beat\"")
            .then_some(())
    });
    signal("TERM", child.id());
    assert_eq!(
        until("its end", || child.try_wait().unwrap()).code(),
        Some(0),
        "{}",
        said()
    );
}
