//! `paceline explain`: shows the meaning of an XID or a finding from the detector's own tables. Uses no network and no
//! GPU.

mod cause;

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use paceline_health::Policy;
use paceline_health::fault::{Branch, Class, Remedy, When};
use paceline_health::verdict::{Cause, Finding, Severity};
use serde::Serialize;

use crate::output::{self, Color, Paint, Style, Usage, nearest};
use crate::report::runbook;

/// Version of the JSON output.
const SCHEMA_VERSION: u32 = 1;
const CATALOGUE: &str = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html";

/// `paceline explain`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples: paceline explain straggler; paceline explain thermal; paceline explain xid 79"
)]
pub(crate) struct ExplainArgs {
    /// A finding (straggler), a cause (thermal) or the number of an XID (79).
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(subcommand)]
    what: Option<ExplainWhat>,
    /// Print it as one line of JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ExplainWhat {
    /// An XID by its number, as the kernel log has it.
    Xid {
        /// The number.
        number: u32,
        /// Rest of the log message; decoded for XIDs 74, 144 to 150 and 154.
        #[arg(long, value_name = "TEXT")]
        message: Option<String>,
        /// The driver's version: the layout of XID 144 to 150 changed with 575 [default: either].
        #[arg(long, value_name = "VERSION")]
        driver: Option<String>,
    },
    /// A finding by its name, as a verdict has it.
    Finding {
        /// The name, such as straggler.
        name: String,
    },
}

/// An XID in the `--json` output.
#[derive(Debug, Serialize)]
struct Xid {
    schema_version: u32,
    xid: u32,
    /// NVIDIA's name for the XID. Empty if the number is not in NVIDIA's catalog.
    name: String,
    description: String,
    class: Class,
    severity: Severity,
    /// True if the meaning depends on the log message and none was given. The fields below then hold for the number
    /// alone.
    needs_message: bool,
    /// The recommended action, and when to take it.
    action: Remedy,
    when: When,
    /// True if the action takes the GPU or its node out of service (reset, reboot or inspection).
    acts_on_node: bool,
    /// The number of occurrences on one link after which the action applies. 1 means that it applies to the first.
    after: u32,
    /// True if results computed since the last checkpoint may be wrong.
    results_suspect: bool,
    finding: Finding,
    /// The meaning of the XID's class, or of the registers in the message.
    means: String,
    /// Further information about the XID.
    context: String,
    immediate_action: String,
    investigatory_action: String,
    source: &'static str,
}

/// A finding in the `--json` output.
#[derive(Debug, Serialize)]
struct Explained {
    schema_version: u32,
    finding: Finding,
    title: String,
    means: String,
    look: String,
    /// The recommended action, by cause. `unknown` applies if no other cause does.
    actions: std::collections::BTreeMap<&'static str, String>,
    runbook: String,
}

/// Prints the explanation.
pub(crate) fn command(args: &ExplainArgs, color: Color) -> anyhow::Result<ExitCode> {
    let policy = Policy::default();
    let style = Style::stdout(color);
    let (json, text) = match (&args.what, &args.name) {
        (
            Some(ExplainWhat::Xid {
                number,
                message,
                driver,
            }),
            None,
        ) => {
            let branch = driver.as_deref().map(branch).transpose()?;
            let xid = Xid::of(&policy, *number, message.as_deref().unwrap_or_default(), branch);
            (serde_json::to_string(&xid)?, xid.render(style))
        }
        (Some(ExplainWhat::Finding { name }), None) => {
            let explained = Explained::of(&policy, finding(name)?);
            (serde_json::to_string(&explained)?, explained.render(style))
        }
        (None, Some(name)) => by_name(&policy, name, style)?,
        (Some(_), Some(name)) => return Err(Usage(format!("{name}: one thing at a time")).into()),
        (None, None) => return Err(Usage("explain what? straggler, thermal, xid 79".to_owned()).into()),
    };
    output::print(&if args.json { json + "\n" } else { text })?;
    Ok(ExitCode::SUCCESS)
}

/// Explains an XID, a finding or a cause by its name alone, as JSON and as text.
fn by_name(policy: &Policy, name: &str, style: Style) -> anyhow::Result<(String, String)> {
    if let Ok(number) = name.parse() {
        let xid = Xid::of(policy, number, "", None);
        return Ok((serde_json::to_string(&xid)?, xid.render(style)));
    }
    let is_cause = |cause: &&Cause| cause.name() == name && **cause != Cause::Unknown;
    let is_finding = Finding::ALL.iter().any(|finding| finding.name() == name);
    // If a finding and a cause have the same name (data-loading), explain the finding, because it has more detail.
    if let Some(cause) = Cause::ALL.iter().find(is_cause).filter(|_| !is_finding) {
        let explained = cause::Explained::of(policy, *cause);
        return Ok((serde_json::to_string(&explained)?, explained.render(style)));
    }
    let explained = Explained::of(policy, finding(name)?);
    Ok((serde_json::to_string(&explained)?, explained.render(style)))
}

fn branch(driver: &str) -> Result<Branch, Usage> {
    Branch::of(driver)
        .ok_or_else(|| Usage(format!("--driver {driver}: expected a version such as 580.82.07")))
}

