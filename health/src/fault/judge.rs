//! Decides the action for one XID from the tables. The XID's number selects a row. If that row refers to the message,
//! the message decides.

use serde::{Deserialize, Serialize};

use super::catalogue::{self, Class, ClassRow, XidRow};
use super::nvlink::{self, Branch, Nvlink4Row, Nvlink5Action, Nvlink5Row, NvlinkLine};
use super::order::{Order, Remedy, When};
use super::table::{TableError, rows};
use crate::verdict::{Finding, Severity};
use std::collections::BTreeMap;

/// The XID tables of `policy/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultTables {
    xids: BTreeMap<u32, XidRow>,
    classes: BTreeMap<Class, ClassRow>,
    findings: BTreeMap<u32, XidFinding>,
    nvlink4: Vec<Nvlink4Row>,
    nvlink5: Vec<Nvlink5Row>,
}

/// One row of `policy/xid-findings.tsv`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct XidFinding {
    finding: Finding,
    suspect: bool,
    context: String,
}

/// The result of judging an XID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// Its class in the catalog.
    pub class: Class,
    /// Its finding.
    pub finding: Finding,
    /// Its severity.
    pub severity: Severity,
    /// The remedy, and when to apply it.
    pub order: Order,
    /// True if results since the last checkpoint may be wrong.
    pub suspect: bool,
    /// If present, the order applies only after this many occurrences on one link.
    pub repeat: Option<Repeat>,
    /// The driver's recommended recovery (XID 154).
    pub recovery: Option<Remedy>,
    /// Explanation: NVIDIA's, or the meaning of the registers.
    pub means: String,
}

/// A fault that matters only when it repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Repeat {
    /// The link, or `None` if not reported.
    pub link: Option<u32>,
    /// How many times the fault must occur before the order applies.
    pub after: u32,
}

impl Default for FaultTables {
    /// Returns the tables as shipped.
    fn default() -> FaultTables {
        // The texts are compiled in and covered by a test, so parsing them cannot fail on a user's machine.
        FaultTables::read().expect("the tables in policy/ are tested")
    }
}

impl FaultTables {
    fn read() -> Result<FaultTables, TableError> {
        let findings = rows(
            "policy/xid-findings.tsv",
            include_str!("../../policy/xid-findings.tsv"),
        )?;
        let findings = findings.iter().map(|row| {
            let yes = |text: &str| match text {
                "yes" => Some(true),
                "no" => Some(false),
                _ => None,
            };
            let finding = XidFinding {
                finding: row.name("finding")?,
                suspect: row.cell("suspect", yes)?,
                context: row.text("context")?.to_owned(),
            };
            Ok((row.cell("xid", |text| text.parse().ok())?, finding))
        });
        Ok(FaultTables {
            findings: findings.collect::<Result<_, TableError>>()?,
            xids: catalogue::xids(include_str!("../../policy/xid.tsv"))?,
            classes: catalogue::classes(include_str!("../../policy/xid-classes.tsv"))?,
            nvlink4: nvlink::nvlink4_rows(include_str!("../../policy/nvlink4.tsv"))?,
            nvlink5: nvlink::nvlink5_rows(include_str!("../../policy/nvlink5.tsv"))?,
        })
    }

    /// Returns the catalog row of an XID.
    pub fn xid(&self, xid: u32) -> Option<&XidRow> {
        self.xids.get(&xid)
    }

    /// Returns the rows of the catalog, by number.
    pub fn xids(&self) -> impl Iterator<Item = &XidRow> {
        self.xids.values()
    }

    /// Returns the action for a class.
    pub fn class(&self, class: Class) -> &ClassRow {
        // A test over the catalog checks that every class has a row.
        &self.classes[&class]
    }

    /// Returns additional information on an XID, or an empty string if there is none.
    pub fn context(&self, xid: u32) -> &str {
        self.findings.get(&xid).map_or("", |row| &row.context)
    }

