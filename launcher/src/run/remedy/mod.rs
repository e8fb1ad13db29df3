//! The launcher's part of remedies: checks the options before the job starts, and ends the command if a remedy requires
//! it. `stopper` does the latter for tasks of another launcher.

pub(crate) mod stopper;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use paceline_health::remedy::Response;
use paceline_health::verdict::Finding;
use paceline_sidecar::remedy::RemedyOptions;
use paceline_sidecar::remedy::hand::Stop;
use paceline_sidecar::source::ends;
use rustix::process::Signal;

use super::identity::cluster::{self, Variable};
use super::identity::torchrun;
use super::process::child::Child;
use crate::output::Usage;

/// Interval between two checks for a request to end the command.
const LOOK: Duration = Duration::from_millis(500);

/// Returns the options, with Slurm's defaults filled in.
///
/// # Errors
/// If a requeue is requested and no command for it is known, or if leave-node is requested for a command that would end
/// with the node.
pub(super) fn checked(
    mut options: RemedyOptions,
    command: &[OsString],
    around: Variable<'_>,
) -> Result<RemedyOptions, Usage> {
    options
        .check_notify()
        .map_err(|why| Usage(format!("--notify: {why}")))?;
    let rules = options.plan().rules;
    let is_asked = |response| {
        let mut findings = Finding::ALL.iter();
        findings.any(|finding| rules.wanted(*finding).response == response)
    };
    if is_asked(Response::LeaveNode)
        && let Some(why) = ends_with_a_node(command, around)
    {
        return Err(Usage(format!("--on-fault leave-node: {why}")));
    }
    if is_asked(Response::Requeue) && options.requeue_command.is_none() {
        let Some(job) = around("SLURM_JOB_ID") else {
            return Err(Usage(
                "--on-fault requeue: this is not a Slurm job, and there is no --requeue-command".to_owned(),
            ));
        };
        options.requeue_command = Some(format!("paceline slurm requeue {job} --exclude {{node}}"));
    }
    Ok(options)
}

/// Returns why a job would not continue when the command of one node ends, and what would help. Returns `None` if the
/// job continues. torchrun's agents notice only by their workers' failure that another agent has left, so each agent
/// must be allowed a restart (<https://docs.pytorch.org/docs/stable/elastic/run.html>).
fn ends_with_a_node(command: &[OsString], around: Variable<'_>) -> Option<String> {
    let option = |name: &str| cluster::torchrun_option(command, around, name);
    // Do not treat a worker as an agent, although it inherits its agent's variables.
    let is_worker = around("LOCAL_RANK").is_some() && !torchrun::is_in(command);
    let Some(nodes) = option("nnodes").filter(|_| !is_worker) else {
        let what = match torchrun::is_in(command) {
            true => "torchrun without --nnodes has one node only",
            false => "only torchrun continues without a node, and the command is not torchrun",
        };
        return Some(format!(
            "{what}: start `paceline run -- torchrun --nnodes MIN:MAX --max-restarts N ...` once on each node, \
             or use checkpoint-and-stop or requeue"
        ));
    };
    let (least, most) = nodes.split_once(':').unwrap_or((&nodes, &nodes));
    if least == most {
        return Some(format!(
            "torchrun with --nnodes {nodes} does not continue with fewer nodes: use --nnodes MIN:MAX"
        ));
    }
    let restarts = option("max-restarts").unwrap_or_else(|| "0".to_owned());
    (restarts == "0").then(|| {
        "torchrun starts workers again after a node has left only with --max-restarts 1 or more: without it the whole job \
         would end"
            .to_owned()
    })
}

/// Ends the command when a remedy requires it, as Slurm does: SIGTERM, a grace period, SIGKILL.
#[derive(Debug)]
pub(super) struct Ender {
    ring_dir: Option<PathBuf>,
    look_at: Instant,
    kill_at: Option<Instant>,
}

