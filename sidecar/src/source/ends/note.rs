//! Writes files in the ring directory that the launcher leaves for the sidecar.

use std::fs;
use std::path::Path;

use paceline_health::event::TroubleKind;
use serde::{Deserialize, Serialize};

use super::{ASKED, FOLDER, SCHEDULED, Said, printed, slurm};

/// Exit codes above this are signals.
const SIGNALED: i32 = 128;

/// Records that the command was asked to end.
pub fn note_asked(ring_dir: &Path, signal: &str) {
    // On failure, the request is not reported. The signal is forwarded anyway.
    let _ = fs::write(ring_dir.join(ASKED), signal);
}

/// Records whether and why the scheduler is ending the job, for launchers that do not receive its signals. Waits at
/// most five seconds for the scheduler's answer.
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

/// Records why the command ended with this code, according to its output. If ranks or their launcher have already
/// reported a reason, adds only messages of libraries, because Python code cannot see these.
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
    // Ignore the result: the folder already exists if a trainer has written a file there.
    let _ = fs::create_dir(&folder);
    let temporary = folder.join(".printed");
    let bytes = serde_json::to_vec(&said).unwrap_or_default();
    if fs::write(&temporary, bytes).is_ok() {
        let _ = fs::rename(temporary, folder.join("printed"));
    }
}

/// The content of the file that [`note_scheduler`] writes.
#[derive(Deserialize, Serialize)]
pub(super) struct Scheduled {
    pub(super) kind: TroubleKind,
    pub(super) says: String,
}
