//! The last known state of a job: its ranks, their order, and their findings.

use std::collections::BTreeMap;
use std::time::Instant;

use paceline_health::report::step_snapshot::{ABSENT, LEVEL, ratio};
use paceline_health::verdict::Severity;
use paceline_sidecar::sink::page::ranks::Standing;

use super::client::response::{GpuNow, News, Places, Ranks, Report, StepTimes, Text, Verdict};

/// A rank counts as slow from this cell value on, which means 5 %. The live page uses the same value.
const SLOW: u8 = LEVEL + 3;

/// The last known state of a job. See the module.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) epoch: Text,
    pub(super) serial: u64,
    pub(super) report: Option<Report>,
    pub(super) step: Option<StepTimes>,
    /// The time when all ranks had finished `step`.
    pub(super) step_at: Option<Instant>,
    places: Places,
    gpus: Vec<u8>,
    ranks: Ranks,
    /// For each rank, the index in the report of the worst active finding about the rank, its GPU, its node or its
    /// rack.
    found: Vec<Option<usize>>,
}

/// The current state of a rank.
#[derive(Debug)]
pub(super) struct RankNow<'a> {
    pub(super) rank: u32,
    pub(super) node: Option<&'a Text>,
    pub(super) gpu: Option<GpuAt<'a>>,
    /// True if the rank's process is running.
    pub(super) is_up: bool,
    pub(super) standing: Standing,
    /// The last step that the rank has finished.
    pub(super) step: Option<u64>,
    /// The worst finding about the rank. `found` is its index among all findings.
    pub(super) verdict: Option<&'a Verdict>,
    found: Option<usize>,
}

/// A GPU: its UUID, bus, model and last readings.
#[derive(Debug)]
pub(super) struct GpuAt<'a> {
    pub(super) uuid: &'a Text,
    pub(super) bus: Option<&'a Text>,
    pub(super) model: Option<&'a Text>,
    pub(super) now: GpuNow,
}

impl RankNow<'_> {
    /// Returns the ratio of the rank's self-time (or step time) to that of its peers, or `None` if it is not known.
    pub(super) fn slowdown(&self) -> Option<f64> {
        ratio(self.standing.cell)
    }

    pub(super) fn gpu_now(&self) -> GpuNow {
        self.gpu.as_ref().map(|gpu| gpu.now).unwrap_or_default()
    }
}

/// By what ranks are put in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sort {
    /// Ranks with findings first; then slow ranks, ranks without data, and the others by slowdown.
    #[default]
    Slowdown,
    /// Number.
    Rank,
    /// Name of the node.
    Node,
    /// Step, the last first.
    Step,
    /// Time of the last step, the longest first.
    Time,
    /// Temperature, the hottest first.
    Heat,
    /// SM clock, the lowest first.
    Clock,
    /// Power, the highest first.
    Power,
    /// Memory errors, the most first.
    Ecc,
    /// Severity of the finding.
    Finding,
}

impl Sort {
    pub(super) const ALL: [Sort; 10] = [
        Sort::Slowdown,
        Sort::Rank,
        Sort::Node,
        Sort::Step,
        Sort::Time,
        Sort::Heat,
        Sort::Clock,
        Sort::Power,
        Sort::Ecc,
        Sort::Finding,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Slowdown => "slowdown",
            Sort::Rank => "rank",
            Sort::Node => "node",
            Sort::Step => "step",
            Sort::Time => "time",
            Sort::Heat => "heat",
            Sort::Clock => "clock",
            Sort::Power => "power",
            Sort::Ecc => "ECC",
            Sort::Finding => "finding",
        }
    }

    pub(super) fn next(self) -> Sort {
        let place = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(place + 1) % Sort::ALL.len()]
    }
}

impl Job {
    /// Takes over new data.
    pub(super) fn take(&mut self, news: News) {
        let step = news.last_step();
        self.step_at = news.step_at(Instant::now()).or(self.step_at);
        if news.epoch != self.epoch {
            // If the data is from another aggregator, keep the previous data until the new aggregator sends its own.
            self.epoch = news.epoch;
        }
        self.serial = news.serial;
        let is_changed = news.report.is_some() || news.places.is_some();
        self.step = step.or(self.step);
        self.report = news.report.or(self.report.take());
        if let Some(places) = news.places {
            self.places = places;
        }
        if let Some(gpus) = news.gpus {
            self.gpus = gpus;
        }
        if let Some(ranks) = news.ranks {
            self.ranks = ranks;
        }
        if is_changed {
            self.find();
        }
    }

