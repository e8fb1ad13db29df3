//! Renders what limits the job's speed, how well the job scales, and if a profiler would help.

use paceline_health::event::GpuSignal;
use paceline_health::report::{Part, PartTimes, Report};
use paceline_health::text::humanize::{percent, span};

use super::{Head, table};
use crate::html::Html;
use crate::report::advice::{self, Number, Question};
use crate::report::profile;

pub(super) fn draw(report: &Report) -> Html {
    let mut html = Html::default();
    html.tag("<section><h2>What limits its speed</h2>");
    let advice = advice::of(report);
    match &advice {
        Ok(advice) => {
            html.element("<p><b>", capital(advice.bound), "</b>. ")
                .text(advice.action)
                .tag("</p>");
            let heads = [
                Head::Words("question"),
                Head::Words("decisive numbers"),
                Head::Words("answer"),
            ];
            html.part(table(&heads, advice.questions.iter().map(row)));
        }
        Err(why) => {
            html.element("<p class=\"none\">", why, "</p>");
        }
    }
    html.part(gpus(report)).part(scaling(report)).part(parts(report));
    let profiling = profile::of(report, advice.as_ref().ok());
    html.element("<h3>Profiler</h3><p>", &profiling.says, "</p>");
    for (tool, command) in &profiling.commands {
        html.element("<p class=\"faint\">", tool, ":</p>")
            .tag("<pre>")
            .lines(command)
            .tag("</pre>");
    }
    html.tag("</section>\n");
    html
}

fn row(question: &Question) -> Vec<String> {
    let numbers: Vec<String> = question.numbers.iter().map(number).collect();
    let answer = match question.answer {
        Some(true) => "yes".to_owned(),
        Some(false) => "no".to_owned(),
        None => format!("not measured: {}", question.how),
    };
    vec![question.asks.to_owned(), numbers.join("; "), answer]
}

fn number(number: &Number) -> String {
    let value = number.value.map_or("not measured".to_owned(), percent);
    let from = if number.below { "at most" } else { "from" };
    format!("{} {value} ({from} {})", number.name, percent(number.limit))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Renders the mean GPU signals of the job.
fn gpus(report: &Report) -> Html {
    let of = |signal: &GpuSignal, value: &f64| {
        let (name, text) = match signal {
            GpuSignal::TemperatureC => ("temperature", format!("{value:.0} °C")),
            GpuSignal::SmClockMhz => ("SM clock", format!("{value:.0} MHz")),
            GpuSignal::PowerW => ("power", format!("{value:.0} W")),
            GpuSignal::UtilizationRatio => ("a kernel runs", percent(*value)),
            GpuSignal::MemoryBusyRatio => ("memory is used", percent(*value)),
            GpuSignal::GraphicsActiveRatio => ("compute engine busy", percent(*value)),
            GpuSignal::SmActiveRatio => ("active SMs", percent(*value)),
            GpuSignal::SmOccupancyRatio => ("warps resident", percent(*value)),
            GpuSignal::TensorActiveRatio => ("tensor cores work", percent(*value)),
            GpuSignal::DramActiveRatio => ("DRAM bandwidth in use", percent(*value)),
            _ => return None,
        };
        Some(format!("{name} {text}"))
    };
    let told: Vec<String> = report
        .gpu_means
        .iter()
        .filter_map(|(signal, value)| of(signal, value))
        .collect();
    let mut html = Html::default();
    if told.is_empty() {
        html.tag("<p class=\"none\">GPUs: not measured while it trained. They are read through NVIDIA's management ")
            .tag("library; <code>paceline gpus</code> shows what it finds here.</p>");
    } else {
        html.element("<p>GPUs on average: ", told.join(", "), ".</p>");
    }
    html
}

/// Renders each rank's own share of the step.
fn scaling(report: &Report) -> Html {
    let mut html = Html::default();
    html.tag("<p>Scaling efficiency: ");
    let mean = |times: &PartTimes| times.sum_s / times.samples.max(1) as f64;
    let (step, wait) = (advice::part(report, Part::Step), advice::part(report, Part::Wait));
    match (step, wait) {
        (Some(step), Some(wait)) if step.sum_s > 0.0 && report.world_size > 1 => {
            let share = (mean(wait) / mean(step)).min(1.0);
            html.tag("<b>")
                .text(percent(1.0 - share))
                .tag("</b> of a step is a rank's own work; ")
                .text(percent(share))
                .tag(" goes into collectives");
            if let Some(transfer) = advice::transfer(report, step) {
                let transfer = transfer.min(share);
                html.text(format_args!(
                    " ({} exposed transfer, {} waiting for each other)",
                    percent(transfer),
                    percent(share - transfer)
                ));
            }
            html.tag(
                ". This is relative to ranks that never wait; to compare with a run of another size use ",
            )
            .tag("<code>paceline report --compare</code>.</p>");
        }
        _ => {
            html.tag(
                "<span class=\"none\">not measured: it needs more than one rank, and the wait times in \
                collectives ",
            )
            .tag("(Python hook or NCCL plugin).</span></p>");
        }
    }
    html
}

/// Renders percentiles of the parts of a step.
fn parts(report: &Report) -> Html {
    let row = |times: &PartTimes| {
        let mut row = vec![times.part.name().to_owned(), times.samples.to_string()];
        row.extend([times.p50_s, times.p90_s, times.p99_s, times.max_s].map(span));
        row
    };
    if report.times.parts.is_empty() {
        return Html::default();
    }
    let heads = [
        Head::Words("part of a step"),
        Head::Number("measured"),
        Head::Number("median"),
        Head::Number("p90"),
        Head::Number("p99"),
        Head::Number("longest"),
    ];
    table(&heads, report.times.parts.iter().map(row))
}
