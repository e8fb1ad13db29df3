//! Parses kernel log lines about GPU faults, in every spelling that drivers have used.
//!
//! Parsing is total: any bytes give a result, in time linear in their length, and the stored part of a line is bounded.

use super::pci_id;
use crate::event::{FaultSource, GpuFault, GpuFaultKind};
use crate::id::GpuId;

/// Longest stored message, bytes.
pub const MAX_TEXT: usize = 240;
/// Longest name of a MIG instance, in bytes.
const MAX_INSTANCE: usize = 40;
/// Longer lines are truncated before parsing, bytes. The kernel's own limit for a record is 1,024 of text.
const MAX_LINE: usize = 4096;
/// Most lines of one multi-line message of the driver.
const MAX_BLOCK: usize = 5;

/// The content of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelLine {
    /// An XID.
    Xid(XidLine),
    /// A fault of an NVSwitch.
    Switch(XidLine),
    /// A GPU is lost, and there is no XID for it.
    FellOff {
        /// Its address; `None`: not in the line.
        pci: Option<String>,
        /// The message.
        text: String,
    },
    /// The UUID of the GPU at an address.
    Uuid {
        /// The address.
        pci: String,
        /// `GPU-..`.
        uuid: String,
    },
    /// The kernel started here: earlier lines are from another boot.
    Boot,
}

/// An XID, or the SXID of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidLine {
    /// The GPU's address; `None`: invalid.
    pub pci: Option<String>,
    /// Its number.
    pub xid: u32,
    /// The message, without process id and name.
    pub text: String,
}

impl KernelLine {
    /// The fault event for the GPU with this UUID (if known), representing `count` identical faults; `None`: the line
    /// is not about a fault.
    pub fn fault(&self, gpu: Option<GpuId>, count: u32, seen_by: FaultSource) -> Option<GpuFault> {
        let (kind, xid, text) = match self {
            KernelLine::Xid(line) => (GpuFaultKind::Xid, line.xid, &line.text),
            KernelLine::Switch(line) => (GpuFaultKind::Switch, line.xid, &line.text),
            KernelLine::FellOff { text, .. } => (GpuFaultKind::FellOff, 0, text),
            KernelLine::Uuid { .. } | KernelLine::Boot => return None,
        };
        Some(GpuFault {
            gpu,
            pci: self.pci().unwrap_or_default().into(),
            kind,
            xid,
            count,
            seen_by,
            text: text.as_str().into(),
        })
    }

    /// The address in the line.
    pub fn pci(&self) -> Option<&str> {
        match self {
            KernelLine::Xid(line) | KernelLine::Switch(line) => line.pci.as_deref(),
            KernelLine::FellOff { pci, .. } => pci.as_deref(),
            KernelLine::Uuid { pci, .. } => Some(pci),
            KernelLine::Boot => None,
        }
    }
}

/// Parses lines in order: some of the driver's messages are spread over several.
#[derive(Clone, Debug, Default)]
pub struct KernelLog {
    /// The multi-line message in progress: its address, its text so far, and its number of lines.
    block: Option<(String, String, usize)>,
}

impl KernelLog {
    /// Parses one record, which may contain several lines, and passes each result to `tell`. The record may be raw from
    /// `/dev/kmsg` (`4,123,5000000,-;NVRM: ..`) or in the format of a log file.
    pub fn read(&mut self, record: &str, mut tell: impl FnMut(KernelLine)) {
        let record = cut(record, MAX_LINE);
        let text = raw_text(record).unwrap_or(record);
        if text.starts_with(' ') && text.contains('=') && !text.contains("NVRM") {
            // /dev/kmsg appends a record's properties as lines of " KEY=value".
            return;
        }
        // A raw record escapes its newlines.
        for line in text.split('\n').flat_map(|line| line.split("\\x0a")) {
            if let Some(said) = self.line(line) {
                tell(said);
            }
        }
    }

    fn line(&mut self, line: &str) -> Option<KernelLine> {
        if is_boot(line) {
            self.block = None;
            return Some(KernelLine::Boot);
        }
        if let Some((_, rest)) = line.split_once("SXid (") {
            return xid(rest).map(KernelLine::Switch);
        }
        let Some((_, said)) = line.rsplit_once("NVRM:") else {
            // Continuation lines of a message may lack the driver's prefix.
            return self.block.is_some().then(|| self.in_block(line.trim())).flatten();
        };
        if let Some((_, rest)) = line.split_once("Xid (") {
            self.block = None;
            return xid(rest).map(KernelLine::Xid);
        }
        let said = said.trim();
        if let Some(found) = uuid(said) {
            return Some(found);
        }
        if is_loss(said) {
            let pci = address(said).or_else(|| self.block.take().map(|(pci, _, _)| pci));
            return Some(fell_off(pci, said));
        }
        if let Some(rest) = said
            .strip_prefix("The NVIDIA GPU ")
            .or(said.strip_prefix("The NVIDIA probe routine"))
            && let Some(pci) = address(rest)
        {
            self.block = Some((pci, said.to_owned(), 1));
            return None;
        }
        self.in_block(said)
    }