    /// Judges an XID. `text` is its message, or empty if not known. `branch` is the branch of the node's driver.
    pub fn judge(&self, xid: u32, text: &str, branch: Option<Branch>) -> Judgement {
        let row = self.xids.get(&xid);
        let class = row.map_or(Class::Unlisted, |row| row.class);
        let asked = self.class(class);
        let special = self.findings.get(&xid);
        let mut judgement = Judgement {
            class,
            finding: special.map_or_else(|| finding(class), |row| row.finding),
            severity: asked.severity,
            order: Order {
                remedy: asked.remedy,
                when: asked.when,
            },
            suspect: special.is_some_and(|row| row.suspect),
            repeat: None,
            recovery: None,
            means: row
                .map_or("not in the catalog", |row| &row.description)
                .to_owned(),
        };
        match class {
            Class::FollowText => judgement.follow(text),
            Class::Decode => {
                if let Some(line) = NvlinkLine::parse(text) {
                    self.decode(xid, &line, branch, &mut judgement);
                }
            }
            _ => {}
        }
        judgement
    }

    fn decode(&self, xid: u32, line: &NvlinkLine, branch: Option<Branch>, judgement: &mut Judgement) {
        let link = line.link;
        if xid == 74 {
            let worst = nvlink::nvlink4(&self.nvlink4, line).max_by_key(|row| (row.severity, row.remedy));
            if let Some(row) = worst {
                judgement.severity = row.severity;
                judgement.order = order(row.remedy, row.when);
                judgement.means = row.means.clone();
                judgement.repeat = (row.after > 1).then_some(Repeat {
                    link,
                    after: row.after,
                });
            }
            return;
        }
        let Some((action, row)) = nvlink::nvlink5(&self.nvlink5, xid, line, branch) else {
            return;
        };
        (judgement.severity, judgement.order) = match action {
            Nvlink5Action::Ignore => (Severity::Info, order(Remedy::None, When::JobEnd)),
            Nvlink5Action::FollowRecovery => (Severity::Warning, order(Remedy::RestartApp, When::Now)),
            Nvlink5Action::ResetGpu => (Severity::Critical, order(Remedy::ResetGpu, When::Now)),
        };
        judgement.means = format!("{}: {}", line.unit, row.investigatory);
    }
}

impl Judgement {
    /// Applies the action that XID 154 recommends in its message, for example "GPU recovery action changed from 0x0
    /// (None) to 0x1 (GPU Reset Required)".
    fn follow(&mut self, text: &str) {
        let Some(remedy) = recovery(text) else { return };
        self.recovery = Some(remedy);
        (self.severity, self.order) = recovery_order(remedy);
        self.means = format!("the driver requests: {}", remedy.words());
    }

    /// Returns true if the first occurrence of the XID takes the GPU or its node out of service.
    pub fn acts_on_node(&self) -> bool {
        self.order.remedy.acts_on_node() && self.repeat.is_none()
    }
}

/// Returns the severity and the order for a recovery action of the driver.
pub fn recovery_order(remedy: Remedy) -> (Severity, Order) {
    if remedy == Remedy::None {
        (Severity::Info, order(Remedy::None, When::JobEnd))
    } else {
        (Severity::Critical, order(remedy, When::Now))
    }
}

fn order(remedy: Remedy, when: When) -> Order {
    Order { remedy, when }
}

fn recovery(text: &str) -> Option<Remedy> {
    let after = text.split_once(" to ").map_or(text, |(_, after)| after);
    if let Some((_, hex)) = after.split_once("0x") {
        let digits = hex.bytes().take_while(u8::is_ascii_hexdigit).count();
        let number = u64::from_str_radix(hex.get(..digits)?, 16).ok()?;
        return Remedy::of_recovery_action(number);
    }
    let lower = after.to_ascii_lowercase();
    [
        ("drain and reset", Remedy::DrainReset),
        ("drain p2p", Remedy::DrainP2p),
        ("reboot", Remedy::RebootNode),
        ("reset", Remedy::ResetGpu),
        ("none", Remedy::None),
    ]
    .into_iter()
    .find(|(words, _)| lower.contains(words))
    .map(|(_, remedy)| remedy)
}

/// Returns the finding of an XID that has no row of its own in `policy/xid-findings.tsv`, by its class.
fn finding(class: Class) -> Finding {
    match class {
        Class::NodeReboot | Class::GpuReset | Class::HwInspect | Class::FollowText => Finding::GpuFault,
        Class::App => Finding::ApplicationFault,
        Class::Decode => Finding::NvlinkErrors,
        Class::Software | Class::Record | Class::Info | Class::Sympathetic | Class::Unlisted => {
            Finding::XidRecorded
        }
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
