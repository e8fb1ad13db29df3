//! Prints live output of the demo, read from its growing journal. A terminal shows a continuously redrawn line per
//! rank. Other outputs get a plain line every few seconds.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use paceline_health::codec::line;
use paceline_health::event::{Event, GpuSignal};
use paceline_health::id::GpuId;
use paceline_health::sim::GpuScript;
use paceline_health::text::humanize::span;
use paceline_health::verdict::{Cause, Finding, State, Subject, Verdict};
use paceline_sidecar::host;
use paceline_sidecar::sink::status::Status;

use crate::notices::{self, Notices};
use crate::output::{self, Paint, Style};
use crate::run::Watcher;

/// Intervals between two redraws of the table, and between two plain lines.
const DRAW: Duration = Duration::from_millis(250);
const PRINT: Duration = Duration::from_secs(3);
/// How long the demo continues after its fault is named. It is longer on a terminal, for users who want to open the
/// page or `paceline top`.
const AFTER: Duration = Duration::from_secs(5);
const AFTER_WATCHED: Duration = Duration::from_secs(20);
/// Number of cells of the longest bar.
const BAR: f64 = 24.0;
/// Maximum number of ranks shown.
const SHOWN: usize = 16;

/// The last known state of a rank.
#[derive(Clone, Debug, Default)]
struct Seen {
    self_s: f64,
    temperature_c: f64,
    clock_mhz: f64,
    verdict: Option<String>,
}

/// Follows the demo, and ends it some time after the fault has been shown.
pub(super) struct Live {
    style: Style,
    terminal: bool,
    began: Instant,
    next: Instant,
    journal: PathBuf,
    open: Option<BufReader<File>>,
    line: Vec<u8>,
    gpus: Vec<GpuId>,
    ranks: Vec<Seen>,
    step: u64,
    page: Option<String>,
    /// A short form of the action for the latest finding.
    advice: Option<String>,
    until: Option<Instant>,
    drawn: usize,
    notices: Notices,
}

impl Live {
    /// Starts to follow a job of `ranks` ranks whose journal will be at `journal`.
    pub(super) fn new(style: Style, script: &GpuScript, journal: PathBuf) -> Live {
        let now = Instant::now();
        Live {
            style,
            terminal: io::stderr().is_terminal(),
            began: now,
            next: now + DRAW,
            journal,
            open: None,
            line: Vec::new(),
            gpus: (0..script.gpus()).map(|gpu| script.gpu(gpu)).collect(),
            ranks: vec![Seen::default(); script.gpus() as usize],
            step: 0,
            page: None,
            advice: None,
            until: None,
            drawn: 0,
            notices: Notices::new(style),
        }
    }

    /// Reads new journal entries.
    fn follow(&mut self) {
        if self.open.is_none() {
            self.open = File::open(&self.journal).ok().map(BufReader::new);
        }
        let Some(mut reader) = self.open.take() else {
            return;
        };
        // An incomplete line stays in the buffer and is completed by the next call.
        while reader
            .read_until(b'\n', &mut self.line)
            .is_ok_and(|count| count > 0)
        {
            if self.line.ends_with(b"\n") {
                let entry = std::str::from_utf8(&self.line)
                    .ok()
                    .and_then(|text| line::decode(text.trim_end()).ok());
                self.line.clear();
                if let Some(entry) = entry {
                    self.see(&entry.frame.event);
                }
            }
        }
        self.open = Some(reader);
    }

    fn see(&mut self, event: &Event) {
        match event {
            Event::Step(step) => {
                self.step = self.step.max(step.step);
                if let (Some(rank), Some(self_s)) =
                    (self.ranks.get_mut(step.rank.0 as usize), step.self_time())
                {
                    rank.self_s = self_s;
                }
            }
            Event::Gpu(reading) => {
                let index = self.gpus.iter().position(|gpu| *gpu == reading.gpu);
                if let Some(rank) = index.and_then(|index| self.ranks.get_mut(index)) {
                    let value = |signal| reading.readings.get(&signal).and_then(|reading| reading.value());
                    rank.temperature_c = value(GpuSignal::TemperatureC).unwrap_or(rank.temperature_c);
                    rank.clock_mhz = value(GpuSignal::SmClockMhz).unwrap_or(rank.clock_mhz);
                }
            }
            _ => {}
        }
    }

    fn judged(&mut self, verdict: &Verdict) {
        // Print a line only if there is no terminal, because there the table shows the finding.
        if !self.terminal {
            let line = self.notices.on_verdict(verdict, host::unix_ms(), Instant::now());
            line.into_iter().for_each(output::say);
        }
        let Subject::Rank { rank, .. } = verdict.subject else {
            return;
        };
        let Some(seen) = self.ranks.get_mut(rank.0 as usize) else {
            return;
        };
        let raised = verdict.state == State::Raised;
        let text = match verdict.cause {
            Cause::Unknown => verdict.finding.to_string(),
            cause => format!("{}, {}", verdict.finding, cause.name()),
        };
        seen.verdict = raised.then_some(text);
        if raised {
            self.advise(&verdict.action);
        }
        if raised && verdict.finding == Finding::Straggler && verdict.cause != Cause::Unknown {
            let after = if self.terminal { AFTER_WATCHED } else { AFTER };
            self.until.get_or_insert(Instant::now() + after);
        }
    }

