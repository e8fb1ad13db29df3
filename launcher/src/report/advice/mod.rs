//! Determines what limits the job's speed, and when a profiler would help. It uses a decision tree of questions, each
//! with the numbers that answer it.

use paceline_health::event::GpuSignal;
use paceline_health::report::{Part, PartTimes, Report};
use paceline_health::text::humanize::percent;
use serde::Serialize;

use super::block::Block;

/// Names the limit if findings slow down the job. The findings themselves have the ranks and causes.
const FOUND: &str = "slowed down by findings";
/// If at least this share of the job's time was lost to findings, no other question matters, because the findings
/// distort all measurements.
const LOST: f64 = 0.10;
/// If data loading has at least this share of the step, it is the limit. Corresponds to `shares.data_warning_ratio`.
const DATA: f64 = 0.10;
/// If exposed transfer has at least this share of the step, it is the limit.
const TRANSFER: f64 = 0.20;
/// If at least this share of the DRAM bandwidth is in use, memory is the limit.
const DRAM: f64 = 0.60;
/// Minimum share of the time in which a GPU with small kernels runs kernels.
const BUSY: f64 = 0.80;
/// Maximum share of active SMs on a GPU with small kernels.
const SM: f64 = 0.40;
/// Minimum share of active SMs, and maximum share of active tensor cores, if the tensor cores are not used.
const SM_WORKS: f64 = 0.50;
const TENSOR: f64 = 0.05;

/// One question of the tree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Question {
    /// The text of the question.
    pub(crate) asks: &'static str,
    /// The numbers that answer the question, with their limits.
    pub(crate) numbers: Vec<Number>,
    /// The answer, or `None` if a number was not measured.
    pub(crate) answer: Option<bool>,
    /// How to measure the missing numbers.
    pub(crate) how: &'static str,
}

/// A number with its limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Number {
    /// A description of the number.
    pub(crate) name: &'static str,
    /// A share, or `None` if it was not measured.
    pub(crate) value: Option<f64>,
    /// If the number is at least this limit, the answer is yes. If `below` is true, it must be at most this limit.
    pub(crate) limit: f64,
    /// Reverses the meaning of `limit`.
    pub(crate) below: bool,
}

/// What limits the job's speed, and what to do about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Advice {
    /// The limit, in a few words.
    pub(crate) bound: &'static str,
    /// What to do.
    pub(crate) action: &'static str,
    /// The path through the tree. The last question decided.
    pub(crate) questions: Vec<Question>,
}

const HOOK: &str = "it needs the Python hook, which paceline run loads into the trainers";
const NCCL: &str = "it needs the Python hook or the NCCL plugin, for at most 512 ranks in the report";
const GPM: &str = "it needs GPM of Hopper and later; on other GPUs use a profiler";

