//! Tests what `paceline run` prints while a job runs. For each change of a finding there must be a complete line, in
//! time, from only one launcher.

use std::process::{Child, Stdio};

use crate::launched::{Place, text, until};
use crate::terminal::begin;

/// Two ranks. Rank 1 stops after step 80 until a file exists, and then both continue to their end.
const TRAIN: &str = "
import os, sys, time
import paceline
rank = int(os.environ['RANK'])
def waits():
    return not os.path.exists('go-on')
def step(number, pause=0.02):
    time.sleep(pause)
    # A bar of progress: a line that is not ended until the last step.
    if rank == 0:
        sys.stderr.write('\\rstep %d' % number)
        sys.stderr.flush()
    paceline.step()
for number in range(80):
    step(number)
until = time.time() + 50
while waits() and time.time() < until:
    if rank == 0:
        number += 1
        step(number, 0.1)
    else:
        time.sleep(0.05)
for _ in range(100):
    number += 1
    step(number)
if rank == 0:
    sys.stderr.write('\\nthe end\\n')
";
const BOTH: &str = "for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 python3 train.py & done; wait; exit 5";
/// Short limits for the silence finding, which keep the tests short.
const SOON: [&str; 6] = [
    "--set",
    "silence.suspect_min_s=2",
    "--set",
    "silence.unknown_p99_s=1",
    "--set",
    "silence.confirmed_min_s=4",
];

/// Returns the line of a raised finding in a text with other lines.
fn raised(text: &str) -> Option<&str> {
    let mut lines = text.split(['\n', '\r']);
    lines.find(|line| {
        line.starts_with("paceline: ") && line.contains("rank-silent") && !line.contains("resolved")
    })
}

fn resolved(text: &str) -> Option<&str> {
    let mut lines = text.split(['\n', '\r']);
    lines.find(|line| line.starts_with("paceline: ") && line.contains(" resolved rank-silent: "))
}

#[test]
fn a_job_that_stands_still_is_said_while_it_does_and_when_it_goes_on() {
    let place = Place::new();
    place.write("train.py", TRAIN);
    let running = place.start(&SOON, BOTH);
    until("a line while the job hangs", || {
        raised(&place.read("stderr")).map(str::to_owned)
    });
    let line = raised(&place.read("stderr")).unwrap().to_owned();
    for part in ["Z ", ": rank 1 on ", "; since: step ", "; do: "] {
        assert!(line.contains(part), "{part} in {line}");
    }
    place.write("go-on", "");
    until("that it is over", || {
        resolved(&place.read("stderr")).map(str::to_owned)
    });
    assert_eq!(running.wait(), 5, "the exit code is the command's");
    let stderr = place.read("stderr");
    // The progress bar must never be broken, so Paceline's output must start on a new line.
    for line in stderr.split('\n').filter(|line| line.contains("paceline: ")) {
        assert!(line.starts_with("paceline: "), "{line:?}");
    }
    assert!(stderr.contains("\nthe end\n"), "{stderr}");
}

#[test]
fn quiet_prints_none() {
    let place = Place::new();
    place.write("train.py", TRAIN);
    let mut options = SOON.to_vec();
    options.push("--quiet");
    let running = place.start(&options, BOTH);
    until("the finding", || {
        place
            .read("run/verdicts.ndjson")
            .contains("rank-silent")
            .then_some(())
    });
    place.write("go-on", "");
    assert_eq!(running.wait(), 5);
    assert!(
        !place.read("stderr").contains("paceline"),
        "{}",
        place.read("stderr")
    );
}

/// Starts the launchers of two tasks on one node, as srun starts them. Only one may print.
#[test]
fn of_several_launchers_of_a_job_one_prints() {
    let place = Place::new();
    place.write("train.py", TRAIN);
    let job = format!("one-prints-{}", std::process::id());
    let task = |rank: u32| -> Child {
        let mut args = vec!["run", "--run-dir", "run", "--job", &job, "--node", "n"];
        args.extend(SOON);
        args.extend(["--", "python3", "train.py"]);
        let log = std::fs::File::create(place.path(&format!("stderr-{rank}"))).unwrap();
        place
            .paceline(args)
            .envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())])
            .envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")])
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut tasks = [task(0), task(1)];
    let all = || place.read("stderr-0") + "\n" + &place.read("stderr-1");
    until("a line while the job hangs", || raised(&all()).map(str::to_owned));
    place.write("go-on", "");
    for task in &mut tasks {
        let code = until("the end", || task.try_wait().unwrap()).code();
        assert_eq!(code, Some(0));
    }
    let lines = |rank: u32| place.read(&format!("stderr-{rank}"));
    let prints = [0, 1].map(|rank| raised(&lines(rank)).is_some());
    assert_eq!(prints.iter().filter(|prints| **prints).count(), 1, "{}", all());
}

