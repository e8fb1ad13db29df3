//! NVIDIA's XID catalog, and the action for each class.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::order::{Remedy, When};
use super::table::{TableError, rows};
use crate::verdict::Severity;

/// The kind of action that an XID requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The node must be rebooted.
    NodeReboot,
    /// The GPU must be reset.
    GpuReset,
    /// The board must be inspected.
    HwInspect,
    /// The application must be restarted.
    App,
    /// Software must be updated.
    Software,
    /// The XID is only recorded.
    Record,
    /// No action is needed.
    Info,
    /// The XID is a consequence of another XID of the same GPU.
    Sympathetic,
    /// The action depends on the registers in the XID's message.
    Decode,
    /// The action depends on the text of the XID's message.
    FollowText,
    /// NVIDIA lists the XID as unused.
    Unlisted,
}

/// One row of `policy/xid.tsv`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct XidRow {
    /// The XID's number.
    pub xid: u32,
    /// NVIDIA's mnemonic.
    pub mnemonic: String,
    /// NVIDIA's description.
    pub description: String,
    /// NVIDIA's immediate action.
    pub immediate_action: String,
    /// NVIDIA's investigatory action.
    pub investigatory_action: String,
    /// Our classification.
    pub class: Class,
}

/// One row of `policy/xid-classes.tsv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassRow {
    /// The severity of XIDs of this class.
    pub severity: Severity,
    /// The remedy.
    pub remedy: Remedy,
    /// When to apply it.
    pub when: When,
    /// Explanation.
    pub means: String,
}

pub(super) fn xids(text: &str) -> Result<BTreeMap<u32, XidRow>, TableError> {
    rows("policy/xid.tsv", text)?
        .iter()
        .map(|row| {
            let text = |column| row.text(column).map(|text| text.trim().to_owned());
            let xid = row.cell("xid", |text| text.parse().ok())?;
            let row = XidRow {
                xid,
                mnemonic: text("mnemonic")?,
                description: text("description")?,
                immediate_action: text("immediate_action")?,
                investigatory_action: text("investigatory_action")?,
                class: row.name("class")?,
            };
            Ok((xid, row))
        })
        .collect()
}

pub(super) fn classes(text: &str) -> Result<BTreeMap<Class, ClassRow>, TableError> {
    rows("policy/xid-classes.tsv", text)?
        .iter()
        .map(|row| {
            let class = ClassRow {
                severity: row.name("severity")?,
                remedy: row.name("remedy")?,
                when: row.name("when")?,
                means: row.text("means")?.to_owned(),
            };
            Ok((row.name("class")?, class))
        })
        .collect()
}
