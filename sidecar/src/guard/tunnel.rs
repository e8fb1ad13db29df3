//! A sealed stream as ZeroMQ's Unix socket sees it: bytes. Both ends of a connection do the same once the handshake is
//! done.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use paceline_seal::Key;
use paceline_seal::SealError;
use paceline_seal::codec::{Caller, HANDSHAKE_BYTES, Pair, answer};
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::PURPOSE;

/// Bytes that are sealed together at most; what claims to be more is refused. Two buffers of this size are held for each
/// connection.
pub(super) const PIECE: usize = 4096;
/// The empty message that proves the key: a length of four bytes and a tag of sixteen.
const PROOF: usize = 20;
/// A peer whose machine is gone is noticed after idling so long, and so many questions of a few seconds more.
const IDLE: Duration = Duration::from_secs(15);
const ASK_EVERY: Duration = Duration::from_secs(5);
const ASKED: u32 = 3;
/// What was sent and is not confirmed by the peer's machine for so long ends the connection.
const UNCONFIRMED_MS: u32 = 20_000;

/// Seals a stream that this end opened.
///
/// # Errors
/// [`SealError`]; it has no deadline of its own.
pub async fn call(stream: &mut TcpStream, key: &Key) -> Result<Pair, SealError> {
    let (caller, first) = Caller::start(key, PURPOSE)?;
    stream.write_all(&first).await.map_err(broken)?;
    let mut reply = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut reply).await.map_err(broken)?;
    let (pair, proof) = caller.finish(&reply)?;
    stream.write_all(&proof).await.map_err(broken)?;
    Ok(pair)
}

/// Seals a stream that the other end opened. Of what it sends before it has proved to know the key nothing is kept but a
/// handshake of fixed length. `spoken` is called when the first message was made with the key, by this peer or by whom it
/// heard it from.
///
/// # Errors
/// [`SealError`]; it has no deadline of its own.
pub async fn answer_call(
    stream: &mut TcpStream,
    key: &Key,
    spoken: impl FnOnce(),
) -> Result<Pair, SealError> {
    let mut first = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut first).await.map_err(broken)?;
    // Who has given up waiting meanwhile costs no arithmetic: else those that come back would wait for it as well.
    if has_left(stream).await {
        return Err(broken(io::ErrorKind::UnexpectedEof.into()));
    }
    let (reply, made) = answer(key, PURPOSE, &first);
    // To what is none of ours nothing is said.
    if !matches!(made, Err(SealError::Foreign)) {
        stream.write_all(&reply).await.map_err(broken)?;
    }
    let (sealer, mut opener) = made?;
    spoken();
    loop {
        // Whoever plays a first message again has proved nothing yet: no room is made for what it claims.
        if opener.needs() > PROOF {
            return Err(SealError::Damaged);
        }
        let mut piece = vec![0; opener.needs()];
        stream.read_exact(&mut piece).await.map_err(broken)?;
        match opener.take(&piece, 0)? {
            Some(proof) if proof.is_empty() => return Ok((sealer, opener)),
            Some(_) => return Err(SealError::Damaged),
            None => {}
        }
    }
}

/// Whether the peer has closed its end behind what it said.
async fn has_left(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    poll_fn(|context| {
        let peeked = stream.poll_peek(context, &mut ReadBuf::new(&mut byte));
        Poll::Ready(matches!(peeked, Poll::Ready(Ok(0) | Err(_))))
    })
    .await
}

/// Carries bytes both ways until either side ends.
///
/// # Errors
/// [`SealError::Damaged`] and [`SealError::TooLong`] when somebody meddles; the ends of sockets are no errors.
pub async fn carry(
    stream: TcpStream,
    (mut sealer, mut opener): Pair,
    local: UnixStream,
) -> Result<(), SealError> {
    let (from_peer, mut to_peer) = stream.into_split();
    let (mut from_local, mut to_local) = local.into_split();
    let out = async {
        let mut piece = vec![0; PIECE];
        loop {
            let read = from_local.read(&mut piece).await.map_err(broken)?;
            let Some(bytes) = piece.get(..read).filter(|bytes| !bytes.is_empty()) else {
                return Ok(());
            };
            to_peer.write_all(&sealer.seal(bytes)?).await.map_err(broken)?;
        }
    };
    let back = async {
        let mut from_peer = BufReader::with_capacity(PIECE, from_peer);
        loop {
            let mut piece = vec![0; opener.needs()];
            from_peer.read_exact(&mut piece).await.map_err(broken)?;
            if let Some(bytes) = opener.take(&piece, PIECE)? {
                to_local.write_all(&bytes).await.map_err(broken)?;
            }
        }
    };
    let ended: Result<(), SealError> = tokio::select! {
        ended = out => ended,
        ended = back => ended,
    };
    match ended {
        Err(SealError::Io { .. }) => Ok(()),
        other => other,
    }
}

/// Small messages leave at once, and a peer that is gone without a word is noticed.
pub fn tune(stream: &TcpStream) {
    // What the system does not know does not keep anybody from talking.
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, ASK_EVERY);
    let _ = sockopt::set_tcp_keepcnt(stream, ASKED);
    let _ = sockopt::set_tcp_user_timeout(stream, UNCONFIRMED_MS);
}

fn broken(source: io::Error) -> SealError {
    SealError::Io {
        what: "stream",
        source,
    }
}
