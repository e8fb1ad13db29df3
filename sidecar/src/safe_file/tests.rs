use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{chown, symlink};
use std::process::Command;

use super::*;

/// A user other than this one and root.
const STRANGER: u32 = 65533;

/// Changes the owner of a file or link. Returns false if this test does not run as root, so that the rest is skipped.
fn give_away(path: &Path) -> bool {
    let given = std::os::unix::fs::lchown(path, Some(STRANGER), Some(STRANGER));
    if given.is_err() {
        eprintln!("LEFT OUT: files of another user: this test does not run as root");
    }
    given.is_ok()
}

fn refused<T: std::fmt::Debug>(result: io::Result<T>) -> Refused {
    let error = result.unwrap_err();
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Refused>());
    *inner.unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn links_and_pipes_are_neither_followed_nor_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("target"), "kept").unwrap();
    symlink(at("target"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    for name in ["link", "dangling"] {
        for opened in [
            append(&at(name)),
            create(&at(name)),
            open_to_write(&at(name)),
            open_shared(&at(name)),
            append_shared(&at(name)),
            open(&at(name)),
        ] {
            assert_eq!(refused(opened), Refused::Link, "{name}");
        }
        assert_eq!(
            create_new(&at(name)).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
    }
    for opened in [
        append(&at("pipe")),
        create(&at("pipe")),
        open_shared(&at("pipe")),
        open(&at("pipe")),
    ] {
        assert_eq!(refused(opened), Refused::NotAFile);
    }
    assert_eq!(fs::read_to_string(at("target")).unwrap(), "kept");
    assert!(!at("nowhere").exists(), "made behind a link");
}

#[test]
fn our_own_files_are_opened_whoever_made_them_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    append(&path).unwrap().write_all(b"one\n").unwrap();
    append(&path).unwrap().write_all(b"two\n").unwrap();
    assert_eq!(read_own(&path).unwrap(), b"one\ntwo\n");
    open_to_write(&path).unwrap().write_all(b"ONE").unwrap();
    assert_eq!(read_own(&path).unwrap(), b"ONE\ntwo\n");
    write(&path, b"new").unwrap();
    assert_eq!(read_own(&path).unwrap(), b"new");
    let mode = fs::metadata(&path).unwrap().mode();
    assert_eq!(mode & 0o022, 0, "nobody else writes to it, whatever the umask is");
    fs::hard_link(&path, dir.path().join("other")).unwrap();
    assert_eq!(refused(append(&path)), Refused::HardLinks(2));
    assert!(open_own(&path).is_ok(), "to read it harms nobody");
}

#[test]
fn files_of_others_are_not_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "theirs").unwrap();
    if !give_away(&path) {
        return;
    }
    let theirs = Refused::Foreign {
        owner: STRANGER,
        mode: fs::metadata(&path).unwrap().mode() & 0o7777,
    };
    for opened in [
        append(&path),
        create(&path),
        open_to_write(&path),
        open_own(&path),
    ] {
        assert_eq!(refused(opened), theirs);
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    assert!(open(&path).is_ok() && open_shared(&path).is_ok());
}

