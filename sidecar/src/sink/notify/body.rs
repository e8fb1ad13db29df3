//! The request bodies for each kind of receiver.

use paceline_health::Provenance;
use paceline_health::text::date::rfc3339;
use paceline_health::text::humanize;
use paceline_health::text::sanitize;
use paceline_health::verdict::{Cause, Severity};
use serde_json::{Value, json};

use super::notice::{Notice, Status};
use super::receiver::Kind;
use super::spool::Parcel;

/// Version of the format for webhooks and programs.
const VERSION: u32 = 1;
/// Maximum number of lines in a text message. Further notices are only counted.
const LINES: usize = 10;
/// Maximum number of PagerDuty events per parcel. Further notices are combined into one more event.
const PAGES: usize = 20;
/// Lifetime of an alert at Alertmanager, which resolves it after this time unless it is repeated.
const LASTS_MS: u64 = 300_000;
/// Lifetime of an alert that is not repeated because the job has ended.
const LASTS_UNWATCHED_MS: u64 = 86_400_000;
/// Maximum length of PagerDuty's summary, characters (<https://developer.pagerduty.com/docs/send-alert-event>).
const SUMMARY: usize = 1024;
/// Maximum length of PagerDuty's deduplication key, bytes (the same page).
const DEDUP_KEY: usize = 255;

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    /// The id of the request. It stays the same on a retry.
    pub id: String,
    /// The JSON body.
    pub body: Value,
}

impl Letter {
    /// Adds PagerDuty's routing key, which is part of the event. It is added on sending, so that it is never stored in
    /// a file.
    pub fn with_routing_key(&self, key: &str) -> Letter {
        let mut letter = self.clone();
        letter.body["routing_key"] = Value::from(key);
        letter
    }
}

/// Makes the requests for a parcel and a receiver of this kind.
pub fn letters(kind: &Kind, parcel: &Parcel, number: u64) -> Vec<Letter> {
    let bodies = match kind {
        Kind::Alertmanager(_) => vec![alerts(parcel)],
        Kind::Webhook(..) | Kind::Exec(_) => {
            vec![json!({ "version": VERSION, "unix_ms": parcel.unix_ms, "notices": parcel.notices })]
        }
        Kind::Slack(_) => vec![json!({ "text": text(&parcel.notices) })],
        Kind::PagerDuty(..) => events(parcel),
    };
    let id = |index| format!("{}-{number}-{index}", parcel.unix_ms);
    bodies
        .into_iter()
        .enumerate()
        .map(|(index, body)| Letter { id: id(index), body })
        .collect()
}

/// Converts `gpu-lost` to `PacelineGpuLost`, like the rules in deploy/prometheus.
fn alert_name(finding: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    let words: String = finding.split('-').map(capital).collect();
    format!("Paceline{words}")
}

/// Makes the alerts for Alertmanager's API version 2. Labels identify an alert there, so if labels have changed, the
/// alert with the previous labels is resolved.
fn alerts(parcel: &Parcel) -> Value {
    let mut alerts = Vec::new();
    for notice in &parcel.notices {
        let now = (notice.severity, notice.provenance);
        let was = (
            notice.was.unwrap_or(now.0),
            notice.was_provenance.unwrap_or(now.1),
        );
        if was != now {
            let mut before = alert(notice, was);
            before["endsAt"] = Value::from(rfc3339(notice.unix_ms));
            alerts.push(before);
        }
        alerts.push(alert(notice, now));
    }
    Value::from(alerts)
}

fn alert(notice: &Notice, (severity, provenance): (Severity, Provenance)) -> Value {
    let ends = match notice.status {
        Status::Resolved => notice.unix_ms,
        Status::Firing if notice.is_told_again => notice.unix_ms + LASTS_UNWATCHED_MS,
        Status::Firing => notice.unix_ms + LASTS_MS,
    };
    let mut labels = json!({
        "alertname": alert_name(&notice.finding),
        "job": "paceline",
        "paceline_job": notice.job.as_str(),
        "finding": notice.finding,
        "subject": notice.subject,
        "severity": severity.name(),
        "urgency": notice.urgency.name(),
    });
    if let Some(node) = &notice.node {
        labels["node"] = Value::from(&**node);
    }
    if provenance != Provenance::Live {
        labels["provenance"] = json!(provenance);
    }
    json!({
        "labels": labels,
        "annotations": {
            "summary": format!("{}: {}", notice.title, notice.whom()),
            "description": format!("{}, cause {}. {}", notice.whom(), notice.cause, notice.action),
            "cause": notice.cause,
            "since": notice.since,
            "costs": notice.costs,
            "evidence": notice.evidence.join("; "),
            "incident": notice.incident.to_string(),
            "times": notice.times.to_string(),
            "runbook_url": runbook(notice),
            "command": command(notice),
            "dashboard_url": dashboard(notice),
        },
        "startsAt": rfc3339(notice.raised_ms),
        "endsAt": rfc3339(ends),
        "generatorURL": runbook(notice),
    })
}

