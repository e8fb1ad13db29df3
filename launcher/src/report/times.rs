//! Formats step times, and the ranks with the longest self-time.

use paceline_health::report::{Part, PartTimes, RankTimes, Report};
use paceline_health::text::humanize::{percent, span};

use super::block::Block;

/// Maximum number of step parts shown. The largest ones are taken.
const PARTS: usize = 3;
/// Maximum number of ranks shown.
const RANKS: usize = 3;
/// A part is omitted if it has a smaller share of the median step. A rank is omitted if its self-time exceeds the
/// median rank's by no more than this.
const WORTH_TELLING: f64 = 0.02;

impl Block {
    /// Prints percentiles of steps and their parts, and the ranks with the longest self-time.
    pub(super) fn times(&mut self, report: &Report) {
        let of = |part: Part| report.times.parts.iter().find(move |times| times.part == part);
        let Some(step) = of(Part::Step) else { return };
        let tail = |times: &PartTimes| format!("{}, p99 {}", span(times.p50_s), span(times.p99_s));
        self.labelled(
            "steps",
            &format!(
                "{}, p90 {}, p99 {}, longest {}",
                span(step.p50_s),
                span(step.p90_s),
                span(step.p99_s),
                span(step.max_s)
            ),
        );
        // Take the parts that add up to a step.
        let parts = [Part::Data, Part::Compute, Part::Wait, Part::Optimizer];
        let mut parts: Vec<&PartTimes> = parts
            .into_iter()
            .filter_map(of)
            .filter(|part| part.p99_s > step.p50_s * WORTH_TELLING)
            .collect();
        parts.sort_by(|a, b| b.p99_s.total_cmp(&a.p99_s));
        let told: Vec<String> = parts
            .iter()
            .take(PARTS)
            .map(|part| format!("{} {}", part.part.name(), tail(part)))
            .collect();
        if !told.is_empty() {
            self.labelled("", &told.join("; "));
        }
        let longest = longest(&report.times.ranks);
        if !longest.is_empty() {
            self.labelled("", &format!("longest self-time: {}", longest.join("; ")));
        }
    }
}

/// Lists the ranks whose typical self-time exceeds the median rank's.
fn longest(ranks: &[RankTimes]) -> Vec<String> {
    let own = |rank: &RankTimes| Some((rank.parts.get(&Part::Own)?.p50_s, rank.rank));
    let mut own: Vec<_> = ranks.iter().filter_map(own).collect();
    own.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let Some((median, _)) = own.get(own.len() / 2).copied() else {
        return Vec::new();
    };
    let stands_out = |(time, _): &&(f64, _)| *time > median * (1.0 + WORTH_TELLING);
    let told = own.iter().take(RANKS).take_while(stands_out);
    told.map(|(time, rank)| {
        format!(
            "rank {rank} {} ({} more than the median rank)",
            span(*time),
            percent(time / median - 1.0)
        )
    })
    .collect()
}