    /// Returns the number of known ranks.
    pub(super) fn len(&self) -> usize {
        self.places.ranks.len().max(self.ranks.len())
    }

    pub(super) fn nodes(&self) -> usize {
        self.places.nodes.len()
    }

    pub(super) fn has_gpus(&self) -> bool {
        !self.places.gpus.is_empty()
    }

    /// Returns all reported findings, active ones first.
    pub(super) fn verdicts(&self) -> &[Verdict] {
        self.report.as_ref().map_or(&[], |report| &report.verdicts)
    }

    /// Returns the active findings, the worst first.
    pub(super) fn raised(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts().iter().filter(|verdict| verdict.raised)
    }

    /// Returns the length of the longest name of a node, in characters.
    pub(super) fn longest_node(&self) -> usize {
        let names = self
            .places
            .nodes
            .iter()
            .map(|(name, _)| name.as_str().chars().count());
        names.max().unwrap_or(0)
    }

    /// Returns the state of one rank.
    pub(super) fn rank(&self, rank: u32) -> RankNow<'_> {
        let index = rank as usize;
        let (node, gpu, is_up) = self.places.ranks.get(index).copied().unwrap_or((-1, -1, false));
        let standing = self.ranks.standing(index).unwrap_or(Standing {
            cell: ABSENT,
            shares: None,
            behind: None,
            took_s: None,
        });
        let step = self.ranks.0.zip(standing.behind);
        let found = self.found.get(index).copied().flatten();
        RankNow {
            rank,
            node: at(&self.places.nodes, node).map(|(name, _)| name),
            gpu: at(&self.places.gpus, gpu).map(|(uuid, _, bus, model)| GpuAt {
                uuid,
                bus: self.places.buses.get(*bus as usize),
                model: self.places.models.get(*model as usize),
                now: GpuNow::of(&self.gpus, gpu as usize),
            }),
            is_up,
            standing,
            step: step.map(|(newest, behind)| newest.saturating_sub(u64::from(behind))),
            verdict: found.and_then(|place| self.verdicts().get(place)),
            found,
        }
    }

    /// Returns the ranks that match the filter, in order.
    pub(super) fn order(&self, sort: Sort, is_reversed: bool, filter: &str) -> Vec<u32> {
        let filter = Filter::of(filter);
        let mut ranks: Vec<u32> = (0..self.len() as u32)
            .filter(|rank| filter.takes(&self.rank(*rank)))
            .collect();
        if sort == Sort::Node {
            // Compare the names directly, which avoids allocating keys.
            ranks.sort_by(|a, b| self.rank(*a).node.cmp(&self.rank(*b).node));
        } else {
            ranks.sort_by_cached_key(|rank| key(sort, &self.rank(*rank)));
        }
        if is_reversed {
            ranks.reverse();
        }
        ranks
    }

    /// Finds the finding that is shown next to each rank.
    fn find(&mut self) {
        let mut found: Vec<Option<usize>> = vec![None; self.len()];
        let verdicts = self.report.as_ref().map_or(&[][..], |report| &report.verdicts);
        let mut by_node: BTreeMap<&Text, usize> = BTreeMap::new();
        let mut by_rack: BTreeMap<&Text, usize> = BTreeMap::new();
        let mut by_gpu: BTreeMap<&Text, usize> = BTreeMap::new();
        // The findings are sorted, the worst first, so the first one about a rank is kept.
        for (place, verdict) in verdicts.iter().enumerate().filter(|(_, verdict)| verdict.raised) {
            let subject = &verdict.subject;
            match (subject.rank, &subject.gpu, &subject.rack) {
                (Some(rank), ..) => {
                    if let Some(slot) = found.get_mut(rank as usize) {
                        slot.get_or_insert(place);
                    }
                }
                (None, Some(gpu), _) => {
                    by_gpu.entry(gpu).or_insert(place);
                }
                (None, None, Some(rack)) => {
                    by_rack.entry(rack).or_insert(place);
                }
                (None, None, None) if !subject.gpus.is_empty() => {
                    for gpu in &subject.gpus {
                        by_gpu.entry(gpu).or_insert(place);
                    }
                }
                (None, None, None) => {
                    for node in [&subject.node, &subject.peer].into_iter().flatten() {
                        by_node.entry(node).or_insert(place);
                    }
                }
            }
        }
        for (slot, (node, gpu, _)) in found.iter_mut().zip(&self.places.ranks) {
            let gpu = at(&self.places.gpus, *gpu).and_then(|(uuid, ..)| by_gpu.get(uuid));
            let node = at(&self.places.nodes, *node);
            let others = [
                gpu,
                node.and_then(|(name, _)| by_node.get(name)),
                node.and_then(|(_, rack)| by_rack.get(rack)),
            ];
            *slot = slot.or_else(|| others.into_iter().flatten().min().copied());
        }
        self.found = found;
    }
}

