//! Parses kernel log lines about GPU faults, in every spelling that drivers have used.
//!
//! Parsing never fails. Any input gives a result in time linear in its length, and the stored part of a line is
//! bounded.

use super::pci_id;
use crate::event::{FaultSource, GpuFault, GpuFaultKind};
use crate::id::GpuId;

/// Maximum length of a stored message, in bytes.
pub const MAX_TEXT: usize = 240;
/// Maximum length of the name of a MIG instance, in bytes.
const MAX_INSTANCE: usize = 40;
/// Lines longer than this, in bytes, are truncated before parsing. The kernel's own limit for a record is 1,024 bytes
/// of text.
const MAX_LINE: usize = 4096;
/// Maximum number of lines of one multi-line message of the driver.
const MAX_BLOCK: usize = 5;

/// The content of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelLine {
    /// An XID.
    Xid(XidLine),
    /// A fault of an NVSwitch.
    Switch(XidLine),
    /// A GPU is lost, and no XID was logged for it.
    FellOff {
        /// The GPU's address, or `None` if the line does not contain it.
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
    /// The kernel started here. Earlier lines are from another boot.
    Boot,
}

/// An XID, or the SXID of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidLine {
    /// The GPU's address, or `None` if it is invalid.
    pub pci: Option<String>,
    /// The number of the XID or SXID.
    pub xid: u32,
    /// The message, without process id and name.
    pub text: String,
}

impl KernelLine {
    /// Returns the fault event for the GPU with this UUID (if known), representing `count` identical faults. Returns
    /// `None` if the line is not about a fault.
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

    /// Returns the address in the line.
    pub fn pci(&self) -> Option<&str> {
        match self {
            KernelLine::Xid(line) | KernelLine::Switch(line) => line.pci.as_deref(),
            KernelLine::FellOff { pci, .. } => pci.as_deref(),
            KernelLine::Uuid { pci, .. } => Some(pci),
            KernelLine::Boot => None,
        }
    }
}

/// Parses lines in order. It keeps state, because some of the driver's messages are spread over several lines.
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
            // A line without the driver's prefix may still continue a message.
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

    /// Parses the next line of the message in progress.
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

/// Returns the text of a raw record, which has the form `priority,sequence,microseconds,flags;text`.
fn raw_text(record: &str) -> Option<&str> {
    let (head, text) = record.split_once(';')?;
    let mut numbers = head.split(',');
    let is_number = |word: Option<&str>| {
        word.is_some_and(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()))
    };
    (is_number(numbers.next()) && is_number(numbers.next()) && is_number(numbers.next())).then_some(text)
}

/// Returns true if a boot begins with this line. `journalctl` prints a line for each boot, and a kernel's first line
/// contains its version.
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

/// Returns the first address in a text.
fn address(said: &str) -> Option<String> {
    said.split([' ', ',', '(', ')'])
        .map(|word| word.trim_end_matches([':', '.']))
        .find_map(pci_id)
}

/// Parses a line of the form `GPU at PCI:0000:b3:00: GPU-6d1f0c3a-..`.
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

/// Parses the text after `Xid (`, for example `PCI:0000:b3:00): 79, pid=1234, name=python, GPU has fallen off the bus.`
fn xid(rest: &str) -> Option<XidLine> {
    let (place, rest) = rest.split_once(')')?;
    let rest = rest.trim_start_matches([':', ' ']);
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let number: u32 = rest.get(..digits)?.parse().ok()?;
    let rest = rest.get(digits..)?;
    // The number must end at a comma, a blank, a bracket or the end; "79th" is not an XID.
    if !rest.is_empty() && !rest.starts_with([',', ' ', '(', ':', '\r']) {
        return None;
    }
    let text = without_process(rest.trim_start_matches([',', ' ', ':']).trim_end());
    // The address of a MIG instance has the form `PCI:0000:b3:00 GPU-I:05 GPU-CI:00`.
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

/// Removes `pid=1234, name=python,` and `pid='<unknown>', name=<unknown>,`, because the process is not part of the
/// fault.
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
