//! Reasons for the end of a command, as seen from outside: exceptions that trainers leave in files in the ring
//! directory, signals that asked the command to end, the scheduler's reason for them, and processes that the kernel
//! killed for lack of memory.

mod note;
pub mod printed;
mod slurm;
mod starts;
mod unseen;

use self::note::Scheduled;
pub use self::note::{note_asked, note_printed, note_scheduler};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use paceline_health::Provenance;
use paceline_health::event::{Event, Trouble, TroubleKind};
use paceline_health::id::Rank;
use serde::{Deserialize, Serialize};

use super::host::files::Files;
use super::{Send, Source};
use crate::host::read_plain;

/// Folder of the trainers' exceptions, in the ring directory.
const FOLDER: &str = "ends";
/// File in which the launcher records signals, in the ring directory.
const ASKED: &str = "asked";
/// File with the scheduler's reason, if it is already known.
const SCHEDULED: &str = "scheduled";
/// Maximum bytes read from each of these files.
const MOST: u64 = 16 << 10;
/// Maximum number of files read. All ranks of a node may report the same exception, and again after each restart.
const MOST_TROUBLES: usize = 256;
/// Polling interval.
const EVERY_NS: u64 = 250_000_000;

/// The source; see the module.
#[derive(Debug)]
pub struct Ends {
    ring_dir: PathBuf,
    files: Files,
    /// Names of the trainers' files that were already read.
    read: BTreeSet<OsString>,
    was_asked: bool,
    /// The scheduler's job. `question` is the query for the reason of its end.
    job: Option<slurm::Job>,
    question: Option<slurm::Question>,
    group: Option<Group>,
    looked_ns: u64,
    starts: starts::Starts,
    unseen: unseen::Notes,
}

impl Ends {
    /// Creates the source for the trainers of this ring directory. `/proc` and `/sys` are under `root`.
    pub fn new(ring_dir: PathBuf, root: &Path) -> Ends {
        let mut files = Files::new(root);
        Ends {
            group: Group::own(&mut files),
            starts: starts::Starts::new(&ring_dir),
            unseen: unseen::Notes::new(&ring_dir),
            ring_dir,
            files,
            read: BTreeSet::new(),
            was_asked: false,
            job: slurm::Job::of(|name| std::env::var(name).ok()),
            question: None,
            looked_ns: 0,
        }
    }

    fn look(&mut self, send: &mut Send<'_>) {
        if !self.was_asked
            && let Ok(signal) = read_plain(&self.ring_dir.join(ASKED), MOST)
        {
            self.was_asked = true;
            tell(send, None, TroubleKind::Signal, &signal, None);
            let said = read_plain(&self.ring_dir.join(SCHEDULED), MOST).ok();
            match said.and_then(|said| serde_json::from_str::<Scheduled>(&said).ok()) {
                Some(said) => tell(send, None, said.kind, &said.says, None),
                None => self.question = self.job.as_ref().map(slurm::Job::ask),
            }
        }
        if let Some((kind, says)) = self.question.as_mut().and_then(slurm::Question::answer) {
            tell(send, None, kind, &says, None);
        }
        self.exceptions(send);
        let group = self.group.as_mut();
        if let Some((count, place)) = group.and_then(|group| group.more(&mut self.files)) {
            let says = format!("the kernel ended {count} processes of {place} because of a lack of memory");
            tell(send, None, TroubleKind::OomKill, &says, None);
        }
    }

    /// Sends the exceptions that processes left, sorted by time, because the directory's order is arbitrary.
    fn exceptions(&mut self, send: &mut Send<'_>) {
        let mut new: Vec<Said> = Vec::new();
        let entries = fs::read_dir(self.ring_dir.join(FOLDER))
            .into_iter()
            .flatten()
            .flatten();
        for entry in entries {
            let name = entry.file_name();
            // A leading dot marks a file that is still being written.
            let is_new = !name.as_encoded_bytes().starts_with(b".") && !self.read.contains(&name);
            if !is_new || self.read.len() >= MOST_TROUBLES {
                continue;
            }
            self.read.insert(name);
            let said = read_plain(&entry.path(), MOST).ok();
            let Some(said) = said.and_then(|said| serde_json::from_str::<Said>(&said).ok()) else {
                continue;
            };
            new.push(said);
        }
        new.sort_by_key(|said| said.at_ns);
        for said in new {
            tell(send, said.rank.map(Rank), said.kind, &said.says, said.code);
        }
    }
}

