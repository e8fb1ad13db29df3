//! Runs one sidecar process: its command line, its start, and its statuses.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;
use paceline_sidecar::safe_file;
use paceline_sidecar::sink::status::Status;

use crate::run::Plan;
use crate::run::directories::share::Claim;

/// File in the run directory for the sidecar's own warnings.
pub(crate) const LOG: &str = "sidecar.log";
/// Maximum length of a status line in bytes, far more than real ones have. The rest of the line is dropped.
const MAX_LINE: usize = 1 << 20;

/// A sidecar that was started and not yet reaped.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) process: Child,
    input: Option<ChildStdin>,
    pub(crate) output: Option<ChildStdout>,
    line: Vec<u8>,
    pub(crate) since: Instant,
}

impl Running {
    /// Starts a sidecar for the child with this process id.
    pub(crate) fn start(
        args: &[OsString],
        run_dir: &Path,
        child: u32,
        claim: Option<Claim>,
    ) -> anyhow::Result<Running> {
        let log = safe_file::append(&run_dir.join(LOG));
        // Ignore a log file that cannot be opened, because a full disk must not prevent the start.
        let stderr = log.map_or_else(|_| Stdio::null(), Stdio::from);
        let mut command = Command::new(program());
        command
            .arg0("paceline")
            .args(args)
            // Use a separate process group, so that neither Ctrl-C nor a stop of the job reaches the sidecar.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr);
        if let Some(claim) = &claim {
            claim.hand_over(&mut command);
        }
        let mut process = command.spawn()?;
        if let Some(claim) = claim {
            claim.belongs_to(process.id());
        }
        let (input, output) = (process.stdin.take(), process.stdout.take());
        if let Some(output) = &output {
            rustix::io::ioctl_fionbio(output, true).context("its output")?;
        }
        if let Some(input) = &input {
            rustix::io::ioctl_fionbio(input, true).context("its input")?;
        }
        let mut running = Running {
            process,
            input,
            output,
            line: Vec::new(),
            since: Instant::now(),
        };
        running.say(format_args!("{{\"child\":{child}}}"));
        Ok(running)
    }

    /// Sends one line. If the sidecar does not read, it misses the line, because we never wait.
    pub(crate) fn say(&mut self, line: impl std::fmt::Display) {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// Returns new statuses.
    pub(crate) fn read(&mut self) -> Vec<Status> {
        let mut said = Vec::new();
        let mut buffer = [0; 4096];
        while let Some(output) = &mut self.output {
            match output.read(&mut buffer) {
                Ok(0) => self.output = None,
                Ok(count) => self.take(&buffer[..count], &mut said),
                Err(problem) if problem.kind() == io::ErrorKind::Interrupted => {}
                Err(problem) if problem.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.output = None,
            }
        }
        said
    }

    fn take(&mut self, bytes: &[u8], said: &mut Vec<Status>) {
        for byte in bytes {
            if *byte == b'\n' {
                // Ignore a status that cannot be parsed, because it comes from a later version.
                said.extend(serde_json::from_slice::<Status>(&self.line));
                self.line.clear();
            } else if self.line.len() < MAX_LINE {
                self.line.push(*byte);
            }
        }
    }
}

/// Returns the path of this program, which works even if its file was replaced by a newer one.
fn program() -> PathBuf {
    std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

/// Returns the command line of the sidecar.
pub(crate) fn arguments(
    plan: &Plan,
    run_dir: &Path,
    ring_dir: &Path,
    step_log: Option<&Path>,
) -> Vec<OsString> {
    let mut args = vec![OsString::from("sidecar"), OsString::from("--inherit-ring-dir")];
    // Write flag and value as one word, because a value may begin with a dash.
    let mut flag = |name: &str, value: &std::ffi::OsStr| {
        let mut word = OsString::from(format!("--{name}="));
        word.push(value);
        args.push(word);
    };
    flag("job", plan.job.as_ref());
    flag("node", plan.node.as_ref());
    flag("run-dir", run_dir.as_os_str());
    flag("ring-dir", ring_dir.as_os_str());
    if let Some(task) = plan.task {
        flag("tasks", task.on_node.to_string().as_ref());
    }
    if let Some(bytes) = &plan.settings.journal_bytes {
        flag("journal-bytes", bytes.to_string().as_ref());
    }
    if let Some(aggregator) = &plan.settings.aggregator {
        flag("aggregator", aggregator.as_ref());
    }
    if let Some(key) = &plan.settings.key_file {
        flag("key-file", key.as_os_str());
    }
    for (name, value) in plan.settings.page.flags() {
        flag(name, &value);
    }
    if let Some(library) = &plan.settings.nvml_lib {
        flag("nvml-lib", library.as_os_str());
    }
    if let Some(log) = &plan.settings.kmsg {
        flag("kmsg", log.as_os_str());
    }
    if let Some(address) = &plan.settings.ras {
        flag("ras", address.as_ref());
    }
    if let Some(path) = step_log {
        flag("step-log", path.as_os_str());
        if let Some(pattern) = &plan.settings.step_regex {
            flag("step-regex", pattern.as_ref());
        }
    }
    if let Some(endpoint) = &plan.settings.otlp {
        flag("otlp", endpoint.as_ref());
    }
    if let Some(path) = &plan.settings.metrics_textfile {
        flag("metrics-textfile", path.as_os_str());
    }
    if let Some(path) = &plan.settings.inspector {
        flag("inspector", path.as_os_str());
    }
    if let Some(script) = &plan.settings.sim_gpus {
        flag("sim-gpus", script.to_string().as_ref());
        flag("sim-origin-ns", plan.origin_ns.to_string().as_ref());
    }
    for (key, value) in &plan.settings.changes {
        flag("policy", format!("{key}={value}").as_ref());
    }
    for key in &plan.settings.pinned {
        flag("pinned", key.as_ref());
    }
    if !plan.remedy.is_default() {
        args.extend(plan.remedy.words().into_iter().map(OsString::from));
    }
    args
}