    /// The next line of the message in progress.
    fn in_block(&mut self, said: &str) -> Option<KernelLine> {
        let (pci, mut words, lines) = self.block.take()?;
        words.push(' ');
        words.push_str(cut(said, MAX_TEXT));
        if is_loss(&words) {
            return Some(fell_off(Some(pci), &words));
        }
        if lines + 1 < MAX_BLOCK {
            self.block = Some((pci, words, lines + 1));
        }
        None
    }
}

/// The text of a raw record, `priority,sequence,microseconds,flags;text`.
fn raw_text(record: &str) -> Option<&str> {
    let (head, text) = record.split_once(';')?;
    let mut numbers = head.split(',');
    let is_number = |word: Option<&str>| {
        word.is_some_and(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()))
    };
    (is_number(numbers.next()) && is_number(numbers.next()) && is_number(numbers.next())).then_some(text)
}

/// `journalctl` marks a boot, and each kernel's first line names its version.
fn is_boot(line: &str) -> bool {
    line.starts_with("-- Boot ")
        || line.starts_with("-- Reboot --")
        || line.split_once("Linux version ").is_some_and(|(before, after)| {
            let before = before.trim_end();
            (before.is_empty() || before.ends_with(']') || before.ends_with("kernel:"))
                && after.starts_with(|first: char| first.is_ascii_digit())
        })
}

fn is_loss(said: &str) -> bool {
    [
        "fallen off the bus",
        "GPU is lost",
        "GPU lost from the bus",
        "NV_ERR_GPU_IS_LOST",
    ]
    .iter()
    .any(|words| said.contains(words))
}

fn fell_off(pci: Option<String>, said: &str) -> KernelLine {
    let text = cut(said, MAX_TEXT).to_owned();
    KernelLine::FellOff { pci, text }
}

/// The first address in a text.
fn address(said: &str) -> Option<String> {
    said.split([' ', ',', '(', ')'])
        .map(|word| word.trim_end_matches([':', '.']))
        .find_map(pci_id)
}

/// `GPU at PCI:0000:b3:00: GPU-6d1f0c3a-..`
fn uuid(said: &str) -> Option<KernelLine> {
    let (pci, uuid) = said.strip_prefix("GPU at ")?.split_once(": ")?;
    let uuid = uuid.trim();
    let is_uuid = uuid.strip_prefix("GPU-").is_some_and(|hex| {
        hex.len() == 36 && hex.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
    });
    let pci = pci_id(pci)?;
    is_uuid.then(|| KernelLine::Uuid {
        pci,
        uuid: uuid.to_owned(),
    })
}

/// Parses the text after `Xid (`: `PCI:0000:b3:00): 79, pid=1234, name=python, GPU has fallen off the bus.`
fn xid(rest: &str) -> Option<XidLine> {
    let (place, rest) = rest.split_once(')')?;
    let rest = rest.trim_start_matches([':', ' ']);
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let number: u32 = rest.get(..digits)?.parse().ok()?;
    let rest = rest.get(digits..)?;
    // The number ends at a comma, a blank, a bracket or the end; "79th" is not an XID.
    if !rest.is_empty() && !rest.starts_with([',', ' ', '(', ':', '\r']) {
        return None;
    }
    let text = without_process(rest.trim_start_matches([',', ' ', ':']).trim_end());
    // Of a MIG instance: `PCI:0000:b3:00 GPU-I:05 GPU-CI:00`.
    let (pci, instance) = place.trim().split_once(' ').unwrap_or((place, ""));
    let mut text = cut(text, MAX_TEXT).to_owned();
    if instance.starts_with("GPU-") && instance.len() <= MAX_INSTANCE {
        text.truncate(text.floor_char_boundary(MAX_TEXT - instance.len() - " ()".len()));
        text = format!("{text} ({instance})").trim_start().to_owned();
    }
    Some(XidLine {
        pci: pci_id(pci),
        xid: number,
        text,
    })
}

/// Removes `pid=1234, name=python,` and `pid='<unknown>', name=<unknown>,`: the process is not part of the fault.
fn without_process(mut text: &str) -> &str {
    for key in ["pid=", "name="] {
        if text.starts_with(key) {
            text = text.split_once(',').map_or("", |(_, rest)| rest.trim_start());
        }
    }
    text
}

/// Truncates a text to at most `bytes`, at a character boundary.
fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod tests;