impl Source for Ends {
    fn name(&self) -> &'static str {
        "ends"
    }

    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>) {
        if now_ns.saturating_sub(self.looked_ns) >= EVERY_NS {
            self.looked_ns = now_ns;
            self.starts.look(now_ns, send);
            self.unseen.look(send);
            self.look(send);
        }
    }

    fn introduce(&mut self, send: &mut Send<'_>) {
        self.starts.introduce(send);
        self.unseen.introduce(send);
    }

    fn is_idle(&mut self) -> bool {
        // Called only at the end. Force another read, because the last messages may have arrived since the previous
        // one.
        self.looked_ns = 0;
        let is_unread = !self.was_asked && self.job.is_some() && self.ring_dir.join(ASKED).exists();
        !is_unread && self.question.as_ref().is_none_or(|question| !question.is_open())
    }
}

/// A message written by the hook of a trainer or of its launcher.
#[derive(Deserialize, Serialize)]
struct Said {
    rank: Option<u32>,
    kind: TroubleKind,
    says: String,
    #[serde(default)]
    code: Option<i32>,
    /// Time of the message, CLOCK_MONOTONIC of this node.
    #[serde(default)]
    at_ns: u64,
}

fn tell(send: &mut Send<'_>, rank: Option<Rank>, kind: TroubleKind, says: &str, code: Option<i32>) {
    let says = says.chars().take(2048).collect::<String>().into();
    let trouble = Trouble {
        rank,
        kind,
        says,
        code,
    };
    send(Provenance::Live, Event::Trouble(trouble));
}

/// The job's control group, which is also the sidecar's, and how many of its processes the kernel has killed. The count
/// is in `memory.events` in version 2 (<https://docs.kernel.org/admin-guide/cgroup-v2.html>), and in
/// `memory.oom_control` in version 1.
#[derive(Debug)]
struct Group {
    file: PathBuf,
    name: String,
    known: u64,
}

impl Group {
    fn own(files: &mut Files) -> Option<Group> {
        let own = files.text("proc/self/cgroup").ok()?.to_owned();
        let of = |controller: &str| {
            let mut lines = own.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
            lines.find_map(|parts| match parts[..] {
                [_, controllers, path] if controllers.split(',').any(|one| one == controller) => {
                    Some(path.trim_start_matches('/').to_owned())
                }
                _ => None,
            })
        };
        let places = [
            ("sys/fs/cgroup/memory", of("memory"), "memory.oom_control"),
            ("sys/fs/cgroup", of(""), "memory.events"),
        ];
        places.into_iter().find_map(|(root, path, name)| {
            let path = path?;
            let file = Path::new(root).join(&path).join(name);
            let known = count(files, &file)?;
            Some(Group {
                file,
                name: format!("control group /{path}"),
                known,
            })
        })
    }

    /// Returns the increase since the last call, with the group's name; `None` if there is none.
    fn more(&mut self, files: &mut Files) -> Option<(u64, &str)> {
        let now = count(files, &self.file)?;
        let more = now.checked_sub(self.known).filter(|more| *more > 0)?;
        self.known = now;
        Some((more, &self.name))
    }
}

