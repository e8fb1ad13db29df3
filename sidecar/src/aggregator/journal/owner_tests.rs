use super::*;

const FAST: Pace = Pace {
    beat: Duration::from_millis(40),
    patience: Duration::from_millis(400),
};

fn of(host: &str, pid: u32) -> Mark {
    Mark {
        host: host.to_owned(),
        pid,
        boot_id: Some(format!("boot of {host}")),
        ..Mark::own()
    }
}

fn take(dir: &Path, mark: Mark) -> Result<Owner, OwnerError> {
    Owner::take(dir, false, mark, FAST)
}

#[test]
fn one_that_lives_on_another_host_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let first = take(dir.path(), of("a", 7)).unwrap();
    let refused = take(dir.path(), of("b", 8)).unwrap_err();
    assert_eq!(refused.to_string(), "process 7 of host a");
    assert!(!first.is_superseded());
}

#[test]
fn one_that_is_gone_is_succeeded() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = take(dir.path(), of("a", 7)).unwrap();
    first.stop = None;
    first.beats.take().unwrap().join().unwrap();
    let mut second = take(dir.path(), of("b", 8)).unwrap();
    assert_eq!(holder(dir.path()).unwrap().pid, 8);
    // The first owner was only paused. It must neither remove another owner's mark nor write.
    first.leave();
    assert_eq!(holder(dir.path()).unwrap().pid, 8);
    second.leave();
    assert_eq!(holder(dir.path()), None);
}

#[test]
fn one_that_was_held_up_learns_that_it_was_succeeded() {
    let dir = tempfile::tempdir().unwrap();
    let first = take(dir.path(), of("a", 7)).unwrap();
    let other = serde_json::to_vec(&of("b", 8)).unwrap();
    write_whole(&dir.path().join(FILE), &other).unwrap();
    for _ in 0..500 {
        if first.is_superseded() {
            assert_eq!(holder(dir.path()).unwrap().pid, 8, "and leaves it alone");
            return;
        }
        thread::sleep(FAST.beat / 4);
    }
    panic!("never noticed");
}

#[test]
fn of_those_who_wait_one_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let gone = serde_json::to_vec(&of("gone", 1)).unwrap();
    fs::write(dir.path().join(FILE), gone).unwrap();
    let taken: Vec<bool> = thread::scope(|scope| {
        let come = |pid| {
            let dir = dir.path();
            scope.spawn(move || {
                let owner = take(dir, of("b", pid));
                // Wait long enough for a superseded owner to notice.
                thread::sleep(FAST.beat * 4);
                owner.is_ok_and(|owner| !owner.is_superseded())
            })
        };
        let waiting: Vec<_> = (2..6).map(come).collect();
        waiting.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(taken.iter().filter(|has| **has).count(), 1, "{taken:?}");
}

/// A host's own lock is more reliable than a file, so a killed process of this host is not waited for.
#[test]
fn this_hosts_lock_is_believed() {
    let dir = tempfile::tempdir().unwrap();
    let killed = serde_json::to_vec(&Mark {
        pid: 1,
        ..Mark::own()
    })
    .unwrap();
    fs::write(dir.path().join(FILE), killed).unwrap();
    let began = std::time::Instant::now();
    let patient = Pace {
        patience: Duration::from_secs(60),
        ..FAST
    };
    Owner::take(dir.path(), true, Mark::own(), patient).unwrap();
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// An invalid mark has no owner. It may exist because the disk was full when it was written.
#[test]
fn an_empty_file_is_nobodys() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE), "").unwrap();
    take(dir.path(), of("a", 7)).unwrap();
}
