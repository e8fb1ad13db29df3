//! What binds the job's speed: a tree of questions, each with the number that answers it, and when a
//! profiler would tell more.

use paceline_health::event::GpuSignal;
use paceline_health::report::{Part, PartTimes, Report};
use paceline_health::text::humanize::percent;
use serde::Serialize;

use super::block::Block;

/// What is told where findings bind it; they say themselves whom and why.
const FOUND: &str = "slowed down by findings";
/// Share of the job's time that findings took from which nothing else is worth asking: what they distort is measured with them.
const LOST: f64 = 0.10;
/// Share of the step that loading data takes from which it is what binds; as `shares.data_warning_ratio`.
const DATA: f64 = 0.10;
/// Share that transfer takes which nothing hides.
const TRANSFER: f64 = 0.20;
/// Share of DRAM's bandwidth in use beyond which memory binds.
const DRAM: f64 = 0.60;
/// A GPU on which kernels run for so much of the time
const BUSY: f64 = 0.80;
/// and on which so few SMs have work is kept busy by small kernels.
const SM: f64 = 0.40;
/// SMs work and tensor cores do not.
const SM_WORKS: f64 = 0.50;
const TENSOR: f64 = 0.05;

/// One question of the tree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Question {
    /// What it asks.
    pub(crate) asks: &'static str,
    /// The numbers that answer it, with their limits.
    pub(crate) numbers: Vec<Number>,
    /// `None`: something was not measured.
    pub(crate) answer: Option<bool>,
    /// How to measure it.
    pub(crate) how: &'static str,
}

/// A number beside its limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Number {
    /// Of what.
    pub(crate) name: &'static str,
    /// A share; `None`: not measured.
    pub(crate) value: Option<f64>,
    /// It answers yes from here on; where `below`, up to here.
    pub(crate) limit: f64,
    /// See `limit`.
    pub(crate) below: bool,
}

/// What binds, and what to do about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Advice {
    /// In a few words.
    pub(crate) bound: &'static str,
    /// What to do.
    pub(crate) action: &'static str,
    /// The way through the tree: the last question asked is the one that decided.
    pub(crate) questions: Vec<Question>,
}

const HOOK: &str = "it needs the Python hook, which paceline run loads into the trainers";
const NCCL: &str = "it needs the Python hook or the NCCL plugin, for at most 512 ranks in the report";
const GPM: &str = "it needs GPM of Hopper and later; on other GPUs use a profiler";

/// The tree from its root, or why it cannot be walked.
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
    /// What binds its speed, if a number says so.
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

/// Holds when all numbers do, and is known when that follows from those that are.
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

/// The share of its time that the job lost to findings, ended or not.
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

/// What even the rank that waits least spends in collectives: the others wait for it there, it waits for the network.
pub(crate) fn transfer(report: &Report, step: &PartTimes) -> Option<f64> {
    let waits = report.times.ranks.iter();
    let waits = waits.filter_map(|rank| Some(rank.parts.get(&Part::Wait)?.p50_s));
    let least = waits.fold(f64::INFINITY, f64::min);
    (least.is_finite() && step.p50_s > 0.0 && report.times.ranks.len() > 1).then(|| least / step.p50_s)
}

#[cfg(test)]
#[path = "advice_tests.rs"]
mod tests;
