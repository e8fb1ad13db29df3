//! Sends the job's verdicts to other tools: Alertmanager, Slack, PagerDuty, a webhook, or a program.
//!
//! `news` decides what is worth a message, once for all receivers. Before messages are sent to a receiver, they are
//! stored as files in its `spool`. One thread per receiver (`courier`) sends and retries. The aggregator only writes
//! small files and never waits for a receiver.

mod alike;
mod body;
mod courier;
mod exec;
pub(in crate::sink) mod http;
mod news;
mod notice;
mod pending;
mod receiver;
mod secret;
mod spool;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver as Inbox, SyncSender, sync_channel};
use std::thread;

use paceline_health::id::JobId;
use paceline_health::report::Report;
use paceline_health::verdict::Verdict;

pub use self::notice::{Notice, Status};
pub use self::pending::{PendingNotices, flush, pending, strangers};
pub use self::receiver::{Address, Kind, PAGERDUTY, Receiver, ReceiverError};
pub use self::trial::trial;

use self::courier::{Courier, LAST};
use self::exec::Leash;
use self::news::News;
use self::spool::{Parcel, Spool};
use crate::safe_file;
use crate::sink::write_whole;
use crate::warn;

/// Name of the notices' directory in the run directory.
pub const FOLDER: &str = "notify";
/// Name of the file in that directory that records which notices were sent.
const STATE: &str = "state.json";
/// Interval of reminders to receivers that need repetition.
const REMIND_EVERY_MS: u64 = 60_000;

/// Sends the notices of a job's verdicts to all receivers.
#[derive(Debug)]
pub struct Notifier {
    state: PathBuf,
    news: News,
    posts: Vec<Post>,
    remind_at_ms: u64,
}

/// A receiver with its spool, and the bell that wakes its courier.
#[derive(Debug)]
struct Post {
    receiver: Receiver,
    spool: Spool,
    bell: SyncSender<()>,
    done: Inbox<()>,
    leash: Held,
}

/// A leash that kills the courier's running program when it is dropped.
#[derive(Debug)]
struct Held(Leash);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.pull();
    }
}

impl Notifier {
    /// Starts the couriers for the receivers of a job with this run directory. Messages that an earlier aggregator left
    /// in the spools are sent. A receiver whose spool cannot be created is reported and left out.
    pub fn start(run_dir: &Path, job: &JobId, receivers: &[Receiver], now_ms: u64) -> Notifier {
        let folder = run_dir.join(FOLDER);
        if receivers
            .iter()
            .any(|receiver| matches!(receiver.kind, Kind::Exec(_)))
        {
            exec::clear_left_behind();
        }
        let posts = receivers.iter().filter_map(|receiver| {
            let opened = Spool::open(&folder.join(receiver.name()))
                .and_then(|spool| Post::start(receiver.clone(), spool));
            opened
                .map_err(|error| warn::once("notify", format_args!("{}: {error}", receiver.name())))
                .ok()
        });
        let posts: Vec<Post> = posts.collect();
        let state = folder.join(STATE);
        let saved = safe_file::read_own(&state)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Notifier {
            state,
            news: News::open(job.clone(), saved.unwrap_or_default()),
            posts,
            remind_at_ms: now_ms + REMIND_EVERY_MS,
        }
    }

    /// Applies the verdicts of a continued journal, which may be empty. New verdicts are sent, and reported ones that
    /// are missing from the journal are resolved.
    pub fn resume(&mut self, verdicts: &[Verdict], now_ms: u64) {
        self.news.resume(verdicts, now_ms);
        self.tick(now_ms);
    }

    /// Handles a verdict that was raised, changed or cleared.
    pub fn verdict(&mut self, verdict: &Verdict, now_ms: u64) {
        self.news.verdict(verdict, now_ms);
    }

    /// Updates the details of open verdicts.
    pub fn update(&mut self, report: &Report) {
        self.news.update(report);
    }

