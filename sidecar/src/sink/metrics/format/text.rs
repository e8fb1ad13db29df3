//! Writes families as text, in Prometheus' own format or, if requested, in OpenMetrics 1.0
//! (<https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>).

use std::fmt::Write as _;

use prometheus::TextEncoder;
use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::super::Facts;
use super::families::Families;
use super::units::unit;

/// Text format of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    #[default]
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format for an `Accept` header. It is OpenMetrics if that is listed and preferred at least as much as
    /// other text.
    pub fn wanted(accept: &str) -> Format {
        let (mut open, mut text) = (0.0, 0.0);
        for range in accept.split(',') {
            let mut words = range.split(';').map(str::trim);
            let kind = words.next().unwrap_or_default().to_ascii_lowercase();
            let (mut welcome, mut version) = (1.0, None);
            for word in words {
                match word.split_once('=') {
                    Some(("q", value)) => welcome = value.parse::<f64>().unwrap_or(0.0),
                    Some(("version", value)) => version = Some(value.trim_matches('"')),
                    _ => {}
                }
            }
            match kind.as_str() {
                "application/openmetrics-text" if matches!(version, None | Some("1.0.0" | "0.0.1")) => {
                    open = welcome.max(open);
                }
                "text/plain" => text = welcome.max(text),
                _ => {}
            }
        }
        if open > 0.0 && open >= text {
            Format::OpenMetrics
        } else {
            Format::Text
        }
    }

    /// Returns the content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Returns the page as text.
    pub fn page(self, facts: &dyn Facts) -> String {
        let mut page = String::new();
        match self {
            Format::Text => {
                let encoder = TextEncoder::new();
                facts.families(&mut Families(&mut |family| {
                    // Encoding fails only for families without values, and those are omitted earlier.
                    let _ = encoder.encode_utf8(std::slice::from_ref(family), &mut page);
                }));
            }
            Format::OpenMetrics => {
                facts.families(&mut Families(&mut |family| open_metrics(family, &mut page)));
                page.push_str("# EOF\n");
            }
        }
        page
    }
}

/// Writes one family. Its name is that of its samples without their suffix.
fn open_metrics(family: &MetricFamily, page: &mut String) {
    let name = family.name();
    let (name, kind, end) = match family.get_field_type() {
        // A family with another exporter's name need not have the suffix `_total`.
        MetricType::COUNTER => match name.strip_suffix("_total") {
            Some(name) => (name, "counter", "_total"),
            None => (name, "unknown", ""),
        },
        MetricType::GAUGE => match name.strip_suffix("_info") {
            Some(name) => (name, "info", "_info"),
            None => (name, "gauge", ""),
        },
        MetricType::HISTOGRAM => (name, "histogram", ""),
        MetricType::SUMMARY => (name, "summary", ""),
        MetricType::UNTYPED => (name, "unknown", ""),
    };
    let _ = writeln!(page, "# TYPE {name} {kind}");
    if let Some(unit) = unit(name).filter(|_| kind != "info") {
        let _ = writeln!(page, "# UNIT {name} {}", unit.word);
    }
    let _ = writeln!(page, "# HELP {name} {}", Escaped(family.help()));
    for metric in family.get_metric() {
        match family.get_field_type() {
            MetricType::HISTOGRAM => histogram(name, metric, page),
            MetricType::SUMMARY => summary(name, metric, page),
            MetricType::COUNTER => sample((name, end), metric, None, metric.get_counter().get_value(), page),
            _ => sample((name, end), metric, None, metric.get_gauge().get_value(), page),
        }
    }
}

fn histogram(name: &str, metric: &Metric, page: &mut String) {
    let histogram = metric.get_histogram();
    for bucket in histogram.get_bucket() {
        let le = Some(("le", bucket.upper_bound()));
        sample(
            (name, "_bucket"),
            metric,
            le,
            bucket.cumulative_count() as f64,
            page,
        );
    }
    let count = histogram.get_sample_count() as f64;
    sample(
        (name, "_bucket"),
        metric,
        Some(("le", f64::INFINITY)),
        count,
        page,
    );
    sample((name, "_sum"), metric, None, histogram.get_sample_sum(), page);
    sample((name, "_count"), metric, None, count, page);
}

