//! Asks Slurm why it ends a job. The query follows a signal, because the signal is the same for a time limit, scancel,
//! preemption, a requeue and a lost node.
//!
//! While a job's processes end, its state is only COMPLETING. The reason is in other fields of `scontrol show job`
//! (<https://slurm.schedmd.com/scontrol.html>). This was checked with Slurm 22.05.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use paceline_health::event::TroubleKind;

/// Timeout of a query, because the controller may be busy. After the command's end, the general time limit for last
/// messages applies instead.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum bytes read. A job's description is a few kilobytes.
const MOST: u64 = 64 << 10;

/// A Slurm job, on its first node. Only that node queries Slurm, because a large job would otherwise send thousands of
/// queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    id: String,
    restarts: u64,
}

impl Job {
    /// Creates the job from Slurm's environment variables; `None` outside Slurm and on all nodes but the first.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Job> {
        let id = variable("SLURM_JOB_ID")?;
        let is_number = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        let is_first = variable("SLURM_NODEID").is_none_or(|node| node == "0");
        let restarts = variable("SLURM_RESTART_COUNT").and_then(|count| count.parse().ok());
        (is_number && is_first).then(|| Job {
            id,
            restarts: restarts.unwrap_or(0),
        })
    }

    /// Queries Slurm and waits for the answer. Returns the kind of end and its text; `None` if the job continues or the
    /// reason is unknown.
    pub(super) fn why(&self) -> Option<(TroubleKind, String)> {
        described(&self.id).and_then(|text| self.reads(&text))
    }

    /// Queries Slurm in a separate thread.
    pub(super) fn ask(&self) -> Question {
        let (tell, answer) = channel();
        let job = self.clone();
        // If no thread can be created, the channel closes, which counts as no answer.
        let _ = thread::Builder::new().name("scontrol".into()).spawn(move || {
            let _ = tell.send(job.why());
        });
        Question(Some(answer))
    }

    /// Parses the reason of the end from the job's description; `None` if the job continues or the reason is unknown.
    fn reads(&self, text: &str) -> Option<(TroubleKind, String)> {
        let field = |name: &str| {
            let mut words = text.split_whitespace();
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        let (state, reason) = (field("JobState")?, field("Reason").unwrap_or("None"));
        let restarts = field("Restarts")
            .and_then(|count| count.parse().ok())
            .unwrap_or(0);
        let preempted = field("PreemptTime").filter(|time| !matches!(*time, "None" | "N/A" | "Unknown"));
        let ends = [
            "COMPLETING",
            "CANCELLED",
            "TIMEOUT",
            "PREEMPTED",
            "NODE_FAIL",
            "PENDING",
            "REQUEUED",
        ];
        // The job continues: a user only signaled its step.
        if !ends.contains(&state) {
            return None;
        }
        let shown = |name: &str| field(name).map(|value| format!(" {name}={value}"));
        let (kind, fields) = match reason {
            "TimeLimit" => (TroubleKind::TimeLimit, &["RunTime", "TimeLimit"][..]),
            "NodeDown" | "NodeFail" => (TroubleKind::NodeFailed, &[][..]),
            _ if preempted.is_some() => (TroubleKind::Preempted, &["PreemptTime", "Restarts"][..]),
            _ if restarts > self.restarts => (TroubleKind::Requeued, &["Restarts"][..]),
            _ => match state {
                "TIMEOUT" => (TroubleKind::TimeLimit, &["RunTime", "TimeLimit"][..]),
                "PREEMPTED" => (TroubleKind::Preempted, &[][..]),
                "NODE_FAIL" => (TroubleKind::NodeFailed, &[][..]),
                _ => (TroubleKind::Cancelled, &["RunTime"][..]),
            },
        };
        let more: String = fields.iter().filter_map(|name| shown(name)).collect();
        Some((kind, format!("Slurm: JobState={state} Reason={reason}{more}")))
    }
}

/// A query whose answer is pending.
#[derive(Debug)]
pub(super) struct Question(Option<Receiver<Option<(TroubleKind, String)>>>);

