//! Takes parcels to one receiver, in their order, until each was taken or will never be.

use std::cell::Cell;
use std::sync::mpsc::{Receiver as Bell, RecvTimeoutError};
use std::time::Duration;

use super::body::{self, Letter};
use super::receiver::{Kind, Receiver};
use super::spool::Spool;
use super::{exec, http};
use crate::warn;

/// Pause after a first failure; doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// With nothing to do the spool is looked at this often, all the same.
const LOOK: Duration = Duration::from_secs(60);

/// What became of a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Taken.
    Taken,
    /// Not now, and why; the receiver may say when to come again.
    Later(String, Option<Duration>),
    /// Never, and why.
    Never(String),
}

/// See the module.
#[derive(Debug)]
pub struct Courier {
    receiver: Receiver,
    spool: Spool,
    client: http::Client,
    /// Whether it was said that something was refused, and that something is late.
    refused: Cell<bool>,
    late: Cell<bool>,
}

impl Courier {
    /// For one receiver and its spool.
    pub fn new(receiver: Receiver, spool: Spool) -> Courier {
        Courier {
            receiver,
            spool,
            client: http::Client::default(),
            refused: Cell::new(false),
            late: Cell::new(false),
        }
    }

    /// Until nobody rings any more: then each parcel is tried once more.
    pub fn run(self, bell: &Bell<()>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let wait = match self.round() {
                Ok(_) => {
                    pause = FIRST_PAUSE;
                    LOOK
                }
                Err(asked) => {
                    // Who asks for less than our own pause is in trouble all the same.
                    let wait = asked.map_or(pause, |asked| asked.max(pause)).min(LONGEST_PAUSE);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    wait
                }
            };
            match bell.recv_timeout(wait) {
                // A new parcel does not make a receiver that is down answer sooner.
                Ok(()) if wait < LOOK => std::thread::sleep(wait.min(FIRST_PAUSE)),
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let _ = self.round();
                    return;
                }
            }
        }
    }

    /// Tries once. How many parcels were sent, and how many are left.
    pub fn once(self) -> (usize, usize) {
        let sent = self.round().unwrap_or_default();
        (sent, self.spool.list().map_or(0, |list| list.len()))
    }

    /// Everything that waits, up to the first that is not taken now.
    fn round(&self) -> Result<usize, Option<Duration>> {
        let waiting = self.spool.list().map_err(|_| None)?;
        let mut sent = 0;
        for (number, path) in waiting {
            let Ok(parcel) = Spool::read(&path) else {
                self.spool.refused(&path);
                continue;
            };
            let mut outcome = Delivery::Taken;
            for letter in body::letters(&self.receiver.kind, &parcel, number) {
                outcome = self.deliver(&letter);
                if outcome != Delivery::Taken {
                    break;
                }
            }
            let name = self.receiver.name();
            match outcome {
                Delivery::Taken => {
                    Spool::delivered(&path);
                    sent += 1;
                }
                Delivery::Never(why) => {
                    self.say(
                        &self.refused,
                        format_args!("{name} does not take what is sent: {why}"),
                    );
                    self.spool.refused(&path);
                }
                Delivery::Later(why, when) => {
                    let what = format_args!("{name} cannot be told now, and is tried again: {why}");
                    self.say(&self.late, what);
                    return Err(when);
                }
            }
        }
        Ok(sent)
    }

    /// Says it once for each receiver.
    fn say(&self, said: &Cell<bool>, what: std::fmt::Arguments<'_>) {
        if !said.replace(true) {
            warn::answer(what);
        }
    }

    fn deliver(&self, letter: &Letter) -> Delivery {
        match &self.receiver.kind {
            Kind::Exec(program) => exec::run(program, letter),
            Kind::Alertmanager(address) => {
                let path = "/api/v2/alerts";
                self.post(
                    address
                        .read()
                        .map(|url| format!("{}{path}", url.trim_end_matches('/'))),
                    letter,
                    None,
                )
            }
            Kind::Webhook(address, None) => self.post(address.read(), letter, None),
            Kind::Webhook(address, Some(key)) => match key.read() {
                Ok(key) => self.post(address.read(), letter, Some(key)),
                Err(why) => Delivery::Later(why, None),
            },
            Kind::Slack(address) => self.post(address.read(), letter, None),
            Kind::PagerDuty(address, key) => match key.read() {
                Ok(key) => self.post(address.read(), &letter.with_routing_key(&key), None),
                Err(why) => Delivery::Later(why, None),
            },
        }
    }

    fn post(&self, url: Result<String, String>, letter: &Letter, key: Option<String>) -> Delivery {
        match url {
            Ok(url) => self.client.post(&url, letter, key.as_deref()),
            Err(why) => Delivery::Later(why, None),
        }
    }
}
