//! Sends parcels to one receiver, in order, until each is accepted or permanently rejected.

use std::sync::mpsc::{Receiver as Bell, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::body::{self, Letter};
use super::exec::{self, Leash};
use super::http;
use super::http::Shown;
use super::receiver::{Kind, Receiver};
use super::spool::Spool;
use crate::warn;

/// Pause after the first failure. It doubles after each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Interval and duration of retries after the end of the job.
const LAST_PAUSE: Duration = Duration::from_millis(300);
pub(super) const LAST: Duration = Duration::from_millis(2500);
/// Interval at which the spool is checked even without a wake-up.
const LOOK: Duration = Duration::from_secs(60);

/// Minimum length of a part of a secret that is hidden. Shorter parts are often common words.
const LEAST_SECRET: usize = 8;
/// Maximum length of an answer in a warning, characters.
const WORDS: usize = 200;

/// The result of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Accepted.
    Taken,
    /// A temporary failure, with the reason. The receiver may have stated when to retry.
    Later(String, Option<Duration>),
    /// A permanent failure, with the reason.
    Never(String),
}

impl Delivery {
    /// Returns the result with its text shortened and without secrets that must not be logged. A receiver may echo its
    /// own address or the key that it received.
    fn without(self, secrets: &[&str]) -> Delivery {
        let parts = secrets
            .iter()
            .flat_map(|secret| secret.split(['/', '?', '&', '=', '@', ':']));
        let mut parts: Vec<&str> = parts.filter(|part| part.len() >= LEAST_SECRET).collect();
        // Replace longer parts first, because one part may be contained in another.
        parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
        // Truncate after hiding, because a secret that was cut in two would not be found.
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

/// Sends parcels to one receiver (see the module documentation).
#[derive(Debug)]
pub struct Courier {
    receiver: Receiver,
    spool: Spool,
    client: http::Client,
    leash: Leash,
}

impl Courier {
    /// Creates the courier of one receiver and its spool. `leash` holds the program that it runs.
    pub fn new(receiver: Receiver, spool: Spool, leash: Leash) -> Courier {
        Courier {
            receiver,
            spool,
            client: http::Client::default(),
            leash,
        }
    }

    /// Runs until the bell's sender is dropped. Then it keeps retrying the remaining parcels for a moment.
    pub fn run(self, bell: &Bell<()>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let wait = match self.round() {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    LOOK
                }
                Err(asked) => {
                    // The delay that the receiver asks for is used only if it is longer than our pause.
                    let wait = asked.map_or(pause, |asked| asked.max(pause)).min(LONGEST_PAUSE);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    wait
                }
            };
            match bell.recv_timeout(wait) {
                // A new parcel must not shorten the pause for a receiver that is down, so sleep before the next
                // attempt.
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

    /// Tries once to send everything that waits.
    pub fn once(&self) {
        let _ = self.round();
    }

    /// Sends everything that waits, up to the first temporary failure.
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

    /// Tries once to deliver a letter. Does not use the spool.
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

    /// A receiver may echo its own address or the request.
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
        // A secret at the position where the text is cut must not be shown in part.
        for at in 170..200 {
            let told = format!("{}{key}", "x".repeat(at));
            let hidden = format!("{:?}", Delivery::Never(told).without(&[key]));
            assert!(!hidden.contains("routing"), "{hidden}");
        }
    }
}
