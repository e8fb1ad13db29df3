//! Reads the network ports, which are RDMA devices, and interfaces without one. The names are the same as the
//! sidecar's. Only properties that do not change during a job are read.

use std::path::{Path, PathBuf};

use paceline_health::event::{Missing, PortLink, Reading};
use paceline_sidecar::source::host::files::{Files, reading};

use super::{Nic, Text, pci};

const RDMA: &str = "sys/class/infiniband";
const NET: &str = "sys/class/net";

/// Reads the ports.
pub(super) fn read(files: &mut Files) -> Vec<Nic> {
    let mut nics = Vec::new();
    for device in files.names(RDMA) {
        let ports = Path::new(RDMA).join(&device).join("ports");
        for port in files.names(&ports) {
            nics.push(rdma(files, &device, &port));
        }
    }
    let of_rdma: Vec<String> = nics.iter().flat_map(|nic| nic.interfaces.clone()).collect();
    let names: Vec<String> = files
        .names(NET)
        .into_iter()
        .filter(|name| name != "lo" && !of_rdma.contains(name))
        .collect();
    let is_physical = |name: &&String| files.at(NET).join(name).join("device").exists();
    let physical: Vec<String> = names.iter().filter(is_physical).cloned().collect();
    // A container may have no physical interface. In that case, use the interfaces that it has.
    let chosen = if physical.is_empty() && nics.is_empty() {
        names
    } else {
        physical
    };
    nics.extend(chosen.iter().filter_map(|name| interface(files, name)));
    nics
}

fn rdma(files: &mut Files, device: &str, port: &str) -> Nic {
    let base = Path::new(RDMA).join(device);
    let dir = base.join("ports").join(port);
    let link = match files.text(dir.join("link_layer")).unwrap_or_default() {
        "InfiniBand" => PortLink::Infiniband,
        "Ethernet" => PortLink::Roce,
        // EFA has its own transport, which is reported as "Unspecified".
        _ => PortLink::Efa,
    };
    let interfaces = files.names(base.join("device/net"));
    let of_interface = interfaces
        .first()
        .map(|name| Path::new(NET).join(name).join("mtu"));
    // The file has the format `4: ACTIVE`.
    let state = files
        .text(dir.join("state"))
        .map(|state| match state.split_once(": ") {
            Some((_, word)) => word.to_owned(),
            None => state.to_owned(),
        });
    Nic {
        name: format!("{device}/{port}"),
        link,
        state: Text::of(state),
        rate_bps: reading(files.text(dir.join("rate")).and_then(rdma_rate)),
        mtu: of_interface.map_or(Reading::Missing(Missing::Unsupported), |path| {
            reading(files.number(path))
        }),
        firmware: Text::of(files.text(base.join("fw_ver"))),
        interfaces,
        ..on_pci(files, &base.join("device"))
    }
}

/// Parses a rate such as `400 Gb/sec (4X NDR)`.
fn rdma_rate(text: &str) -> Result<f64, Missing> {
    let (number, rest) = text.split_once(' ').ok_or(Missing::Unsupported)?;
    let number: f64 = number.parse().map_err(|_| Missing::Unsupported)?;
    if rest.starts_with("Gb/sec") {
        Ok(number * 1e9)
    } else {
        Err(Missing::Unsupported)
    }
}

/// Reads an interface. Returns `None` for a file among the interfaces, such as `bonding_masters`.
fn interface(files: &mut Files, name: &str) -> Option<Nic> {
    let dir = PathBuf::from(NET).join(name);
    if !files.at(&dir).is_dir() {
        return None;
    }
    // The speed is in megabits per second, or -1 if the driver does not know it.
    let rate = files.number(dir.join("speed"));
    let rate = rate.and_then(|speed| {
        if speed > 0.0 {
            Ok(speed * 1e6)
        } else {
            Err(Missing::Unsupported)
        }
    });
    Some(Nic {
        name: name.to_owned(),
        link: PortLink::Ethernet,
        state: Text::of(files.text(dir.join("operstate"))),
        rate_bps: reading(rate),
        mtu: reading(files.number(dir.join("mtu"))),
        ..on_pci(files, &dir.join("device"))
    })
}

/// Returns a port with its device's PCI properties. The caller fills in the rest.
fn on_pci(files: &mut Files, device: &Path) -> Nic {
    let address = pci::address(files, device);
    let driver = std::fs::read_link(files.at(device.join("driver")));
    let driver = driver
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    Nic {
        name: String::new(),
        link: PortLink::Ethernet,
        state: Text::Missing(Missing::Unsupported),
        rate_bps: Reading::Missing(Missing::Unsupported),
        mtu: Reading::Missing(Missing::Unsupported),
        driver: driver.map_or(Text::Missing(Missing::Unsupported), Text::Text),
        firmware: Text::Missing(Missing::Unsupported),
        interfaces: Vec::new(),
        place: pci::place(files, address.text().unwrap_or_default()),
        pci: address,
    }
}
