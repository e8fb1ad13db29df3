//! Reads PCIe properties: the location of a device, the width of its link, and the bridges above it.
//! <https://docs.kernel.org/PCI/sysfs-pci.html>

use std::path::{Path, PathBuf};

use paceline_health::event::{Missing, Reading};
use paceline_sidecar::source::host::files::{Files, reading};

use super::{GpuState, GpuToNic, Nic, PciPath, PciPlace, Text};

const DEVICES: &str = "sys/bus/pci/devices";
/// Start of the extended capabilities. A user other than root can read only 64 bytes of the configuration space.
const EXTENDED: usize = 0x100;
/// PCI_EXT_CAP_ID_ACS.
const ACS: u32 = 0x0D;
/// Bits of the ACS control register (bits 2 and 3). With them, peer requests and completions are redirected to the
/// root.
const REDIRECT: u16 = 0b1100;

/// Returns the location of the device at this address.
pub(super) fn place(files: &mut Files, address: &str) -> PciPlace {
    let dir = Path::new(DEVICES).join(address);
    if address.is_empty() || !files.at(&dir).exists() {
        let unknown = || Text::Missing(Missing::Unsupported);
        let none = || Reading::Missing(Missing::Unsupported);
        return PciPlace {
            numa_node: none(),
            cpus: unknown(),
            speed: unknown(),
            speed_max: unknown(),
            width: none(),
            width_max: none(),
            acs: unknown(),
        };
    }
    let mut text = |name: &str| Text::of(files.text(dir.join(name)));
    let (cpus, speed, speed_max) = (
        text("local_cpulist"),
        text("current_link_speed"),
        text("max_link_speed"),
    );
    let mut number = |name: &str| files.number(dir.join(name));
    // -1 means that the firmware does not know the NUMA node.
    let node = number("numa_node").and_then(|node| {
        if node < 0.0 {
            Err(Missing::Unsupported)
        } else {
            Ok(node)
        }
    });
    // 0 means that there is no link, as for a device within a chip.
    let mut width = |name| {
        reading(number(name).and_then(|width| {
            if width > 0.0 {
                Ok(width)
            } else {
                Err(Missing::Unsupported)
            }
        }))
    };
    let (width, width_max) = (width("current_link_width"), width("max_link_width"));
    PciPlace {
        numa_node: reading(node),
        cpus,
        speed,
        speed_max,
        width,
        width_max,
        acs: redirecting(files, &dir),
    }
}

/// Returns the devices from the host bridge down to the device, such as `pci0000:00`, `0000:00:01.0`, `0000:01:00.0`.
fn chain(files: &Files, address: &str) -> Vec<String> {
    let path = std::fs::canonicalize(files.at(DEVICES).join(address)).unwrap_or_default();
    let names = path.iter().map(|part| part.to_string_lossy().into_owned());
    names
        .filter(|name| name.starts_with("pci") && name.contains(':') || is_address(name))
        .collect()
}

/// Returns true if the name is an address such as `0000:b3:00.0`. The domain may have more digits.
fn is_address(name: &str) -> bool {
    let parts: Vec<&str> = name.split([':', '.']).collect();
    let digits =
        |part: &str, least: usize| part.len() >= least && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.len() == 4
        && digits(parts[0], 4)
        && digits(parts[1], 2)
        && digits(parts[2], 2)
        && digits(parts[3], 1)
}

/// Returns the bridges above a device that redirect traffic between devices to the root.
fn redirecting(files: &Files, dir: &Path) -> Text {
    let address = dir
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let bridges = chain(files, &address);
    let above = bridges
        .iter()
        .filter(|bridge| is_address(bridge) && **bridge != address);
    let mut found = Vec::new();
    for bridge in above {
        let path = files.at(DEVICES).join(bridge).join("config");
        match std::fs::read(&path)
            .map_err(|error| error.kind().to_string())
            .and_then(|space| redirects(&space))
        {
            Ok(true) => found.push(bridge.clone()),
            Ok(false) => {}
            Err(error) => return Text::failed(format!("{bridge}: {error}")),
        }
    }
    Text::Text(found.join(" "))
}

