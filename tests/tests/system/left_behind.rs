//! All Paceline processes are killed with SIGKILL. The job must continue to its own end, and the next run on the node
//! must clean up, except what live processes use.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::launched::{Place, Running, is_running, signal, stands, until};

/// A Python trainer that loads more of the hook at its end, in a shell that records its exit code.
const TRAINER: &str = "import os, sys, time\nimport paceline\n\
     def tell(name):\n    open(name + '.new', 'w').write(os.environ['PACELINE_RING_DIR'])\n    os.rename(name + '.new', name)\n\
     paceline.step()\npaceline.step()\ntell('begun')\n\
     while not os.path.exists('end'):\n    paceline.step()\n    time.sleep(0.02)\n\
     import paceline.huggingface\npaceline.mark('checkpoint')\npaceline.step()\nsys.exit(7)\n";
const SHELL: &str = "echo $$; RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 python3 train.py; echo $? > code";

/// Starts a trainer that runs steps. Returns it and its ring directory.
fn begin<'a>(place: &'a Place) -> (Running<'a>, String) {
    place.write("train.py", TRAINER);
    let running = place.start(&[], SHELL);
    running.until_watched();
    let rings = until("the trainer", || {
        place.path("begun").exists().then(|| place.read("begun"))
    });
    (running, rings)
}

/// Makes the path look a minute old, because a fresh one could belong to a process that is just starting.
fn age(path: &Path) {
    let then = SystemTime::now() - Duration::from_secs(61);
    File::open(path).unwrap().set_modified(then).unwrap();
}

/// Kills the launcher, then its sidecar.
fn kill(running: &mut Running<'_>) {
    let sidecar = until("a sidecar", || running.sidecar());
    signal("KILL", running.pid());
    signal("KILL", sidecar);
    until("the launcher's end", || running.child.try_wait().unwrap());
    until("the sidecar's end", || (!is_running(sidecar)).then_some(()));
}

#[test]
fn a_job_outlives_all_of_ours_and_the_next_run_clears_up() {
    let place = Place::new();
    let (mut running, rings) = begin(&place);
    kill(&mut running);
    let rings = Path::new(&rings);
    assert!(fs::read_dir(rings).unwrap().count() > 2);
    // Adds a file as if it was being written at that moment.
    let draft = place.write("run/report.json.0123456789abcdef.new", "{");
    let other = place.write("run/model.new", "not ours");
    [rings, &draft, &other].into_iter().for_each(age);
    assert_eq!(place.run(&[], "exit 0").status.code(), Some(0));
    assert!(!draft.exists() && other.exists());
    // The trainer needs the hook again at its end, so the hook must still be there.
    assert!(rings.join("python").exists());
    place.write("end", "");
    let code = until("the trainer's end", || {
        Some(place.read("code")).filter(|code| code.ends_with('\n'))
    });
    assert_eq!(
        (code.trim(), place.read("stderr").contains("Traceback")),
        ("7", false),
        "{}",
        place.read("stderr")
    );
    let shell: u32 = place.read("stdout").lines().next().unwrap().parse().unwrap();
    until("the shell's end", || (!is_running(shell)).then_some(()));
    age(rings);
    assert_eq!(place.run(&[], "exit 0").status.code(), Some(0));
    assert!(!rings.exists(), "{:?}", fs::read_dir(rings).map(Iterator::count));
}

#[test]
fn what_lives_is_left_alone() {
    let place = Place::new();
    let (running, rings) = begin(&place);
    let sidecar = until("a sidecar", || running.sidecar());
    age(Path::new(&rings));
    let other = Place::new();
    assert_eq!(other.run(&[], "exit 0").status.code(), Some(0));
    assert!(stands(&rings) && is_running(sidecar));
    place.write("end", "");
    assert_eq!(running.wait(), 0);
    assert_eq!(place.read("code"), "7\n");
    let report = place.report("run/report.json");
    assert_eq!(report["coverage"]["ranks_seen"], 1, "{report}");
    assert!(!stands(&rings));
}
