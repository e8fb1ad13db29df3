use super::*;
use std::os::unix::fs::PermissionsExt;

#[test]
fn the_last_one_clears_up() {
    let place = tempfile::tempdir().unwrap();
    // Use another node for the second task: a task's file is named by its process id, so two tasks in this test would
    // have the same file.
    let mut share = Share::enter(place.path(), "j", "n1", 1).unwrap();
    let other = Share::enter(place.path(), "j", "n2", 1).unwrap();
    assert_ne!(share.dir(), other.dir());
    assert!(!share.is_last(), "its command has not ended");
    share.say(r#"{"exit":{"code":0}}"#);
    assert!(share.is_last());
    let dir = share.dir().to_owned();
    drop(share);
    assert!(!dir.exists() && other.dir().exists());
}

/// Two tasks end at once. One removes the directory while the other checks if it is the last.
#[test]
fn what_is_cleared_up_stays_away() {
    let place = tempfile::tempdir().unwrap();
    let mut share = Share::enter(place.path(), "j", "n", 1).unwrap();
    share.say(r#"{"exit":{"code":0}}"#);
    for name in [SIDECAR, LAST] {
        fs::remove_file(share.dir().join(name)).unwrap();
    }
    assert!(!share.is_last() && share.claim().is_none());
    let left = fs::read_dir(share.dir()).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(
        !left.iter().any(|name| name == SIDECAR || name == LAST),
        "{left:?}"
    );
}

#[test]
fn one_task_gets_the_verdicts_and_another_goes_on_from_there() {
    let place = tempfile::tempdir().unwrap();
    let mut first = Share::enter(place.path(), "j", "n", 2).unwrap();
    let mut second = Share::enter(place.path(), "j", "n", 2).unwrap();
    // The content does not matter, so use any line of the stream.
    let line = "{\"progress\":{\"step\":1,\"ranks\":2,\"median_step_s\":null}}\n";
    let write = |text: &str| {
        let path = place
            .path()
            .join(Share::dir_in(place.path(), "j", "n"))
            .join(tasks::VERDICTS);
        let mut file = File::options().append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    assert!(first.verdicts().is_empty() && second.verdicts().is_empty());
    write(line);
    write(&line[..10]);
    assert_eq!((first.verdicts().len(), second.verdicts().len()), (1, 0));
    write(&line[10..]);
    assert_eq!((first.verdicts().len(), second.verdicts().len()), (1, 0));
    drop(first);
    assert_eq!(second.verdicts().len(), 0, "those were printed");
    write(line);
    assert_eq!(second.verdicts().len(), 1);
}

#[test]
fn who_comes_later_is_waited_for() {
    let place = tempfile::tempdir().unwrap();
    let mut share = Share::enter(place.path(), "j", "n", 2).unwrap();
    share.say(r#"{"exit":{"code":0}}"#);
    assert!(!share.is_last());
    let dir = share.dir().to_owned();
    drop(share);
    assert!(dir.exists());
}

#[test]
fn one_sidecar() {
    let place = tempfile::tempdir().unwrap();
    let share = Share::enter(place.path(), "j", "n", 2).unwrap();
    let claim = share.claim().unwrap();
    assert!(share.claim().is_none());
    drop(claim);
    assert!(share.claim().is_some());
}

#[test]
fn somebody_elses_directory_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let share = Share::enter(place.path(), "j", "n", 2).unwrap();
    fs::set_permissions(share.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let refused = Share::enter(place.path(), "j", "n", 2).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
}
