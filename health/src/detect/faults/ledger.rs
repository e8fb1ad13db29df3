//! Active findings. Each finding on each subject consists of parts (an XID, a counter, a flag), and it ends with its
//! last part. It is reported again only if the required action changes or its count has grown tenfold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::FaultContext;
use crate::detect::claim;
use crate::detect::claim::{Body, Claim, Detail, Outcome};
use crate::event::Signal;
use crate::fault::{Order, Remedy, When};
use crate::frame::Provenance;
use crate::id::NodeId;
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Severity, Subject};

/// Maximum number of parts of one finding. Further parts are ignored.
const MAX_PARTS: usize = 32;
/// Maximum active findings.
const MAX_OPEN: usize = 1 << 16;

/// A claim, the order that its verdict carries for programs, and the order as text if the table of findings has no text
/// that fits.
pub type FaultClaim = (Claim, Order, Option<Arc<str>>);

/// One reason why a finding is active.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub severity: Severity,
    pub order: Order,
    pub cause: Cause,
    pub since: Time,
    pub since_step: Option<u64>,
    /// Measurements: the name with its unit, the value, and the peers' value.
    pub evidence: Vec<(String, f64, Option<f64>)>,
    /// Number of occurrences. A measurement counts as one.
    pub count: u64,
    /// First and last journal entry.
    pub entries: (u64, u64),
    pub provenance: Provenance,
    /// The reason as the beginning of a sentence, such as "XID 79 (GPU has fallen off the bus)". If it is empty, the
    /// table's text is used.
    pub why: String,
    /// Further actions, as whole sentences.
    pub more: String,
    /// The action for all parts together. It replaces the action of the order.
    pub does: String,
    /// What this part has cost the job so far, in rank-seconds.
    pub lost_rank_s: f64,
}

impl Part {
    /// Creates a part without an order from the frame in `context`.
    pub fn new(context: &FaultContext<'_>, severity: Severity, why: impl Into<String>) -> Part {
        Part {
            severity,
            order: Order {
                remedy: Remedy::None,
                when: When::JobEnd,
            },
            cause: Cause::Unknown,
            since: context.at,
            since_step: None,
            evidence: Vec::new(),
            count: 1,
            entries: (context.entry, context.entry),
            provenance: context.provenance,
            why: why.into(),
            more: String::new(),
            does: String::new(),
            lost_rank_s: 0.0,
        }
    }

    pub fn asks(mut self, remedy: Remedy, when: When) -> Part {
        self.order = Order { remedy, when };
        self
    }

    pub fn shows(mut self, what: impl Into<String>, value: f64) -> Part {
        self.evidence.push((what.into(), value, None));
        self
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Open {
    parts: BTreeMap<String, Part>,
    told: Option<(Severity, Order, String, u64)>,
    /// True if the last claim was not reported because another finding covers it.
    held_back: bool,
}

/// All active findings.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    open: BTreeMap<(Finding, Subject), Open>,
    /// When each node last asked to be taken out of service.
    asking: BTreeMap<NodeId, Time>,
    /// Set when too many nodes asked at once: their number, and the number of all nodes. No more actions on nodes are
    /// requested after that.
    tripped: Option<(usize, usize)>,
    /// Findings that were not reported at first, and when to report them.
    later: BTreeSet<(Time, Finding, Subject)>,
    out: VecDeque<FaultClaim>,
}

impl Ledger {
    /// Returns true if no finding is active. This is the common case, and it is checked for every reading.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the number of active findings.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns true if the finding is active.
    pub fn is_open(&self, finding: Finding, subject: &Subject) -> bool {
        self.open.contains_key(&(finding, subject.clone()))
    }

    /// Returns the subjects with an active finding of this kind.
    pub fn subjects(&self, finding: Finding) -> impl Iterator<Item = &Subject> {
        let of = self.open.keys().filter(move |(own, _)| *own == finding);
        of.map(|(_, subject)| subject)
    }

