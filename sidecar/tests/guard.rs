//! The gate on a real network stack: peers with the key are accepted, all others are rejected, counted, and cost
//! nothing permanent.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_seal::Key;
use paceline_seal::codec::{Caller, HANDSHAKE_BYTES};
use paceline_sidecar::guard::den::Den;
use paceline_sidecar::guard::gate::{Gate, STRANGERS, Turned};
use paceline_sidecar::guard::tunnel;
use paceline_sidecar::uplink::link::{Dealer, Hub, Link, Router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

struct Door {
    address: SocketAddr,
    turned: Arc<Turned>,
    den: Den,
}

fn key(byte: u8) -> Key {
    Key::from_bytes([byte; 32])
}

impl Door {
    /// An aggregator that echoes its messages.
    async fn open() -> Door {
        Door::of(STRANGERS).await
    }

    /// With room for this many unauthenticated connections.
    async fn of(room: usize) -> Door {
        let den = Den::dig(None).unwrap();
        let (socket, _) = den.listen().unwrap();
        let mut router = Router::listen(socket).unwrap();
        let entrance = router.entrance();
        tokio::spawn(async move {
            while let Ok((peer, message)) = router.recv().await {
                router.send(&peer, message).await;
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let turned = Arc::<Turned>::default();
        let gate = Gate {
            key: key(1),
            entrance,
            turned: Arc::clone(&turned),
            room,
        };
        tokio::spawn(gate.keep(listener));
        Door { address, turned, den }
    }

    async fn serves(&self) {
        let mut dealer = Dealer::through(self.address, &key(1), &self.den, 0)
            .await
            .unwrap();
        for message in [b"hello".to_vec(), vec![7; 1 << 20]] {
            dealer.send(message.clone()).await.unwrap();
            let back = timeout(Duration::from_secs(10), dealer.recv()).await.unwrap();
            assert_eq!(back.unwrap(), message);
        }
    }

    async fn stranger(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Waits for this number of rejections with this reason.
    async fn turned(&self, reason: &str, at_least: u64) {
        let begun = Instant::now();
        loop {
            let counts = self.turned.counts();
            let count = counts.iter().find(|(name, _)| *name == reason).unwrap().1;
            if count >= at_least {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{reason}: {counts:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Reads until the peer closes.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset counts as an end.
    let _ = timeout(Duration::from_secs(10), stream.read_to_end(&mut bytes))
        .await
        .unwrap();
    bytes
}

#[tokio::test]
async fn who_has_the_key_is_let_in() {
    let door = Door::open().await;
    door.serves().await;
    assert!(door.turned.counts().iter().all(|(_, count)| *count == 0));
}

#[tokio::test]
async fn others_learn_nothing_and_are_counted() {
    let door = Door::open().await;
    // Another key: the peer learns that, and nothing else.
    let error = Dealer::through(door.address, &key(2), &door.den, 0)
        .await
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("does not have this job's key"),
        "{error}"
    );
    door.turned("key", 1).await;
    // Not a handshake: ZeroMQ's own greeting, and an HTTP request.
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    greeting.resize(64, 0);
    for words in [
        greeting,
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n0123456789012345678901234567890".to_vec(),
    ] {
        let mut stranger = door.stranger().await;
        stranger.write_all(&words).await.unwrap();
        assert!(rest(&mut stranger).await.is_empty());
    }
    door.turned("foreign", 2).await;
    // Another version.
    let (_, mut first) = Caller::start(&key(1), "telemetry").unwrap();
    first[6] += 1;
    let mut stranger = door.stranger().await;
    stranger.write_all(&first).await.unwrap();
    assert_eq!(rest(&mut stranger).await.len(), HANDSHAKE_BYTES);
    door.turned("version", 1).await;
    // A handshake for another purpose.
    let (_, first) = Caller::start(&key(1), "preflight").unwrap();
    let mut stranger = door.stranger().await;
    stranger.write_all(&first).await.unwrap();
    rest(&mut stranger).await;
    door.turned("key", 2).await;
    // One that ends in the middle, and one that closes after its first message without waiting for the answer.
    drop(door.stranger().await);
    door.turned("broken", 1).await;
    let (_, first) = Caller::start(&key(1), "telemetry").unwrap();
    let mut hasty = door.stranger().await;
    hasty.write_all(&first).await.unwrap();
    hasty.shutdown().await.unwrap();
    assert!(rest(&mut hasty).await.is_empty(), "nothing was worked out for it");
    door.turned("broken", 2).await;
    door.serves().await;
}

#[tokio::test]
async fn what_was_recorded_is_of_no_use() {
    let door = Door::open().await;
    let mut honest = door.stranger().await;
    let (caller, first) = Caller::start(&key(1), "telemetry").unwrap();
    honest.write_all(&first).await.unwrap();
    let mut reply = [0; HANDSHAKE_BYTES];
    honest.read_exact(&mut reply).await.unwrap();
    let ((mut sealer, _opener), proof) = caller.finish(&reply).unwrap();
    let message = sealer.seal(b"a message").unwrap();
    honest.write_all(&proof).await.unwrap();
    // A replay of all of it on another stream: the answer differs, and the proof does not match it.
    let mut replayed = door.stranger().await;
    let words = [&first[..], &proof, &message].concat();
    replayed.write_all(&words).await.unwrap();
    rest(&mut replayed).await;
    door.turned("damaged", 1).await;
    // On the stream itself: a changed byte, or a repeated message, ends it.
    let mut changed = message.clone();
    *changed.last_mut().unwrap() ^= 1;
    honest.write_all(&changed).await.unwrap();
    rest(&mut honest).await;
    door.turned("damaged", 2).await;
    door.serves().await;
}

/// A peer that has the key and lies about a length is rejected before memory is allocated.
#[tokio::test]
async fn a_length_field_of_a_gigabyte() {
    let door = Door::open().await;
    let mut stream = door.stranger().await;
    let (mut sealer, _) = tunnel::call(&mut stream, &key(1)).await.unwrap();
    let message = sealer.seal(&vec![0; 1 << 20]).unwrap();
    // The first record contains the total length.
    stream
        .write_all(message.get(..65_535 + 2).unwrap())
        .await
        .unwrap();
    rest(&mut stream).await;
    door.turned("damaged", 1).await;
    door.serves().await;
}

/// All nodes of a job connect at once, many more than there is room for: none is dropped.
#[tokio::test]
async fn a_crowd_of_nodes_is_let_in() {
    let door = Door::of(16).await;
    let callers: Vec<_> = (0..200)
        .map(|_| {
            let address = door.address;
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                tunnel::call(&mut stream, &key(1)).await.map(|_| stream)
            })
        })
        .collect();
    let mut let_in = Vec::new();
    for caller in callers {
        let_in.push(
            timeout(Duration::from_secs(60), caller)
                .await
                .unwrap()
                .unwrap()
                .unwrap(),
        );
    }
    assert_eq!(let_in.len(), 200);
    door.serves().await;
    let counts = door.turned.counts();
    assert_eq!(counts[0], ("crowded", 0), "{counts:?}");
}

/// Many silent connections without end: a node is accepted nevertheless.
#[tokio::test]
async fn a_flood_locks_nobody_out() {
    let door = Door::of(64).await;
    let address = door.address;
    let flood = tokio::spawn(async move {
        let mut silent = VecDeque::new();
        loop {
            if let Ok(Ok(stream)) = timeout(Duration::from_millis(50), TcpStream::connect(address)).await {
                silent.push_back(stream);
            }
            if silent.len() > 500 {
                silent.pop_front();
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    door.turned("crowded", 10).await;
    let begun = Instant::now();
    while Dealer::through(address, &key(1), &door.den, 0).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    flood.abort();
}

/// A node that is slow in the middle of its handshake keeps its place in a flood of silent connections.
#[tokio::test]
async fn who_has_begun_is_not_pushed_out() {
    let door = Door::of(4).await;
    let mut slow = door.stranger().await;
    let (caller, first) = Caller::start(&key(1), "telemetry").unwrap();
    slow.write_all(&first).await.unwrap();
    let mut reply = [0; HANDSHAKE_BYTES];
    slow.read_exact(&mut reply).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..12 {
        silent.push(door.stranger().await);
    }
    door.turned("crowded", 3).await;
    let (_, proof) = caller.finish(&reply).unwrap();
    slow.write_all(&proof).await.unwrap();
    let mut byte = [0];
    // It is accepted: ZeroMQ sends its greeting.
    let read = timeout(Duration::from_secs(60), slow.read(&mut byte)).await;
    assert_eq!(read.unwrap().unwrap(), 1);
}

/// A silent connection is closed after a while, and does not block others until then.
#[tokio::test]
async fn silence_blocks_nobody() {
    let door = Door::open().await;
    let mut silent = Vec::new();
    for _ in 0..2300 {
        silent.push(door.stranger().await);
    }
    door.serves().await;
    door.turned("crowded", 200).await;
    door.turned("late", 1000).await;
    door.serves().await;
}
