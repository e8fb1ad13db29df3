//! Checks of this machine and its configuration.

use std::fs::File;
use std::net::ToSocketAddrs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use paceline_health::event::Access;
use paceline_sidecar::guard::Key;
use paceline_sidecar::sink::http::Place;
use paceline_sidecar::source::nvml::{SurveyedGpu, survey};

use super::{Check, Light, STARTED, Subject};
use crate::cli::SettingArgs;
use crate::config::{self, Surroundings, variables};
use crate::run::{cluster, ring_places};

/// This path exists where NVIDIA's driver is loaded.
const DRIVER: &str = "/proc/driver/nvidia";
/// Memory, in bytes, that suffices for the rings, hook and sockets of a node with eight ranks.
const ENOUGH_MEMORY: u64 = 64 << 20;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Checks the configuration files and the variables for mistakes.
pub(super) fn settings(_: &Subject) -> Check {
    let name = "settings";
    if let Err(problem) = config::load(&SettingArgs::default()) {
        let text = format!("{problem:#}");
        return if text.starts_with("PACELINE_") {
            let act = "fix or unset the variable; a job starts without it";
            Check::of(name, Light::Yellow, text, act)
        } else {
            let act = "fix the file: `paceline run` does not start with it (exit code 64)";
            Check::of(name, Light::Red, text, act)
        };
    }
    let unknown = variables::unknown(std::env::vars_os().map(|(name, _)| name));
    if !unknown.is_empty() {
        return Check::of(name, Light::Yellow, unknown.join("; "), "fix or unset it");
    }
    let around = Surroundings::real();
    let there = around.files.iter().filter(|file| config::is_read(file));
    let files: Vec<String> = there.map(|file| file.display().to_string()).collect();
    Check::green(
        name,
        match files.is_empty() {
            true => "no configuration file, defaults apply".to_owned(),
            false => format!("settings: {} (paceline config --origin)", files.join(", ")),
        },
    )
}

/// Checks the driver and the GPUs.
pub(super) fn gpus(subject: &Subject) -> Check {
    let name = "GPUs";
    let library = subject
        .settings
        .as_ref()
        .and_then(|settings| settings.nvml_lib.clone());
    let found = match survey(library.as_deref(), STARTED) {
        Ok(found) => found,
        Err(refusal) => {
            let act = if Path::new(DRIVER).exists() {
                "a driver is loaded: name its library with --nvml-lib, and in a container have the runtime mount it \
                 (NVIDIA_DRIVER_CAPABILITIES=utility,compute)"
            } else {
                "on a node with GPUs, load NVIDIA's driver; without it, Paceline monitors steps but cannot find \
                 causes in GPUs"
            };
            return Check::of(name, Light::Yellow, refusal.text, act);
        }
    };
    let unread = |gpu: &&SurveyedGpu| gpu.access != Access::Readable;
    let all = found.gpus.len();
    match found.gpus.iter().find(unread) {
        Some(gpu) => Check::of(
            name,
            Light::Yellow,
            format!(
                "driver {}, GPU {} of {all} cannot be read: {}",
                found.driver, gpu.index, gpu.text
            ),
            "paceline gpus shows what can be read from each",
        ),
        None => Check::green(
            name,
            format!("driver {}, {all} of {all} GPUs can be read", found.driver),
        ),
    }
}

/// Checks that the kernel log, the source of XIDs, can be read.
pub(super) fn kernel_log(subject: &Subject) -> Check {
    let name = "kernel log";
    let set = subject
        .settings
        .as_ref()
        .and_then(|settings| settings.kmsg.clone());
    if set.is_none() && !Path::new(DRIVER).exists() {
        return Check::green(name, "not needed: no NVIDIA driver is loaded");
    }
    let path = set.unwrap_or_else(|| PathBuf::from("/dev/kmsg"));
    // Open without blocking, so that the check does not hang on a pipe or wait for the next line.
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&path);
    match opened {
        Ok(_) => Check::green(name, format!("{} can be read", path.display())),
        Err(problem) => Check::of(
            name,
            Light::Yellow,
            format!(
                "{}: {problem}: faults that the driver reports (XIDs) are not detected",
                path.display()
            ),
            "let the job's user read it (sysctl kernel.dmesg_restrict=0 and a group on /dev/kmsg), or name a \
             growing copy with --kmsg",
        ),
    }
}

