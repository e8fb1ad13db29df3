//! Polls the aggregator on a separate thread. A response waits until the view takes it, and the next request asks for
//! what is newer than this response. Therefore a paused view misses nothing and uses no additional memory.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use paceline_sidecar::sink::http::visit::{VisitError, Visitor};

use super::place::Target;
use super::response::{Ending, News};

/// Interval between requests. No user reads faster than this.
const PACE: Duration = Duration::from_millis(400);
/// Pause after the first failure.
const SOON: Duration = Duration::from_millis(250);
/// Maximum pause after failures.
const SELDOM: Duration = Duration::from_secs(5);

/// A message from the polling thread.
#[derive(Debug)]
pub(crate) enum Heard {
    /// New data.
    News(Box<News>),
    /// There was a response, but no new data.
    Nothing,
    /// There was no response, for the given reason. The end of the job is given if it is known.
    Away(String, Option<Box<Ending>>),
}

/// The aggregator to query, and the settings of the connection.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) target: Target,
    pub(crate) visitor: Visitor,
    pub(crate) scheme: &'static str,
    pub(crate) base: String,
}

impl Line {
    /// Requests all data once.
    pub(crate) fn ask(&self) -> Result<News, VisitError> {
        let text = self.visitor.ask(&self.base, None)?;
        News::read(&text).map_err(VisitError::Unreached)
    }

    /// Starts polling for data newer than `serial`.
    pub(crate) fn follow(self, epoch: String, serial: u64) -> std::io::Result<Receiver<Heard>> {
        let (sender, heard) = sync_channel(1);
        thread::Builder::new()
            .name("link".into())
            .spawn(move || self.listen(epoch, serial, &sender))?;
        Ok(heard)
    }

    fn listen(mut self, epoch: String, serial: u64, sender: &SyncSender<Heard>) {
        let mut last = Some((epoch, serial));
        let mut failures = 0_u32;
        loop {
            thread::sleep(if failures == 0 { PACE } else { backoff(failures) });
            let heard = match self.news(last.as_ref()) {
                Ok(news) => {
                    failures = 0;
                    match news {
                        Some(news) => {
                            last = Some((news.epoch.as_str().to_owned(), news.serial));
                            Heard::News(Box::new(news))
                        }
                        None => Heard::Nothing,
                    }
                }
                Err(why) => {
                    failures = failures.saturating_add(1);
                    // Look up the address again, because after a restart the aggregator has another port.
                    if let Ok(base) = self.target.base(self.scheme, self.visitor.has_token()) {
                        self.base = base;
                    }
                    // Do not report the first failure, which may be a single broken connection.
                    if failures == 1 {
                        continue;
                    }
                    Heard::Away(why, self.target.end().map(Box::new))
                }
            };
            if sender.send(heard).is_err() {
                return;
            }
        }
    }

    fn news(&self, last: Option<&(String, u64)>) -> Result<Option<News>, String> {
        let after = last.map(|(epoch, serial)| (epoch.as_str(), *serial));
        let text = self
            .visitor
            .ask(&self.base, after)
            .map_err(|error| error.to_string())?;
        if after.is_none() {
            return News::read(&text).map(Some);
        }
        let mut data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        // A response contains at most one update, which has all newer data.
        data.next_back().map(News::read).transpose()
    }
}

fn backoff(failures: u32) -> Duration {
    SOON.saturating_mul(1 << failures.saturating_sub(1).min(8))
        .min(SELDOM)
}
