//! The timeline: recent events, except findings, which are in the report. Only the latest events are kept.

use std::collections::{BTreeMap, VecDeque};

use paceline_health::event::{Event, GpuFault};
use paceline_health::id::NodeId;
use paceline_health::text::sanitize::{SENTENCE, clip, name};
use paceline_health::{Frame, Provenance};
use serde_json::json;

use super::Piece;

/// Maximum number of entries.
const MOST: usize = 256;

/// The recent events (see the module documentation).
#[derive(Debug, Default)]
pub(super) struct Timeline {
    entries: VecDeque<Piece>,
    restart: u32,
    /// The last sidecar that started on each node. Only a restart is an event.
    agents: BTreeMap<NodeId, u64>,
}

/// Returns true if a frame may be relevant for the timeline.
pub(super) fn concerns(frame: &Frame) -> bool {
    matches!(
        frame.event,
        Event::Agent(_)
            | Event::Attach(_)
            | Event::Exit(_)
            | Event::Policy(_)
            | Event::GpuFault(_)
            | Event::Trouble(_)
            | Event::Mark(_)
    )
}

impl Timeline {
    /// Adds a frame. Returns true if it made an entry.
    pub fn frame(&mut self, frame: &Frame, serial: u64, unix_ms: u64) -> bool {
        let told = match &frame.event {
            Event::Agent(_) => {
                let before = self.agents.insert(frame.node.clone(), frame.agent);
                before
                    .is_some_and(|before| before != frame.agent)
                    .then(|| ("watch", None, "its sidecar was restarted".to_owned()))
            }
            Event::Attach(attach) => (attach.restart > self.restart).then(|| {
                self.restart = attach.restart;
                let text = format!("training was restarted ({} ranks)", attach.world_size);
                ("restart", None, text)
            }),
            Event::Exit(exit) => {
                (exit.code != 0).then(|| ("exit", None, format!("its command ended with code {}", exit.code)))
            }
            Event::Policy(change) if !matches!(&*change.by, "start") => {
                Some(("policy", None, format!("{} = {}", change.key, change.value)))
            }
            Event::GpuFault(fault) => Some(("fault", None, fault_text(fault))),
            Event::Trouble(trouble) => Some(("trouble", trouble.rank, trouble.says.to_string())),
            // Every rank writes its own mark. The page shows only that of rank 0.
            Event::Mark(mark) if mark.rank.0 == 0 => Some((
                "mark",
                Some(mark.rank),
                format!("{}, step {}", mark.kind, mark.step),
            )),
            _ => None,
        };
        let Some((kind, rank, text)) = told else {
            return false;
        };
        let is_live = frame.provenance == Provenance::Live;
        let json = json!({
            "unix_ms": unix_ms,
            "kind": kind,
            "node": name(frame.node.as_str()),
            "rank": rank,
            "text": clip(&text, SENTENCE),
            "provenance": (!is_live).then_some(frame.provenance),
        });
        if self.entries.len() >= MOST {
            self.entries.pop_front();
        }
        self.entries.push_back(Piece {
            serial,
            json: json.to_string(),
        });
        true
    }

    /// Returns the entries after a serial number.
    pub fn since(&self, after: u64) -> impl Iterator<Item = &str> {
        let news = self.entries.iter().filter(move |entry| entry.serial > after);
        news.map(|entry| entry.json.as_str())
    }
}

fn fault_text(fault: &GpuFault) -> String {
    let what = if fault.xid > 0 {
        format!("XID {}", fault.xid)
    } else {
        format!("{:?}", fault.kind)
    };
    let times = if fault.count > 1 {
        format!(" ({} times)", fault.count)
    } else {
        String::new()
    };
    let whose = fault
        .gpu
        .as_ref()
        .map_or_else(|| fault.pci.to_string(), ToString::to_string);
    format!("GPU {whose}: {what}{times} {}", fault.text)
}
