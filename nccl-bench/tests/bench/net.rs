//! Tests seats, rendezvous and the star, in normal operation and with missing, dead and foreign ranks.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_nccl_bench::net::{Control, Handshake, Meeting, Place, Role, Seat, loopback, meet};
use paceline_nccl_bench::transport::{Deadline, TransportError};

use crate::{each, long};

fn star(place: Place, deadline: &Deadline) -> Result<(Seat, Control), TransportError> {
    let mut seat = Seat::take(place).unwrap();
    let control = Control::open(&mut seat, deadline)?;
    Ok((seat, control))
}

#[test]
fn the_star_agrees_collects_and_shares() {
    for ranks in 1..6 {
        each(loopback(ranks, None).unwrap(), |place| {
            let rank = place.rank;
            let (_seat, mut control) = star(place, &long("star")).unwrap();
            assert_eq!(
                control.agree(rank as u64 * 7, &long("agree")).unwrap(),
                (ranks as u64 - 1) * 7
            );
            let all = control.collect(vec![rank as u8; rank], &long("collect")).unwrap();
            let right: Vec<Vec<u8>> = (0..ranks).map(|rank| vec![rank as u8; rank]).collect();
            assert_eq!(all, (rank == 0).then_some(right));
            let shared = control.share(vec![rank as u8 + 40], &long("share")).unwrap();
            assert_eq!(shared, [40]);
        });
    }
}

#[test]
fn ranks_that_know_one_address_find_each_other() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap();
    let mut listener = Some(listener);
    let meeting = |rank| Meeting {
        rank,
        ranks: 4,
        master,
        listener: if rank == 0 { listener.take() } else { None },
        group: 9,
        handshake: None,
    };
    let meetings: Vec<Meeting> = (0..4).map(meeting).collect();
    each(meetings, |meeting| {
        let mut seat = meet(meeting, &long("meet")).unwrap();
        let mut control = Control::open(&mut seat, &long("star")).unwrap();
        assert_eq!(control.agree(seat.rank as u64, &long("agree")).unwrap(), 3);
    });
}

#[test]
fn a_rank_that_never_comes_is_named_in_time() {
    let mut places = loopback(3, None).unwrap();
    places.pop();
    let began = Instant::now();
    let errors = each(places, |place| {
        star(place, &Deadline::new("hello", Duration::from_millis(300)))
            .err()
            .map(|e| e.to_string())
    });
    assert_eq!(
        errors[0].as_deref(),
        Some("hello: connecting: not done within 0.3 s waiting for rank 2")
    );
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn strangers_keep_nobody_out() {
    let places = loopback(2, None).unwrap();
    let address = places[0].peers[0];
    // One of these strangers is silent, and the other uses another protocol.
    let _mute = TcpStream::connect(address).unwrap();
    let mut other = TcpStream::connect(address).unwrap();
    other
        .write_all(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")
        .unwrap();
    each(places, |place| {
        let (_seat, mut control) = star(place, &long("star")).unwrap();
        control.agree(1, &long("agree")).unwrap();
    });
    let mut said = String::new();
    // The connection may be reset after the answer, because the data that was sent was never fully read.
    let _ = other.read_to_string(&mut said);
    assert!(said.contains("this is not a rank of nccl-bench"), "{said:?}");
}

#[test]
fn another_job_and_another_size_are_turned_away() {
    let check = |change: fn(&mut Place), text: &str| {
        let mut places = loopback(2, None).unwrap();
        change(&mut places[1]);
        let errors = each(places, |place| {
            star(place, &Deadline::new("hello", Duration::from_millis(500)))
                .err()
                .map(|e| e.to_string())
        });
        for error in errors {
            assert!(
                error.as_deref().unwrap_or("").contains(text),
                "{error:?} lacks {text}"
            );
        }
    };
    check(|place| place.group = 1, "it belongs to another job");
    check(
        |place| place.peers.push(place.peers[0]),
        "it counts 3 ranks, here there are 2",
    );
}

/// Returns a handshake that exchanges one byte as the key.
fn key(byte: u8) -> Handshake {
    Arc::new(move |mut stream: TcpStream, _: Role, _: &Deadline| {
        stream.write_all(&[byte])?;
        let mut theirs = [0];
        stream.read_exact(&mut theirs)?;
        let wrong = || io::Error::new(io::ErrorKind::PermissionDenied, "another key");
        if theirs[0] == byte {
            Ok(stream)
        } else {
            Err(wrong())
        }
    })
}

#[test]
fn the_handshake_comes_before_everything_else() {
    each(loopback(3, Some(key(5))).unwrap(), |place| {
        let (_seat, mut control) = star(place, &long("star")).unwrap();
        control.agree(1, &long("agree")).unwrap();
    });
    let mut places = loopback(2, Some(key(5))).unwrap();
    places[1].handshake = Some(key(6));
    let errors = each(places, |place| {
        star(place, &Deadline::new("hello", Duration::from_millis(500)))
            .err()
            .map(|e| e.to_string())
    });
    for error in errors {
        assert!(
            error.as_deref().unwrap_or("").contains("another key"),
            "{error:?}"
        );
    }
}

#[test]
fn all_ranks_name_the_one_that_failed_first() {
    let errors = each(loopback(4, None).unwrap(), |place| {
        let rank = place.rank;
        let (_seat, mut control) = star(place, &long("star")).unwrap();
        control.barrier(&long("ready")).unwrap();
        if rank == 2 {
            return None; // The rank ends here, together with its connections.
        }
        Some(control.agree(1, &long("sizes")).unwrap_err())
    });
    for error in errors.into_iter().flatten() {
        assert_eq!(error.peer(), Some(2), "{error}");
        assert!(error.to_string().contains("sizes"), "{error}");
    }
}

#[test]
fn a_rank_that_gives_up_says_why() {
    let errors = each(loopback(3, None).unwrap(), |place| {
        let rank = place.rank;
        let (_seat, mut control) = star(place, &long("star")).unwrap();
        if rank == 1 {
            control.abort("its GPU fell off the bus");
            return None;
        }
        Some(control.agree(1, &long("sizes")).unwrap_err())
    });
    for error in errors.into_iter().flatten() {
        assert_eq!(error.peer(), Some(1), "{error}");
        assert!(error.to_string().contains("its GPU fell off the bus"), "{error}");
    }
}
