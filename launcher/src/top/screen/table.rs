//! Formats the ranks, with a line for each. Only the ranks on the screen are formatted.

use paceline_health::text::humanize::span;

use super::paper::{Line, left, right};
use super::say;
use crate::output::{Paint, Style};
use crate::top::app::App;
use crate::top::client::response::Verdict;
use crate::top::job::RankNow;

/// Maximum width that is reserved for a node's name.
const NODE: usize = 24;
/// Width that fits the names of most findings.
const FINDING: usize = 10;
/// Number of letters that show a step. Each stands for a tenth of it.
const TENTHS: usize = 10;

/// The letters for the parts of a step: data, compute, wait, optimizer, checkpoint (K).
const LETTERS: [char; 5] = ['D', 'C', 'W', 'O', 'K'];

/// An optional column, which is shown if it fits.
struct Column {
    title: &'static str,
    width: usize,
    write: fn(&RankNow<'_>) -> String,
}

/// The columns in display order. [`WANTED`] decides which ones are shown if not all fit.
const COLUMNS: [Column; 9] = [
    Column {
        title: "GPU",
        width: 5,
        write: gpu,
    },
    Column {
        title: "STEP",
        width: 7,
        write: |now| now.step.map_or_else(none, |step| step.to_string()),
    },
    Column {
        title: "TOOK",
        width: 8,
        write: |now| now.standing.took_s.map_or_else(none, span),
    },
    Column {
        title: "WHERE",
        width: TENTHS,
        write: tenths,
    },
    Column {
        title: "TEMP",
        width: 4,
        write: |now| now.gpu_now().temperature_c.map_or_else(none, |c| format!("{c}C")),
    },
    Column {
        title: "MHZ",
        width: 4,
        write: |now| {
            now.gpu_now()
                .sm_clock_mhz
                .map_or_else(none, |mhz| mhz.to_string())
        },
    },
    Column {
        title: "WATT",
        width: 4,
        write: |now| now.gpu_now().power_w.map_or_else(none, |watt| watt.to_string()),
    },
    Column {
        title: "USE",
        width: 4,
        write: |now| {
            let busy = now.gpu_now().utilization_ratio;
            busy.map_or_else(none, |busy| format!("{:.0}%", busy * 100.0))
        },
    },
    Column {
        title: "ECC",
        width: 3,
        write: ecc,
    },
];
/// Indices in [`COLUMNS`], the most important first.
const WANTED: [usize; 9] = [4, 3, 5, 1, 6, 8, 0, 2, 7];

/// Indices in [`COLUMNS`] of the columns that do not need GPUs.
const OF_RANKS: [usize; 3] = [1, 2, 3];

fn none() -> String {
    "-".to_owned()
}

/// Returns the GPU's PCI address in short form, which is bus and device or, if there is a domain, domain and bus.
fn gpu(now: &RankNow<'_>) -> String {
    let Some(gpu) = &now.gpu else { return none() };
    let parts: Vec<&str> = gpu.bus.map_or("", |bus| bus.as_str()).split([':', '.']).collect();
    match parts[..] {
        [domain, bus, device, _] => match domain.trim_start_matches('0') {
            "" => format!("{bus}:{device}"),
            domain => format!("{domain}:{bus}"),
        },
        _ => say::short(gpu.uuid.as_str()),
    }
}

/// Returns the number of uncorrected memory errors if there are any, else that of corrected ones.
fn ecc(now: &RankNow<'_>) -> String {
    let gpu = now.gpu_now();
    match (gpu.ecc_uncorrected, gpu.ecc_corrected) {
        (Some(uncorrected @ 1..), _) => format!("U{uncorrected}"),
        (_, Some(corrected @ 1..)) => format!("c{corrected}"),
        (None, None) => none(),
        _ => "0".to_owned(),
    }
}

/// Returns the step in ten letters. Parts that are not reported are periods.
fn tenths(now: &RankNow<'_>) -> String {
    let Some(shares) = now.standing.shares else {
        return none();
    };
    let (mut text, mut end) = (String::new(), 0.0);
    for (share, letter) in shares.iter().zip(LETTERS) {
        end += share * TENTHS as f64;
        while text.len() < TENTHS && (text.len() as f64) + 0.5 <= end {
            text.push(letter);
        }
    }
    format!("{text:.<TENTHS$}")
}

/// The columns that fit on a screen.
pub(super) struct Table {
    style: Style,
    rank: usize,
    node: usize,
    finding: usize,
    columns: Vec<&'static Column>,
}

impl Table {
    /// Chooses as many columns as fit.
    pub(super) fn of(app: &App, columns: usize, style: Style) -> Table {
        let rank = app.job.len().saturating_sub(1).to_string().len().max(4);
        let named = app.job.longest_node().clamp(4, NODE);
        let mut node = named.min(8);
        // Subtract the signs in front, the spaces between, and the slowdown.
        let mut left = columns.saturating_sub(2 + rank + 1 + 6 + 1 + node + 1 + FINDING);
        let mut taken: Vec<usize> = Vec::new();
        let is_told = |place: &usize| app.job.has_gpus() || OF_RANKS.contains(place);
        for place in WANTED.into_iter().filter(is_told) {
            let own = COLUMNS[place].width + 1;
            if own > left {
                break;
            }
            left -= own;
            taken.push(place);
        }
        taken.sort_unstable();
        let more = left.min(named - node);
        node += more;
        Table {
            style,
            rank,
            node,
            finding: FINDING + left - more,
            columns: taken.into_iter().map(|place| &COLUMNS[place]).collect(),
        }
    }