/// Checks the memory for the rings into which trainers write their steps.
pub(super) fn memory(_: &Subject) -> Check {
    let name = "memory";
    let places = ring_places();
    let writable = |place: &&PathBuf| {
        let may = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        place.is_dir() && rustix::fs::access(place.as_path(), may).is_ok()
    };
    let free = |place: &Path| {
        let about = rustix::fs::statvfs(place).ok()?;
        Some(about.f_bavail.saturating_mul(about.f_frsize))
    };
    let Some(place) = places.iter().find(writable) else {
        let tried: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let says = format!("no writable directory for the rings: {}", tried.join(", "));
        return Check::of(
            name,
            Light::Red,
            says,
            "mount /dev/shm, or set TMPDIR to a writable directory",
        );
    };
    let room = free(place).unwrap_or(0);
    let says = format!("{}: {} MiB free", place.display(), room >> 20);
    if room < ENOUGH_MEMORY {
        let act = "remove what earlier jobs left there (ls -la /dev/shm), or give containers more (--shm-size, an emptyDir of \
                   medium Memory)";
        return Check::of(name, Light::Yellow, says, act);
    }
    if place.as_path() == Path::new("/dev/shm") {
        return Check::green(name, says);
    }
    let says = format!("/dev/shm cannot be written; {says}");
    Check::of(
        name,
        Light::Yellow,
        says,
        "mount /dev/shm: on a disk each step costs the trainer more",
    )
}

/// Checks that the page and the metrics can be served at the configured address.
pub(super) fn page(subject: &Subject) -> Check {
    let name = "page";
    let page = subject
        .settings
        .as_ref()
        .map(|settings| settings.page.clone())
        .unwrap_or_default();
    if let Some(warning) = page.warning() {
        return Check::of(name, Light::Yellow, warning, "name one network, or make a token");
    }
    let place = page.http.unwrap_or_else(Place::loopback);
    let shown = match place.port() {
        0 => "127.0.0.1, any free port".to_owned(),
        _ => place.to_string(),
    };
    match place.probe() {
        Ok(()) => Check::green(name, format!("{shown} is free")),
        Err(problem) => Check::of(
            name,
            Light::Yellow,
            format!("{shown}: {problem}; the page would be on another port of 127.0.0.1"),
            "choose another address with --http, or omit it",
        ),
    }
}

/// Checks the key that authenticates a job's nodes to each other.
pub(super) fn key(subject: &Subject) -> Check {
    let name = "key";
    let set = subject
        .settings
        .as_ref()
        .and_then(|settings| settings.key_file.clone());
    let home = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(Path::new(&variable("HOME")?).join(".config")));
    let own = home.map(|folder| folder.join("paceline/key"));
    let Some(path) = set.clone().or(own) else {
        let act = "set HOME, or name a file with --key-file; a job on one node needs none";
        return Check::of(name, Light::Yellow, "there is no directory for it", act);
    };
    let shown = path.display();
    if !path.exists() && set.is_none() {
        return Check::green(
            name,
            format!("the first job creates {shown}; jobs on several nodes need it on each node"),
        );
    }
    match Key::read(&path) {
        Ok(_) => Check::green(name, format!("{shown} is valid, and only its owner can read it")),
        Err(problem) => {
            // If the invalid key was configured, the light is red, because the job would not start.
            let light = if set.is_some() { Light::Red } else { Light::Yellow };
            let act = format!(
                "chmod 600 {shown}, or create a new one: umask 077; head -c 32 /dev/urandom > {shown}"
            );
            Check::of(name, light, problem.to_string(), act)
        }
    }
}

/// Checks the address of the job's aggregator.
pub(super) fn aggregator(subject: &Subject) -> Check {
    let name = "aggregator";
    let set = subject
        .settings
        .as_ref()
        .and_then(|settings| settings.aggregator.clone());
    let Some(place) = set.or_else(|| cluster::first_node(&subject.command, &variable)) else {
        return Check::green(
            name,
            "on this host: no other nodes are configured (for several nodes, add the command: paceline doctor -- \
             CMD)",
        );
    };
    // The last address is the aggregator's. The addresses before it are relays.
    let own = place.rsplit(',').next().unwrap_or_default();
    let host = match own.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => host,
        _ => own,
    };
    let host = host.trim_matches(['[', ']']);
    match (host, 0).to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(address)) => Check::green(name, format!("on {place} ({})", address.ip())),
        _ => Check::of(
            name,
            Light::Red,
            format!("on {place}, and this node cannot resolve {host}"),
            "use an address that all nodes can reach: --aggregator 10.0.0.1",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn subject(command: &[&str]) -> Subject {
        Subject {
            settings: config::load(&SettingArgs::default()).ok(),
            python: None,
            command: command.iter().map(OsString::from).collect(),
        }
    }

    #[test]
    fn the_command_says_where_the_aggregator_would_be() {
        let of = |endpoint: &str| {
            let command = ["torchrun", "--nnodes", "2", "--rdzv-endpoint", endpoint, "t.py"];
            aggregator(&subject(&command))
        };
        let known = of("192.0.2.7:29500");
        assert!(
            known.light == Light::Green && known.says.contains("192.0.2.7"),
            "{known:?}"
        );
        let unknown = of("no-such-host.invalid:29500");
        assert!(
            unknown.light == Light::Red && unknown.act.contains("--aggregator"),
            "{unknown:?}"
        );
    }

    #[test]
    fn memory_says_how_much_there_is() {
        let found = memory(&subject(&[]));
        assert!(found.says.contains(" MiB free"), "{found:?}");
    }
}
