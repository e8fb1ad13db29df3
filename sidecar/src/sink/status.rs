//! Status for the launcher: JSON lines on stdout, or readable lines in a pod's log. It never waits for a reader, so
//! lines that do not fit are dropped.

mod people;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use paceline_health::verdict::Verdict;
use serde::{Deserialize, Serialize};

use crate::agent::tasks;
use people::People;

/// Maximum number of waiting lines.
const QUEUE: usize = 256;
/// How long to wait at the end for the last lines to be read.
const FLUSH: Duration = Duration::from_millis(200);

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// This node is monitored.
    Ready {
        /// Address of the aggregator.
        aggregator: String,
        /// Address of the metrics page, if the aggregator is in this process.
        http: Option<String>,
        /// Why that address is not the requested one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        http_elsewhere: Option<String>,
        /// Directory of the journal and the report, if the aggregator is in this process.
        run_dir: Option<String>,
        /// Why the node is monitored standalone and not with the rest of its job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        alone: Option<String>,
    },
    /// A verdict was raised, changed or cleared.
    Verdict(Box<Verdict>),
    /// Why ranks or their steps are not visible. Each note is sent only once.
    Note(String),
    /// The job's progress. The aggregator sends it once a second.
    Progress {
        /// The last step that every live rank finished.
        step: u64,
        /// Ranks that have attached.
        ranks: u32,
        /// Median duration of a step, seconds.
        median_step_s: Option<f64>,
    },
}

/// Accepts lines and never blocks.
#[derive(Clone, Debug)]
pub struct StatusStream(Arc<SyncSender<Status>>);

/// A handle that waits at the end for lines that are still queued.
#[derive(Debug)]
pub struct StatusEnd(Receiver<()>);

impl StatusStream {
    /// Writes JSON to `out`.
    pub fn to(out: impl Write + Send + 'static) -> (StatusStream, StatusEnd) {
        StatusStream::with(out, |status| {
            let mut line = serde_json::to_string(status).ok()?;
            line.push('\n');
            Some(line)
        })
    }

    /// Writes readable log lines to `out`. If `is_quiet` is true, writes only problems.
    pub fn for_people(out: impl Write + Send + 'static, is_quiet: bool) -> (StatusStream, StatusEnd) {
        let mut people = People::of(is_quiet);
        StatusStream::with(out, move |status| people.line(status, Instant::now()))
    }

    /// Writes in its own thread, which is the only one that may wait for the reader.
    fn with(
        mut out: impl Write + Send + 'static,
        mut form: impl FnMut(&Status) -> Option<String> + Send + 'static,
    ) -> (StatusStream, StatusEnd) {
        let (sender, all) = sync_channel::<Status>(QUEUE);
        let (done, end) = sync_channel(1);
        let writer = move || {
            for status in all {
                let Some(line) = form(&status) else { continue };
                // The reader is gone.
                if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
                    break;
                }
            }
            let _ = done.send(());
        };
        // If the thread cannot be created, the receiver is dropped, and all lines with it.
        let _ = std::thread::Builder::new()
            .name("status".into())
            .stack_size(64 << 10)
            .spawn(writer);
        (StatusStream(Arc::new(sender)), StatusEnd(end))
    }

    /// Writes the ready line to this file, and verdicts to a file beside it. This is used if the tasks of a node share
    /// one sidecar, because none of them reads its output.
    pub fn ready_in(path: &Path) -> (StatusStream, StatusEnd) {
        StatusStream::to(ReadyFile {
            path: path.to_owned(),
            line: Vec::new(),
        })
    }

    /// Queues a line, if there is room.
    pub fn say(&self, status: &Status) {
        let _ = self.0.try_send(status.clone());
    }
}

/// Maximum size of the file with a shared sidecar's verdicts for the tasks, bytes. Later verdicts are only in the run's
/// own files.
const MAX_VERDICTS: u64 = 4 << 20;

/// Stores the last ready line, and appends verdicts and notes to a file beside it.
struct ReadyFile {
    path: PathBuf,
    line: Vec<u8>,
}

impl ReadyFile {
    fn append(&self, line: &[u8]) -> io::Result<()> {
        let path = self.path.with_file_name(tasks::VERDICTS);
        let mut file = fs::File::options()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        if file.metadata()?.len() < MAX_VERDICTS {
            file.write_all(line)?;
        }
        Ok(())
    }
}

impl Write for ReadyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if self.line.last() == Some(&b'\n') {
            let line = std::mem::take(&mut self.line);
            if line.starts_with(br#"{"ready""#) {
                // Write atomically, because the file may be read at the same time.
                let own = self.path.with_extension("new");
                fs::write(&own, line)?;
                fs::rename(own, &self.path)?;
            } else if line.starts_with(br#"{"verdict""#) || line.starts_with(br#"{"note""#) {
                self.append(&line)?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StatusEnd {
    /// Waits briefly for the last lines. Every [`StatusStream`] must be dropped before this call.
    pub fn wait(self) {
        let _ = self.0.recv_timeout(FLUSH);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeWriter, Read};

    use super::*;

    fn progress(step: u64) -> Status {
        Status::Progress {
            step,
            ranks: 8,
            median_step_s: Some(0.05),
        }
    }

    #[test]
    fn lines_as_the_launcher_reads_them() {
        let (mut reader, writer): (_, PipeWriter) = io::pipe().unwrap();
        let (stream, end) = StatusStream::to(writer);
        stream.say(&Status::Ready {
            aggregator: "127.0.0.1:4711".into(),
            http: None,
            http_elsewhere: None,
            run_dir: None,
            alone: None,
        });
        stream.say(&progress(12));
        drop(stream);
        end.wait();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let ready = r#"{"ready":{"aggregator":"127.0.0.1:4711","http":null,"run_dir":null}}"#;
        let wanted = r#"{"progress":{"step":12,"ranks":8,"median_step_s":0.05}}"#;
        assert_eq!(text, format!("{ready}\n{wanted}\n"));
    }

    #[test]
    fn a_file_holds_the_last_that_was_ready() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ready");
        let (stream, end) = StatusStream::ready_in(&path);
        let ready = |aggregator: &str| Status::Ready {
            aggregator: aggregator.into(),
            http: None,
            http_elsewhere: None,
            run_dir: None,
            alone: None,
        };
        stream.say(&ready("a:1"));
        stream.say(&progress(3));
        stream.say(&ready("b:2"));
        stream.say(&progress(4));
        drop(stream);
        end.wait();
        let found: Status = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert_eq!(found, ready("b:2"));
    }

    /// A pipe that is not read fills up. The remaining lines are dropped, and sending takes no time.
    #[test]
    fn a_full_pipe_blocks_nobody() {
        let (reader, writer) = io::pipe().unwrap();
        let (stream, end) = StatusStream::to(writer);
        (0..20_000).for_each(|step| stream.say(&progress(step)));
        drop(stream);
        end.wait();
        drop(reader);
    }
}
