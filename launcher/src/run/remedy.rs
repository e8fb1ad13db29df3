//! What may be done about findings, on the launcher's side: what was asked for is checked before the job starts, and a
//! command that is to end is ended.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use paceline_health::remedy::Response;
use paceline_health::verdict::Finding;
use paceline_sidecar::remedy::RemedyOptions;
use paceline_sidecar::remedy::hand::Stop;
use paceline_sidecar::source::ends;
use rustix::process::Signal;

use super::child::Child;
use crate::output::Usage;

/// A wish to end is looked for this often.
const LOOK: Duration = Duration::from_millis(500);

/// The options, with what they leave to Slurm filled in.
///
/// # Errors
/// When a requeue is asked for and nobody knows how.
pub(super) fn checked(
    mut options: RemedyOptions,
    around: &dyn Fn(&str) -> Option<String>,
) -> Result<RemedyOptions, Usage> {
    let rules = options.plan().rules;
    let requeues = Finding::ALL
        .iter()
        .any(|finding| rules.wanted(*finding).response == Response::Requeue);
    if requeues && options.requeue_command.is_none() {
        let Some(job) = around("SLURM_JOB_ID") else {
            return Err(Usage(
                "--on-fault requeue: this is no Slurm job, and no --requeue-command says how it is started again".to_owned(),
            ));
        };
        options.requeue_command = Some(format!("paceline slurm requeue {job} --exclude {{node}}"));
    }
    Ok(options)
}

/// Ends the command when a remedy wants it: as Slurm does, SIGTERM, a grace, SIGKILL.
#[derive(Debug)]
pub(super) struct Ender {
    ring_dir: Option<PathBuf>,
    look_at: Instant,
    kill_at: Option<Instant>,
}

impl Ender {
    /// For a command whose sidecar shares this directory.
    pub(super) fn new(ring_dir: Option<&Path>) -> Ender {
        Ender {
            ring_dir: ring_dir.map(Path::to_owned),
            look_at: Instant::now(),
            kill_at: None,
        }
    }

    /// When to look again.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.kill_at.or(self.ring_dir.as_ref().map(|_| self.look_at))
    }

    /// Looks, and does what is due.
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