fn at<T>(list: &[T], place: i64) -> Option<&T> {
    list.get(usize::try_from(place).ok()?)
}

/// Returns the sort key of a rank. The first rank has the smallest key, and unknown values come last.
fn key(sort: Sort, now: &RankNow<'_>) -> u64 {
    let most = |value: Option<u64>| value.map_or(u64::MAX, |value| u64::MAX - 1 - value.min(u64::MAX - 1));
    let gpu = now.gpu_now();
    let cell = now.standing.cell;
    match sort {
        Sort::Slowdown => {
            let found = now.found.map_or(u64::MAX >> 16, |place| place as u64);
            // Sort ranks without data before healthy ones, because absence of data never counts as health.
            let speed = match cell {
                ABSENT => u64::from(u8::MAX - SLOW) * 2 + 1,
                cell => u64::from(u8::MAX - cell) * 2,
            };
            found << 16 | speed
        }
        Sort::Rank | Sort::Node => u64::from(now.rank),
        Sort::Step => now.step.unwrap_or(u64::MAX),
        Sort::Time => most(now.standing.took_s.map(|took_s| (took_s * 1e6) as u64)),
        Sort::Heat => most(gpu.temperature_c.map(u64::from)),
        Sort::Clock => gpu.sm_clock_mhz.map_or(u64::MAX, u64::from),
        Sort::Power => most(gpu.power_w.map(u64::from)),
        Sort::Ecc => most(gpu.ecc_uncorrected.or(gpu.ecc_corrected).map(|_| {
            u64::from(gpu.ecc_uncorrected.unwrap_or(0)) << 16 | u64::from(gpu.ecc_corrected.unwrap_or(0))
        })),
        Sort::Finding => match now.verdict.map(Verdict::severity) {
            Some(Severity::Critical) => 0,
            Some(Severity::Warning) => 1,
            Some(Severity::Info) => 2,
            None => 3,
        },
    }
}

/// A filter that the user typed: a rank's number, or text to search for in names.
enum Filter {
    All,
    Rank(u32),
    Word(String),
}

impl Filter {
    fn of(typed: &str) -> Filter {
        let text = typed.trim().to_lowercase();
        let number = text.strip_prefix("rank").unwrap_or(&text).trim();
        match number.parse() {
            Ok(rank) => Filter::Rank(rank),
            Err(_) if text.is_empty() => Filter::All,
            Err(_) => Filter::Word(text),
        }
    }

    fn takes(&self, now: &RankNow<'_>) -> bool {
        match self {
            Filter::All => true,
            Filter::Rank(rank) => now.rank == *rank,
            Filter::Word(word) => {
                let has = |text: &Text| text.as_str().to_lowercase().contains(word);
                let found = now.verdict;
                now.node.is_some_and(has)
                    || now
                        .gpu
                        .as_ref()
                        .is_some_and(|gpu| has(gpu.uuid) || gpu.bus.is_some_and(has))
                    || found.is_some_and(|verdict| {
                        [&verdict.finding, &verdict.cause, &verdict.severity]
                            .into_iter()
                            .any(has)
                    })
            }
        }
    }
}
