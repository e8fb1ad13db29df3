//! Tests GPUs simulated by a library (tests/fake-nvml), from the user's perspective.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::launched::{Place, text, until};

/// Prepares the fake library with a scenario. Cargo builds the library beside the tests, which depend on it.
fn library(place: &Place, scenario: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let built = program.parent().unwrap().join("libpaceline_fake_nvml.so");
    let library = place.path("libnvidia-ml.so.1");
    std::fs::copy(&built, &library).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    place.write("libnvidia-ml.so.1.toml", scenario);
    library
}

/// Runs `paceline gpus --json` and returns its output and exit code.
fn gpus(place: &Place, scenario: &str) -> (Value, i32) {
    let library = library(place, scenario);
    let output = place
        .paceline(["gpus", "--json", "--seconds", "3", "--nvml-lib"])
        .arg(library)
        .output()
        .unwrap();
    let found = serde_json::from_slice(&output.stdout);
    let found = found.unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout)));
    (found, output.status.code().unwrap())
}

#[test]
fn every_signal_has_a_value_or_says_why_not() {
    for (profile, model, unsupported) in [
        ("a100", "NVIDIA A100-SXM4-80GB", 14),
        ("h100", "NVIDIA H100 80GB HBM3", 7),
        ("h200", "NVIDIA H200", 7),
        ("b200", "NVIDIA B200", 6),
    ] {
        let place = Place::new();
        let scenario = format!("gpus = 2\nprofile = \"{profile}\"\n[gpu.1]\nremap_failed = \"unknown\"");
        let (found, code) = gpus(&place, &scenario);
        assert_eq!(
            (code, &found["schema_version"], &found["access"]),
            (0, &1.into(), &"readable".into())
        );
        assert_eq!(found["gpus"][0]["model"], model);
        let signals = found["gpus"][0]["signals"].as_object().unwrap();
        let values = signals.values().filter(|value| value.is_number()).count();
        let lacks = signals.values().filter(|value| *value == "unsupported").count();
        assert_eq!(
            (values + lacks, lacks),
            (signals.len(), unsupported),
            "{profile}: {signals:#?}"
        );
        assert_eq!(found["gpus"][1]["signals"]["remap_failed"]["error"], "unknown");
        let calls = found["gpus"][0]["calls_us"].as_object().unwrap();
        assert!(calls["nvmlDeviceGetFieldValues"].is_u64());
        // Metrics that the first round found missing, and constants, must not be queried again.
        for (call, is_made) in [
            ("nvmlDeviceGetMarginTemperature", profile != "a100"),
            ("nvmlDeviceGetTemperatureThreshold", false),
            ("nvmlDeviceGetTemperatureV", true),
            ("nvmlDeviceGetTemperature", false),
        ] {
            assert_eq!(calls.contains_key(call), is_made, "{profile}: {call}: {calls:?}");
        }
        assert!(signals["margin_c"].is_number());
        assert_eq!(
            found["gpus"][0]["fields_us"]["recovery_action"], 3,
            "as the driver says"
        );
    }
}

#[test]
fn a_gpu_that_hangs_is_named_and_the_others_are_listed() {
    let place = Place::new();
    let began = Instant::now();
    let (found, code) = gpus(&place, "gpus = 3\n[gpu.1]\nhang = true");
    assert_eq!(code, 3);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let access: Vec<&Value> = (0..3).map(|index| &found["gpus"][index]["access"]).collect();
    assert_eq!(access, ["readable", "silent", "readable"]);
}

