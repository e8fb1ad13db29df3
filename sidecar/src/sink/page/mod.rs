//! The live page in a browser, while the job runs. It shows slow ranks, with causes, start, cost and actions.
//!
//! The aggregator publishes data that it has anyway: compared steps, the written report, and its metrics of ranks and
//! GPUs. Each piece is converted to JSON only once. Clients request updates after their last state. No state is kept
//! per client, so a slow client costs nothing, and no request changes anything.
//!
//! - [`heat`]: a step as a column of the heat map.
//! - [`report_json`]: the part of the report on the page.
//! - `fleet`: nodes, ranks, GPUs, ports.
//! - [`ranks`]: the state of each rank, in a few bytes.
//! - `events`: the timeline.
//! - [`serve`]: the page itself, and its data over HTTP.

mod events;
mod fleet;
pub mod heat;
pub mod ranks;
pub mod report_json;
pub mod serve;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline_health::report::Report;
use paceline_health::report::step_snapshot::StepSnapshot;
use paceline_health::{Frame, Policy};
use tokio::sync::{Semaphore, watch};

use self::events::Timeline;
use self::fleet::Fleet;
use crate::host;
use crate::sink::metrics::Metrics;

/// Maximum number of compared steps waiting to be drawn.
pub const STEPS_IN_WAITING: usize = 64;
/// Maximum number of clients waiting for updates.
const LISTENERS: usize = 16;
/// How long a client waits without updates before it gets an empty answer.
const QUIET: Duration = Duration::from_secs(10);
/// How long to collect further updates after the first one.
const GATHER: Duration = Duration::from_millis(30);

/// A part of the page's data as JSON, and its serial number.
#[derive(Debug, Default)]
struct Piece {
    serial: u64,
    json: String,
}

impl Piece {
    /// Replaces the part. Returns true if it changed.
    fn put(&mut self, serial: u64, json: String) -> bool {
        let is_news = self.json != json;
        if is_news {
            *self = Piece { serial, json };
        }
        is_news
    }
}

/// The page's data, in bounded memory.
#[derive(Debug, Default)]
struct Board {
    /// The current serial number. Each update increments it.
    serial: u64,
    /// The columns of the heat map, oldest first. `step_at_ns` is the end time of the last one's step.
    steps: VecDeque<Piece>,
    step_at_ns: Option<u64>,
    report: Piece,
    places: Piece,
    gpus: Piece,
    ranks: Piece,
    ports: Piece,
    timeline: Timeline,
    fleet: Fleet,
}

/// The page's data. The aggregator writes it and clients read it.
#[derive(Clone, Debug)]
pub struct Live(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    board: Mutex<Board>,
    serial: watch::Sender<u64>,
    /// A name that distinguishes this aggregator's serial numbers from those of an earlier one.
    epoch: String,
    seats: Semaphore,
}

impl Default for Live {
    fn default() -> Live {
        Live(Arc::new(Shared {
            board: Mutex::default(),
            serial: watch::Sender::new(0),
            epoch: format!("{:08x}", host::incarnation() as u32),
            seats: Semaphore::new(LISTENERS),
        }))
    }
}

impl Live {
    fn board(&self) -> MutexGuard<'_, Board> {
        // Parts are replaced atomically, so they are valid even after a panic elsewhere.
        self.0.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn news(&self, put: impl FnOnce(&mut Board, u64) -> bool) {
        let mut board = self.board();
        let serial = board.serial + 1;
        if put(&mut board, serial) {
            board.serial = serial;
            drop(board);
            self.0.serial.send_replace(serial);
        }
    }

    /// Adds a compared step, which ended `ago_s` seconds ago.
    pub fn step(&self, seen: &StepSnapshot, ago_s: f64) {
        let column = heat::column(seen);
        let most = heat::columns(seen.cells.len());
        self.news(|board, serial| {
            board.fleet.step(seen);
            while board.steps.len() >= most {
                board.steps.pop_front();
            }
            board.steps.push_back(Piece { serial, json: column });
            board.step_at_ns = Some(past_ns(ago_s));
            true
        });
    }

