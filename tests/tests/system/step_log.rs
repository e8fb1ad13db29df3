//! Tests steps parsed from a job's output, where no hook can be loaded. It checks the verdicts, and the gaps that
//! coverage lists.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::launched::{Place, signal, text, until};

/// Prints steps like nanoGPT, of 20 ms and later of 30 ms. It runs as a child of a shell that loads no hook.
const TRAINER: &str = r#"
i=0
while [ $i -lt 240 ]; do
  ms=20; [ $i -ge 120 ] && ms=30
  echo "iter $i: loss 3.1415, time $ms.$((i % 10))0ms, mfu 12.00%" STREAM
  i=$((i + 1))
  [ $((i % 8)) -eq 0 ] && sleep 0.1
done
exit 7
"#;

fn trainer(stream: &str) -> String {
    TRAINER.replace("STREAM", stream)
}

fn slow_from_step_120(report: &Value) {
    let verdicts = report["verdicts"].as_array().unwrap();
    let slow: Vec<&Value> = verdicts
        .iter()
        .filter(|verdict| verdict["finding"] == "all-ranks-slow")
        .collect();
    let [slow] = &slow[..] else { panic!("{report}") };
    assert_eq!(slow["subject"]["kind"], "job", "{slow}");
    let since = slow["since_step"].as_u64().unwrap();
    assert!((118..=124).contains(&since), "{slow}");
    assert_eq!(slow["signals"], serde_json::json!(["S0"]), "{slow}");
    assert!(
        verdicts.iter().all(|verdict| verdict["finding"] != "straggler"),
        "{report}"
    );
    let notes = report["coverage"]["notes"].to_string();
    assert!(notes.contains("but not which rank is slow, nor why"), "{notes}");
    assert_eq!(report["steps"], 239, "{report}");
}

#[test]
fn a_slowdown_half_way_is_told_and_coverage_says_what_is_missing() {
    let place = Place::new();
    // Passes standard output through a pipe.
    let output = place.run(&["--step-log", "stdout", "--json"], &trainer(""));
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let lines: Vec<&str> = printed.lines().filter(|line| line.starts_with("iter ")).collect();
    assert_eq!(lines.len(), 240);
    assert!(lines[239].starts_with("iter 239: "));
    slow_from_step_120(&serde_json::from_str(printed.lines().last().unwrap()).unwrap());
    let block = text(&output.stderr);
    assert!(block.contains("all-ranks-slow"), "{block}");
}

#[test]
fn a_stream_that_goes_into_a_file_is_followed_there() {
    let place = Place::new();
    let before = "iter 5: loss 3.1415, time 999.00ms, mfu 12.00%\n";
    let log = place.write("job.log", before);
    let file = fs::File::options().append(true).open(&log).unwrap();
    let mut command = place.shell(&["--step-log", "stderr"], &trainer(">&2"));
    // Paceline's own output goes to the same file, and must not count as steps.
    let status = command.stderr(file).status().unwrap();
    assert_eq!(status.code(), Some(7));
    let written = place.read("job.log");
    assert!(
        written.starts_with(before) && written.matches("iter ").count() == 241,
        "{written}"
    );
    slow_from_step_120(&place.report("run/report.json"));
}

#[test]
fn a_log_file_and_a_pattern_of_ones_own() {
    let place = Place::new();
    let script = TRAINER
        .replace(
            "iter $i: loss 3.1415, time $ms.$((i % 10))0ms, mfu 12.00%",
            "epoch 1 | S$i | 0.0$ms s",
        )
        .replace("STREAM", ">>train.log");
    let options = [
        "--step-log",
        "train.log",
        "--step-regex",
        r"S(?P<step>\d+) \| (?P<seconds>[\d.]+) s",
    ];
    let output = place.run(&options, &script);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "");
    slow_from_step_120(&place.report("run/report.json"));
}

/// Whatever happens to Paceline, the job must continue and never wait.
#[test]
fn the_command_outlives_its_launcher_and_its_reader() {
    let place = Place::new();
    let script = "echo step 1 took 5 ms; while [ ! -e go ]; do sleep 0.05; done
        i=0; while [ $i -lt 3000 ]; do echo \"step $i took 5 ms ........................................\"; i=$((i+1)); done
        echo done > done.txt; sleep 0.1";
    let running = place.start(&["--step-log", "stdout"], script);
    running.until_printed("step 1 took 5 ms");
    let child = crate::launched::children(running.pid());
    signal("KILL", running.pid());
    place.write("go", "");
    until("the job's end", || {
        (place.read("done.txt") == "done\n").then_some(())
    });
    assert!(!child.is_empty());
    drop(running);

    // The reader never reads, so the pipe soon is full.
    let place = Place::new();
    let script = "i=0; while [ $i -lt 5000 ]; do echo \"step $i took 5 ms ........................................\"; \
         i=$((i+1)); done; echo done > done.txt";
    let mut command = place.shell(&["--step-log", "stdout"], script);
    let begun = Instant::now();
    let mut running = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    until("the job's end", || {
        (place.read("done.txt") == "done\n").then_some(())
    });
    assert!(begun.elapsed() < Duration::from_secs(50));
    let mut reader = running.stdout.take().unwrap();
    let mut printed = String::new();
    std::io::Read::read_to_string(&mut reader, &mut printed).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(0));
    assert_eq!(
        printed.lines().filter(|line| line.starts_with("step ")).count(),
        5000
    );
}

#[test]
fn mistakes_are_told_before_anything_starts() {
    let place = Place::new();
    let check = |options: &[&str], wanted: &str| {
        let output = place.run(options, "echo started");
        let said = text(&output.stderr);
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(64), ""),
            "{said}"
        );
        assert!(said.contains(wanted), "{said}");
    };
    check(
        &["--step-regex", r"step (\d+)"],
        "the group (?P<step>\\d+) is missing",
    );
    check(&["--step-regex", "(?P<step>"], "--step-regex: step_regex = ");
    check(&["--ras", "here"], "--ras: ras = \"here\": must be HOST:PORT");
    check(&["--step-log", ""], "must be a name");
}