    /// Returns the line with the column headings.
    pub(super) fn head(&self) -> Line {
        let mut text = format!(
            "  {} {} {}",
            right("RANK", self.rank, self.style),
            right("SLOWER", 6, self.style),
            left("NODE", self.node, self.style)
        );
        for column in &self.columns {
            text.push(' ');
            text += &aligned(column.title, column, self.style);
        }
        Line::new().painted(Paint::Strong, text + " FINDING")
    }

    /// Returns the line of one rank.
    pub(super) fn row(&self, now: &RankNow<'_>, is_selected: bool) -> Line {
        let style = self.style;
        let (mark, paint) = sign(now, style);
        let pointer = if is_selected { ">" } else { " " };
        let slowdown = match now.slowdown() {
            Some(ratio) => format!("{ratio:.2}x"),
            None => "none".to_owned(),
        };
        let node = now.node.map_or("-", |node| node.as_str());
        let mut line = Line::new().plain(pointer);
        line = match paint {
            Some(paint) => line.painted(paint, mark),
            None => line.plain(mark),
        };
        let mut text = format!(
            "{} {} {}",
            right(&now.rank.to_string(), self.rank, style),
            right(&slowdown, 6, style),
            left(node, self.node, style)
        );
        for column in &self.columns {
            text.push(' ');
            text += &aligned(&(column.write)(now), column, style);
        }
        let found = left(&found(now), self.finding, style);
        line = line.plain(text + " ");
        line = match paint {
            Some(paint) => line.painted(paint, found),
            None => line.plain(found),
        };
        line.is_selected = is_selected;
        line
    }
}

fn aligned(text: &str, column: &Column, style: Style) -> String {
    // Align the letters of a step to the left, unlike numbers.
    if column.width == TENTHS {
        left(text, column.width, style)
    } else {
        right(text, column.width, style)
    }
}

/// Returns the sign in front of a rank.
fn sign(now: &RankNow<'_>, style: Style) -> (&'static str, Option<Paint>) {
    match now.verdict.map(Verdict::severity) {
        Some(severity) => {
            let (mark, paint) = say::mark(severity, style);
            (mark, Some(paint))
        }
        None if !now.is_up => ("x", Some(Paint::Faint)),
        None => (" ", None),
    }
}

/// Returns the finding of a rank or, if there is none, a problem of its GPU.
fn found(now: &RankNow<'_>) -> String {
    match now.verdict {
        Some(verdict) => verdict.finding.to_string(),
        None if !now.is_up => "ended".to_owned(),
        None => now.gpu_now().troubles().next().unwrap_or_default().to_owned(),
    }
}
