//! The first pass over all lines of a segment. It decides which lines to remove, and counts them by kind.
//!
//! The last line of each sidecar incarnation is kept, so that the remaining lines still show how much it sent and how
//! much was lost in transit. The line before each start of the aggregator is also kept, because it shows since when the
//! aggregator was down.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use paceline_health::Time;
use paceline_health::codec::line;
use paceline_health::event::{Event, Thinned};
use paceline_health::frame::AGGREGATOR;

use super::Rule;

/// The kind under which unreadable lines are counted.
const DAMAGED: &str = "damaged";

/// The parts of a line that matter for thinning.
pub struct Seen<'a> {
    pub n: u64,
    pub at_ns: u64,
    agent: u64,
    node: Cow<'a, str>,
    kind: Cow<'a, str>,
    /// Set if this line is the record of removed lines.
    pub record: Option<Thinned>,
}

impl<'a> Seen<'a> {
    /// Parses a line. Returns `None` if it is unreadable.
    pub fn of(text: &'a [u8]) -> Option<Seen<'a>> {
        let text = std::str::from_utf8(text).ok()?;
        let glance = line::glance(text).filter(|glance| glance.kind != "thinned");
        if let Some(glance) = glance {
            return Some(Seen {
                n: glance.n,
                at_ns: glance.at_ns,
                agent: glance.agent,
                node: glance.node.into(),
                kind: glance.kind.into(),
                record: None,
            });
        }
        let entry = line::decode(text).ok()?;
        let named = serde_json::to_value(&entry.frame.event).ok()?;
        let kind = named.as_object()?.keys().next()?.clone();
        let record = match entry.frame.event {
            Event::Thinned(thinned) if thinned.here && entry.frame.agent == AGGREGATOR => Some(thinned),
            _ => None,
        };
        Some(Seen {
            n: entry.n,
            at_ns: entry.at_ns.0,
            agent: entry.frame.agent,
            node: entry.frame.node.to_string().into(),
            kind: kind.into(),
            record,
        })
    }
}

/// A line that may be kept although the rule selects it.
#[derive(Clone, Copy)]
struct Line {
    number: u64,
    kind: usize,
    agent: u64,
}

/// The first pass (see the module).
pub struct Survey {
    rule: Rule,
    /// The records of lines that were removed earlier.
    pub records: Vec<Thinned>,
    from: Option<u64>,
    to: u64,
    to_ns: u64,
    kinds: Vec<String>,
    gone: Vec<u64>,
    frames: u64,
    /// The last line of each incarnation of each node's sidecar.
    last: HashMap<String, HashMap<u64, Line>>,
    before: Option<Line>,
    /// Lines that are always kept, by number.
    spared: HashMap<u64, Line>,
}

impl Survey {
    /// Creates an empty pass.
    pub fn new(rule: Rule) -> Survey {
        Survey {
            rule,
            records: Vec::new(),
            from: None,
            to: 0,
            to_ns: 0,
            kinds: Vec::new(),
            gone: Vec::new(),
            frames: 0,
            last: HashMap::new(),
            before: None,
            spared: HashMap::new(),
        }
    }

    /// Processes the next line.
    pub fn take(&mut self, number: u64, seen: Option<&Seen<'_>>) {
        let Some(seen) = seen else {
            if self.rule == Rule::Everything {
                let kind = self.kind(DAMAGED);
                self.gone[kind] += 1;
            }
            return;
        };
        let (first, last, at_ns) = match &seen.record {
            Some(record) => (record.from, record.to, record.to_ns.0),
            None => (seen.n, seen.n, seen.at_ns),
        };
        self.from = Some(self.from.map_or(first, |from| from.min(first)));
        (self.to, self.to_ns) = (self.to.max(last), self.to_ns.max(at_ns));
        if let Some(record) = &seen.record {
            self.records.push(record.clone());
            return;
        }
        let line = Line {
            number,
            kind: self.kind(&seen.kind),
            agent: seen.agent,
        };
        if self.rule.takes(&seen.kind) {
            self.gone[line.kind] += 1;
            self.frames += u64::from(line.agent != AGGREGATOR);
        }
        if seen.kind == "job"
            && let Some(before) = self.before
        {
            self.spared.insert(before.number, before);
        }
        self.before = Some(line);
        if seen.agent != AGGREGATOR {
            if !self.last.contains_key(&*seen.node) {
                self.last.insert(seen.node.to_string(), HashMap::new());
            }
            if let Some(agents) = self.last.get_mut(&*seen.node) {
                agents.insert(seen.agent, line);
            }
        }
    }

    /// Completes the pass after the last line.
    pub fn end(&mut self) {
        let last = std::mem::take(&mut self.last);
        let last = last.into_values().flat_map(HashMap::into_values);
        self.spared.extend(last.map(|line| (line.number, line)));
        for line in self.spared.values().copied().collect::<Vec<_>>() {
            if self.rule.takes(&self.kinds[line.kind]) {
                self.gone[line.kind] -= 1;
                self.frames -= u64::from(line.agent != AGGREGATOR);
            }
        }
    }

    /// Returns true if there is nothing to do.
    pub fn is_idle(&self) -> bool {
        let is_done = self.rule == Rule::Telemetry || self.records.iter().any(|record| record.whole);
        self.gone.iter().all(|lines| *lines == 0) && is_done
    }

    /// Returns true if this line is to be removed. An earlier record is removed too, because the new record includes
    /// it.
    pub fn goes(&self, number: u64, seen: Option<&Seen<'_>>) -> bool {
        match seen {
            None => self.rule == Rule::Everything,
            Some(seen) if seen.record.is_some() => true,
            Some(seen) => self.rule.takes(&seen.kind) && !self.spared.contains_key(&number),
        }
    }

    /// Returns the position of the record if no readable line was removed, which is the end.
    pub fn last(&self) -> (u64, u64) {
        (self.to, self.to_ns)
    }

    /// Returns the record of all lines removed now and earlier.
    pub fn record(&self, bound_bytes: u64) -> Thinned {
        let mut gone: BTreeMap<Arc<str>, u64> = BTreeMap::new();
        let now = self
            .kinds
            .iter()
            .map(String::as_str)
            .zip(self.gone.iter().copied());
        let before = self.records.iter().flat_map(|record| &record.gone);
        let before = before.map(|(kind, lines)| (&**kind, *lines));
        for (kind, lines) in now.chain(before).filter(|(_, lines)| *lines > 0) {
            *gone.entry(kind.into()).or_default() += lines;
        }
        let before = self.records.iter().map(|record| record.frames);
        Thinned {
            here: true,
            whole: self.rule == Rule::Everything || self.records.iter().any(|record| record.whole),
            from: self.from.unwrap_or(0),
            to: self.to,
            to_ns: Time(self.to_ns),
            gone,
            frames: before.fold(self.frames, u64::saturating_add),
            bound_bytes,
        }
    }

    fn kind(&mut self, name: &str) -> usize {
        if let Some(at) = self.kinds.iter().position(|known| known == name) {
            return at;
        }
        self.kinds.push(name.to_owned());
        self.gone.push(0);
        self.kinds.len() - 1
    }
}