    /// Publishes a new report. `dir` is the directory that it is written to.
    pub fn report(&self, report: &Report, policy: &Policy, dir: &str) {
        let json = report_json::report(report, policy, dir, host::unix_ms());
        self.news(|board, serial| {
            // If this aggregator replaced a dead one, the job may have made no progress for a long time.
            board.step_at_ns = board
                .step_at_ns
                .or_else(|| Some(past_ns(report.duration_s - report.last_step_s?)));
            board.report.put(serial, json)
        });
    }

    /// Handles a frame that was added to the journal.
    pub fn frame(&self, frame: &Frame) {
        // Most frames contain nothing that the page does not get from other sources.
        if !(events::concerns(frame) || fleet::concerns(frame)) {
            return;
        }
        self.news(|board, serial| {
            board.fleet.frame(frame);
            board.timeline.frame(frame, serial, host::unix_ms())
        });
    }

    /// Updates the data of ranks and GPUs, as often as its cost allows. Call this once a second.
    pub fn tick(&self, metrics: &Metrics, now_ns: u64) {
        let made = self.board().fleet.make(metrics, now_ns, host::monotonic_ns);
        let Some(made) = made else { return };
        self.news(|board, serial| {
            let news = [
                board.places.put(serial, made.places),
                board.gpus.put(serial, made.gpus),
                board.ranks.put(serial, made.ranks),
                board.ports.put(serial, made.ports),
            ];
            news.contains(&true)
        });
    }

    /// Returns the latest serial number, and the updates after the serial number `after` as one JSON object. If `after`
    /// is zero, returns everything.
    pub fn since(&self, after: u64) -> (u64, String) {
        let board = self.board();
        let steps = board.steps.partition_point(|piece| piece.serial <= after);
        let steps = || board.steps.range(steps..).map(|piece| piece.json.as_str());
        let room = steps().map(|json| json.len() + 1).sum::<usize>() + 256;
        let mut text = String::with_capacity(room);
        let _ = write!(
            text,
            "{{\"v\":1,\"epoch\":\"{}\",\"serial\":{}",
            self.0.epoch, board.serial
        );
        if let Some(at_ns) = board.step_at_ns {
            // A new client has no other way to know for how long there was no progress.
            let still_ns = host::monotonic_ns().saturating_sub(at_ns);
            let _ = write!(text, ",\"still_s\":{:.1}", still_ns as f64 / 1e9);
        }
        let pieces = [
            ("report", &board.report),
            ("places", &board.places),
            ("gpus", &board.gpus),
            ("ranks", &board.ranks),
            ("ports", &board.ports),
        ];
        for (name, piece) in pieces {
            if piece.serial > after {
                let _ = write!(text, ",\"{name}\":{}", piece.json);
            }
        }
        list(&mut text, "events", board.timeline.since(after));
        list(&mut text, "steps", steps());
        text.push('}');
        (board.serial, text)
    }

    /// Waits for an update after `after`, for a limited time.
    async fn news_after(&self, after: u64) {
        let mut serials = self.0.serial.subscribe();
        let news = async {
            if serials.wait_for(|serial| *serial > after).await.is_ok() {
                tokio::time::sleep(GATHER).await;
            }
        };
        let _ = tokio::time::timeout(QUIET, news).await;
    }
}

/// Returns the time this many seconds ago on this host's clock, nanoseconds.
fn past_ns(ago_s: f64) -> u64 {
    host::monotonic_ns().saturating_sub((ago_s * 1e9) as u64)
}

/// Adds a list, unless it is empty.
fn list<'a>(text: &mut String, name: &str, items: impl Iterator<Item = &'a str>) {
    let mut items = items.peekable();
    if items.peek().is_none() {
        return;
    }
    let _ = write!(text, ",\"{name}\":[");
    for (index, item) in items.enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(item);
    }
    text.push(']');
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
