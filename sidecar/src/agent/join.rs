//! Finds the job's aggregator, or starts it.
//!
//! The sidecar that can bind the address runs the aggregator. If another process holds the address, or the address
//! belongs to another host, the sidecar attempts a handshake through a stream sealed with the job's key. The handshake
//! shows whether the job's aggregator is there. If no aggregator is found, this node is monitored standalone, by an
//! aggregator of its own, and a message says so.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::ways::{Sign, first_good, ordered};
use crate::aggregator::Plan;
use crate::aggregator::place::{self, Candidate};
use crate::aggregator::server::Hosted;
use crate::guard::JobKey;
use crate::guard::den::Den;
use crate::sink::http::Page;
use crate::sink::status::StatusStream;
use crate::uplink::link::{Dealer, Link, LinkError, patience};
use crate::uplink::wire::{Down, Hello, Up, Welcome, decode_down, encode};
use crate::warn;

/// On the first attempt, a peer that does not answer our handshake for this long is not our aggregator.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
/// Time limit for trying all later addresses in the list together.
const ELSEWHERE_DEADLINE: Duration = Duration::from_millis(1000);
/// How long to wait for an aggregator of this job that is still reading its journal.
const LATER_DEADLINE: Duration = Duration::from_secs(120);
/// Retry interval while the aggregator reads its journal.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What is needed to join an aggregator, or to run it.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// This node's sidecar.
    pub me: Hello,
    /// Addresses to try, in order. If empty, this node is monitored standalone.
    pub candidates: Vec<Candidate>,
    /// The name that the addresses were resolved from. Set only if a later lookup may return another address.
    pub asked: Option<String>,
    /// An address that just became unresponsive on an established link.
    pub silent: Option<SocketAddr>,
    /// If this node is standalone from the start, the reason.
    pub alone_because: Option<String>,
    /// Number of failed attempts.
    pub attempt: u32,
    /// The key that seals streams between nodes.
    pub key: JobKey,
    /// The directory of the sockets that connect these streams to ZeroMQ.
    pub den: Arc<Den>,
    /// Where to serve the metrics page, if it is enabled.
    pub http: Option<Page>,
    /// Plan of the aggregator, in case it runs here.
    pub plan: Plan,
    /// Where status lines go.
    pub status: StatusStream,
}

impl Invitation {
    /// Returns true if the aggregator may be on another host.
    pub fn is_shared(&self) -> bool {
        self.candidates.iter().any(Candidate::is_shared)
    }

    /// Returns true if an aggregator may be found later.
    pub fn has_hope(&self) -> bool {
        !self.candidates.is_empty() || self.asked.is_some()
    }

    /// Resolves the name again. Keeps the previous addresses if that fails.
    async fn look_up(&mut self) {
        let Some(asked) = self.asked.clone() else { return };
        let (job, node) = (self.me.job.clone(), self.me.node.clone());
        let found = spawn_blocking(move || place::candidates(Some(&asked), &job, &node)).await;
        if let Ok(Ok(found)) = found {
            self.candidates = found;
        }
    }
}

/// A link with a completed handshake.
pub struct Joined {
    /// The link.
    pub link: Dealer,
    /// The aggregator's response.
    pub welcome: Welcome,
    /// The aggregator's address.
    pub address: SocketAddr,
    /// The aggregator, if it runs in this process.
    pub hosted: Option<Hosted>,
    /// If this node is standalone, the reason.
    pub alone: Option<String>,
}

/// Why an address failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Miss {
    #[error("refused: {0}")]
    Refused(String),
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Joins the aggregator. If that fails and `may_be_alone` is set, this node is monitored standalone.
pub async fn join(mut invitation: Invitation, may_be_alone: bool) -> Option<Joined> {
    invitation.look_up().await;
    let mut why = invitation.alone_because.clone();
    let silent = invitation.silent;
    let candidates = ordered(invitation.candidates.clone(), silent);
    let invitation = Arc::new(invitation);
    let attempt = |candidate: Candidate, sign: Sign| {
        let invitation = Arc::clone(&invitation);
        async move { at(&invitation, candidate, &sign).await }
    };
    match first_good(&candidates, silent, attempt).await {
        Ok(joined) => return Some(joined),
        Err(None) => {}
        Err(Some((candidate, miss))) => why = Some(format!("{}: {miss}", candidate.at)),
    }
    if !may_be_alone {
        return None;
    }
    let mut why = why.unwrap_or_else(|| "no aggregator".to_owned());
    if let Some(no_key) = &invitation.key.nobody_else {
        why = format!("{why} ({no_key})");
    }
    warn::once("alone", format_args!("this node is watched alone: {why}"));
    match at(&invitation, Candidate::local(0), &Sign::default()).await {
        Ok(joined) => Some(Joined {
            alone: Some(why),
            ..joined
        }),
        Err(miss) => {
            warn::once(
                "not even alone",
                format_args!("no aggregator can run here: {miss}"),
            );
            None
        }
    }
}

/// Looks for the job's aggregator while this node is standalone. Never starts an aggregator, because a standalone node
/// already has its own.
pub async fn find(mut invitation: Invitation) -> Option<Joined> {
    invitation.look_up().await;
    for candidate in &invitation.candidates {
        if let Ok(joined) = another(&invitation, candidate.at, &Sign::default()).await {
            return Some(joined);
        }
    }
    None
}