#[test]
fn a_machine_without_gpus_says_so() {
    let place = Place::new();
    let (found, code) = gpus(&place, "init = \"driver_not_loaded\"");
    assert_eq!(
        (code, &found["access"], &found["gpus"]),
        (3, &"no_driver".into(), &Value::Array(vec![]))
    );
    let output = place
        .paceline(["gpus", "--nvml-lib", "/nonexistent/lib.so"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let said = text(&output.stdout);
    assert!(
        said.starts_with("no NVML library: ") && said.contains("/nonexistent/lib.so"),
        "{said}"
    );
}

#[test]
fn a_job_on_gpus_of_which_one_hangs_is_watched_and_not_held_up() {
    let place = Place::new();
    let library = library(&place, "gpus = 4\n[gpu.2]\nhang = true");
    let library = format!("--nvml-lib={}", library.display());
    let mut shell = place.shell(&[&library], "while [ ! -e stop ]; do sleep 0.1; done; exit 7");
    let mut job = shell.spawn().unwrap();
    let journal = || place.read("run/journal.ndjson");
    until("three GPUs are read", || {
        (0..4)
            .filter(|index| *index != 2)
            .all(|index| {
                journal().contains(&format!(
                    "\"gpu\":{{\"gpu\":\"GPU-fa4e0000-0000-4000-8000-{index:012x}\""
                ))
            })
            .then_some(())
    });
    until("the silence is told", || {
        journal().contains("\"state\":\"silent\"").then_some(())
    });
    let began = Instant::now();
    place.write("stop", "");
    assert_eq!(job.wait().unwrap().code(), Some(7), "the trainer's");
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "a call that hangs holds up no end: {:?}",
        began.elapsed()
    );
    assert!(place.read("run/report.json").contains("\"exits\""));
}

/// Time allowed in addition to the two seconds, which cover one reading and one send interval.
const BETWEEN_S: f64 = 0.1;

/// Waits for the first verdict about a GPU. Returns it and the time since the scenario changed.
fn verdict(place: &Place, gpu: usize, since: Instant) -> (Value, Duration) {
    let uuid = format!("GPU-fa4e0000-0000-4000-8000-{gpu:012x}");
    let found = until(&format!("a verdict about GPU {gpu}"), || {
        let verdicts = place.read("run/verdicts.ndjson");
        let line = verdicts.lines().find(|line| line.contains(&uuid))?;
        // Skips lines that cannot be parsed, because the last one may be incomplete.
        serde_json::from_str::<Value>(line).ok()
    });
    (found, since.elapsed())
}

#[test]
#[ignore = "timed: tests/run, when nothing else runs"]
fn faults_that_only_nvml_tells_are_verdicts_within_two_seconds() {
    let cases = [
        ("recovery_action = 2", "gpu-fault", 2.0),
        ("remap_failed = 1", "row-remap", 2.0),
        ("ecc_uncorrected = 1", "ecc-uncorrectable", 2.0),
        ("fail = \"gpu_is_lost\"", "gpu-lost", 2.0),
        ("sram_exceeded = 1", "ecc-uncorrectable", 2.0),
        ("hang = true", "gpu-unreadable", 6.0),
    ];
    let place = Place::new();
    let mut scenario = format!("gpus = {}\n", cases.len() + 1);
    let library = library(&place, &scenario);
    let library = format!("--nvml-lib={}", library.display());
    let mut job = place
        .shell(&[&library, "--quiet"], "while [ ! -e stop ]; do sleep 0.1; done")
        .spawn()
        .unwrap();
    let last = format!("{:012x}\",\"pci", cases.len());
    until("every GPU is read", || {
        place.read("run/journal.ndjson").contains(&last).then_some(())
    });
    let mut late = Vec::new();
    for (gpu, (fault, finding, limit)) in cases.into_iter().enumerate() {
        scenario += &format!("[gpu.{gpu}]\n{fault}\n");
        place.write("new.toml", &scenario);
        std::fs::rename(place.path("new.toml"), place.path("libnvidia-ml.so.1.toml")).unwrap();
        let (verdict, took) = verdict(&place, gpu, Instant::now());
        assert_eq!(verdict["finding"], finding, "{fault}: {verdict}");
        if took.as_secs_f64() > limit + BETWEEN_S {
            late.push((fault, took));
        }
    }
    // Adds an XID event for a GPU without other faults.
    let gpu = cases.len();
    scenario += &format!("[[event]]\ngpu = {gpu}\nxid = 95\n");
    place.write("libnvidia-ml.so.1.toml", &scenario);
    let (found, took) = verdict(&place, gpu, Instant::now());
    place.write("stop", "");
    assert!(job.wait().unwrap().success());
    assert_eq!(found["severity"], "critical", "{found}");
    assert!(
        took.as_secs_f64() < 2.0 + BETWEEN_S && late.is_empty(),
        "{late:?} {took:?}"
    );
}
