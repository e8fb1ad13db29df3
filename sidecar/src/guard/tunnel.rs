//! Forwards a sealed stream as the byte stream of ZeroMQ's Unix socket. After the handshake, both ends of a connection
//! work the same way.

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

/// Maximum number of bytes to seal together. A peer that claims more is rejected. Each connection has two buffers of
/// this size.
pub(super) const PIECE: usize = 4096;
/// The size of the empty message that proves possession of the key: a length of four bytes and a tag of sixteen.
const PROOF: usize = 20;
/// How long a connection may be idle before keepalive probes are sent, and the interval between probes. A peer machine
/// that is dead is detected after a few unanswered probes.
const IDLE: Duration = Duration::from_secs(15);
const ASK_EVERY: Duration = Duration::from_secs(5);
const ASKED: u32 = 3;
/// The connection ends if the peer's machine does not acknowledge data for this long.
const UNCONFIRMED_MS: u32 = 20_000;

/// Seals a stream that this end opened.
///
/// # Errors
/// [`SealError`]; it has no deadline.
pub async fn call(stream: &mut TcpStream, key: &Key) -> Result<Pair, SealError> {
    let (caller, first) = Caller::start(key, PURPOSE)?;
    stream.write_all(&first).await.map_err(broken)?;
    let mut reply = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut reply).await.map_err(broken)?;
    let (pair, proof) = caller.finish(&reply)?;
    stream.write_all(&proof).await.map_err(broken)?;
    Ok(pair)
}

/// Seals a stream that the peer opened. Before the peer is authenticated, only a handshake of fixed length is stored.
/// `spoken` is called if the first message was made with the key. Either this peer made it, or it is a replay of
/// another peer's message.
///
/// # Errors
/// [`SealError`]; it has no deadline.
pub async fn answer_call(
    stream: &mut TcpStream,
    key: &Key,
    spoken: impl FnOnce(),
) -> Result<Pair, SealError> {
    let mut first = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut first).await.map_err(broken)?;
    // Spend no CPU on a peer that has given up, because the retries of such peers would have to wait for it.
    if has_left(stream).await {
        return Err(broken(io::ErrorKind::UnexpectedEof.into()));
    }
    let (reply, made) = answer(key, PURPOSE, &first);
    // Send no answer to a peer with another protocol.
    if !matches!(made, Err(SealError::Foreign)) {
        stream.write_all(&reply).await.map_err(broken)?;
    }
    let (sealer, mut opener) = made?;
    spoken();
    loop {
        // A replayed first message proves nothing about the peer, so do not allocate what it claims.
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

/// Returns true if the peer has closed its sending side and there is no more data to read.
async fn has_left(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    poll_fn(|context| {
        let peeked = stream.poll_peek(context, &mut ReadBuf::new(&mut byte));
        Poll::Ready(matches!(peeked, Poll::Ready(Ok(0) | Err(_))))
    })
    .await
}

/// Forwards bytes in both directions until either side ends.
///
/// # Errors
/// [`SealError::Damaged`] and [`SealError::TooLong`] on tampering. The normal end of a socket is not an error.
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

/// Sets options of the stream, so that small messages are sent at once and a peer that disappeared is detected.
pub fn tune(stream: &TcpStream) {
    // Ignore errors, because the system may not support every option.
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