/// Returns true if a bridge redirects traffic, according to its configuration space.
fn redirects(space: &[u8]) -> Result<bool, String> {
    if space.len() <= EXTENDED {
        return match space.len() {
            // A conventional PCI bridge has no extended space.
            EXTENDED => Ok(false),
            read => Err(format!(
                "only {read} bytes of its configuration may be read: root is required"
            )),
        };
    }
    let word = |at: usize| {
        space
            .get(at..at + 4)
            .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let mut at = EXTENDED;
    // The capabilities are a linked list in at most 3,840 bytes. The limit also ends the loop if the list has a cycle.
    for _ in 0..960 {
        let Some(head) = word(at).filter(|head| *head != 0 && *head != u32::MAX) else {
            break;
        };
        if head & 0xFFFF == ACS {
            let control = word(at + 4).unwrap_or(0) >> 16;
            return Ok(control as u16 & REDIRECT != 0);
        }
        at = (head >> 20) as usize;
        if at < EXTENDED {
            break;
        }
    }
    Ok(false)
}

/// Returns the distance of every GPU to every port's device.
pub(super) fn paths(files: &Files, gpus: &[GpuState], nics: &[Nic]) -> Vec<GpuToNic> {
    let mut paths = Vec::new();
    for gpu in gpus {
        let from = chain(files, &gpu.pci);
        for nic in nics {
            let to = nic.pci.text().map(|pci| chain(files, pci)).unwrap_or_default();
            if let Some(path) = path((&from, &gpu.place), (&to, &nic.place)) {
                paths.push(GpuToNic {
                    gpu: gpu.pci.clone(),
                    nic: nic.name.clone(),
                    path,
                });
            }
        }
    }
    paths
}

/// Returns the path between two devices, or `None` if one of them was not found.
fn path(from: (&[String], &PciPlace), to: (&[String], &PciPlace)) -> Option<PciPath> {
    let (one, other) = (from.0, to.0);
    if one.is_empty() || other.is_empty() {
        return None;
    }
    let shared = one
        .iter()
        .zip(other)
        .take_while(|(one, other)| one == other)
        .count();
    if shared == 0 {
        let nodes = (from.1.numa_node.value(), to.1.numa_node.value());
        return Some(if nodes.0.is_some() && nodes.0 == nodes.1 {
            PciPath::Node
        } else {
            PciPath::Sys
        });
    }
    // The devices share only the host bridge.
    if shared == 1 {
        return Some(PciPath::Phb);
    }
    // Count the bridges below the shared one, on both sides. A switch has one such bridge above each device.
    let bridges = one.len().max(other.len()) - shared - 1;
    Some(if bridges <= 1 { PciPath::Pix } else { PciPath::Pxb })
}

/// Returns the address of the device behind a link such as `sys/class/net/eth0/device`.
pub(super) fn address(files: &Files, link: &Path) -> Text {
    let path = std::fs::canonicalize(files.at(link)).unwrap_or_else(|_| PathBuf::new());
    // A virtual device is below its PCI device, so the last address in the path is used.
    let mut names = path.iter().map(|part| part.to_string_lossy().into_owned());
    let last = names.rfind(|name| is_address(name));
    last.map_or(Text::Missing(Missing::Unsupported), Text::Text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a configuration space that has another capability before the one under test.
    fn space(control: u16) -> Vec<u8> {
        let mut space = vec![0; 4096];
        space[0x100..0x104].copy_from_slice(&(0x1402_0001u32).to_le_bytes());
        space[0x140..0x144].copy_from_slice(&(0x0001_0000 | ACS).to_le_bytes());
        space[0x146..0x148].copy_from_slice(&control.to_le_bytes());
        space
    }

    #[test]
    fn access_control_is_read_from_the_configuration() {
        assert_eq!(redirects(&space(0x1D)), Ok(true));
        assert_eq!(
            redirects(&space(0x01)),
            Ok(false),
            "validation of sources sends nothing up"
        );
        assert_eq!(redirects(&vec![0; 256]), Ok(false));
        assert_eq!(redirects(&vec![0; 4096]), Ok(false));
        assert!(redirects(&[0; 64]).unwrap_err().contains("root is required"));
        let mut circle = space(0);
        circle[0x140..0x144].copy_from_slice(&(0x1001_0002u32).to_le_bytes());
        assert_eq!(redirects(&circle), Ok(false));
        assert_eq!(redirects(&space(0x1D)[..0x142]), Ok(false), "cut off");
    }

    #[test]
    fn addresses() {
        for (name, is) in [
            ("0000:b3:00.0", true),
            ("10001:01:1f.4", true),
            ("pci0000:00", false),
            ("0000:b3:00", false),
            ("net", false),
            ("virtio2", false),
        ] {
            assert_eq!(is_address(name), is, "{name}");
        }
    }
}
