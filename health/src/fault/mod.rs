//! Parsing and judgment of GPU faults: kernel log lines, NVIDIA's XID catalog, the registers of NVLink errors. This
//! module handles only text and tables. The detector handles the sources of faults and combinations of them.
//!
//! The tables are data files (`policy/xid.tsv` and the files next to it). No number from them is hard-coded here.

mod catalogue;
mod judge;
mod kernel;
mod nvlink;
mod order;
pub(crate) mod table;

pub use catalogue::{Class, ClassRow, XidRow};
pub use judge::{FaultTables, Judgement, Repeat, recovery_order};
pub use kernel::{KernelLine, KernelLog, MAX_TEXT, XidLine};
pub use nvlink::{Branch, NvlinkLine};
pub use order::{Order, Remedy, When};
pub use table::TableError;

/// Normalizes a PCI bus id to the form `0000:b3:00.0`. Returns `None` if `text` is not a bus id. NVML writes eight
/// digits of domain and capital letters, the driver omits the function, and some messages prefix the id with `PCI:`.
pub fn pci_id(text: &str) -> Option<String> {
    let text = text.trim();
    let text = text.strip_prefix("PCI:").unwrap_or(text);
    let mut parts = text.split(':');
    let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let (device, function) = rest.split_once('.').unwrap_or((rest, "0"));
    let hex = |text: &str, digits: usize| {
        let fits =
            !text.is_empty() && text.len() <= digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        fits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    if parts.next().is_some() {
        return None;
    }
    let (domain, bus, device, function) = (hex(domain, 8)?, hex(bus, 2)?, hex(device, 2)?, hex(function, 1)?);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_in_all_its_spellings() {
        let check = |text, wanted: Option<&str>| assert_eq!(pci_id(text).as_deref(), wanted, "{text}");
        for text in [
            "PCI:0000:b3:00",
            "0000:b3:00.0",
            "00000000:B3:00.0",
            " PCI:0000:B3:00.0",
            "0000:b3:00",
        ] {
            check(text, Some("0000:b3:00.0"));
        }
        check("0008:01:00.0", Some("0008:01:00.0"));
        check("00010000:01:00.1", Some("10000:01:00.1"));
        for text in [
            "",
            "b3:00",
            "0000:b3:00:00",
            "0000:xx:00",
            "0000:b3:+1",
            "0000::00",
            "000000000:b3:00",
        ] {
            check(text, None);
        }
    }
}
