//! Files that the launcher writes for the sidecar, in the ring directory.

use std::fs;
use std::path::Path;

use paceline_health::event::TroubleKind;
use serde::{Deserialize, Serialize};

use super::{ASKED, FOLDER, SCHEDULED, Said, printed, slurm};

/// Exit codes above this are signals.
const SIGNALED: i32 = 128;

/// Records that the command was asked to end.
pub fn note_asked(ring_dir: &Path, signal: &str) {
    // On failure, it is not reported; the signal is forwarded anyway.
    let _ = fs::write(ring_dir.join(ASKED), signal);
}

/// Records that the scheduler is ending the job, and why, if so: for launchers that its signals do not reach. Waits for
/// its answer, five seconds at most.
pub fn note_scheduler(ring_dir: &Path) {
    let job = slurm::Job::of(|name| std::env::var(name).ok());
    let Some((kind, says)) = job.and_then(|job| job.why()) else {
        return;
    };
    let said = Scheduled { kind, says };
    let _ = fs::write(
        ring_dir.join(SCHEDULED),
        serde_json::to_vec(&said).unwrap_or_default(),
    );
    note_asked(ring_dir, "SIGTERM");
}

/// Records why the command ended with this code, from its output. If ranks or their launcher have reported a reason
/// themselves, only messages of libraries are added, which they cannot know.
pub fn note_printed(ring_dir: &Path, text: &str, code: i32) {
    let folder = ring_dir.join(FOLDER);
    let nobody_spoke = || {
        let mut entries = fs::read_dir(&folder).into_iter().flatten();
        entries.next().is_none() && code < SIGNALED && !ring_dir.join(ASKED).exists()
    };
    let found = printed::of_libraries(text).or_else(|| printed::last_words(text).filter(|_| nobody_spoke()));
    let Some(found) = found else { return };
    let said = Said {
        rank: found.rank,
        kind: found.kind,
        says: found.says,
        code: None,
        at_ns: paceline_ring::monotonic_ns(),
    };
    // It exists if a trainer has written there.
    let _ = fs::create_dir(&folder);
    let temporary = folder.join(".printed");
    let bytes = serde_json::to_vec(&said).unwrap_or_default();
    if fs::write(&temporary, bytes).is_ok() {
        let _ = fs::rename(temporary, folder.join("printed"));
    }
}

/// See [`note_scheduler`].
#[derive(Deserialize, Serialize)]
pub(super) struct Scheduled {
    pub(super) kind: TroubleKind,
    pub(super) says: String,
}