impl Ender {
    /// Creates the state for a command whose sidecar shares this directory.
    pub(super) fn new(ring_dir: Option<&Path>) -> Ender {
        Ender {
            ring_dir: ring_dir.map(Path::to_owned),
            look_at: Instant::now(),
            kill_at: None,
        }
    }

    /// Returns the time of the next check.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.kill_at.or(self.ring_dir.as_ref().map(|_| self.look_at))
    }

    /// Checks for a request, and sends the signals that are due.
    pub(super) fn tend(&mut self, child: &Child, now: Instant) {
        if self.kill_at.is_some_and(|at| at <= now) {
            child.signal(Signal::KILL);
            (self.kill_at, self.ring_dir) = (None, None);
        }
        let Some(dir) = self
            .ring_dir
            .as_ref()
            .filter(|_| self.kill_at.is_none() && self.look_at <= now)
        else {
            return;
        };
        self.look_at = now + LOOK;
        if let Some(stop) = Stop::look(dir) {
            ends::note_asked(dir, &format!("SIGTERM by {}", stop.mark));
            child.signal(Signal::TERM);
            self.kill_at = Some(now + Duration::from_millis(stop.grace_ms));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::cluster::tests::among;
    use super::*;

    fn refusal(command: &str, variables: &str) -> Option<String> {
        let words: Vec<OsString> = command.split_whitespace().map(OsString::from).collect();
        let around = |name: &str| among(variables, name);
        let options = RemedyOptions {
            on_fault: vec!["signal,gpu-lost=leave-node".to_owned()],
            ..RemedyOptions::default()
        };
        let lowered = checked(options.only_signalling(), &words, &around);
        assert_eq!(lowered.unwrap().on_fault, ["signal,gpu-lost=signal"]);
        checked(options, &words, &around).err().map(|usage| usage.0)
    }

    #[test]
    fn a_group_that_can_go_on_without_a_node() {
        for (command, variables) in [
            ("torchrun --nnodes 1:4 --max-restarts 3 t.py", ""),
            (
                "python -m torch.distributed.run --nnodes=2:4 --max_restarts=1 t.py",
                "",
            ),
            ("torchrun t.py", "PET_NNODES=1:2 PET_MAX_RESTARTS=2"),
            ("torchrun --nnodes 1:2 --max-restarts 1 t.py", "LOCAL_RANK=0"),
            // The command is a user's script, and its torchrun reads these variables.
            ("bash train.sh", "PET_NNODES=1:2 PET_MAX_RESTARTS=2"),
        ] {
            assert_eq!(refusal(command, variables), None, "{command} {variables}");
        }
    }

    #[test]
    fn a_group_that_would_end_with_the_node() {
        for (command, variables, why) in [
            ("python t.py", "", "the command is not torchrun"),
            ("bash -c torchrun", "", "once on each node"),
            (
                "python t.py",
                "LOCAL_RANK=0 PET_NNODES=1:2 PET_MAX_RESTARTS=2",
                "the command is not torchrun",
            ),
            ("torchrun --standalone t.py", "", "one node only"),
            (
                "torchrun --nnodes 4 --max-restarts 3 t.py",
                "",
                "use --nnodes MIN:MAX",
            ),
            ("torchrun --nnodes 2:2 --max-restarts 3 t.py", "", "--nnodes 2:2"),
            ("torchrun --nnodes 1:2 t.py", "", "--max-restarts 1 or more"),
            (
                "torchrun --nnodes 1:2 --max-restarts 0 t.py",
                "",
                "--max-restarts 1 or more",
            ),
            // A script's options do not count as torchrun's.
            (
                "torchrun --nnodes 2 t.py --nnodes 1:2",
                "",
                "--nnodes 2 does not continue",
            ),
        ] {
            let said = refusal(command, variables).unwrap_or_default();
            assert!(said.contains(why), "{command} {variables}: {said}");
        }
    }
}
