//! The registers in an NVLink error message: XID 74 (A100, H100) and XID 144 to 150 (NVLink5).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::order::{Remedy, When};
use super::table::{Row, TableError, rows};
use crate::verdict::Severity;

/// The NVLink part of a message: the link, and the registers in the order in which they are printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvlinkLine {
    /// The unit that reports the error (NVLink5), for example `NETIR_LINK_EVT`. Empty if the message does not contain
    /// it.
    pub unit: String,
    /// True if the driver calls the error fatal.
    pub fatal: bool,
    /// The link, or `None` if the message names no link or concerns all links.
    pub link: Option<u32>,
    /// The numbers in parentheses.
    pub registers: Vec<u32>,
}

impl NvlinkLine {
    /// Parses the message after the XID's number, for example `NETIR_LINK_EVT  Fatal   XC0 i0 Link 02 (0x004525c6 0x0
    /// ..)` or `NVLink: fatal error detected on link 7(0x10000, 0x0, ..)`.
    pub fn parse(text: &str) -> Option<NvlinkLine> {
        let (head, registers) = text.split_once("(0x")?;
        let registers = registers.split(')').next()?.split([',', ' ']);
        let registers: Vec<u32> = registers
            .map(|word| word.trim().trim_start_matches("0x"))
            .filter(|word| !word.is_empty())
            .map_while(|word| u32::from_str_radix(word, 16).ok())
            .take(16)
            .collect();
        let mut words = head.split_whitespace().rev();
        let last = words.next()?;
        // In "Link 02 (" or "link 7(", the number is the last word before the parenthesis; "Link -1" means no link.
        let link = words
            .next()
            .filter(|word| word.eq_ignore_ascii_case("link"))
            .and_then(|_| last.parse().ok());
        let lower = head.to_ascii_lowercase();
        let unit = head
            .split_whitespace()
            .take_while(|word| {
                !matches!(
                    word.to_ascii_lowercase().as_str(),
                    "fatal" | "nonfatal" | "non-fatal"
                )
            })
            .collect::<Vec<_>>()
            .join(" ");
        Some(NvlinkLine {
            unit: if lower.starts_with("nvlink") {
                String::new()
            } else {
                unit
            },
            fatal: lower.split_whitespace().any(|word| word == "fatal"),
            link,
            registers,
        })
    }
}

/// The layout of intrInfo, which changed in driver branch R575.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Branch {
    /// Drivers before R575.
    Before575,
    /// R575 and later.
    From575,
}

impl Branch {
    /// Returns the branch of a driver version such as `580.82.07`.
    pub fn of(driver: &str) -> Option<Branch> {
        let major: u32 = driver.trim().split('.').next()?.parse().ok()?;
        Some(if major < 575 {
            Branch::Before575
        } else {
            Branch::From575
        })
    }
}

/// NVIDIA's action for an NVLink5 error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nvlink5Action {
    /// Do nothing.
    Ignore,
    /// Take the action that XID 154 recommends. If there is no XID 154, restart the application.
    FollowRecovery,
    /// Reset the GPU.
    ResetGpu,
}

/// The bits that are compared, and their expected values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mask {
    care: u32,
    bits: u32,
}

impl Mask {
    fn parse(text: &str) -> Option<Option<Mask>> {
        if text.is_empty() {
            return Some(None);
        }
        let (mut care, mut bits) = (0, 0);
        for character in text.chars() {
            let (cared, bit) = match character {
                '-' => (0, 0),
                '0' => (1, 0),
                '1' => (1, 1),
                _ => return None,
            };
            (care, bits) = (care << 1 | cared, bits << 1 | bit);
        }
        (text.len() == 32).then_some(Some(Mask { care, bits }))
    }

    fn matches(self, value: u32) -> bool {
        value & self.care == self.bits
    }
}

/// One row of `policy/nvlink5.tsv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvlink5Row {
    /// The XID.
    pub xid: u32,
    /// The units that report this error.
    units: Vec<String>,
    masks: [Option<Mask>; 2],
    second: [Option<Mask>; 2],
    /// The values of errorStatus that match. Empty if all do.
    status: Vec<u32>,
    action: Nvlink5Action,
    action2: Option<Nvlink5Action>,
    /// NVIDIA's investigatory action.
    pub investigatory: String,
}

impl Nvlink5Row {
    /// Returns the action for the value `info` of intrInfo from a driver of `branch`, or `None` if the row does not
    /// match.
    fn action(&self, info: u32, branch: Branch) -> Option<Nvlink5Action> {
        let at = branch as usize;
        let hit = |mask: Option<Mask>| mask.is_some_and(|mask| mask.matches(info));
        if hit(self.second[at]) {
            return self.action2;
        }
        hit(self.masks[at]).then_some(self.action)
    }

    fn has_unit(&self, unit: &str) -> bool {
        self.units.iter().any(|own| own.eq_ignore_ascii_case(unit))
    }

