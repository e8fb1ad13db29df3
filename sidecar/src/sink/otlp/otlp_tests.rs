use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver as Inbox, channel};
use std::thread;

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{Metric, number_data_point};
use prost::Message;

use super::convert::{MOST_VALUES, values};
use super::*;
use crate::sink::carrier::Carrier;
use crate::sink::metrics::samples::{facts, facts_of_ranks};

/// How a receiver behaves.
#[derive(Clone, Copy)]
enum Does {
    Takes,
    TakesPart,
    Refuses,
    Hangs,
}

/// Starts a receiver with this behavior. It passes on the head and the body of each request.
fn receiver(does: Does) -> (SocketAddr, Inbox<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, came) = channel();
    thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            let Some(request) = read(&stream) else { continue };
            let answer = match does {
                Does::Takes => ExportMetricsServiceResponse::default(),
                Does::TakesPart => ExportMetricsServiceResponse {
                    partial_success: Some(ExportMetricsPartialSuccess {
                        rejected_data_points: 3,
                        error_message: "too old".to_owned(),
                    }),
                },
                Does::Refuses => {
                    let text = format!("no: {}", request.0.len());
                    let _ = write!(
                        &stream,
                        "HTTP/1.1 403 No\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
                        text.len()
                    );
                    let _ = sender.send(request);
                    continue;
                }
                Does::Hangs => {
                    kept.push(stream);
                    let _ = sender.send(request);
                    continue;
                }
            };
            let body = answer.encode_to_vec();
            let head = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = (&stream).write_all(&[head.as_bytes(), &body].concat());
            let _ = sender.send(request);
        }
    });
    (address, came)
}

fn read(stream: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1)?.lines().next()?;
    let mut body = vec![0; length.trim().parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn pusher(address: &str, more: &[(&str, &str)]) -> (Pusher, Arc<Pushes>) {
    let more: BTreeMap<String, String> = more
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let receiver = Receiver::of(&format!("http://{address}"), &move |name| more.get(name).cloned());
    let pushes = Arc::<Pushes>::default();
    let pusher = Pusher::new(receiver.unwrap(), "j7".into(), "head".into(), Arc::clone(&pushes));
    (pusher, pushes)
}

fn said(attributes: &[KeyValue]) -> BTreeMap<&str, &str> {
    let said = attributes.iter().filter_map(|pair| {
        let Some(any_value::Value::StringValue(text)) = &pair.value.as_ref()?.value else {
            return None;
        };
        Some((pair.key.as_str(), text.as_str()))
    });
    said.collect()
}

/// Returns the metrics by host and name.
fn metrics(request: &ExportMetricsServiceRequest) -> BTreeMap<(&str, &str), &Metric> {
    let mut all = BTreeMap::new();
    for resource in &request.resource_metrics {
        let whose = said(&resource.resource.as_ref().unwrap().attributes);
        assert_eq!(whose["service.name"], "paceline");
        assert_eq!(whose["paceline.job"], "j7");
        for metric in resource.scope_metrics.iter().flat_map(|scope| &scope.metrics) {
            let twice = all.insert((whose["host.name"], metric.name.as_str()), metric);
            assert!(twice.is_none(), "{} twice", metric.name);
        }
    }
    all
}

/// Returns, for each point of a gauge or a sum, its attributes, its value, and its start time.
fn points(metric: &Metric) -> Vec<(BTreeMap<&str, &str>, f64, u64)> {
    let points = match metric.data.as_ref().unwrap() {
        Data::Gauge(gauge) => &gauge.data_points,
        Data::Sum(sum) => &sum.data_points,
        other => panic!("{other:?}"),
    };
    let of = |point: &opentelemetry_proto::tonic::metrics::v1::NumberDataPoint| {
        assert!(point.time_unix_nano > 0);
        let Some(number_data_point::Value::AsDouble(value)) = point.value else {
            panic!("{point:?}")
        };
        value
    };
    let all = points
        .iter()
        .map(|point| (said(&point.attributes), of(point), point.start_time_unix_nano));
    all.collect()
}

#[test]
fn what_is_on_the_page_comes_under_open_telemetrys_names() {
    let (address, came) = receiver(Does::Takes);
    let (mut pusher, pushes) = pusher(
        &address.to_string(),
        &[("OTEL_EXPORTER_OTLP_HEADERS", "api-key=key-of-mine")],
    );
    pusher.carry(&facts());
    assert_eq!(pushes.counts()[0], ("sent", 1));
    let (head, body) = came.recv().unwrap();
    assert!(head.starts_with("post /v1/metrics http/1.1\r\n"), "{head}");
    for line in [
        "\r\napi-key: key-of-mine\r\n",
        "\r\ncontent-type: application/x-protobuf\r\n",
    ] {
        assert!(head.contains(line), "{head}");
    }
    let request = ExportMetricsServiceRequest::decode(&body[..]).unwrap();
    let metrics = metrics(&request);
    let steps = metrics[&("head", "paceline.steps")];
    let Some(Data::Sum(sum)) = &steps.data else {
        panic!("{steps:?}")
    };
    assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
    assert!(points(steps)[0].2 > 0, "it is known since when steps are counted");
    let Some(Data::Histogram(durations)) = &metrics[&("head", "paceline.step_duration")].data else {
        panic!("no histogram")
    };
    let durations = &durations.data_points[0];
    assert_eq!(durations.bucket_counts.len(), durations.explicit_bounds.len() + 1);
    assert_eq!(durations.bucket_counts.iter().sum::<u64>(), durations.count);

    // The GPU's metrics are under its node.
    let heat = metrics[&("n1", "hw.temperature")];
    assert_eq!(heat.unit, "Cel");
    let sensors: Vec<_> = points(heat)
        .into_iter()
        .map(|(of, value, _)| (of["hw.sensor_location"], of["hw.id"], value))
        .collect();
    assert_eq!(sensors, [("gpu", "GPU-a", 61.0), ("memory", "GPU-a", 72.0)]);
    let errors = metrics[&("n1", "hw.errors")];
    let errors: Vec<_> = points(errors)
        .into_iter()
        .map(|(of, value, since)| (of["error.type"], of["hw.type"], value, since))
        .collect();
    assert_eq!(
        errors,
        [
            ("pcie_replay", "gpu", 4.0, 0),
            ("uncorrected", "gpu", 2.0, 0),
            ("xid_79", "gpu", 1.0, 0)
        ]
    );
    let sent = &points(metrics[&("n1", "hw.gpu.io")])[0];
    assert_eq!((sent.0["network.io.direction"], sent.1), ("transmit", 5e9));
    let used = metrics[&("n1", "hw.gpu.memory.usage")];
    assert!(matches!(&used.data, Some(Data::Sum(sum)) if !sum.is_monotonic));
    assert_eq!(points(metrics[&("n1", "hw.gpu.utilization")])[0].1, 0.5);
    assert!(metrics.contains_key(&("head", "paceline.gpu_sm_clock")));
    assert!(!metrics.keys().any(|(_, name)| name.contains("gpu_temperature")));
}

#[test]
fn what_becomes_of_a_push_is_counted() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (address, wanted) in [
        (receiver(Does::TakesPart).0, "partly"),
        (receiver(Does::Refuses).0, "refused"),
        (receiver(Does::Hangs).0, "timeout"),
        (closed, "unreachable"),
    ] {
        let (mut pusher, pushes) = pusher(&address.to_string(), &[("OTEL_EXPORTER_OTLP_TIMEOUT", "400")]);
        pusher.carry(&facts());
        let counts: Vec<_> = pushes
            .counts()
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(counts, [(wanted, 1)]);
    }
}

