//! Prints the result in the format of nccl-tests, for existing parsers. Additional columns come after those of
//! nccl-tests.

use std::fmt::Write;

use crate::measure::{Report, Row, Timing};

/// Returns the lines above the rows.
pub(super) fn head(report: &Report) -> String {
    let mut text = String::new();
    let simulated = if report.about.simulated { ", simulated" } else { "" };
    let details: Vec<String> = report
        .about
        .details
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "# {}: {} over {}{simulated}",
        report.version, report.collective, report.about.transport
    );
    for detail in details {
        let _ = writeln!(text, "#   {detail}");
    }
    text.push_str("#\n# Using devices\n");
    for place in &report.ranks {
        let _ = writeln!(
            text,
            "#  Rank {:>4} Pid {:>7} on {:>10} {}",
            place.rank, place.pid, place.host, place.device
        );
    }
    text.push_str("#\n");
    let _ = writeln!(text, "#{:>63}{:>34}", "out-of-place", "in-place");
    let side = format!("{:>9}{:>8}{:>8}{:>8}", "time", "algbw", "busbw", "#wrong");
    let ours = format!("{:>10}{:>10}{:>6}", "p50", "p99", "slow");
    let _ = writeln!(
        text,
        "#{:>12}{:>14}{:>10}{:>8}{:>8}{side}{side}{ours}{ours}",
        "size", "count", "type", "redop", "root"
    );
    let side = format!("{:>9}{:>8}{:>8}{:>8}", "(us)", "(GB/s)", "(GB/s)", "");
    let ours = format!("{:>10}{:>10}{:>6}", "(us)", "(us)", "rank");
    let _ = writeln!(
        text,
        "#{:>12}{:>14}{:>10}{:>8}{:>8}{side}{side}{ours}{ours}",
        "(B)", "(elements)", "", "", ""
    );
    text
}

/// Returns the row of one size.
pub(super) fn row(row: &Row) -> String {
    let (out, inn) = (row.out_of_place.as_ref(), row.in_place.as_ref());
    format!(
        "{:>13}{:>14}{:>10}{:>8}{:>8}{}{}{}{}\n",
        row.size,
        row.count,
        row.dtype,
        row.redop,
        row.root,
        side(out),
        side(inn),
        ours(out),
        ours(inn)
    )
}

/// Returns the lines below the rows.
pub(super) fn foot(report: &Report) -> String {
    let timings = || {
        report
            .results
            .iter()
            .flat_map(|row| [&row.out_of_place, &row.in_place])
            .flatten()
    };
    let (sum, count) = timings().fold((0.0, 0), |(sum, count), timing| (sum + timing.bus_bw, count + 1));
    let wrong: u64 = timings().filter_map(|timing| timing.nwrong).sum();
    let verdict = if wrong == 0 { "OK" } else { "FAILED" };
    format!(
        "# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {:.4}\n",
        sum / f64::from(count.max(1))
    )
}

fn side(timing: Option<&Timing>) -> String {
    let Some(timing) = timing else {
        return format!("{:>9}{:>8}{:>8}{:>8}", "N/A", "N/A", "N/A", "N/A");
    };
    let wrong = timing.nwrong.map_or("N/A".to_owned(), |wrong| wrong.to_string());
    format!(
        "{:>9}{:>8.2}{:>8.2}{wrong:>8}",
        time(timing.time),
        timing.alg_bw,
        timing.bus_bw
    )
}

fn ours(timing: Option<&Timing>) -> String {
    let Some(timing) = timing else {
        return format!("{:>10}{:>10}{:>6}", "N/A", "N/A", "N/A");
    };
    let slow = timing
        .slowest_rank
        .map_or("N/A".to_owned(), |rank| rank.to_string());
    format!("{:>10}{:>10}{slow:>6}", time(timing.p50), time(timing.p99))
}

/// Formats microseconds with significant digits only, as in nccl-tests.
fn time(us: f64) -> String {
    match us {
        us if us >= 10_000.0 => format!("{us:.0}"),
        us if us >= 1_000.0 => format!("{us:.1}"),
        _ => format!("{us:.2}"),
    }
}
