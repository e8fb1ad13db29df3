//! Creates a host's files, and libraries with fake GPUs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_nccl_bench::snapshot::Options;
use tempfile::TempDir;

/// The first GPU of fake-nvml.
pub const GPU: &str = "0000:18:00.0";
/// Addresses of a switch: its upstream port, and its downstream ports to the GPU and to a network device.
const ROOT_PORT: &str = "0000:16:00.0";
const UP: &str = "0000:17:00.0";

pub struct Node {
    dir: TempDir,
}

impl Node {
    /// Creates a node with an Ethernet device, and the scenario's GPUs.
    pub fn new(scenario: &str) -> Node {
        let node = Node {
            dir: TempDir::new().unwrap(),
        };
        let beside = std::env::current_exe().unwrap();
        for (built, library) in [
            ("libpaceline_fake_nvml.so", "libnvidia-ml.so.1"),
            ("libpaceline_fake_nccl.so", "libnccl.so.2"),
        ] {
            fs::copy(beside.parent().unwrap().join(built), node.path(library)).unwrap();
        }
        node.write("libnvidia-ml.so.1.toml", scenario);
        node.write("proc/sys/kernel/osrelease", "6.8.0-test\n");
        node.write("proc/self/status", "Name:\tpaceline\nCpus_allowed_list:\t0-63\n");
        node.write("proc/self/cgroup", "0::/job/step\n");
        node.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
        node.write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
        node.write("proc/modules", "nvidia_peermem 16384 0 - Live 0x0\n");
        fs::create_dir_all(node.path("dev/shm")).unwrap();

        let switch = format!("pci0000:15/{ROOT_PORT}/{UP}");
        node.device(&format!("{switch}/0000:17:01.0/{GPU}"), 0);
        node.device("pci0000:15/0000:15:02.0", 0);
        for bridge in [ROOT_PORT, UP, "0000:17:01.0"] {
            node.write(&format!("sys/bus/pci/devices/{bridge}/config"), "");
            // The switch's upstream port redirects traffic between peers, and the other ports do not.
            let control = if bridge == UP { 0x1Du8 } else { 0x01 };
            let mut space = vec![0u8; 4096];
            space[0x100..0x104].copy_from_slice(&0x0001_000Du32.to_le_bytes());
            space[0x106] = control;
            fs::write(node.path(&format!("sys/bus/pci/devices/{bridge}/config")), space).unwrap();
        }
        node.interface("eth0", "0000:15:02.0", "virtio_net", "1500");
        node.write("sys/class/net/lo/operstate", "unknown\n");
        node
    }

    /// Adds two InfiniBand devices. One is next to the first GPU, and the other is at the other CPU.
    pub fn with_rdma(self) -> Node {
        let switch = format!("pci0000:15/{ROOT_PORT}/{UP}");
        self.device(&format!("{switch}/0000:17:02.0/0000:19:00.0"), 0);
        self.device("pci0000:80/0000:80:01.0/0000:81:00.0", 1);
        for (at, pci) in ["0000:19:00.0", "0000:81:00.0"].into_iter().enumerate() {
            let base = format!("sys/class/infiniband/mlx5_{at}");
            self.write(&format!("{base}/fw_ver"), "28.39.1002\n");
            for (file, text) in [
                ("state", "4: ACTIVE\n"),
                ("rate", "400 Gb/sec (4X NDR)\n"),
                ("link_layer", "InfiniBand\n"),
            ] {
                self.write(&format!("{base}/ports/1/{file}"), text);
            }
            self.interface(&format!("ib{at}"), pci, "mlx5_core", "4092");
            fs::create_dir_all(self.path(&format!("sys/bus/pci/devices/{pci}/net/ib{at}"))).unwrap();
            symlink(
                self.path(&format!("sys/bus/pci/devices/{pci}")),
                self.path(&format!("{base}/device")),
            )
            .unwrap();
        }
        self.write("dev/infiniband/uverbs0", "");
        self
    }

    /// Adds a PCI device, with the bridges above it.
    fn device(&self, path: &str, numa: u32) {
        fs::create_dir_all(self.path("sys/bus/pci/devices")).unwrap();
        let dir = format!("sys/devices/{path}");
        for (file, text) in [
            ("numa_node", numa.to_string()),
            ("local_cpulist", format!("{}-{}\n", numa * 32, numa * 32 + 31)),
            ("current_link_speed", "32.0 GT/s PCIe\n".into()),
            ("max_link_speed", "32.0 GT/s PCIe\n".into()),
            ("current_link_width", "16\n".into()),
            ("max_link_width", "16\n".into()),
        ] {
            self.write(&format!("{dir}/{file}"), &text);
        }
        let mut at = PathBuf::from("sys/devices");
        for part in Path::new(path) {
            at.push(part);
            let link = self.path("sys/bus/pci/devices").join(part);
            if !part.to_string_lossy().starts_with("pci") && !link.exists() {
                symlink(self.path(at.to_str().unwrap()), link).unwrap();
            }
        }
    }

    fn interface(&self, name: &str, pci: &str, driver: &str, mtu: &str) {
        let dir = format!("sys/class/net/{name}");
        for (file, text) in [("operstate", "up\n"), ("speed", "-1\n"), ("mtu", mtu)] {
            self.write(&format!("{dir}/{file}"), text);
        }
        let device = format!("sys/bus/pci/devices/{pci}");
        self.write(&format!("sys/bus/pci/drivers/{driver}/module"), "");
        symlink(
            self.path(&format!("sys/bus/pci/drivers/{driver}")),
            self.path(&format!("{device}/driver")),
        )
        .unwrap();
        symlink(self.path(&device), self.path(&format!("{dir}/device"))).unwrap();
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn options(&self, environment: &[(&str, &str)]) -> Options {
        let environment = environment
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        Options {
            host_root: self.dir.path().to_owned(),
            nvml_lib: Some(self.path("libnvidia-ml.so.1")),
            nccl_lib: Some(self.path("libnccl.so.2")),
            cuda_lib: Some(self.path("libnccl.so.2")),
            environment: environment.collect(),
            limit: Duration::from_secs(20),
        }
    }
}
