//! Reports ways of training that the hook cannot observe, from files that the hook writes
//! (`sidecar/probe/python/paceline/_unseen.py`).

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use paceline_health::Provenance;
use paceline_health::event::{Event, SourceState};
use serde::Deserialize;

use super::super::Send;
use crate::host::read_plain;

const FOLDER: &str = "unseen";
const SOURCE: &str = "hook";
/// Maximum size of a file, and maximum number of files read on one node.
const MAX_BYTES: u64 = 1 << 10;
const MAX_FILES: usize = 1024;
const REMEDY: &str = "call paceline.step() at the end of each step, or name the job's log by --step-log";

/// What the hook cannot observe in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
enum Unseen {
    /// The process runs backward passes, but no step of a torch optimizer.
    NoOptimizer,
    /// The process uses a framework other than torch.
    OtherFramework { name: Framework },
    /// The process has tensors on several GPUs.
    SeveralGpus { gpus: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Framework {
    Jax,
    Tensorflow,
}

/// Reads and sends these reports; see the module.
#[derive(Debug)]
pub(super) struct Notes {
    dir: PathBuf,
    sent: String,
}

impl Notes {
    pub(super) fn new(ring_dir: &std::path::Path) -> Notes {
        Notes {
            dir: ring_dir.join(FOLDER),
            sent: String::new(),
        }
    }

    /// Sends the current state if it changed.
    pub(super) fn look(&mut self, send: &mut Send<'_>) {
        let mut processes: BTreeMap<Unseen, usize> = BTreeMap::new();
        for entry in fs::read_dir(&self.dir)
            .into_iter()
            .flatten()
            .flatten()
            .take(MAX_FILES)
        {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let said = read_plain(&entry.path(), MAX_BYTES).ok();
            if let Some(unseen) = said.and_then(|said| serde_json::from_str(&said).ok()) {
                *processes.entry(unseen).or_default() += 1;
            }
        }
        let notes: Vec<String> = processes
            .into_iter()
            .map(|(unseen, count)| unseen.note(count))
            .collect();
        let text = notes.join("; ");
        if text != self.sent {
            self.sent = text;
            self.send_state(send);
        }
    }

    /// Sends the current state, if any.
    pub(super) fn introduce(&self, send: &mut Send<'_>) {
        if !self.sent.is_empty() {
            self.send_state(send);
        }
    }

    fn send_state(&self, send: &mut Send<'_>) {
        let state = SourceState {
            source: SOURCE.into(),
            trouble: self.sent.as_str().into(),
        };
        send(Provenance::Live, Event::Source(state));
    }
}

impl Unseen {
    /// Returns a sentence about `count` processes, with advice on what to do.
    fn note(self, count: usize) -> String {
        let (whose, verb) = match count {
            1 => ("a process".to_owned(), ["computes", "uses"]),
            _ => (format!("{count} processes"), ["compute", "use"]),
        };
        let [computes, uses] = verb;
        match self {
            Unseen::NoOptimizer => {
                format!("{whose} {computes} gradients, but no step of a PyTorch optimizer was seen: {REMEDY}")
            }
            Unseen::OtherFramework { name } => {
                let name = match name {
                    Framework::Jax => "JAX",
                    Framework::Tensorflow => "TensorFlow",
                };
                format!("{whose} {uses} {name}, whose steps are not seen: {REMEDY}")
            }
            Unseen::SeveralGpus { gpus } => format!(
                "{whose} {computes} on {gpus} GPUs, but only one is measured: start one process per GPU (torchrun \
                 --nproc-per-node=gpu) to see which is slow"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(notes: &mut Notes) -> Vec<String> {
        let mut sent = Vec::new();
        notes.look(&mut |_, event| {
            let Event::Source(state) = event else {
                panic!("{event:?}")
            };
            assert_eq!(&*state.source, SOURCE);
            sent.push(state.trouble.to_string());
            sent.len() as u64
        });
        sent
    }

    #[test]
    fn what_is_not_seen_is_sent_once_and_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut notes = Notes::new(dir.path());
        assert_eq!(sent(&mut notes), [""; 0]);
        let folder = dir.path().join(FOLDER);
        fs::create_dir(&folder).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        write("x", "no such thing");
        write("y", "{\"kind\": \"other_framework\", \"name\": \"\\u001b[31m\"}");
        write(".2-1", "{\"kind\": \"several_gpus\", \"gpus\": 8}");
        assert_eq!(sent(&mut notes), [""; 0]);
        write("1-1", "{\"kind\": \"no_optimizer\"}");
        let one =
            format!("a process computes gradients, but no step of a PyTorch optimizer was seen: {REMEDY}");
        assert_eq!(sent(&mut notes), [one]);
        assert_eq!(sent(&mut notes), [""; 0]);
        write("2-1", "{\"kind\": \"no_optimizer\"}");
        write("3-1", "{\"kind\": \"several_gpus\", \"gpus\": 4}");
        write("4-1", "{\"kind\": \"other_framework\", \"name\": \"jax\"}");
        let [text] = sent(&mut notes).try_into().unwrap();
        assert!(text.starts_with("2 processes compute gradients"), "{text}");
        assert!(text.contains("; a process uses JAX, whose steps"), "{text}");
        assert!(text.contains("; a process computes on 4 GPUs"), "{text}");
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(sent(&mut notes), [""]);
    }
}