    /// Sends new notices in one parcel. Call this about once a second.
    pub fn tick(&mut self, now_ms: u64) {
        let notices = self.news.poll(now_ms);
        self.post(&notices, now_ms);
        if now_ms >= self.remind_at_ms {
            self.remind_at_ms = now_ms + REMIND_EVERY_MS;
            self.remind(now_ms);
        }
    }

    fn post(&mut self, notices: &[Notice], now_ms: u64) {
        if notices.is_empty() {
            return;
        }
        for post in &mut self.posts {
            let wanted = notices.iter().filter(|notice| post.receiver.wants(notice));
            post.send(wanted.cloned().collect(), now_ms);
        }
        // After a crash between these two steps, the message is sent again. Receivers recognize its key.
        self.keep();
    }

    /// Repeats active notices for receivers that need repetition. No backlog builds up for a receiver that does not
    /// answer.
    fn remind(&mut self, now_ms: u64) {
        let open = self.news.open_notices(now_ms);
        for post in &mut self.posts {
            if post.receiver.kind.forgets() && post.spool.is_empty() {
                let wanted = open.iter().filter(|notice| post.receiver.wants(notice));
                post.send(wanted.cloned().collect(), now_ms);
            }
        }
    }

    fn keep(&self) {
        let bytes = serde_json::to_vec(self.news.saved()).unwrap_or_default();
        if let Err(error) = write_whole(&self.state, &bytes) {
            warn::once("notify", format_args!("{}: {error}", self.state.display()));
        }
    }

    /// Resolves the notices that end with the job, and waits briefly for the couriers. Unsent notices stay on disk for
    /// [`flush`], and are returned.
    pub fn close(mut self, now_ms: u64) -> Vec<PendingNotices> {
        let last = self.news.close(now_ms);
        let (still, over): (Vec<Notice>, Vec<Notice>) =
            last.into_iter().partition(|notice| notice.is_told_again);
        self.post(&over, now_ms);
        // Only receivers that need repetition get the active notices again at the end.
        for post in self.posts.iter_mut().filter(|post| post.receiver.kind.forgets()) {
            let wanted = still.iter().filter(|notice| post.receiver.wants(notice));
            post.send(wanted.cloned().collect(), now_ms);
        }
        self.keep();
        let until = std::time::Instant::now() + LAST;
        // Wait for all couriers at the same time, so that an unresponsive receiver does not use up the time of others.
        let couriers = self.posts.into_iter().map(|post| {
            drop(post.bell);
            (post.receiver, post.spool, post.done, post.leash)
        });
        let couriers: Vec<_> = couriers.collect();
        let wait = |(receiver, spool, done, leash): (Receiver, Spool, Inbox<()>, Held)| {
            let left = until.saturating_duration_since(std::time::Instant::now());
            // Kill the courier's program after this wait, whether the courier has finished or not.
            let _ = done.recv_timeout(left);
            drop(leash);
            PendingNotices::of(&receiver, &spool)
        };
        couriers.into_iter().filter_map(wait).collect()
    }
}

impl Post {
    fn start(receiver: Receiver, spool: Spool) -> std::io::Result<Post> {
        let (bell, rung) = sync_channel(1);
        let (say_done, done) = sync_channel(1);
        let leash = Leash::default();
        let courier = Courier::new(receiver.clone(), spool.clone(), leash.clone());
        thread::Builder::new()
            .name(format!("notify-{}", receiver.kind.name()))
            .stack_size(512 << 10)
            .spawn(move || {
                courier.run(&rung);
                let _ = say_done.send(());
            })?;
        Ok(Post {
            receiver,
            spool,
            bell,
            done,
            leash: Held(leash),
        })
    }

    fn send(&mut self, notices: Vec<Notice>, now_ms: u64) {
        if notices.is_empty() {
            return;
        }
        let put = self.spool.put(&Parcel {
            unix_ms: now_ms,
            notices,
        });
        if let Err(error) = put {
            warn::once("notify spool", format_args!("{}: {error}", self.receiver.name()));
        }
        // If this fails, the courier is already awake.
        let _ = self.bell.try_send(());
    }
}

#[cfg(test)]
pub(in crate::sink) mod tests;