fn runbook(notice: &Notice) -> String {
    format!(
        "{}/blob/main/docs/findings.md#{}",
        env!("CARGO_PKG_REPOSITORY"),
        notice.finding
    )
}

/// Returns the command that explains the finding in a terminal, without a network.
fn command(notice: &Notice) -> String {
    format!("paceline explain finding {}", notice.finding)
}

/// Returns the path of the Run dashboard for this job. It is only a path, because Grafana's address is not known here.
fn dashboard(notice: &Notice) -> String {
    format!("/d/paceline-run?var-job={}", sanitize::query(notice.job.as_str()))
}

/// Returns a notice as one line of text.
fn line(notice: &Notice) -> String {
    let state = match notice.status {
        Status::Resolved => "resolved".to_owned(),
        Status::Firing => notice.severity.name().to_uppercase(),
    };
    let unreal = match notice.provenance {
        Provenance::Live => String::new(),
        other => format!(" [not live: {other:?}]"),
    };
    let times = match (notice.status, notice.times) {
        (Status::Firing, 2..) => format!(" ({} times)", notice.times),
        _ => String::new(),
    };
    format!(
        "{state}{unreal}: job {}: {}: {}{times}",
        notice.job,
        notice.title,
        notice.whom()
    )
}

/// Returns the start, the cost and, while the notice is active, the cause as text. Unknown values have no line.
fn case(notice: &Notice) -> impl Iterator<Item = String> {
    let cause = Cause::ALL.iter().find(|cause| *notice.cause == *cause.name());
    let cause = cause.filter(|cause| **cause != Cause::Unknown);
    let cause = cause.map(|cause| humanize::cause(*cause));
    let why = cause
        .into_iter()
        .chain(notice.evidence.iter().map(String::as_str));
    let why: Vec<&str> = why.filter(|_| notice.status == Status::Firing).collect();
    let rows = [
        ("since", notice.since.clone()),
        ("costs", notice.costs.clone()),
        ("why", why.join("; ")),
    ];
    let known = rows.into_iter().filter(|(_, text)| !text.is_empty());
    known.map(|(label, text)| format!("{label}: {text}"))
}

/// Makes a text message in Slack's format, in which three characters are special
/// (<https://api.slack.com/reference/surfaces/formatting#escaping>).
fn text(notices: &[Notice]) -> String {
    let mut lines: Vec<String> = notices.iter().take(LINES).map(line).collect();
    if let [only] = notices {
        lines.extend(case(only));
        if only.status == Status::Firing {
            lines.extend([only.action.to_string(), format!("runbook: {}", runbook(only))]);
        }
    }
    if notices.len() > LINES {
        lines.push(format!("and {} more: see report.json", notices.len() - LINES));
    }
    let escaped = lines.join("\n").replace('&', "&amp;");
    escaped.replace('<', "&lt;").replace('>', "&gt;")
}

/// Makes events for PagerDuty's Events API version 2. Each request has one event, without the routing key.
fn events(parcel: &Parcel) -> Vec<Value> {
    let (mut paged, rest) = (Vec::new(), parcel.notices.len().saturating_sub(PAGES));
    let mut count = 0;
    for notice in &parcel.notices {
        // Resolutions are always sent, because otherwise the incident would stay open.
        if notice.status == Status::Firing {
            count += 1;
            if count > PAGES {
                continue;
            }
        }
        paged.push(event(notice));
    }
    if let (true, Some(first)) = (rest > 0 && count > PAGES, parcel.notices.first()) {
        let mut more = event(first);
        more["dedup_key"] = Value::from(dedup_key(&format!("{}/storm", first.job)));
        let summary = format!("job {}: and {} more problems", first.job, count - PAGES);
        more["payload"]["summary"] = Value::from(summary);
        paged.push(more);
    }
    paged
}

/// Returns PagerDuty's key of an incident. A key that is too long is truncated, with a hash to keep it unique.
fn dedup_key(key: &str) -> String {
    if key.len() <= DEDUP_KEY {
        return key.to_owned();
    }
    // This is FNV-1a, 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>). It gives the same value after every
    // restart.
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
    let end = key.floor_char_boundary(DEDUP_KEY - 17);
    format!("{}#{hash:016x}", &key[..end])
}

fn event(notice: &Notice) -> Value {
    let summary: String = line(notice).chars().take(SUMMARY).collect();
    json!({
        "event_action": match notice.status { Status::Firing => "trigger", Status::Resolved => "resolve" },
        "dedup_key": dedup_key(&notice.key),
        "payload": {
            "summary": summary,
            "source": notice.node.as_deref().unwrap_or(notice.job.as_str()),
            "severity": notice.severity.name(),
            "timestamp": rfc3339(notice.raised_ms),
            "component": notice.whom(),
            "class": notice.finding,
            "custom_details": {
                "cause": notice.cause,
                "since": notice.since,
                "costs": notice.costs,
                "evidence": notice.evidence,
                "action": notice.action,
                "times": notice.times,
                "command": command(notice),
            },
        },
        "links": [{ "href": runbook(notice), "text": "runbook" }],
    })
}
