//! The stages of ranks before their first step, from files that their hooks write (layout:
//! `sidecar/probe/python/paceline/_starts.py`). A stage is sent when it changes. A collective is sent only if it takes
//! a while, because a program may call many of them before it trains.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use paceline_health::Provenance;
use paceline_health::event::{Event, Start, StartStage};
use paceline_health::id::Rank;

use super::super::Send;
use crate::host::{Process, read_plain_bytes};

const FOLDER: &str = "starts";
const MAGIC: &[u8] = b"PACESTRT";
const SIZE: usize = 128;
/// Maximum number of files read on one node.
const MOST: usize = 1024;
/// Shorter collectives are not reported.
const QUICK_NS: u64 = 5_000_000_000;

/// Reads and sends the stages; see the module.
#[derive(Debug)]
pub(super) struct Starts {
    dir: PathBuf,
    files: BTreeMap<OsString, Place>,
    /// The last event sent, by rank.
    sent: BTreeMap<Rank, Start>,
}

/// The stage of one process.
#[derive(Debug)]
struct Place {
    start: Start,
    process: Process,
}

impl Starts {
    pub(super) fn new(ring_dir: &std::path::Path) -> Starts {
        Starts {
            dir: ring_dir.join(FOLDER),
            files: BTreeMap::new(),
            sent: BTreeMap::new(),
        }
    }

    pub(super) fn look(&mut self, now_ns: u64, send: &mut Send<'_>) {
        let mut here = Vec::new();
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten().take(MOST) {
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let bytes = read_plain_bytes(&entry.path(), SIZE as u64).unwrap_or_default();
            if let Some((start, pid)) = parse(&bytes, now_ns) {
                let known = self.files.get(&name).map(|place| place.process);
                let process = known.unwrap_or_else(|| Process::of(pid));
                self.files.insert(name.clone(), Place { start, process });
            }
            here.push(name);
        }
        let mut ranks: BTreeMap<Rank, Start> = BTreeMap::new();
        let mut over = Vec::new();
        for (name, place) in &mut self.files {
            if !here.contains(name) {
                // The rank has trained: its hook removes the file at the first step.
                place.start.stage = StartStage::Trained;
                over.push(name.clone());
            } else if !place.process.is_alive() {
                place.start.stage = StartStage::Gone;
                over.push(name.clone());
            }
            let start = &place.start;
            // A rank's helper processes load torch as well, so take the process that has come furthest for the rank.
            let is_further = |other: &Start| (start.restart, start.stage) > (other.restart, other.stage);
            if ranks.get(&start.rank).is_none_or(is_further) {
                ranks.insert(start.rank, start.clone());
            }
        }
        for name in over {
            self.files.remove(&name);
            // Ignore the result, because the file may already be gone.
            let _ = fs::remove_file(self.dir.join(name));
        }
        for (rank, start) in ranks {
            let known = self.sent.get(&rank);
            let is_same = |known: &Start| {
                (known.restart, known.stage, &known.call) == (start.restart, start.stage, &start.call)
            };
            if !known.is_some_and(is_same) {
                self.sent.insert(rank, start.clone());
                send(Provenance::Live, Event::Start(start));
            }
        }
    }

    pub(super) fn introduce(&self, send: &mut Send<'_>) {
        for start in self.sent.values() {
            send(Provenance::Live, Event::Start(start.clone()));
        }
    }
}

/// Parses a file. Returns the stage and the process ID.
fn parse(bytes: &[u8], now_ns: u64) -> Option<(Start, u32)> {
    if bytes.len() < SIZE || !bytes.starts_with(MAGIC) {
        return None;
    }
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let idle_ns = now_ns.saturating_sub(u64_at(32)?);
    let stage = match u64_at(40)? {
        1 => StartStage::Loading,
        2 => StartStage::Joining,
        4 if idle_ns >= QUICK_NS => StartStage::Waiting,
        3 | 4 => StartStage::Joined,
        _ => return None,
    };
    let call = match stage {
        StartStage::Joining | StartStage::Waiting => {
            let text = String::from_utf8_lossy(bytes.get(48..96)?).into_owned();
            Arc::from(text.trim_end_matches('\0'))
        }
        _ => Arc::from(""),
    };
    let start = Start {
        rank: Rank(u32_at(16)?),
        restart: u32_at(28)?,
        local_rank: u32_at(20)?,
        world_size: u32_at(24)?,
        stage,
        call,
        idle_ns,
    };
    Some((start, u32_at(12)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(pid: u32, rank: u32, since_ns: u64, stage: u64, call: &str) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [1, pid, rank, rank, 2, 0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(since_ns.to_le_bytes());
        bytes.extend(stage.to_le_bytes());
        bytes.extend(call.as_bytes());
        bytes.resize(SIZE, 0);
        bytes
    }

    fn sent(starts: &mut Starts, now_ns: u64) -> Vec<(u32, StartStage, String)> {
        let mut sent = Vec::new();
        starts.look(now_ns, &mut |_, event| {
            let Event::Start(start) = event else {
                panic!("{event:?}")
            };
            sent.push((start.rank.0, start.stage, start.call.to_string()));
            sent.len() as u64
        });
        sent
    }

    #[test]
    fn where_a_rank_stands_is_sent_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let mut starts = Starts::new(dir.path());
        assert_eq!(sent(&mut starts, 0), []);
        fs::create_dir(dir.path().join(FOLDER)).unwrap();
        let own = std::process::id();
        let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(FOLDER).join(name), bytes).unwrap();
        write("x", b"no such file");
        write("1-a", &file(own, 1, 1, 2, "init_process_group"));
        // A helper process of the same rank, which has only loaded torch.
        write("2-b", &file(own, 1, 1, 1, ""));
        let joining = (1, StartStage::Joining, "init_process_group".to_owned());
        assert_eq!(sent(&mut starts, 2), [joining]);
        assert_eq!(sent(&mut starts, 3), []);
        write("1-a", &file(own, 1, 4, 4, "barrier"));
        let joined = (1, StartStage::Joined, String::new());
        assert_eq!(sent(&mut starts, 5), [joined], "a short collective has no word");
        let waiting = (1, StartStage::Waiting, "barrier".to_owned());
        assert_eq!(sent(&mut starts, 4 + QUICK_NS), [waiting]);
        fs::remove_file(dir.path().join(FOLDER).join("1-a")).unwrap();
        assert_eq!(
            sent(&mut starts, 5 + QUICK_NS),
            [(1, StartStage::Trained, "barrier".to_owned())]
        );
    }

    #[test]
    fn a_process_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let mut starts = Starts::new(dir.path());
        fs::create_dir(dir.path().join(FOLDER)).unwrap();
        let path = dir.path().join(FOLDER).join("1-a");
        // No process has such a high ID (PID_MAX_LIMIT).
        fs::write(&path, file(1 << 23, 0, 1, 3, "")).unwrap();
        assert_eq!(sent(&mut starts, 2), [(0, StartStage::Gone, String::new())]);
        assert!(!path.exists());
        assert_eq!(sent(&mut starts, 3), []);
    }
}
