//! Takes parcels to one receiver, in their order, until each was taken or will never be.

use std::sync::mpsc::{Receiver as Bell, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::body::{self, Letter};
use super::exec::{self, Leash};
use super::http;
use super::http::Shown;
use super::receiver::{Kind, Receiver};
use super::spool::Spool;
use crate::warn;

/// Pause after a first failure; doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// After the end of the job it is tried so often, for so long.
const LAST_PAUSE: Duration = Duration::from_millis(300);
pub(super) const LAST: Duration = Duration::from_millis(2500);
/// With nothing to do the spool is looked at this often, all the same.
const LOOK: Duration = Duration::from_secs(60);

/// Shorter parts of a secret are common words.
const LEAST_SECRET: usize = 8;
/// Most characters of an answer in a warning.
const WORDS: usize = 200;

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

impl Delivery {
    /// In few words, and without what may not stand in a log: a receiver may answer with its own address, or with the key
    /// that it was sent.
    fn without(self, secrets: &[&str]) -> Delivery {
        let parts = secrets
            .iter()
            .flat_map(|secret| secret.split(['/', '?', '&', '=', '@', ':']));
        let mut parts: Vec<&str> = parts.filter(|part| part.len() >= LEAST_SECRET).collect();
        // One may be a part of another.
        parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
        // Only then shortened: what is cut in two is not found.
        let hide = |why: String| {
            let hidden = parts.iter().fold(why, |why, part| why.replace(part, "..."));
            hidden.chars().take(WORDS).collect()
        };
        match self {
            Delivery::Taken => Delivery::Taken,
            Delivery::Later(why, when) => Delivery::Later(hide(why), when),
            Delivery::Never(why) => Delivery::Never(hide(why)),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Courier {
    receiver: Receiver,
    spool: Spool,
    client: http::Client,
    leash: Leash,
}

impl Courier {
    /// For one receiver and its spool. `leash`: what holds a program that it runs.
    pub fn new(receiver: Receiver, spool: Spool, leash: Leash) -> Courier {
        Courier {
            receiver,
            spool,
            client: http::Client::default(),
            leash,
        }
    }

    /// Until nobody rings any more: then what is left is tried for a moment more.
    pub fn run(self, bell: &Bell<()>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let wait = match self.round() {
                Ok(()) => {
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
                Err(RecvTimeoutError::Disconnected) => return self.last(),
            }
        }
    }

    fn last(&self) {
        let until = Instant::now() + LAST;
        while let Err(asked) = self.round() {
            let wait = asked.unwrap_or_default().max(LAST_PAUSE);
            if Instant::now() + wait >= until {
                return;
            }
            std::thread::sleep(wait);
        }
    }

    /// Tries once.
    pub fn once(&self) {
        let _ = self.round();
    }

    /// Everything that waits, up to the first that is not taken now.
    fn round(&self) -> Result<(), Option<Duration>> {
        let waiting = self.spool.list().map_err(|_| None)?;
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
                Delivery::Taken => Spool::delivered(&path),
                Delivery::Never(why) => {
                    warn::once(
                        format!("refused by {name}"),
                        format_args!("{name} rejects notices: {why}"),
                    );
                    self.spool.refused(&path);
                }
                Delivery::Later(why, when) => {
                    warn::once(
                        format!("late for {name}"),
                        format_args!("{name} cannot be reached now; retrying: {why}"),
                    );
                    return Err(when);
                }
            }
        }
        Ok(())
    }

    /// Tries once, without the spool.
    pub(super) fn deliver(&self, letter: &Letter) -> Delivery {
        match &self.receiver.kind {
            Kind::Exec(program) => exec::run(program, letter, &self.leash),
            Kind::Alertmanager(address) => {
                let path = "/api/v2/alerts";
                self.post(
                    address
                        .read()
                        .map(|url| format!("{}{path}", url.trim_end_matches('/'))),
                    letter,
                    &Shown::default(),
                )
            }
            Kind::Webhook(address, proof) => match Shown::read(proof) {
                Ok(shown) => self.post(address.read(), letter, &shown),
                Err(why) => Delivery::Later(why, None),
            },
            Kind::Slack(address) => self.post(address.read(), letter, &Shown::default()),
            Kind::PagerDuty(address, key) => match (address.read(), key.read()) {
                (Ok(url), Ok(key)) => {
                    let letter = letter.with_routing_key(&key);
                    let sent = self.client.post(&url, &letter, &Shown::default());
                    sent.without(&[&url, &key])
                }
                (Err(why), _) | (_, Err(why)) => Delivery::Later(why, None),
            },
        }
    }

    fn post(&self, url: Result<String, String>, letter: &Letter, shown: &Shown) -> Delivery {
        let token = shown.bearer.as_deref().unwrap_or_default();
        match url {
            Ok(url) => self.client.post(&url, letter, shown).without(&[&url, token]),
            Err(why) => Delivery::Later(why, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver may answer with its own address, or with what it was sent.
    #[test]
    fn what_a_receiver_answers_tells_no_secret() {
        let url = "https://hooks.example.org/services/T0123456/B0123456/abcdefghijkl?token=0123456789";
        let key = "routing-key-0123456789";
        let told = format!("no {url} for {key} {} {key}", "x".repeat(80));
        let secrets = [
            "T0123456",
            "B0123456",
            "abcdefghijkl",
            "0123456789",
            "routing-key",
        ];
        for delivery in [Delivery::Never(told.clone()), Delivery::Later(told.clone(), None)] {
            let hidden = format!("{:?}", delivery.without(&[url, key]));
            let leaked: Vec<&str> = secrets
                .into_iter()
                .filter(|secret| hidden.contains(secret))
                .collect();
            assert_eq!(leaked, [""; 0], "{hidden}");
            assert!(hidden.contains("no https://"), "{hidden}");
        }
        // One that would be cut in two is not shown in part.
        for at in 170..200 {
            let told = format!("{}{key}", "x".repeat(at));
            let hidden = format!("{:?}", Delivery::Never(told).without(&[key]));
            assert!(!hidden.contains("routing"), "{hidden}");
        }
    }
}