    /// Adds or updates a part.
    pub fn hold(
        &mut self,
        context: &FaultContext<'_>,
        finding: Finding,
        subject: &Subject,
        name: &str,
        mut part: Part,
    ) {
        let key = (finding, subject.clone());
        if self.open.len() >= MAX_OPEN && !self.open.contains_key(&key) {
            return;
        }
        let open = self.open.entry(key).or_default();
        let known = open.parts.get(name);
        let asks_anew =
            part.order.remedy.acts_on_node() && known.is_none_or(|known| !known.order.remedy.acts_on_node());
        if let Some(old) = known {
            part.since = old.since;
            part.since_step = old.since_step;
            part.entries.0 = old.entries.0;
            part.provenance = part.provenance.max(old.provenance);
        } else if open.parts.len() >= MAX_PARTS {
            return;
        }
        open.parts.insert(name.to_owned(), part);
        if asks_anew {
            self.count_node(context, subject);
        }
        self.report(context.at, finding, subject);
    }

    /// Removes a part.
    pub fn drop_part(&mut self, at: Time, finding: Finding, subject: &Subject, name: &str) {
        let key = (finding, subject.clone());
        let Some(open) = self.open.get_mut(&key) else {
            return;
        };
        if open.parts.remove(name).is_none() {
            return;
        }
        if open.parts.is_empty() {
            self.over(at, finding, subject);
        } else {
            self.report(at, finding, subject);
        }
    }

    /// Ends a finding even if it still has parts.
    pub fn over(&mut self, at: Time, finding: Finding, subject: &Subject) {
        if self.open.remove(&(finding, subject.clone())).is_none() {
            return;
        }
        let claim = claim::over(at, finding, subject.clone(), Outcome::default());
        let order = Order {
            remedy: Remedy::None,
            when: When::JobEnd,
        };
        self.out.push_back((claim, order, None));
    }

    /// Moves the findings of one subject to another, when the subject's name has become known.
    pub fn rename(&mut self, at: Time, from: &Subject, to: &Subject) {
        let moved: Vec<Finding> = self
            .open
            .keys()
            .filter(|(_, subject)| subject == from)
            .map(|(finding, _)| *finding)
            .collect();
        for finding in moved {
            let Some(open) = self.open.get(&(finding, from.clone())) else {
                continue;
            };
            let parts = open.parts.clone();
            self.over(at, finding, from);
            self.open.entry((finding, to.clone())).or_default().parts = parts;
            self.report(at, finding, to);
        }
    }

    /// Returns the next claim.
    pub fn poll(&mut self) -> Option<FaultClaim> {
        self.out.pop_front()
    }

    /// Records that the last claim of a finding was not reported, because another finding covers it.
    pub fn hold_back(&mut self, finding: Finding, subject: &Subject) {
        if let Some(open) = self.open.get_mut(&(finding, subject.clone())) {
            open.held_back = true;
        }
    }

    /// Schedules the unreported findings of a subject for a report at `due`, if they still hold by then.
    pub fn tell_later(&mut self, due: Time, subject: &Subject) {
        let held_back = self
            .open
            .iter()
            .filter(|((_, own), open)| own == subject && open.held_back)
            .map(|((finding, subject), _)| (due, *finding, subject.clone()));
        self.later.extend(held_back);
    }

    /// Reports the findings that are due by `at`, in their current state.
    pub fn tell_due(&mut self, at: Time) {
        while let Some((due, finding, subject)) = self.later.first().filter(|(due, ..)| *due <= at).cloned() {
            self.later.pop_first();
            let Some(open) = self.open.get_mut(&(finding, subject.clone())) else {
                continue;
            };
            if std::mem::take(&mut open.held_back) {
                open.told = None;
                self.report(due, finding, &subject);
            }
        }
    }

    /// Returns how many nodes of how many asked to be taken out of service at once, if that was too many. Actions on
    /// nodes are then no longer requested.
    pub fn tripped(&self) -> Option<(usize, usize)> {
        self.tripped
    }

