//! Sends an old journal again at its original pace, with its events marked as replayed.
//!
//! Every frame is sent as a frame of this node, because a replay is meant to exercise the path of the events and not to
//! reproduce the old nodes. Events about the old sidecars themselves (job, agent, goodbye, end) and losses of their
//! journal are not sent. The ranks' pulses become part of this sidecar's heartbeats.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use paceline_health::event::{Event, Pulse};
use paceline_health::id::Rank;
use paceline_health::{Entry, Provenance, Time};

use super::{Send, Source};
use crate::aggregator::journal::lines::{Line, Lines};
use crate::warn;

/// Maximum number of entries sent per poll, so that a long journal does not block the rest.
const MOST_AT_ONCE: usize = 4096;

/// The source; see the module.
#[derive(Debug)]
pub struct Replay {
    path: PathBuf,
    lines: Lines<BufReader<File>>,
    next: Option<Entry>,
    /// Time of the first entry in the journal, and when it was sent.
    began: Option<(Time, u64)>,
    pulses: BTreeMap<Rank, Pulse>,
}

impl Replay {
    /// Reads the journal at `path`.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Replay> {
        let lines = Lines::new(BufReader::new(File::open(path)?));
        Ok(Replay {
            path: path.to_owned(),
            lines,
            next: None,
            began: None,
            pulses: BTreeMap::new(),
        })
    }

    /// Returns the next entry if it is due.
    fn due(&mut self, now_ns: u64) -> Option<Entry> {
        if self.next.is_none() {
            self.next = self.read();
        }
        let at = self.next.as_ref()?.at_ns;
        let (first, began_ns) = *self.began.get_or_insert((at, now_ns));
        if at.since(first).as_nanos() > u128::from(now_ns.saturating_sub(began_ns)) {
            return None;
        }
        self.next.take()
    }

    fn read(&mut self) -> Option<Entry> {
        loop {
            match self.lines.next() {
                Some(Ok(Line::Entry(entry))) => return Some(*entry),
                Some(Ok(Line::Broken { number, error })) => {
                    warn::once(
                        "replay line",
                        format_args!("{}:{number}: {error}", self.path.display()),
                    );
                }
                Some(Ok(Line::Torn { .. })) | None => return None,
                Some(Err(error)) => {
                    warn::once("replay read", format_args!("{}: {error}", self.path.display()));
                    return None;
                }
            }
        }
    }
}

impl Source for Replay {
    fn name(&self) -> &'static str {
        "replay"
    }

    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>) {
        for _ in 0..MOST_AT_ONCE {
            let Some(entry) = self.due(now_ns) else { return };
            let provenance = entry.frame.provenance.max(Provenance::Replay);
            match entry.frame.event {
                Event::Beat(beat) => {
                    self.pulses
                        .extend(beat.ranks.into_iter().map(|pulse| (pulse.rank, pulse)));
                }
                Event::Job(_)
                | Event::Agent(_)
                | Event::Exit(_)
                | Event::Bye(_)
                | Event::End(_)
                | Event::Policy(_)
                | Event::Thinned(_) => {}
                event => {
                    if let Event::Detach(detach) = &event {
                        self.pulses.remove(&detach.rank);
                    }
                    send(provenance, event);
                }
            }
        }
    }

    fn pulses(&mut self, _now_ns: u64, out: &mut Vec<Pulse>) {
        out.extend(self.pulses.values());
    }

    fn is_idle(&mut self) -> bool {
        self.next.is_none() && self.lines.is_at_end()
    }
}