impl Question {
    /// Returns true if the answer is still pending.
    pub(super) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the answer, but only once.
    pub(super) fn answer(&mut self) -> Option<(TroubleKind, String)> {
        match self.0.as_ref()?.try_recv() {
            Err(TryRecvError::Empty) => None,
            Ok(answer) => {
                self.0 = None;
                answer
            }
            Err(TryRecvError::Disconnected) => {
                self.0 = None;
                None
            }
        }
    }
}

fn described(id: &str) -> Option<String> {
    let mut child = Command::new("scontrol")
        .args(["show", "job", id])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // Wait before reading. The output fits into the pipe's buffer, so the process ends even if its output is not read.
    let is_done = wait(&mut child);
    if !is_done {
        let _ = child.kill();
        let _ = child.wait();
        return None;
    }
    let mut text = String::new();
    child.stdout.take()?.take(MOST).read_to_string(&mut text).ok()?;
    Some(text)
}

fn wait(child: &mut Child) -> bool {
    let began = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if began.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(10)),
            Ok(None) | Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the output of Slurm 22.05 while the job's processes are ending.
    fn shown(state: &str, restarts: u32, more: &str) -> String {
        format!(
            "JobId=3 JobName=job.sh\n   JobState={state} Dependency=(null)\n   Requeue=1 Restarts={restarts} BatchFlag=1\n   \
             RunTime=00:01:06 TimeLimit=00:01:00 TimeMin=N/A\n   {more}\n"
        )
    }

    #[test]
    fn what_slurm_means_by_the_signal() {
        let job = Job {
            id: "3".to_owned(),
            restarts: 1,
        };
        for (state, restarts, more, kind) in [
            ("COMPLETING Reason=TimeLimit", 1, "", Some(TroubleKind::TimeLimit)),
            ("COMPLETING Reason=None", 1, "", Some(TroubleKind::Cancelled)),
            ("COMPLETING Reason=None", 2, "", Some(TroubleKind::Requeued)),
            ("COMPLETING Reason=NodeDown", 1, "", Some(TroubleKind::NodeFailed)),
            (
                "COMPLETING Reason=None",
                2,
                "PreemptTime=2026-11-22T00:41:16",
                Some(TroubleKind::Preempted),
            ),
            (
                "CANCELLED Reason=None",
                1,
                "PreemptTime=None",
                Some(TroubleKind::Cancelled),
            ),
            // A user signaled the step, or one of its tasks failed.
            ("RUNNING Reason=None", 1, "", None),
            ("", 1, "", None),
        ] {
            let found = job.reads(&shown(state, restarts, more));
            assert_eq!(found.map(|(kind, _)| kind), kind, "{state} {restarts} {more}");
        }
        assert_eq!(
            job.reads("slurm_load_jobs error: Unable to contact slurm controller"),
            None
        );
        let said = job.reads(&shown("COMPLETING Reason=TimeLimit", 1, ""));
        assert_eq!(
            said.map(|(_, says)| says).as_deref(),
            Some("Slurm: JobState=COMPLETING Reason=TimeLimit RunTime=00:01:06 TimeLimit=00:01:00")
        );
    }

    #[test]
    fn one_node_asks() {
        let of = |variables: &'static [(&str, &str)]| {
            Job::of(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let job = |restarts| {
            Some(Job {
                id: "9".to_owned(),
                restarts,
            })
        };
        assert_eq!(of(&[("SLURM_JOB_ID", "9"), ("SLURM_NODEID", "0")]), job(0));
        assert_eq!(of(&[("SLURM_JOB_ID", "9"), ("SLURM_RESTART_COUNT", "2")]), job(2));
        assert_eq!(of(&[("SLURM_JOB_ID", "9"), ("SLURM_NODEID", "3")]), None);
        assert_eq!(of(&[("SLURM_JOB_ID", "-f")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn no_scontrol_is_no_answer() {
        let mut question = Job {
            id: "0".to_owned(),
            restarts: 0,
        }
        .ask();
        let began = Instant::now();
        while question.is_open() && began.elapsed() < Duration::from_secs(10) {
            assert_eq!(question.answer(), None);
            thread::yield_now();
        }
        assert!(!question.is_open());
    }
}