fn count(files: &mut Files, file: &Path) -> Option<u64> {
    let text = files.text(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Node(tempfile::TempDir);

    impl Node {
        fn new() -> Node {
            Node(tempfile::tempdir().unwrap())
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn ends(&self) -> Ends {
            Ends::new(self.0.path().join("rings"), self.0.path())
        }
    }

    /// Returns the events of the next poll.
    fn told(ends: &mut Ends) -> Vec<(Option<u32>, TroubleKind, String)> {
        let mut told = Vec::new();
        ends.look(&mut |provenance, event| {
            let Event::Trouble(trouble) = event else {
                panic!("{event:?}")
            };
            assert_eq!(provenance, Provenance::Live);
            told.push((
                trouble.rank.map(|rank| rank.0),
                trouble.kind,
                trouble.says.to_string(),
            ));
            told.len() as u64
        });
        told
    }

    #[test]
    fn what_trainers_leave() {
        let node = Node::new();
        let mut ends = node.ends();
        assert_eq!(told(&mut ends), []);
        node.write("rings/ends/.12", "{\"rank\":1,");
        node.write("rings/ends/11", "nonsense");
        node.write(
            "rings/ends/10",
            r#"{"rank":3,"kind":"gpu_memory","says":"CUDA out of memory"}"#,
        );
        let wanted = (Some(3), TroubleKind::GpuMemory, "CUDA out of memory".to_owned());
        assert_eq!(told(&mut ends), [wanted]);
        assert_eq!(told(&mut ends), []);
    }

    #[test]
    fn what_was_left_first_comes_first() {
        let node = Node::new();
        let mut ends = node.ends();
        node.write(
            "rings/ends/5-1",
            r#"{"rank":2,"kind":"peer_lost","says":"Connection closed by peer","code":null,"at_ns":30}"#,
        );
        node.write(
            "rings/ends/9-1",
            r#"{"rank":1,"kind":"exit","says":"exit code 7","code":7,"at_ns":20}"#,
        );
        node.write(
            "rings/ends/1-1",
            r#"{"rank":null,"kind":"launcher_stop","says":"the launcher ends its workers","code":null,"at_ns":40}"#,
        );
        let order: Vec<_> = told(&mut ends)
            .into_iter()
            .map(|(rank, kind, _)| (rank, kind))
            .collect();
        assert_eq!(
            order,
            [
                (Some(1), TroubleKind::Exit),
                (Some(2), TroubleKind::PeerLost),
                (None, TroubleKind::LauncherStop)
            ]
        );
    }

    #[test]
    fn asked_to_end() {
        let node = Node::new();
        let mut ends = node.ends();
        node.write("rings/x", "");
        note_asked(&node.0.path().join("rings"), "SIGTERM");
        assert_eq!(
            told(&mut ends),
            [(None, TroubleKind::Signal, "SIGTERM".to_owned())]
        );
        assert_eq!(told(&mut ends), []);
    }

    #[test]
    fn what_the_scheduler_has_said_is_not_asked_again() {
        let node = Node::new();
        let mut ends = node.ends();
        let said = r#"{"kind":"cancelled","says":"Slurm: JobState=COMPLETING"}"#;
        node.write("rings/scheduled", said);
        assert_eq!(told(&mut ends), [], "that somebody asked is noted last");
        note_asked(&node.0.path().join("rings"), "SIGTERM");
        let wanted = [
            (None, TroubleKind::Signal, "SIGTERM".to_owned()),
            (
                None,
                TroubleKind::Cancelled,
                "Slurm: JobState=COMPLETING".to_owned(),
            ),
        ];
        assert_eq!(told(&mut ends), wanted);
        assert!(ends.question.is_none());
    }

    #[test]
    fn processes_that_the_kernel_ended() {
        for (own, file) in [
            ("0::/job/step\n", "sys/fs/cgroup/job/step/memory.events"),
            (
                "5:cpu:/x\n4:memory:/job/step\n0::/y\n",
                "sys/fs/cgroup/memory/job/step/memory.oom_control",
            ),
        ] {
            let node = Node::new();
            node.write("proc/self/cgroup", own);
            node.write(file, "oom_kill_disable 0\noom 4\noom_kill 2\n");
            let mut ends = node.ends();
            assert_eq!(told(&mut ends), [], "what was before is another's");
            node.write(file, "oom 5\noom_kill 3\n");
            let says = "the kernel ended 1 processes of control group /job/step because of a lack of memory";
            assert_eq!(told(&mut ends), [(None, TroubleKind::OomKill, says.to_owned())]);
            assert_eq!(told(&mut ends), []);
        }
    }
}