    /// Stores the first clause of the action. The report at the end has all of it.
    fn advise(&mut self, action: &str) {
        self.advice = Some(format!("do: {}", notices::first_clause(action)));
    }

    fn elapsed(&self) -> String {
        format!("{:.1} s", self.began.elapsed().as_secs_f64())
    }

    fn slowest(&self) -> Option<(usize, &Seen)> {
        self.ranks
            .iter()
            .enumerate()
            .max_by(|a, b| a.1.self_s.total_cmp(&b.1.self_s))
    }

    fn plain(&self) -> Option<String> {
        let (rank, seen) = self.slowest().filter(|(_, seen)| seen.self_s > 0.0)?;
        Some(format!(
            "{:>7}  step {:<4}  slowest: rank {rank}, {} of its own, GPU at {:.0} C and {:.0} MHz",
            self.elapsed(),
            self.step,
            span(seen.self_s),
            seen.temperature_c,
            seen.clock_mhz,
        ))
    }

    fn draw(&mut self) {
        let mut text = String::new();
        if self.drawn > 0 {
            let _ = write!(text, "\x1b[{}A", self.drawn);
        }
        let dot = self.style.glyph(" · ", ", ");
        let mut facts = vec![self.elapsed(), format!("step {}", self.step)];
        facts.extend(self.page.clone());
        facts.extend(self.until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            format!("ends in {:.0} s (Ctrl-C: now)", left.as_secs_f64())
        }));
        let _ = writeln!(
            text,
            "  {}\x1b[K",
            self.style.paint(Paint::Faint, facts.join(dot))
        );
        let longest = self.slowest().map_or(0.0, |(_, seen)| seen.self_s).max(0.1);
        for (rank, seen) in self.ranks.iter().enumerate().take(SHOWN) {
            let _ = writeln!(text, "{}\x1b[K", self.row(rank, seen, longest));
        }
        self.drawn = 1 + self.ranks.len().min(SHOWN);
        if let Some(advice) = &self.advice {
            let _ = writeln!(text, "  {advice}\x1b[K");
            self.drawn += 1;
        }
        let _ = io::stderr().write_all(text.as_bytes());
    }

    fn row(&self, rank: usize, seen: &Seen, longest: f64) -> String {
        let cells = (seen.self_s / longest * BAR).round() as usize;
        let bar = self.style.glyph("█", "#").repeat(cells);
        let room = " ".repeat((BAR as usize).saturating_sub(cells));
        let paint = if seen.verdict.is_some() {
            Paint::Warn
        } else {
            Paint::Good
        };
        let bar = self.style.paint(paint, bar);
        let verdict = seen
            .verdict
            .as_deref()
            .map_or(String::new(), |text| format!("  {text}"));
        format!(
            "  rank {rank:<2} {bar}{room} {:>8}  {:>3.0} C  {:>4.0} MHz{}",
            span(seen.self_s),
            seen.temperature_c,
            seen.clock_mhz,
            self.style.paint(Paint::Warn, verdict)
        )
    }
}

impl Watcher for Live {
    fn status(&mut self, status: &Status) {
        match status {
            Status::Ready { http, run_dir, .. } => {
                let page = http.as_ref().map(|http| format!("http://{http}/"));
                if let Some(page) = page.as_ref().filter(|_| self.page.is_none()) {
                    output::say(format_args!(
                        "{} live page {page} (for Prometheus {page}metrics); in another terminal: paceline top",
                        self.style.paint(Paint::Strong, "paceline demo:"),
                    ));
                }
                self.page = page.or(self.page.take());
                if let Some(run_dir) = run_dir {
                    self.journal = PathBuf::from(run_dir).join(crate::journal::FILE);
                }
            }
            Status::Verdict(verdict) => self.judged(verdict),
            Status::Note(_) | Status::Progress { .. } => {}
        }
    }

    fn draws(&self) -> bool {
        true
    }

    fn tick(&mut self, now: Instant) -> bool {
        self.follow();
        if self.terminal {
            self.draw();
        } else if let Some(line) = self.plain() {
            output::say(line);
        }
        self.next = now + if self.terminal { DRAW } else { PRINT };
        self.until.is_some_and(|until| now >= until)
    }

    fn wake_at(&self) -> Option<Instant> {
        Some(
            self.until
                .filter(|until| *until > Instant::now())
                .map_or(self.next, |until| until.min(self.next)),
        )
    }
}
