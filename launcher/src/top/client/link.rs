//! Asks the aggregator again and again, on a thread of its own. What it says waits until somebody takes it, and is asked for by
//! what was heard last: whoever looks away for a while misses nothing and fills no memory.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use paceline_sidecar::sink::http::visit::{VisitError, Visitor};

use super::place::Target;
use super::response::{Ending, News};

/// Between two questions: nobody reads faster.
const PACE: Duration = Duration::from_millis(400);
/// After one that failed.
const SOON: Duration = Duration::from_millis(250);
/// The longest between two that fail.
const SELDOM: Duration = Duration::from_secs(5);

/// What the thread says.
#[derive(Debug)]
pub(crate) enum Heard {
    /// There is something new.
    News(Box<News>),
    /// It answers, and there is nothing new.
    Nothing,
    /// It does not answer, and why; how its job ended, if that is known.
    Away(String, Option<Box<Ending>>),
}

/// Who is asked, and how.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) target: Target,
    pub(crate) visitor: Visitor,
    pub(crate) scheme: &'static str,
    pub(crate) base: String,
}

impl Line {
    /// Once; all there is.
    pub(crate) fn ask(&self) -> Result<News, VisitError> {
        let text = self.visitor.ask(&self.base, None)?;
        News::read(&text).map_err(VisitError::Unreached)
    }

    /// Starts to ask for what is newer than that.
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
                    // One that was started again has another port.
                    if let Ok(base) = self.target.base(self.scheme, self.visitor.has_token()) {
                        self.base = base;
                    }
                    // A connection that was cut says nothing yet.
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
        // An answer brings one piece of news at most, which holds all that is newer.
        data.next_back().map(News::read).transpose()
    }
}

fn backoff(failures: u32) -> Duration {
    SOON.saturating_mul(1 << failures.saturating_sub(1).min(8))
        .min(SELDOM)
}
