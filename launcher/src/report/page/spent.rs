//! Renders the job's total cost, its losses, and their causes.

use paceline_health::report::Report;
use paceline_health::text::humanize::{GpuTime, money, percent, span_beside, whose};

use crate::html::Html;
use crate::report::cost::losses;

/// Maximum number of causes that get a line.
const CAUSES: usize = 12;
/// Length of the longest bar, in rem.
const BAR: f64 = 12.0;

pub(super) fn draw(report: &Report) -> Html {
    let cost = &report.cost;
    let whose = whose(report);
    let unit = GpuTime::of_part(cost.lost_gpu_hours, cost.gpu_hours, whose);
    let mut html = Html::default();
    html.tag("<section><h2>Cost</h2><div class=\"cards\">");
    match cost.goodput_ratio {
        Some(goodput) => card(
            &mut html,
            percent(goodput),
            "goodput: share of the time that was progress at full speed",
        ),
        None => card(
            &mut html,
            "not measured",
            "goodput: available after the first steady steps",
        ),
    }
    if cost.gpu_hours > 0.0 {
        let share = percent(cost.lost_gpu_hours / cost.gpu_hours);
        let of = format!("lost of {} ({share})", unit.text(cost.gpu_hours));
        card(&mut html, unit.text(cost.lost_gpu_hours), of);
    } else {
        card(&mut html, "not measured", "lost time: no rank attached");
    }
    match (cost.lost_cost, cost.gpu_hour_price) {
        (Some(lost), Some(price)) => card(
            &mut html,
            money(lost),
            format!("lost, at {} a GPU-hour", money(price)),
        ),
        (Some(lost), None) => card(&mut html, money(lost), "lost"),
        (None, _) => card(
            &mut html,
            "no price set",
            "--gpu-hour-price 2.50 (or [MODEL=]PRICE) shows the loss in money",
        ),
    }
    if let (Some(what_if), Some(now)) = (cost.what_if_step_s, cost.step_s)
        && what_if < now * 0.995
    {
        let now_text = span_beside(now, what_if);
        let says = format!("per step instead of {now_text} without the current problems");
        card(&mut html, span_beside(what_if, now), says);
    }
    html.tag("</div>")
        .part(by_cause(report, whose, unit))
        .tag("</section>\n");
    html
}

fn card(html: &mut Html, value: impl std::fmt::Display, says: impl std::fmt::Display) {
    html.element("<div class=\"card\"><b>", value, "</b>").element(
        "<span class=\"faint\">",
        says,
        "</span></div>",
    );
}

fn by_cause(report: &Report, whose: &str, unit: GpuTime) -> Html {
    let cost = &report.cost;
    let causes = losses(cost);
    let mut html = Html::default();
    let Some((_, most)) = causes.first() else {
        return html;
    };
    html.tag("<div class=\"wide\" tabindex=\"0\"><table><tr><th>lost to</th><th class=\"n\">")
        .text(format_args!("{whose}-time"))
        .tag("</th><th class=\"n\">of the job</th>");
    if cost.gpu_hour_price.is_some() {
        html.tag("<th class=\"n\">money</th>");
    }
    html.tag("<td></td></tr>\n");
    for (cause, lost) in causes.iter().take(CAUSES) {
        html.element("<tr><td>", cause, "</td>")
            .element("<td class=\"n\">", unit.text(*lost), "</td>");
        let share = if cost.gpu_hours > 0.0 {
            percent(lost / cost.gpu_hours)
        } else {
            String::new()
        };
        html.element("<td class=\"n\">", share, "</td>");
        if let Some(price) = cost.gpu_hour_price {
            html.element("<td class=\"n\">", money(price * lost), "</td>");
        }
        html.tag("<td><span class=\"bar\" style=\"width:")
            .number((lost / most * BAR).max(0.1))
            .tag("rem\"></span></td></tr>\n");
    }
    html.tag("</table></div>");
    let rest: f64 = causes.iter().skip(CAUSES).map(|(_, lost)| lost).sum();
    if rest > 0.0 {
        html.element(
            "<p class=\"faint\">",
            format_args!("and {} to other causes", unit.text(rest)),
            "</p>",
        );
    }
    html
}