    /// Returns true if `status` contains one of the single bits in the row. This applies only to the units before
    /// NETIR, in which errorStatus has one bit for each error, so that more bits may be set than the row names.
    fn status_bit_set(&self, status: u32) -> bool {
        self.xid < 149
            && self
                .status
                .iter()
                .any(|own| own.is_power_of_two() && own & status != 0)
    }
}

/// Looks up an NVLink5 message. If the driver branch is unknown, both layouts are tried. If several rows match, the
/// most drastic one counts.
pub fn nvlink5<'a>(
    table: &'a [Nvlink5Row],
    xid: u32,
    line: &NvlinkLine,
    branch: Option<Branch>,
) -> Option<(Nvlink5Action, &'a Nvlink5Row)> {
    let info = *line.registers.first()?;
    let status = line.registers.get(1).copied().unwrap_or(0);
    let branches = branch.map_or(vec![Branch::From575, Branch::Before575], |branch| vec![branch]);
    let matching: Vec<_> = branches
        .iter()
        .flat_map(|branch| {
            let rows = table.iter().filter(|row| row.xid == xid);
            rows.filter_map(|row| Some((row.action(info, *branch)?, row)))
        })
        .collect();
    let of_unit = |(_, row): &&(Nvlink5Action, &Nvlink5Row)| row.has_unit(&line.unit);
    let matching: Vec<_> = if matching.iter().any(|hit| of_unit(&hit)) {
        matching.iter().filter(of_unit).copied().collect()
    } else {
        matching
    };
    let strongest = |wanted: &dyn Fn(&Nvlink5Row) -> bool| {
        matching
            .iter()
            .copied()
            .filter(|(_, row)| wanted(row))
            .max_by_key(|(action, _)| *action)
    };
    strongest(&|row| row.status.contains(&status))
        .or_else(|| strongest(&|row| row.status_bit_set(status)))
        .or_else(|| strongest(&|row| row.status.is_empty()))
}

pub(super) fn nvlink5_rows(text: &str) -> Result<Vec<Nvlink5Row>, TableError> {
    let action = |text: &str| match text {
        "IGNORE" => Some(Some(Nvlink5Action::Ignore)),
        "RESET_GPU" => Some(Some(Nvlink5Action::ResetGpu)),
        "XID_154_EVAL" => Some(Some(Nvlink5Action::FollowRecovery)),
        "" => Some(None),
        _ => None,
    };
    let row = |row: &Row<'_>| {
        Ok(Nvlink5Row {
            xid: row.cell("xid", |text| text.parse().ok())?,
            units: row.text("unit")?.split('/').map(str::to_owned).collect(),
            masks: [
                row.cell("intrinfo_v1_lt_r575", Mask::parse)?,
                row.cell("intrinfo_v2_ge_r575", Mask::parse)?,
            ],
            second: [
                row.cell("action2_v1", Mask::parse)?,
                row.cell("action2_v2", Mask::parse)?,
            ],
            status: row.cell("error_status", |text| numbers(text, '/', 16))?,
            action: row
                .cell("action", action)?
                .ok_or_else(|| row.error("no action".to_owned()))?,
            action2: row.cell("action2", action)?,
            investigatory: row.text("investigatory")?.to_owned(),
        })
    };
    rows("policy/nvlink5.tsv", text)?.iter().map(row).collect()
}

/// One row of `policy/nvlink4.tsv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvlink4Row {
    register: usize,
    bits: u32,
    /// The severity of the error.
    pub severity: Severity,
    /// The remedy after enough occurrences.
    pub remedy: Remedy,
    /// When to apply it.
    pub when: When,
    /// How many times the error must occur on one link before the remedy applies.
    pub after: u32,
    /// Explanation.
    pub means: String,
}

/// Returns the rows whose bits are set in the registers of an XID 74.
pub fn nvlink4<'a>(table: &'a [Nvlink4Row], line: &NvlinkLine) -> impl Iterator<Item = &'a Nvlink4Row> {
    let registers: BTreeMap<usize, u32> = (1..).zip(line.registers.iter().copied()).collect();
    table.iter().filter(move |row| {
        registers
            .get(&row.register)
            .is_some_and(|value| value & row.bits != 0)
    })
}

pub(super) fn nvlink4_rows(text: &str) -> Result<Vec<Nvlink4Row>, TableError> {
    let row = |row: &Row<'_>| {
        let bits = row.cell("bits", |text| numbers(text, ',', 10))?;
        Ok(Nvlink4Row {
            register: row.cell("register", |text| text.parse().ok())?,
            bits: bits
                .iter()
                .fold(0, |bits, bit| bits | 1_u32.checked_shl(*bit).unwrap_or(0)),
            severity: row.name("severity")?,
            remedy: row.name("remedy")?,
            when: row.name("when")?,
            after: row.cell("after", |text| text.parse().ok())?,
            means: row.text("means")?.to_owned(),
        })
    };
    rows("policy/nvlink4.tsv", text)?.iter().map(row).collect()
}

fn numbers(text: &str, between: char, radix: u32) -> Option<Vec<u32>> {
    text.split(between)
        .filter(|word| !word.is_empty())
        .map(|word| u32::from_str_radix(word.trim_start_matches("0x"), radix).ok())
        .collect()
}