async fn at(invitation: &Invitation, candidate: Candidate, sign: &Sign) -> Result<Joined, Miss> {
    let bound = match candidate.own {
        Some(own) => TcpListener::bind(own),
        None => Err(ErrorKind::AddrNotAvailable.into()),
    };
    match bound {
        Ok(listener) => {
            let address = listener.local_addr()?;
            if let Some(joined) = elsewhere(invitation, candidate).await {
                return Ok(joined);
            }
            let hosted = host(invitation, listener)?;
            own(hosted, address, &invitation.me).await
        }
        Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {
            another(invitation, candidate.at, sign).await
        }
        Err(error) => Err(error.into()),
    }
}

/// Tries the later addresses in the list. While another program held the address `free`, another sidecar of this host
/// may have become the aggregator at a later one. Sidecars that still wait for `free` retry for longer than this.
async fn elsewhere(invitation: &Invitation, free: Candidate) -> Option<Joined> {
    let behind = invitation
        .candidates
        .iter()
        .skip_while(|other| **other != free)
        .skip(1);
    let look = async {
        for other in behind.filter(|other| other.own.is_some()) {
            if let Ok(joined) = another(invitation, other.at, &Sign::default()).await {
                return Some(joined);
            }
        }
        None
    };
    timeout(ELSEWHERE_DEADLINE, look).await.ok().flatten()
}

/// Joins an aggregator in another process.
async fn another(invitation: &Invitation, address: SocketAddr, sign: &Sign) -> Result<Joined, Miss> {
    let Invitation {
        key,
        den,
        me,
        attempt,
        ..
    } = invitation;
    let link = Dealer::through(address, &key.key, den, *attempt).await?;
    sign.give();
    through(link, address, me, patience(ANSWER_DEADLINE, *attempt)).await
}

/// Joins the aggregator that this process just started. On a machine short of CPU, that aggregator may answer slowly.
/// Retries as long as it is running, because a second aggregator would conflict with it.
async fn own(mut hosted: Hosted, address: SocketAddr, me: &Hello) -> Result<Joined, Miss> {
    let began = Instant::now();
    loop {
        let joined = again(&hosted.inside, address, me).await;
        match joined {
            Ok(joined) => {
                return Ok(Joined {
                    hosted: Some(hosted),
                    ..joined
                });
            }
            Err(miss @ Miss::Refused(_)) => return Err(miss),
            Err(miss) if hosted.has_ended() || began.elapsed() > LATER_DEADLINE => return Err(miss),
            Err(_) => sleep(ASK_AGAIN).await,
        }
    }
}

fn host(invitation: &Invitation, listener: TcpListener) -> std::io::Result<Hosted> {
    let Invitation {
        http,
        plan,
        status,
        key,
        den,
        ..
    } = invitation.clone();
    Hosted::start(listener, &key.key, &den, http, plan, status)
}

/// Joins the aggregator of this process again.
pub(super) async fn again(inside: &Path, address: SocketAddr, me: &Hello) -> Result<Joined, Miss> {
    through(Dealer::connect(inside).await?, address, me, ANSWER_DEADLINE).await
}

async fn through(
    mut link: Dealer,
    address: SocketAddr,
    me: &Hello,
    deadline: Duration,
) -> Result<Joined, Miss> {
    let welcome = handshake(&mut link, me, deadline).await?;
    Ok(Joined {
        link,
        welcome,
        address,
        hosted: None,
        alone: None,
    })
}

async fn handshake(link: &mut impl Link, me: &Hello, deadline: Duration) -> Result<Welcome, Miss> {
    let began = Instant::now();
    loop {
        link.send(encode(&Up::Hello(me.clone()))).await?;
        let answer = timeout(deadline, link.recv())
            .await
            .map_err(|_| LinkError::Silent)??;
        match decode_down(&answer) {
            Ok(Down::Welcome(welcome)) if welcome.is_for(me) => return Ok(welcome),
            Ok(Down::Refused(refused)) => return Err(Miss::Refused(refused.why)),
            Ok(Down::Later(later)) if later.job == me.job && began.elapsed() < LATER_DEADLINE => {
                sleep(ASK_AGAIN).await;
            }
            _ => return Err(LinkError::Silent.into()),
        }
    }
}

/// Returns the delay before the next attempt: it doubles from 200 ms to 4 s, plus up to 50 % jitter, so that the
/// sidecars of a large job do not all reconnect at the same moment.
pub fn backoff(attempt: u32, seed: u64) -> Duration {
    spread((200 << attempt.min(5)).min(4_000), attempt, seed)
}

/// Returns the delay before a standalone node looks for the job's aggregator again: it doubles from 2 s to a minute,
/// with the same jitter.
pub fn lonely(attempt: u32, seed: u64) -> Duration {
    spread((2_000 << attempt.min(5)).min(60_000), attempt, seed)
}

fn spread(base_ms: u64, attempt: u32, seed: u64) -> Duration {
    // SplitMix64 (https://prng.di.unimi.it/splitmix64.c)
    let mut chance = seed.wrapping_add(u64::from(attempt).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    chance = (chance ^ (chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    chance ^= chance >> 27;
    Duration::from_millis(base_ms + chance % (base_ms / 2 + 1))
}
