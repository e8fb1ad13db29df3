//! Events from before the sidecar's start, such as the results of a preflight. The launcher writes them to a file, one
//! per line. The sidecar sends them when monitoring starts.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use paceline_health::Provenance;
use paceline_health::event::Event;
use serde::{Deserialize, Serialize};

use super::{Send, Source};
use crate::warn;

/// Maximum bytes read from the file.
const MOST_BYTES: u64 = 64 << 20;

/// One line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct LauncherEvent {
    provenance: Provenance,
    event: Event,
}

/// Writes a file of launcher events.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, provenance: Provenance, events: &[Event]) -> io::Result<()> {
    let mut text = Vec::new();
    for event in events {
        let event = event.clone();
        serde_json::to_writer(&mut text, &LauncherEvent { provenance, event })?;
        text.push(b'\n');
    }
    File::create(path)?.write_all(&text)
}

/// The source; see the module.
#[derive(Debug)]
pub struct LauncherEvents {
    events: Vec<LauncherEvent>,
    sent: bool,
}

impl LauncherEvents {
    /// Reads the whole file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn open(path: &Path) -> io::Result<LauncherEvents> {
        let mut events = Vec::new();
        for (number, line) in (1..).zip(BufReader::new(File::open(path)?.take(MOST_BYTES)).lines()) {
            match serde_json::from_str(&line?) {
                Ok(event) => events.push(event),
                Err(error) => {
                    let path = path.display();
                    warn::once("launcher event", format_args!("{path}:{number}: {error}"));
                }
            }
        }
        Ok(LauncherEvents { events, sent: false })
    }

    fn send(&self, send: &mut Send<'_>) {
        for LauncherEvent { provenance, event } in &self.events {
            send(*provenance, event.clone());
        }
    }
}

impl Source for LauncherEvents {
    fn name(&self) -> &'static str {
        "preflight"
    }

    fn poll(&mut self, _now_ns: u64, send: &mut Send<'_>) {
        if !std::mem::replace(&mut self.sent, true) {
            self.send(send);
        }
    }

    fn introduce(&mut self, send: &mut Send<'_>) {
        self.sent = true;
        self.send(send);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_health::preflight::Problem;

    fn problem(what: &str) -> Event {
        Event::PreflightProblem(Problem {
            node: Some("n1".into()),
            phase: "work".into(),
            what: what.into(),
            lost: false,
        })
    }

    #[test]
    fn what_was_written_is_sent_once_and_again_to_a_new_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("told.ndjson");
        write(&path, Provenance::Sim, &[problem("a"), problem("b")]).unwrap();
        // Events of a later version are skipped; they are not an error.
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"provenance\":\"live\",\"event\":{\"later\":1}}\n")
            .unwrap();
        let mut source = LauncherEvents::open(&path).unwrap();
        let mut sent = Vec::new();
        for _ in 0..2 {
            source.poll(0, &mut |provenance, event| {
                sent.push((provenance, event));
                1
            });
        }
        assert_eq!(
            sent,
            [(Provenance::Sim, problem("a")), (Provenance::Sim, problem("b"))]
        );
        source.introduce(&mut |provenance, event| {
            sent.push((provenance, event));
            1
        });
        assert_eq!(sent.len(), 4);
    }
}