/// The reader of the stderr pipe stalls. The job must continue and end with its own exit code.
#[test]
fn a_stderr_that_nobody_reads_holds_up_nobody() {
    let place = Place::new();
    place.write("train.py", &TRAIN.replace("sys.stderr.write", "str"));
    let (read, write) = std::io::pipe().unwrap();
    let size = rustix::pipe::fcntl_getpipe_size(&write).unwrap();
    let mut child = place
        .shell(&SOON, &format!("{{ {BOTH}; }} 2>/dev/null"))
        .stderr(write.try_clone().unwrap())
        .spawn()
        .unwrap();
    // Waits for the sidecar, by which time the banner was written.
    until("the sidecar", || {
        place
            .read("run/journal.ndjson")
            .contains("\"beat\"")
            .then_some(())
    });
    let fill = rustix::fs::fcntl_getfl(&write).unwrap();
    rustix::fs::fcntl_setfl(&write, fill | rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut room = size;
    while room > 0 {
        room = rustix::io::write(&write, &vec![b'x'; room]).unwrap_or(room / 2);
        if rustix::io::write(&write, b"x").is_err() {
            break;
        }
    }
    rustix::fs::fcntl_setfl(&write, fill).unwrap();
    until("the finding", || {
        place
            .read("run/verdicts.ndjson")
            .contains("rank-silent")
            .then_some(())
    });
    place.write("go-on", "");
    until("the job's last step", || {
        place
            .read("run/journal.ndjson")
            .contains("\"exit\"")
            .then_some(())
    });
    // A reader that resumes must get the block at the end.
    drop(write);
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut { read }, &mut text).unwrap();
        text
    });
    assert_eq!(until("the end", || child.try_wait().unwrap()).code(), Some(5));
    assert!(text(&reader.join().unwrap()).contains("── paceline ──"));
}

/// On a terminal, Paceline's lines must start at the left margin and not break the command's progress bar.
#[test]
fn on_a_terminal_a_line_begins_at_the_left() {
    let place = Place::new();
    place.write("train.py", TRAIN);
    let mut command = place.shell(&SOON, BOTH);
    command.env("TERM", "xterm");
    let (keys, mut child) = begin(command);
    let size = rustix::termios::Winsize {
        ws_row: 40,
        ws_col: 300,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&keys, size).unwrap();
    let mut reader = keys.try_clone().unwrap();
    let screen = std::thread::spawn(move || {
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = std::io::Read::read(&mut reader, &mut buffer) {
            seen.extend_from_slice(&buffer[..count]);
        }
        seen
    });
    until("the finding", || {
        place
            .read("run/verdicts.ndjson")
            .contains("rank-silent")
            .then_some(())
    });
    std::thread::sleep(std::time::Duration::from_millis(500));
    place.write("go-on", "");
    assert_eq!(until("the end", || child.try_wait().unwrap()).code(), Some(5));
    drop(keys);
    let shown = rows(&String::from_utf8_lossy(&screen.join().unwrap()), 300);
    let line = shown.iter().position(|row| raised(row).is_some());
    let line = line.unwrap_or_else(|| panic!("{shown:#?}"));
    assert!(shown[line].starts_with("paceline: "), "{shown:#?}");
    assert!(
        shown[line - 1].starts_with("step "),
        "the bar stands above: {shown:#?}"
    );
}

/// Returns the rows of a screen with this many columns after this output, on a terminal with automatic margins.
fn rows(text: &str, columns: usize) -> Vec<String> {
    let mut rows: Vec<Vec<char>> = vec![Vec::new()];
    let mut at = 0;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\r' => at = 0,
            '\n' => rows.push(Vec::new()),
            '\x1b' => {
                let code: String = letters
                    .by_ref()
                    .take_while(|letter| !letter.is_ascii_alphabetic())
                    .collect();
                // `take_while` has consumed the letter; only "clear to the end of the line" has no number.
                if code == "[" {
                    rows.last_mut().unwrap().truncate(at);
                }
            }
            letter => {
                if at == columns {
                    rows.push(Vec::new());
                    at = 0;
                }
                let row = rows.last_mut().unwrap();
                row.resize(row.len().max(at + 1), ' ');
                row[at] = letter;
                at += 1;
            }
        }
    }
    rows.into_iter()
        .map(|row| row.into_iter().collect::<String>().trim_end().to_owned())
        .filter(|row| !row.is_empty())
        .collect()
}
