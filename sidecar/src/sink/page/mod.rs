//! The live page: who is slow, why, since when, what it costs and what to do, in a browser, while the job runs.
//!
//! The aggregator puts in what it has anyway (steps as they were compared, the report that it writes, what its metrics know
//! of ranks and GPUs), each as a piece of JSON that is made once. Visitors ask for what is newer than what they have. Nothing
//! is kept for any of them, so that a slow one costs nothing, and nothing that they say changes anything.
//!
//! - [`heat`]: a step as a column of the heat map.
//! - [`report_json`]: what of the report the page shows.
//! - `fleet`: nodes, ranks, GPUs, ports.
//! - [`ranks`]: where each rank stands, in a few bytes.
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

/// Steps as they were compared that may wait to be drawn.
pub const STEPS_IN_WAITING: usize = 64;
/// Visitors that may wait for news at once.
const LISTENERS: usize = 16;
/// Who waits for news is told after this that there are none.
const QUIET: Duration = Duration::from_secs(10);
/// What comes so soon after the first piece of news goes with it.
const GATHER: Duration = Duration::from_millis(30);

/// A piece of the page's data as JSON, and when it was put in.
#[derive(Debug, Default)]
struct Piece {
    serial: u64,
    json: String,
}

impl Piece {
    /// Whether it is another than before.
    fn put(&mut self, serial: u64, json: String) -> bool {
        let is_news = self.json != json;
        if is_news {
            *self = Piece { serial, json };
        }
        is_news
    }
}

/// What the page shows, in bounded memory.
#[derive(Debug, Default)]
struct Board {
    /// Grows with each piece of news.
    serial: u64,
    /// Columns of the heat map, oldest first, and when the step of the last one had ended.
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

/// The page's data: the aggregator puts in, visitors read.
#[derive(Clone, Debug)]
pub struct Live(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    board: Mutex<Board>,
    serial: watch::Sender<u64>,
    /// Tells this aggregator's serials from those of the one before it.
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
        // A piece is whole or is not there, whoever panicked.
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

    /// A step was compared, which had ended so many seconds ago.
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

    /// The report was made. `dir`: where it is written.
    pub fn report(&self, report: &Report, policy: &Policy, dir: &str) {
        let json = report_json::report(report, policy, dir, host::unix_ms());
        self.news(|board, serial| {
            // Whoever takes over from an aggregator that has died finds a job that may have stood still since long ago.
            board.step_at_ns = board
                .step_at_ns
                .or_else(|| Some(past_ns(report.duration_s - report.last_step_s?)));
            board.report.put(serial, json)
        });
    }

    /// A frame has its place in the journal.
    pub fn frame(&self, frame: &Frame) {
        // Most frames tell nothing that the page does not have from elsewhere.
        if !(events::concerns(frame) || fleet::concerns(frame)) {
            return;
        }
        self.news(|board, serial| {
            board.fleet.frame(frame);
            board.timeline.frame(frame, serial, host::unix_ms())
        });
    }

    /// Once a second: looks at what is known of ranks and GPUs, as often as its making allows.
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

    /// What was put in after the serial number `after`, as one JSON object; zero: all there is. With it, up to which number
    /// that is.
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
            // A visitor that has just come could not know how long nothing has moved.
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

    /// Waits until there is something newer than `after`, but not for long.
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

/// So many seconds ago by this host's clock, nanoseconds.
fn past_ns(ago_s: f64) -> u64 {
    host::monotonic_ns().saturating_sub((ago_s * 1e9) as u64)
}

/// Adds a list, if there is anything in it.
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