#[test]
fn directories() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let made = make_dir(&at("a/b")).unwrap();
    assert_eq!(made, at("a/b"));
    assert_eq!(fs::metadata(&made).unwrap().mode() & 0o022, 0);
    make_dir(&made).unwrap();
    symlink(&made, at("own-link")).unwrap();
    assert_eq!(check_dir(&at("own-link")).unwrap(), made);
    fs::write(at("file"), "").unwrap();
    assert_eq!(
        make_dir(&at("file")).unwrap_err().kind(),
        ErrorKind::NotADirectory
    );
    fs::set_permissions(&made, fs::Permissions::from_mode(0o775)).unwrap();
    assert!(make_dir(&made).is_ok(), "a group that its owner has let in");
    fs::set_permissions(&made, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(
        refused(make_dir(&made)),
        Refused::Writable { mode: 0o777, .. }
    ));
    let above = |mode| fs::set_permissions(at("a"), fs::Permissions::from_mode(mode)).unwrap();
    make_dir(&at("a/c/d")).unwrap();
    above(0o777);
    assert_eq!(refused(make_dir(&at("a/c/d"))), Refused::Replaceable, "two above");
    above(0o1777);
    make_dir(&at("a/c/d")).unwrap();
    fs::create_dir(at("theirs")).unwrap();
    symlink("a", at("their-link")).unwrap();
    if give_away(&at("theirs")) && give_away(&at("their-link")) {
        assert!(matches!(
            refused(make_dir(&at("theirs"))),
            Refused::Foreign { owner: STRANGER, .. }
        ));
        for name in ["their-link", "their-link/", "their-link/."] {
            let link = refused(make_dir(&at(name)));
            assert!(matches!(link, Refused::Foreign { owner: STRANGER, .. }), "{name}");
        }
        let link = refused(make_dir(&at("their-link")));
        assert!(matches!(link, Refused::Foreign { owner: STRANGER, .. }));
    }
}

#[test]
fn settings_are_read_where_nobody_else_can_have_written_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("paceline.toml");
    fs::write(&path, "job = \"x\"").unwrap();
    let set = |mode: u32| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    let read = || read_settings(&path, false);
    for mode in [0o644, 0o600, 0o755, 0o444] {
        set(mode);
        assert_eq!(read().unwrap(), b"job = \"x\"", "{mode:o}");
    }
    for mode in [0o646, 0o602, 0o666] {
        set(mode);
        let wrong = read().unwrap_err().to_string();
        assert!(
            wrong.contains(&format!("mode {mode:04o}); chmod go-w")),
            "{wrong}"
        );
    }
    set(0o644);
    symlink(&path, dir.path().join("link")).unwrap();
    assert!(read_settings(&dir.path().join("link"), false).is_ok());
    assert!(read_settings(Path::new("/dev/null"), false).unwrap().is_empty());
    let link = dir.path().join("their-link");
    symlink(&path, &link).unwrap();
    if !give_away(&link) {
        return;
    }
    let is_foreign = |path: &Path| {
        let read = read_settings(path, false);
        matches!(
            read,
            Err(SettingsError::Refused(Refused::Foreign { owner: STRANGER, .. }))
        )
    };
    assert!(is_foreign(&link), "a link of another user to a file of ours");
    // A group of several users is rejected. A group that is private by its number alone (uid 0, gid 0) is still
    // accepted.
    set(0o664);
    assert!(read().is_ok());
    chown(&path, None, Some(STRANGER)).unwrap();
    assert!(matches!(
        read(),
        Err(SettingsError::Refused(Refused::Writable { mode: 0o664, .. }))
    ));
    set(0o644);
    assert!(give_away(&path) && is_foreign(&path));
}

/// An output named by the user may be a device, or may be behind the user's own link. Another user's link is not
/// followed.
#[test]
fn named_outputs() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("target"), "kept, and longer").unwrap();
    symlink(at("target"), at("link")).unwrap();
    write_named(&at("new"), b"new").unwrap();
    write_named(&at("link"), b"ours").unwrap();
    write_named(Path::new("/dev/null"), b"lost").unwrap();
    // Like /dev/stdout in front of a pipe. That itself would truncate the log of the tests if it is a file.
    let (mut reader, writer) = std::io::pipe().unwrap();
    write_named(
        &std::path::PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd())),
        b"piped",
    )
    .unwrap();
    drop(writer);
    let mut piped = String::new();
    reader.read_to_string(&mut piped).unwrap();
    assert_eq!(piped, "piped");
    assert_eq!(fs::read_to_string(at("new")).unwrap(), "new");
    assert_eq!(fs::read_to_string(at("target")).unwrap(), "ours");
    if give_away(&at("link")) {
        refused(write_named(&at("link"), b"theirs"));
        assert_eq!(fs::read_to_string(at("target")).unwrap(), "ours");
    }
}
