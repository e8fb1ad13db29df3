//! Converts the page's families to OTLP requests. Hardware metrics have a separate resource for each node, because the
//! metrics themselves do not identify the host (<https://opentelemetry.io/docs/specs/semconv/hardware/common/>).

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::summary_data_point::ValueAtQuantile;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, Summary, SummaryDataPoint, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prometheus::proto as page;
use prometheus::proto::MetricType;

use super::names::{self, Hardware, Kind};

/// Maximum number of values per request. It keeps a request below the few megabytes that receivers accept at once.
pub(super) const MOST_VALUES: usize = 8192;

/// A GPU's facts from `paceline_gpu_info`.
#[derive(Clone, Debug, Default)]
struct Gpu {
    node: String,
    model: String,
}

/// The metrics of one moment.
pub(super) struct Conversion {
    resource: Vec<(String, String)>,
    began_ns: u64,
    now_ns: u64,
    gpus: BTreeMap<String, Gpu>,
    own: Vec<Metric>,
    /// The metrics by node and name. Several families of the page may form one metric.
    hardware: BTreeMap<(String, &'static str), Metric>,
}

impl Conversion {
    /// Creates it. `resource` describes the source of the metrics. The start of counting (zero if unknown) and the
    /// current time are in milliseconds since 1970.
    pub(super) fn new(resource: Vec<(String, String)>, began_unix_ms: u64, now_unix_ms: u64) -> Conversion {
        Conversion {
            resource,
            began_ns: began_unix_ms.saturating_mul(1_000_000),
            now_ns: now_unix_ms.saturating_mul(1_000_000),
            gpus: BTreeMap::new(),
            own: Vec::new(),
            hardware: BTreeMap::new(),
        }
    }

    /// Adds one family. The family with GPU info must precede the other GPU families.
    pub(super) fn add(&mut self, family: &page::MetricFamily) {
        if family.name() == "paceline_gpu_info" {
            for metric in family.get_metric() {
                let gpu = Gpu {
                    node: label(metric, "node").to_owned(),
                    model: label(metric, "model").to_owned(),
                };
                self.gpus.insert(label(metric, "gpu_uuid").to_owned(), gpu);
            }
        }
        if let Some(there) = names::hardware(family.name()) {
            self.hardware(there, family);
        } else if let Some(metric) = self.own(family) {
            self.own.push(metric);
        }
    }

    fn own(&self, family: &page::MetricFamily) -> Option<Metric> {
        let kind = family.get_field_type();
        let (name, unit) = names::own(family.name(), kind == MetricType::COUNTER)?;
        let values = family.get_metric().iter();
        let data = match kind {
            MetricType::COUNTER => {
                let points = values.map(|metric| {
                    let value = metric.get_counter().get_value();
                    self.number(self.began_ns, attributes(metric), value)
                });
                sum(points.collect(), true)
            }
            MetricType::HISTOGRAM => Data::Histogram(Histogram {
                data_points: values.map(|metric| self.histogram(metric)).collect(),
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
            }),
            MetricType::SUMMARY => Data::Summary(Summary {
                data_points: values.map(|metric| self.summary(metric)).collect(),
            }),
            _ => {
                let points =
                    values.map(|metric| self.number(0, attributes(metric), metric.get_gauge().get_value()));
                Data::Gauge(Gauge {
                    data_points: points.collect(),
                })
            }
        };
        Some(named(&name, family.help(), unit, data))
    }

    fn hardware(&mut self, there: &'static Hardware, family: &page::MetricFamily) {
        for metric in family.get_metric() {
            let id = label(metric, "gpu_uuid");
            let gpu = self.gpus.get(id).cloned().unwrap_or_default();
            let mut attributes = vec![pair("hw.id", id), pair("hw.vendor", "NVIDIA")];
            if !gpu.model.is_empty() {
                attributes.push(pair("hw.model", &gpu.model));
            }
            attributes.extend(there.fixed.iter().map(|(name, value)| pair(name, value)));
            if let Some(said) = &there.label {
                let value = said.value(label(metric, said.page));
                attributes.push(pair(said.attribute, &value));
            }
            let value = match family.get_field_type() {
                MetricType::COUNTER => metric.get_counter().get_value(),
                _ => metric.get_gauge().get_value(),
            };
            // Only the driver knows the start of counting. Zero means unknown.
            let point = self.number(0, attributes, value);
            let all = self
                .hardware
                .entry((gpu.node, there.name))
                .or_insert_with(|| empty(there));
            match &mut all.data {
                Some(Data::Gauge(gauge)) => gauge.data_points.push(point),
                Some(Data::Sum(sum)) => sum.data_points.push(point),
                _ => {}
            }
        }
    }

    fn number(&self, since_ns: u64, attributes: Vec<KeyValue>, value: f64) -> NumberDataPoint {
        NumberDataPoint {
            attributes,
            start_time_unix_nano: since_ns,
            time_unix_nano: self.now_ns,
            value: Some(number_data_point::Value::AsDouble(value)),
            ..NumberDataPoint::default()
        }
    }

    fn histogram(&self, metric: &page::Metric) -> HistogramDataPoint {
        let histogram = metric.get_histogram();
        let mut below = 0;
        let mut counts = Vec::new();
        let mut bounds = Vec::new();
        for bucket in histogram.get_bucket() {
            counts.push(bucket.cumulative_count().saturating_sub(below));
            bounds.push(bucket.upper_bound());
            below = bucket.cumulative_count();
        }
        counts.push(histogram.get_sample_count().saturating_sub(below));
        HistogramDataPoint {
            attributes: attributes(metric),
            start_time_unix_nano: self.began_ns,
            time_unix_nano: self.now_ns,
            count: histogram.get_sample_count(),
            sum: Some(histogram.get_sample_sum()),
            bucket_counts: counts,
            explicit_bounds: bounds,
            ..HistogramDataPoint::default()
        }
    }