fn summary(name: &str, metric: &Metric, page: &mut String) {
    let summary = metric.get_summary();
    for quantile in summary.get_quantile() {
        let at = Some(("quantile", quantile.quantile()));
        sample((name, ""), metric, at, quantile.value(), page);
    }
    sample((name, "_sum"), metric, None, summary.sample_sum(), page);
    sample(
        (name, "_count"),
        metric,
        None,
        summary.sample_count() as f64,
        page,
    );
}

/// Writes one line. `at` is a label with a numeric value, which is always written with a decimal point.
fn sample(
    (name, end): (&str, &str),
    metric: &Metric,
    at: Option<(&str, f64)>,
    value: f64,
    page: &mut String,
) {
    page.push_str(name);
    page.push_str(end);
    let mut before = '{';
    let mut label = |label: &str, value: &dyn std::fmt::Display| {
        let _ = write!(page, "{before}{label}=\"{value}\"");
        before = ',';
    };
    for pair in metric.get_label() {
        label(LabelPair::name(pair), &Escaped(pair.value()));
    }
    if let Some((name, number)) = at {
        label(name, &Pointed(number));
    }
    if before == ',' {
        page.push('}');
    }
    let _ = writeln!(page, " {}", Number(value));
}

/// A number in a format that both Go and Rust read.
struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            number if number == f64::INFINITY => f.write_str("+Inf"),
            number if number == f64::NEG_INFINITY => f.write_str("-Inf"),
            number => write!(f, "{number}"),
        }
    }
}

/// A number that always has a decimal point. For example, a bucket of 1 is written as `1.0`.
struct Pointed(f64);

impl std::fmt::Display for Pointed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_finite() {
            write!(f, "{:?}", self.0)
        } else {
            Number(self.0).fmt(f)
        }
    }
}

/// Text to be written between quotes, with special characters escaped.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::families::{counters, gauges};
    use super::*;

    #[test]
    fn whoever_asks_for_it_gets_it() {
        for (accept, wanted) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/plain", Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            // The header that Prometheus 2.42 sends.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            ("application/openmetrics-text; version=2.0.0", Format::Text),
            ("application/openmetrics-text;q=0, */*", Format::Text),
            (
                "application/openmetrics-text;q=0.2,text/plain;q=0.5",
                Format::Text,
            ),
            (
                "Application/OpenMetrics-Text; version=\"1.0.0\"",
                Format::OpenMetrics,
            ),
        ] {
            assert_eq!(Format::wanted(accept), wanted, "{accept}");
        }
    }

    struct Some3;

    impl Facts for Some3 {
        fn families(&self, out: &mut Families<'_>) {
            let hostile = "a\"b\\c\nd".to_owned();
            gauges(out, "x_info", "Who.", ["who"], [([hostile], 1.0)]);
            counters(out, "x_bytes_total", "How\nmany.", [], [([], 3.0)]);
            gauges(out, "x_none", "None.", [], []);
            gauges(out, "x_ratio", "Share.", [], [([], f64::INFINITY)]);
            counters(out, "X_FI", "Theirs.", [], [([], 1e21)]);
        }
    }

    #[test]
    fn names_units_and_endings() {
        let page = Format::OpenMetrics.page(&Some3);
        let wanted = "# TYPE x info\n# HELP x Who.\nx_info{who=\"a\\\"b\\\\c d\"} 1\n\
             # TYPE x_bytes counter\n# UNIT x_bytes bytes\n# HELP x_bytes How\\nmany.\nx_bytes_total 3\n\
             # TYPE x_ratio gauge\n# UNIT x_ratio ratio\n# HELP x_ratio Share.\nx_ratio +Inf\n\
             # TYPE X_FI unknown\n# HELP X_FI Theirs.\nX_FI 1000000000000000000000\n# EOF\n";
        assert_eq!(page, wanted);
        let text = Format::Text.page(&Some3);
        assert!(
            text.starts_with("# HELP x_info Who.\n# TYPE x_info gauge\n"),
            "{text}"
        );
        assert!(!text.contains("x_none") && !text.contains("EOF"), "{text}");
    }
}
