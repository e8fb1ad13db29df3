//! Network interfaces, in /sys/class/net. <https://docs.kernel.org/networking/statistics.html>

use std::path::{Path, PathBuf};

use super::super::files::Files;
use super::super::grown::Grown;

const CLASS: &str = "sys/class/net";
const ERRORS: [&str; 2] = ["rx_errors", "tx_errors"];
/// Our name for the counter of lost carriers.
pub const CARRIER: &str = "carrier";

/// One interface.
#[derive(Debug)]
pub struct Interface {
    name: String,
    dir: PathBuf,
}

/// Finds the interfaces of physical devices that do not belong to an RDMA device. If there is no physical interface at
/// all, as in a container, returns all interfaces except loopback.
pub fn find(files: &Files, is_rdma: impl Fn(&str) -> bool) -> Vec<Interface> {
    let names = files.names(CLASS);
    let physical = |name: &&String| files.at(CLASS).join(name).join("device").exists();
    let of_devices: Vec<&String> = names.iter().filter(physical).collect();
    if of_devices.is_empty() {
        let others = names
            .iter()
            .filter(|name| *name != "lo" && files.at(CLASS).join(name).is_dir());
        return others.map(|name| Interface::new(name)).collect();
    }
    let own = of_devices.into_iter().filter(|name| !is_rdma(name));
    own.map(|name| Interface::new(name)).collect()
}

impl Interface {
    /// Returns the interface with this name.
    pub fn new(name: &str) -> Interface {
        Interface {
            name: name.to_owned(),
            dir: PathBuf::from(CLASS).join(name),
        }
    }

    /// Returns its directory in sysfs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if it can carry data; `None` if unknown.
    pub fn is_up(&self, files: &mut Files) -> Option<bool> {
        match files.text(self.dir.join("operstate")).ok()? {
            "up" => Some(true),
            // Some drivers never report the state, so use the carrier instead.
            "unknown" => files
                .number(self.dir.join("carrier"))
                .ok()
                .map(|carrier| carrier > 0.0),
            _ => Some(false),
        }
    }

    /// Returns the speed in bits per second. The file `speed` is in megabits per second, and -1 if the driver does not
    /// know the speed.
    pub fn rate_bps(&self, files: &mut Files) -> Option<f64> {
        let speed = files.number(self.dir.join("speed")).ok()?;
        (speed > 0.0).then_some(speed * 1e6)
    }

    /// Adds lost links and errors to the sums.
    pub fn count(
        &self,
        files: &mut Files,
        downs: &mut Grown<&'static str>,
        errors: &mut Grown<&'static str>,
    ) {
        self.count_downs(files, CARRIER, downs);
        for name in ERRORS {
            if let Ok(count) = files.number(self.dir.join("statistics").join(name)) {
                errors.take(name, count);
            }
        }
    }

    /// Adds the number of times the link was lost. Kernels before 4.16 count only changes of the link, of which each
    /// loss causes two: down and up again.
    pub fn count_downs(&self, files: &mut Files, counter: &'static str, downs: &mut Grown<&'static str>) {
        let lost = files.number(self.dir.join("carrier_down_count"));
        let lost = lost.or_else(|_| {
            let changes = files.number(self.dir.join("carrier_changes"))?;
            Ok::<f64, paceline_health::event::Missing>((changes / 2.0).ceil())
        });
        if let Ok(lost) = lost {
            downs.take(counter, lost);
        }
    }
}