#[test]
fn packed_where_that_was_asked_for() {
    let (address, came) = receiver(Does::Takes);
    let (mut pusher, _) = pusher(
        &address.to_string(),
        &[("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")],
    );
    pusher.carry(&facts());
    let (head, body) = came.recv().unwrap();
    assert!(head.contains("\r\ncontent-encoding: gzip\r\n"), "{head}");
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&body[..])
        .read_to_end(&mut plain)
        .unwrap();
    assert!(ExportMetricsServiceRequest::decode(&plain[..]).is_ok());
}

/// The metrics of a job with many ranks are sent in parts, without losses.
#[test]
fn many_values_are_many_requests() {
    let facts = facts_of_ranks(5000);
    let mut conversion = Conversion::new(Vec::new(), 1_000, 2_000);
    let mut on_page = 0;
    facts.families(&mut Families(&mut |family| {
        on_page += family.get_metric().len();
        conversion.add(family);
    }));
    let requests = conversion.requests();
    let counts = requests.iter().map(|request| {
        let metrics = request
            .resource_metrics
            .iter()
            .flat_map(|resource| &resource.scope_metrics);
        metrics
            .flat_map(|scope| &scope.metrics)
            .map(values)
            .sum::<usize>()
    });
    let counts: Vec<usize> = counts.collect();
    assert!(
        counts.len() > 1 && counts.iter().all(|count| *count <= MOST_VALUES),
        "{counts:?}"
    );
    assert_eq!(counts.iter().sum::<usize>(), on_page);
}

/// An unresponsive receiver delays neither the next push nor the end.
#[test]
fn one_that_hangs_holds_nobody_up() {
    let (address, came) = receiver(Does::Hangs);
    let (pusher, _) = pusher(&address.to_string(), &[("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")]);
    let carrier = Carrier::start("door", pusher).unwrap();
    let facts = Arc::new(facts());
    assert!(!carrier.offer(Arc::clone(&facts)));
    came.recv().unwrap();
    assert!(!carrier.offer(Arc::clone(&facts)), "it waits");
    assert!(carrier.offer(Arc::clone(&facts)), "it was never begun");
    let by = Instant::now() + Duration::from_millis(100);
    carrier.end(facts, by);
    assert!(!carrier.close(by));
}

#[test]
fn the_last_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // This receiver starts late. It closes the first connection and answers the second with a temporary error.
    let later = thread::spawn(move || {
        drop(listener.accept().unwrap());
        let (stream, _) = listener.accept().unwrap();
        read(&stream);
        let busy = b"HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let _ = (&stream).write_all(busy);
        drop(stream);
        let (stream, _) = listener.accept().unwrap();
        let request = read(&stream);
        let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        request.is_some()
    });
    let (pusher, pushes) = pusher(&address.to_string(), &[]);
    let carrier = Carrier::start("door", pusher).unwrap();
    let by = Instant::now() + Duration::from_secs(60);
    carrier.end(Arc::new(facts()), by);
    assert!(carrier.close(by) && later.join().unwrap());
    assert_eq!(pushes.counts()[0], ("sent", 1));
}
