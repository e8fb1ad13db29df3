//! NCCL's RAS service (2.24 and later). When a job hangs, it shows ranks that are dead or have launched fewer
//! collectives.
//!
//! The agent never waits for the service. A thread sends the queries, with deadlines for everything, and lives only as
//! long as needed. A missing service, a timeout and an invalid response are reported as such and retried with growing
//! pauses.

mod client;
mod json;
mod mend;
mod tally;
mod text;
mod when;

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use paceline_health::Provenance;
use paceline_health::event::{Event, Pulse, RasAccess, RasReport, RasState};

pub use self::client::{AskError, Limits, ask, read};
use self::when::{When, Why};
use super::{Send, Source};
use crate::warn;

/// NCCL's default address, used if NCCL_RAS_ADDR is not set.
pub const ADDRESS: &str = "localhost:28028";
/// Maximum length of a reported error.
const MAX_TEXT: usize = 200;

type Answer = Result<RasReport, AskError>;

/// The source; see the module.
#[derive(Debug)]
pub struct Ras {
    address: String,
    limits: Limits,
    when: When,
    asker: Option<Asker>,
    /// Reason of the pending query.
    asking: Option<Why>,
    told: RasReport,
    errors: u64,
}

#[derive(Debug)]
struct Asker {
    ask: SyncSender<()>,
    answers: Receiver<Answer>,
}

impl Ras {
    /// Queries the service at this address (HOST:PORT) when an answer is useful.
    pub fn new(address: String, limits: Limits) -> Ras {
        Ras {
            address,
            limits,
            when: When::default(),
            asker: None,
            asking: None,
            told: silent(RasAccess::Absent, String::new()),
            errors: 0,
        }
    }

    /// Returns the address at which the trainers' NCCL serves, from the environment that they share with the sidecar.
    /// Returns `None` if the service is off.
    pub fn address(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
        let is_off = variable("NCCL_RAS_ENABLE").is_some_and(|value| value.trim() == "0");
        let address = variable("NCCL_RAS_ADDR").filter(|value| !value.trim().is_empty());
        (!is_off).then(|| address.unwrap_or_else(|| ADDRESS.to_owned()))
    }

    fn begin(&mut self, why: Why, now_ns: u64) {
        if self.asker.is_none() {
            self.asker = Asker::start(self.address.clone(), self.limits);
        }
        let asked = self
            .asker
            .as_ref()
            .is_some_and(|asker| asker.ask.try_send(()).is_ok());
        self.when.asked(why, now_ns);
        self.asking = asked.then_some(why);
    }

    fn answer(&mut self, why: Why, answer: Answer) -> RasReport {
        let mut report = match answer {
            Ok(mut report) => {
                report.still = why == Why::Still;
                if why == Why::Regular {
                    // Ignore different counts in a running job, because they differ at any time.
                    report
                        .ranks
                        .retain(|rank| !matches!(rank.state, RasState::Behind | RasState::Ahead));
                    (report.uneven, report.more) = (0, 0);
                }
                report
            }
            Err(error @ AskError::Absent { .. }) => silent(RasAccess::Absent, error.to_string()),
            Err(error) => {
                self.errors += 1;
                let text: String = error.to_string().chars().take(MAX_TEXT).collect();
                warn::once(
                    "ras",
                    format_args!("NCCL's RAS service at {}: {text}", self.address),
                );
                silent(RasAccess::Failing, text)
            }
        };
        report.errors = self.errors;
        report
    }
}

fn silent(state: RasAccess, text: String) -> RasReport {
    RasReport {
        state,
        still: false,
        nccl: "".into(),
        comms: 0,
        uneven: 0,
        size: 0,
        ranks: Vec::new(),
        more: 0,
        errors: 0,
        text: text.into(),
    }
}

impl Asker {
    fn start(address: String, limits: Limits) -> Option<Asker> {
        let (ask, asked) = sync_channel::<()>(1);
        let (answer, answers) = sync_channel::<Answer>(1);
        let run = move || {
            while asked.recv().is_ok() {
                if answer.send(client::ask(&address, &limits)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("ras".into())
            .stack_size(256 << 10);
        match thread.spawn(run) {
            Ok(_) => Some(Asker { ask, answers }),
            Err(error) => {
                warn::once(
                    "ras thread",
                    format_args!("NCCL's RAS service is not queried: {error}"),
                );
                None
            }
        }
    }
}

impl Source for Ras {
    fn name(&self) -> &'static str {
        "nccl-ras"
    }

    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>) {
        let Some(why) = self.asking else {
            if let Some(why) = self.when.due(now_ns) {
                self.begin(why, now_ns);
            }
            return;
        };
        let answer = match self.asker.as_ref().map(|asker| asker.answers.try_recv()) {
            Some(Ok(answer)) => answer,
            Some(Err(TryRecvError::Empty)) => return,
            // The thread is gone. The next query starts another one.
            Some(Err(TryRecvError::Disconnected)) | None => {
                (self.asking, self.asker) = (None, None);
                return;
            }
        };
        self.asking = None;
        let report = self.answer(why, answer);
        self.when.answered(report.state == RasAccess::Answered);
        let matters = why == Why::Still && report.state == RasAccess::Answered;
        let differs = report.state != self.told.state || report.ranks != self.told.ranks;
        if matters || differs {
            self.told = report.clone();
            send(Provenance::Live, Event::Ras(report));
        }
    }

    fn notice(&mut self, pulses: &[Pulse], now_ns: u64) {
        self.when.notice(pulses, now_ns);
    }

    fn introduce(&mut self, _send: &mut Send<'_>) {
        self.told = silent(RasAccess::Absent, String::new());
    }
}

#[cfg(test)]
#[path = "ras_tests.rs"]
mod tests;
