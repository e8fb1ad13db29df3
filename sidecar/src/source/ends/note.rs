//! What the launcher leaves for the sidecar to find, in the ring directory.

use std::fs;
use std::path::Path;

use paceline_health::event::TroubleKind;
use serde::{Deserialize, Serialize};

use super::{ASKED, FOLDER, SCHEDULED, Said, printed, slurm};

/// Codes above are signals.
const SIGNALED: i32 = 128;

/// Notes that the command was asked to end.
pub fn note_asked(ring_dir: &Path, signal: &str) {
    // What is not noted is not told; the signal is passed on all the same.
    let _ = fs::write(ring_dir.join(ASKED), signal);
}

/// Notes that the scheduler wants the job to end, and why, if it does: for somebody whom no signal of it reaches. Waits for its
/// answer, five seconds at most.
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

/// Leaves word of why the command ended with this code, by what it printed. Where ranks or their launcher have said why themselves, only
/// what they cannot know is added: the words of libraries.
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
    // There already where a trainer has written.
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
