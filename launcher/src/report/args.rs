//! The command line of `paceline report`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::rollup;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: paceline report ./paceline-llama --html; paceline report --compare OLD NEW; paceline report \
--since 7d /runs"
)]
pub(crate) struct ReportArgs {
    /// A run directory, a report.json or a journal; with --since, the directory that contains the runs [default: the
    /// current one].
    #[arg(value_name = "RUN", required_unless_present_any = ["compare", "since"])]
    pub(crate) run: Option<PathBuf>,
    /// Compare run B with run A: better or worse, by how much, and whether that exceeds the noise.
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["run", "since"])]
    pub(crate) compare: Option<Vec<PathBuf>>,
    /// Summarize all runs below RUN that ended within this span (7d, 12h, 2w), by cause and by node.
    #[arg(long, value_name = "SPAN", value_parser = rollup::span)]
    pub(crate) since: Option<Duration>,
    /// Skip unreadable lines of a journal, and print how many.
    #[arg(long)]
    pub(crate) skip_broken: bool,
    /// Print it as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write one HTML page to FILE, or next to the report, and print its path; - prints the page.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        conflicts_with = "json"
    )]
    pub(crate) html: Option<Option<PathBuf>>,
    /// Print Markdown, for an issue, a chat or a wiki.
    #[arg(long, conflicts_with_all = ["json", "html", "compare", "since"])]
    pub(crate) md: bool,
}
