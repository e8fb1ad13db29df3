//! Tests of sealed streams, and of all cases in which a stream must not be sealed.

#![allow(clippy::unwrap_used)] // Tests and their helpers.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use paceline_seal::codec::{Caller, HANDSHAKE_BYTES, answer};
use paceline_seal::{Key, KeyError, SealError, Sealed, accept, dial};
use proptest::prelude::*;

const PURPOSE: &str = "test";

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

fn key(byte: u8) -> Key {
    Key::from_bytes([byte; 32])
}

fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// Runs both ends of a handshake.
fn meet(
    caller: (Key, &'static str),
    called: (Key, &'static str),
) -> (Result<Sealed, SealError>, Result<Sealed, SealError>) {
    let (one, other) = streams();
    let there = thread::spawn(move || accept(other, &called.0, called.1, soon()));
    let here = dial(one, &caller.0, caller.1, soon());
    (here, there.join().unwrap())
}

fn failed(result: Result<Sealed, SealError>) -> SealError {
    result.err().expect("no stream")
}

#[test]
fn messages_pass_in_both_directions_whatever_their_length() {
    let (here, there) = meet((key(1), PURPOSE), (key(1), PURPOSE));
    let (mut here, mut there) = (here.unwrap(), there.unwrap());
    for length in [0, 1, 65_514, 65_515, 65_516, 200_000] {
        let message: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
        let sent = message.clone();
        let sender = thread::spawn(move || {
            here.send(&sent, soon()).unwrap();
            here
        });
        assert_eq!(there.receive(length, soon()).unwrap(), message);
        here = sender.join().unwrap();
        there.send(&message[..length / 2], soon()).unwrap();
        assert_eq!(here.receive(length, soon()).unwrap().len(), length / 2);
    }
}

#[test]
fn what_follows_the_last_message_can_go_bare() {
    let (here, there) = meet((key(1), PURPOSE), (key(1), PURPOSE));
    let (mut here, mut there) = (here.unwrap(), there.unwrap());
    here.send(b"from here on bare", soon()).unwrap();
    let mut bare = here.into_bare();
    bare.write_all(b"bulk").unwrap();
    assert_eq!(there.receive(100, soon()).unwrap(), b"from here on bare");
    let mut bytes = [0; 4];
    there.into_bare().read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"bulk");
}

#[test]
fn another_key_or_purpose_is_told_on_both_sides() {
    for (caller, called) in [
        ((key(1), PURPOSE), (key(2), PURPOSE)),
        ((key(1), PURPOSE), (key(1), "another")),
    ] {
        let (here, there) = meet(caller, called);
        assert!(matches!(failed(here), SealError::Key));
        assert!(matches!(failed(there), SealError::Key));
    }
}

#[test]
fn another_version_is_told_on_both_sides() {
    let (mut one, other) = streams();
    let there = thread::spawn(move || accept(other, &key(1), PURPOSE, soon()));
    let (_, mut first) = Caller::start(&key(1), PURPOSE).unwrap();
    first[6] = 9;
    one.write_all(&first).unwrap();
    assert!(matches!(
        failed(there.join().unwrap()),
        SealError::Version { theirs: 9 }
    ));

    let (one, mut other) = streams();
    let here = thread::spawn(move || dial(one, &key(1), PURPOSE, soon()));
    let mut reply = [0; HANDSHAKE_BYTES];
    other.read_exact(&mut reply).unwrap();
    let (mut reply, made) = answer(&key(1), PURPOSE, &reply);
    assert!(made.is_ok());
    reply[6] = 7;
    other.write_all(&reply).unwrap();
    assert!(matches!(
        failed(here.join().unwrap()),
        SealError::Version { theirs: 7 }
    ));
}

#[test]
fn what_speaks_another_language_is_told_nothing() {
    let (mut one, other) = streams();
    let there = thread::spawn(move || accept(other, &key(1), PURPOSE, soon()));
    one.write_all(
        &b"GET / HTTP/1.1\r\nHost: somewhere.example.org\r\nAccept: */*\r\n\r\n"[..HANDSHAKE_BYTES],
    )
    .unwrap();
    assert!(matches!(failed(there.join().unwrap()), SealError::Foreign));
    let mut answer = Vec::new();
    one.read_to_end(&mut answer).unwrap();
    assert!(answer.is_empty());
}

#[test]
fn silence_ends_by_the_deadline() {
    let (one, other) = streams();
    let begun = Instant::now();
    let deadline = begun + Duration::from_millis(200);
    assert!(matches!(
        failed(accept(other, &key(1), PURPOSE, deadline)),
        SealError::Deadline { .. }
    ));
    let (mut slow, other) = streams();
    let writer = thread::spawn(move || {
        // Sending single bytes does not extend the handshake's deadline.
        while slow.write_all(b"P").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let deadline = Instant::now() + Duration::from_millis(200);
    assert!(accept(other, &key(1), PURPOSE, deadline).is_err());
    writer.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(4));
    drop(one);
}

#[test]
fn a_recorded_first_message_opens_nothing() {
    let (_, first) = Caller::start(&key(1), PURPOSE).unwrap();
    let (mut one, other) = streams();
    let there = thread::spawn(move || accept(other, &key(1), PURPOSE, soon()));
    one.write_all(&first).unwrap();
    let mut reply = [0; HANDSHAKE_BYTES];
    one.read_exact(&mut reply).unwrap();
    // Send the final message of another handshake with the same key.
    let (caller, first) = Caller::start(&key(1), PURPOSE).unwrap();
    let (reply, _) = answer(&key(1), PURPOSE, &first);
    let (_, proof) = caller.finish(&reply).unwrap();
    one.write_all(&proof).unwrap();
    assert!(matches!(failed(there.join().unwrap()), SealError::Damaged));
}

#[test]
fn a_message_that_claims_too_much_is_refused_before_there_is_room_for_it() {
    let (here, there) = meet((key(1), PURPOSE), (key(1), PURPOSE));
    let (mut here, mut there) = (here.unwrap(), there.unwrap());
    here.send(&[0; 101], soon()).unwrap();
    assert!(matches!(
        there.receive(100, soon()),
        Err(SealError::TooLong {
            bytes: 101,
            limit: 100
        })
    ));
}

#[test]
fn keys_are_files_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("k");
    let check = |text: &[u8], mode: u32| {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Key::read(&path)
    };
    assert!(check(&[b'x'; 32], 0o600).is_ok());
    assert!(check(&[b'x'; 32], 0o400).is_ok());
    assert!(matches!(
        check(&[b'x'; 32], 0o640),
        Err(KeyError::Open { mode: 0o640, .. })
    ));
    assert!(matches!(check(&[b'x'; 32], 0o604), Err(KeyError::Open { .. })));
    assert!(matches!(
        check(&[b'x'; 31], 0o600),
        Err(KeyError::Size { bytes: 31, .. })
    ));
    assert!(matches!(check(&[b'x'; 5000], 0o600), Err(KeyError::Size { .. })));
    assert!(matches!(
        Key::read(folder.path()),
        Err(KeyError::Open { .. } | KeyError::Size { .. } | KeyError::File { .. })
    ));
    let said = Key::read(&folder.path().join("none")).unwrap_err().to_string();
    assert!(said.contains("none"), "{said}");
    assert_eq!(format!("{:?}", key(7)), "Key(..)");
}

/// The file is root's. It has the mode requested by the pod, or 0440 and the pod's group if the pod has an fsGroup.
#[test]
fn a_secret_is_read_as_a_kubelet_mounts_it() {
    let folder = tempfile::tempdir().unwrap();
    let (data, link) = (
        folder.path().join("..2026_11_23_04_00_00.7"),
        folder.path().join("key"),
    );
    fs::create_dir(&data).unwrap();
    fs::write(data.join("key"), [b'x'; 32]).unwrap();
    std::os::unix::fs::symlink(&data, folder.path().join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/key", &link).unwrap();
    let is_roots = rustix::process::geteuid().is_root();
    for (mode, is_good) in [
        (0o400, true),
        (0o440, is_roots),
        (0o444, is_roots),
        (0o446, false),
        (0o460, false),
    ] {
        fs::set_permissions(&link, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(Key::read(&link).is_ok(), is_good, "{mode:o}");
    }
    // The same file is not exempt if its real path is used.
    fs::set_permissions(&link, fs::Permissions::from_mode(0o440)).unwrap();
    assert!(matches!(Key::read(&data.join("key")), Err(KeyError::Open { .. })));
}

#[test]
fn a_users_key_is_made_once_by_many_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let makers: Vec<_> = (0..8)
        .map(|_| {
            let home = home.clone();
            thread::spawn(move || {
                Key::find(None, |name| {
                    (name == "HOME").then(|| home.to_string_lossy().into_owned())
                })
                .unwrap()
            })
        })
        .collect();
    let keys: Vec<Key> = makers.into_iter().map(|maker| maker.join().unwrap()).collect();
    let path = home.join(".config/paceline/key");
    let same = Key::read(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let job = |key: &Key, job| key.of_job(job);
    for key in keys {
        let (here, there) = meet((job(&key, "j"), PURPOSE), (job(&same, "j"), PURPOSE));
        assert!(here.is_ok() && there.is_ok());
    }
    let (here, _) = meet((job(&same, "j"), PURPOSE), (job(&same, "other"), PURPOSE));
    assert!(matches!(failed(here), SealError::Key));
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

proptest! {
    /// One changed bit anywhere in a message is rejected without a panic.
    #[test]
    fn a_changed_bit_is_found(message in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>(), bit in 0..8) {
        let (caller, first) = Caller::start(&key(1), PURPOSE).unwrap();
        let (reply, made) = answer(&key(1), PURPOSE, &first);
        let ((mut sealer, _), proof) = caller.finish(&reply).unwrap();
        let (_, mut opener) = made.unwrap();
        prop_assert_eq!(opener.take(&proof[..2], 0).unwrap(), None);
        prop_assert_eq!(opener.take(&proof[2..], 0).unwrap(), Some(Vec::new()));
        let mut bytes = sealer.seal(&message).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        let mut rest = &bytes[..];
        let mut refused = false;
        while !rest.is_empty() {
            let (piece, left) = rest.split_at(opener.needs().min(rest.len()));
            rest = left;
            match opener.take(piece, 300) {
                Err(_) => { refused = true; break }
                Ok(found) => prop_assert!(found.is_none(), "a changed message was taken"),
            }
        }
        // If the claimed length becomes longer, the reader waits for bytes that never arrive.
        prop_assert!(refused || at < 2);
    }

    /// Sends arbitrary bytes in place of a handshake.
    #[test]
    fn no_bytes_confuse_the_handshake(first in prop::collection::vec(any::<u8>(), HANDSHAKE_BYTES)) {
        let first: [u8; HANDSHAKE_BYTES] = first.try_into().unwrap();
        prop_assert!(answer(&key(1), PURPOSE, &first).1.is_err());
        let (caller, _) = Caller::start(&key(1), PURPOSE).unwrap();
        prop_assert!(caller.finish(&first).is_err());
    }
}