    /// Acts as a circuit breaker. If many nodes ask to be taken out of service at once, they share a cause, and no more
    /// actions on nodes are requested.
    fn count_node(&mut self, context: &FaultContext<'_>, subject: &Subject) {
        let (Subject::Gpu { node, .. } | Subject::Node { node }) = subject else {
            return;
        };
        self.asking.insert(node.clone(), context.at);
        let window = Duration::from_secs_f64(context.limits.breaker_s);
        self.asking.retain(|_, at| context.at.since(*at) <= window);
        let (asking, nodes) = (self.asking.len(), context.roster.nodes().count());
        let few = asking < context.limits.breaker_nodes as usize;
        if self.tripped.is_none() && !few && asking as f64 >= context.limits.breaker_ratio * nodes as f64 {
            self.tripped = Some((asking, nodes));
            let all: Vec<(Finding, Subject)> = self.open.keys().cloned().collect();
            for (finding, subject) in all {
                self.report(context.at, finding, &subject);
            }
        }
    }

    fn report(&mut self, at: Time, finding: Finding, subject: &Subject) {
        let tripped = self.tripped;
        let Some(open) = self.open.get_mut(&(finding, subject.clone())) else {
            return;
        };
        let Some(mut whole) = sum(finding, &open.parts) else {
            return;
        };
        if let Some((asking, nodes)) = tripped.filter(|_| whole.order.remedy.acts_on_node()) {
            whole.order.remedy = Remedy::None;
            whole.words = format!(
                "{asking} of {nodes} nodes need to be taken out of service at once: look for a shared cause \
                 (power, fabric, a planned reboot) before any action."
            );
        }
        let news = match &open.told {
            None => true,
            Some((severity, order, words, count)) => {
                (*severity, *order) != (whole.severity, whole.order)
                    || *words != whole.words
                    || whole.count >= count.saturating_mul(10)
            }
        };
        if !news {
            return;
        }
        open.told = Some((whole.severity, whole.order, whole.words.clone(), whole.count));
        let words = (!whole.words.is_empty()).then(|| Arc::from(whole.words.as_str()));
        let claim = Claim {
            finding,
            subject: subject.clone(),
            at,
            body: Body::Holds(Box::new(whole.detail)),
        };
        self.out.push_back((claim, whole.order, words));
    }
}

struct Whole {
    severity: Severity,
    order: Order,
    words: String,
    count: u64,
    detail: Detail,
}

/// Combines all parts into the worst severity, the most drastic order, and the text of the part with that order.
fn sum(finding: Finding, parts: &BTreeMap<String, Part>) -> Option<Whole> {
    let worst = parts.values().max_by_key(|part| (part.order, part.severity))?;
    let first = parts.values().min_by_key(|part| part.since)?;
    let severity = parts.values().map(|part| part.severity).max()?;
    let does = parts
        .values()
        .map(|part| &*part.does)
        .find(|does| !does.is_empty());
    let count = parts.values().map(|part| part.count).fold(0, u64::saturating_add);
    let evidence = parts.values().flat_map(|part| {
        part.evidence.iter().map(|(what, value, peers)| Evidence {
            what: what.as_str().into(),
            value: *value,
            peers: *peers,
            entries: Some(part.entries),
        })
    });
    Some(Whole {
        severity,
        order: worst.order,
        words: words(worst, does),
        count,
        detail: Detail {
            severity,
            since: first.since,
            since_step: first.since_step,
            step: None,
            cause: worst.cause,
            signals: vec![if finding == Finding::NetworkPort {
                Signal::S4
            } else {
                Signal::S3
            }],
            provenance: parts
                .values()
                .map(|part| part.provenance)
                .fold(Provenance::Live, Provenance::max),
            slowdown_ratio: None,
            impact_ratio: None,
            lost_rank_s: parts.values().map(|part| part.lost_rank_s).sum(),
            evidence: evidence.collect(),
            says: None,
        },
    })
}

/// Returns text such as "XID 79 (GPU has fallen off the bus): reboot the node now." An empty text means that the text
/// in the table of findings is better.
fn words(part: &Part, does: Option<&str>) -> String {
    if part.why.is_empty() {
        return part.more.clone();
    }
    let mut words = match part.order.remedy {
        _ if does.is_some() => format!("{}: {}", part.why, does.unwrap_or_default()),
        Remedy::None if part.more.is_empty() => format!("{}: no action needed.", part.why),
        Remedy::None => format!("{}.", part.why),
        remedy => format!("{}: {} {}.", part.why, remedy.words(), part.order.when.words()),
    };
    if !part.more.is_empty() {
        words.push(' ');
        words.push_str(&part.more);
    }
    words
}