    fn summary(&self, metric: &page::Metric) -> SummaryDataPoint {
        let summary = metric.get_summary();
        let quantiles = summary.get_quantile().iter();
        let quantiles = quantiles.map(|quantile| ValueAtQuantile {
            quantile: quantile.quantile(),
            value: quantile.value(),
        });
        SummaryDataPoint {
            attributes: attributes(metric),
            start_time_unix_nano: self.began_ns,
            time_unix_nano: self.now_ns,
            count: summary.sample_count(),
            sum: summary.sample_sum(),
            quantile_values: quantiles.collect(),
            ..SummaryDataPoint::default()
        }
    }

    /// Returns all metrics, in requests of limited size.
    pub(super) fn requests(self) -> Vec<ExportMetricsServiceRequest> {
        let mut of_nodes: BTreeMap<String, Vec<Metric>> = BTreeMap::new();
        for ((node, _), metric) in self.hardware {
            of_nodes.entry(node).or_default().push(metric);
        }
        let mut parcels = Parcels::default();
        parcels.add(&self.resource, self.own);
        for (node, metrics) in of_nodes {
            let others = self.resource.iter().filter(|(name, _)| name != "host.name");
            let mut resource: Vec<_> = others.cloned().collect();
            resource.push(("host.name".to_owned(), node));
            parcels.add(&resource, metrics);
        }
        parcels.0
    }
}

/// The requests being filled, and the number of values that still fit into the last one.
#[derive(Default)]
struct Parcels(Vec<ExportMetricsServiceRequest>, usize);

impl Parcels {
    fn add(&mut self, resource: &[(String, String)], metrics: Vec<Metric>) {
        let attributes: Vec<KeyValue> = resource.iter().map(|(name, value)| pair(name, value)).collect();
        let mut is_open = false;
        for metric in metrics.into_iter().flat_map(pieces) {
            let values = values(&metric);
            if self.0.is_empty() || self.1 < values {
                self.0.push(ExportMetricsServiceRequest::default());
                self.1 = MOST_VALUES;
                is_open = false;
            }
            self.1 = self.1.saturating_sub(values);
            let Some(request) = self.0.last_mut() else {
                continue;
            };
            if !is_open {
                request.resource_metrics.push(of(attributes.clone()));
                is_open = true;
            }
            let scope = request.resource_metrics.last_mut();
            if let Some(scope) = scope.and_then(|metrics| metrics.scope_metrics.last_mut()) {
                scope.metrics.push(metric);
            }
        }
    }
}

fn of(attributes: Vec<KeyValue>) -> ResourceMetrics {
    ResourceMetrics {
        resource: Some(Resource {
            attributes,
            ..Resource::default()
        }),
        scope_metrics: vec![ScopeMetrics {
            scope: Some(InstrumentationScope {
                name: "paceline".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            }),
            ..ScopeMetrics::default()
        }],
        ..ResourceMetrics::default()
    }
}

/// Splits a metric that has more values than fit into a request. Histograms and summaries have few values.
fn pieces(mut metric: Metric) -> Vec<Metric> {
    let cut = |points: Vec<NumberDataPoint>| -> Vec<Vec<NumberDataPoint>> {
        points.chunks(MOST_VALUES).map(<[_]>::to_vec).collect()
    };
    let parts: Vec<Data> = match metric.data.take() {
        Some(Data::Gauge(gauge)) => cut(gauge.data_points)
            .into_iter()
            .map(|data_points| Data::Gauge(Gauge { data_points }))
            .collect(),
        Some(Data::Sum(whole)) => cut(whole.data_points)
            .into_iter()
            .map(|data_points| sum(data_points, whole.is_monotonic))
            .collect(),
        other => other.into_iter().collect(),
    };
    let part = |data| Metric {
        data: Some(data),
        ..metric.clone()
    };
    parts.into_iter().map(part).collect()
}

pub(super) fn values(metric: &Metric) -> usize {
    match &metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(Data::Sum(sum)) => sum.data_points.len(),
        Some(Data::Histogram(histogram)) => histogram.data_points.len(),
        Some(Data::Summary(summary)) => summary.data_points.len(),
        _ => 0,
    }
}

fn empty(there: &Hardware) -> Metric {
    let data = match there.kind {
        Kind::Gauge => Data::Gauge(Gauge::default()),
        Kind::Counter => sum(Vec::new(), true),
        Kind::UpDown => sum(Vec::new(), false),
    };
    named(there.name, there.help, there.unit, data)
}

fn sum(data_points: Vec<NumberDataPoint>, is_monotonic: bool) -> Data {
    Data::Sum(Sum {
        data_points,
        aggregation_temporality: AggregationTemporality::Cumulative.into(),
        is_monotonic,
    })
}

fn named(name: &str, help: &str, unit: &str, data: Data) -> Metric {
    Metric {
        name: name.to_owned(),
        description: help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn label<'a>(metric: &'a page::Metric, name: &str) -> &'a str {
    let pair = metric.get_label().iter().find(|pair| pair.name() == name);
    pair.map_or("", page::LabelPair::value)
}

fn attributes(metric: &page::Metric) -> Vec<KeyValue> {
    let pairs = metric.get_label().iter();
    pairs.map(|said| pair(said.name(), said.value())).collect()
}

fn pair(name: &str, value: &str) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue {
            value: Some(any_value::Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}