/// Walks the tree from its root. Returns an error with the reason if that is impossible.
pub(crate) fn of(report: &Report) -> Result<Advice, &'static str> {
    let Some(step) = part(report, Part::Step).filter(|step| step.sum_s > 0.0) else {
        return Err("Not measured: no steps were observed.");
    };
    let mean = |times: &PartTimes| times.sum_s / times.samples.max(1) as f64;
    let share = |of: Part| Some(mean(part(report, of)?) / mean(step));
    let gpu = |signal| report.gpu_means.get(&signal).copied();
    let number = |name, value, limit, below| Number {
        name,
        value,
        limit,
        below,
    };
    let tree = [
        (
            "Do findings slow the job down?",
            vec![number("time lost to findings", Some(lost(report)), LOST, false)],
            "",
            FOUND,
            "Fix the findings first, then check again.",
        ),
        (
            "Does it wait for data?",
            vec![number(
                "data loading, share of the step",
                share(Part::Data),
                DATA,
                false,
            )],
            HOOK,
            "data-loading bound",
            "Add loader workers or prefetch more; move the data closer (local disk, larger shards); decode less \
             per sample.",
        ),
        (
            "Does it wait for transfers?",
            vec![number(
                "exposed transfer, share of the step",
                transfer(report, step),
                TRANSFER,
                false,
            )],
            NCCL,
            "communication bound",
            "Overlap communication with compute, accumulate gradients, use fewer and larger buckets; compare bus bandwidth \
             with the preflight's.",
        ),
        (
            "Does memory limit the GPUs?",
            vec![number(
                "DRAM bandwidth in use",
                gpu(GpuSignal::DramActiveRatio),
                DRAM,
                false,
            )],
            GPM,
            "memory bound",
            "Fuse element-wise kernels (torch.compile), use bf16 or fp8, fused optimizers and attention; recompute less.",
        ),
        (
            "Are the kernels too small for the GPUs?",
            vec![
                number("a kernel runs", gpu(GpuSignal::UtilizationRatio), BUSY, false),
                number("active SMs", gpu(GpuSignal::SmActiveRatio), SM, true),
            ],
            GPM,
            "bound by small kernels",
            "Use larger micro-batches, CUDA graphs or torch.compile (mode=\"reduce-overhead\"); fuse small operations.",
        ),
        (
            "Are the tensor cores idle while the SMs work?",
            vec![
                number("active SMs", gpu(GpuSignal::SmActiveRatio), SM_WORKS, false),
                number(
                    "tensor cores work",
                    gpu(GpuSignal::TensorActiveRatio),
                    TENSOR,
                    true,
                ),
            ],
            GPM,
            "bound by compute without tensor cores",
            "Train in bf16 or fp8 (autocast), allow TF32 (torch.backends.cuda.matmul.allow_tf32), and make matrix sizes \
             multiples of 8.",
        ),
    ];
    let mut questions = Vec::new();
    for (asks, numbers, how, bound, action) in tree {
        let answer = answer(&numbers);
        questions.push(Question {
            asks,
            numbers,
            answer,
            how,
        });
        if answer == Some(true) {
            return Ok(Advice {
                bound,
                action,
                questions,
            });
        }
    }
    let unknown = questions.iter().any(|question| question.answer.is_none());
    Ok(Advice {
        bound: if unknown { "not known" } else { "compute bound" },
        action: if unknown {
            "No measured limit was found; the questions without an answer show what to measure."
        } else {
            "The GPUs are busy computing: the remaining options are faster kernels, lower precision or more GPUs."
        },
        questions,
    })
}

impl Block {
    /// Prints what limits the speed, if the numbers show it.
    pub(super) fn bound(&mut self, report: &Report) {
        let Ok(advice) = of(report) else { return };
        let decided = advice
            .questions
            .last()
            .filter(|question| question.answer == Some(true) && advice.bound != FOUND);
        if let Some(question) = decided {
            let numbers = question
                .numbers
                .iter()
                .filter_map(|number| Some((number.name, number.value?)));
            let numbers: Vec<String> = numbers
                .map(|(name, value)| format!("{name} {}", percent(value)))
                .collect();
            self.labelled(
                "speed",
                &format!("{}: {}. {}", advice.bound, numbers.join(", "), advice.action),
            );
        }
    }
}

/// Returns true if all numbers meet their limits, and false if one of them does not. Returns `None` if a number that
/// was not measured could decide this.
fn answer(numbers: &[Number]) -> Option<bool> {
    let holds = |number: &Number| {
        let value = number.value?;
        Some(if number.below {
            value <= number.limit
        } else {
            value >= number.limit
        })
    };
    let each: Vec<Option<bool>> = numbers.iter().map(holds).collect();
    if each.contains(&Some(false)) {
        return Some(false);
    }
    (!each.contains(&None)).then_some(true)
}

/// Returns the share of its time that the job lost to findings, active or ended.
fn lost(report: &Report) -> f64 {
    let lost: f64 = report.verdicts.iter().map(|verdict| verdict.lost_gpu_hours).sum();
    if lost > 0.0 {
        lost / report.cost.gpu_hours
    } else {
        0.0
    }
}

pub(crate) fn part(report: &Report, part: Part) -> Option<&PartTimes> {
    report.times.parts.iter().find(|times| times.part == part)
}

/// Returns the exposed transfer, which is the wait of the rank with the shortest wait. Its peers wait for this rank,
/// but this rank waits only for the network.
pub(crate) fn transfer(report: &Report, step: &PartTimes) -> Option<f64> {
    let waits = report.times.ranks.iter();
    let waits = waits.filter_map(|rank| Some(rank.parts.get(&Part::Wait)?.p50_s));
    let least = waits.fold(f64::INFINITY, f64::min);
    (least.is_finite() && step.p50_s > 0.0 && report.times.ranks.len() > 1).then(|| least / step.p50_s)
}

#[cfg(test)]
mod tests;