fn finding(name: &str) -> Result<Finding, Usage> {
    let causes = Cause::ALL.iter().filter(|cause| **cause != Cause::Unknown);
    let known = || {
        let findings = Finding::ALL.iter().map(|finding| finding.name());
        findings.chain(causes.clone().map(|cause| cause.name()))
    };
    let found = Finding::ALL.iter().find(|finding| finding.name() == name);
    found.copied().ok_or_else(|| {
        let hint = match nearest(name, known()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("there are: {}", known().collect::<Vec<_>>().join(", ")),
        };
        Usage(format!("no finding or cause is called \"{name}\"; {hint}"))
    })
}

impl Xid {
    fn of(policy: &Policy, number: u32, message: &str, branch: Option<Branch>) -> Xid {
        let tables = policy.faults();
        let row = tables.xid(number);
        let judged = tables.judge(number, message, branch);
        let text =
            |pick: fn(&paceline_health::fault::XidRow) -> &String| row.map(pick).cloned().unwrap_or_default();
        let description = text(|row| &row.description);
        let of_class = &tables.class(judged.class).means;
        let means = if row.is_none() {
            "The number is not in the catalog: it is recorded, reported once and never acted on.".to_owned()
        } else if judged.means == description {
            of_class.clone()
        } else {
            judged.means.clone()
        };
        Xid {
            schema_version: SCHEMA_VERSION,
            xid: number,
            name: text(|row| &row.mnemonic),
            description,
            class: judged.class,
            severity: judged.severity,
            needs_message: message.is_empty() && matches!(judged.class, Class::Decode | Class::FollowText),
            action: judged.order.remedy,
            when: judged.order.when,
            acts_on_node: judged.acts_on_node(),
            after: judged.repeat.map_or(1, |repeat| repeat.after),
            results_suspect: judged.suspect,
            finding: judged.finding,
            means,
            context: tables.context(number).to_owned(),
            immediate_action: text(|row| &row.immediate_action),
            investigatory_action: text(|row| &row.investigatory_action),
            source: CATALOGUE,
        }
    }

    fn render(&self, style: Style) -> String {
        let title = if self.name.is_empty() {
            "not in NVIDIA's catalog"
        } else {
            &self.description
        };
        let paint = severity_paint(self.severity);
        let mut text = format!(
            "{}  {title}\n",
            style.paint(paint, format_args!("XID {}", self.xid))
        );
        if !self.name.is_empty() {
            let _ = writeln!(text, "{}", style.paint(Paint::Faint, &self.name));
        }
        let mut action = match self.action {
            _ if self.needs_message => "depends on the message: --message TEXT decodes it".to_owned(),
            Remedy::None => "nothing now".to_owned(),
            remedy => format!("{} {}", remedy.words(), self.when.words()),
        };
        if self.after > 1 {
            let _ = write!(action, ", from the {} on one link on", ordinal(self.after));
        }
        if self.results_suspect {
            action.push_str("; go back to the last clean checkpoint");
        }
        let nvidia: Vec<&str> = [&self.immediate_action, &self.investigatory_action]
            .into_iter()
            .map(String::as_str)
            .filter(|text| !text.is_empty())
            .collect();
        let rows = [
            ("severity", self.severity.name().to_owned()),
            ("means", self.means.clone()),
            ("do", action),
            ("know", self.context.clone()),
            ("NVIDIA", nvidia.join(", then ")),
            ("finding", self.finding.name().to_owned()),
            ("source", self.source.to_owned()),
        ];
        text + &table(style, &rows)
    }
}

impl Explained {
    fn of(policy: &Policy, finding: Finding) -> Explained {
        let row = policy.finding(finding);
        let usual = policy.action(finding, Cause::Unknown);
        let own = Cause::ALL.iter().filter_map(|cause| {
            let action = policy.action(finding, *cause);
            (*cause == Cause::Unknown || action != usual).then(|| (cause.name(), action.to_string()))
        });
        Explained {
            schema_version: SCHEMA_VERSION,
            finding,
            title: row.title.to_string(),
            means: row.means.to_string(),
            look: row.look.to_string(),
            actions: own.collect(),
            runbook: runbook(finding),
        }
    }

    fn render(&self, style: Style) -> String {
        let name = style.paint(Paint::Strong, self.finding.name());
        let mut rows = vec![("means", self.means.clone()), ("look at", self.look.clone())];
        for (cause, action) in &self.actions {
            match *cause {
                "unknown" => rows.insert(2, ("do", action.clone())),
                cause => rows.push((cause, action.clone())),
            }
        }
        rows.push(("runbook", self.runbook.clone()));
        format!("{name}  {}\n", self.title) + &table(style, &rows)
    }
}

fn severity_paint(severity: Severity) -> Paint {
    match severity {
        Severity::Info => Paint::Strong,
        Severity::Warning => Paint::Warn,
        Severity::Critical => Paint::Bad,
    }
}

fn ordinal(number: u32) -> String {
    match number {
        2 => "second".to_owned(),
        3 => "third".to_owned(),
        other => format!("{other}th"),
    }
}

/// Formats rows that consist of a label and a wrapped text. Rows without text are omitted.
fn table(style: Style, rows: &[(&str, String)]) -> String {
    let rows = || rows.iter().filter(|(_, text)| !text.is_empty());
    let label = rows().map(|(label, _)| label.len()).max().unwrap_or(0) + 4;
    let room = style.width.saturating_sub(label).max(20);
    let mut out = String::new();
    for (name, text) in rows() {
        let mut head = format!(
            "  {}{}",
            style.paint(Paint::Faint, name),
            " ".repeat(label - 2 - name.len())
        );
        for line in output::wrap(text, room) {
            let _ = writeln!(out, "{head}{line}");
            head = " ".repeat(label);
        }
    }
    out
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
