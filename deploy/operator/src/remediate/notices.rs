//! The format of aggregators' notifications, which is a webhook's body as in docs/notifications.md. This module does no
//! I/O.

use paceline_health::Provenance;
use paceline_health::fault::Order;
use paceline_health::text::sanitize;
use paceline_health::verdict::{Finding, Severity};
use serde::Deserialize;

use super::policy::Report;

/// Limit of notices in a body.
pub const MOST_NOTICES: usize = 512;
/// Size limit of a name or subject.
const LONGEST: usize = 512;

/// The body of a notification.
#[derive(Debug, Deserialize)]
pub struct Parcel {
    version: u32,
    /// The notices.
    pub notices: Vec<Notice>,
}

/// A notice, reduced to the fields that matter here.
#[derive(Clone, Debug, Deserialize)]
pub struct Notice {
    /// The sender's key for the notice.
    pub key: String,
    status: Status,
    severity: Severity,
    finding: String,
    subject: String,
    /// The machine and the pod, as `MACHINE/POD`.
    pub node: Option<String>,
    provenance: Provenance,
    #[serde(default)]
    observe_only: bool,
    #[serde(default)]
    order: Option<Order>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Firing,
    Resolved,
}

/// Why a body is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The body does not have the expected format.
    #[error("{0}")]
    Json(String),
    /// The body has an unknown version.
    #[error("unknown version {0}: must be 1")]
    Version(u32),
    /// The body has too many notices.
    #[error("{0} notices are too many: {MOST_NOTICES} at most")]
    Many(usize),
}

impl Parcel {
    /// Parses a body.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the body is invalid.
    pub fn read(body: &[u8]) -> Result<Parcel, Malformed> {
        let parcel: Parcel =
            serde_json::from_slice(body).map_err(|error| Malformed::Json(error.to_string()))?;
        match parcel {
            Parcel { version, .. } if version != 1 => Err(Malformed::Version(version)),
            Parcel { notices, .. } if notices.len() > MOST_NOTICES => Err(Malformed::Many(notices.len())),
            parcel => Ok(parcel),
        }
    }
}

impl Notice {
    /// Returns the machine and the pod that the notice is about.
    pub fn place(&self) -> Option<(&str, &str)> {
        let (machine, pod) = self.node.as_deref()?.split_once('/')?;
        let is_name = |name: &str| {
            let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
            !name.is_empty() && name.len() <= 253 && name.chars().all(is_fit)
        };
        (is_name(machine) && is_name(pod)).then_some((machine, pod))
    }

    /// Returns true if the finding holds, and false if it was cleared.
    pub fn holds(&self) -> bool {
        self.status == Status::Firing
    }

    /// Returns the report for an authenticated job, or `None` if this program does not know the finding.
    pub fn report(&self, job: &str, job_nodes: u32) -> Option<Report> {
        let finding = *Finding::ALL
            .iter()
            .find(|finding| finding.name() == self.finding)?;
        if self.subject.len() > LONGEST {
            return None;
        }
        Some(Report {
            key: format!("{job}/{finding}/{}", sanitize::clip(&self.subject, LONGEST)),
            job: job.to_owned(),
            job_nodes,
            finding,
            // Sanitize the text, because it appears in objects and logs.
            subject: sanitize::clip(&self.subject, LONGEST),
            severity: self.severity,
            provenance: self.provenance,
            observe_only: self.observe_only,
            order: self.order,
            holds: self.holds(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_would_see_is_shown() {
        let notice = serde_json::json!({
            "key": "k", "status": "firing", "severity": "info", "finding": "gpu-lost", "node": "n/p", "provenance": "live",
            "subject": "gpu \u{1b}[31m\n on n",
        });
        let notice: Notice = serde_json::from_value(notice).unwrap();
        let report = notice.report("ml/train", 1).unwrap();
        assert_eq!(report.subject, "gpu \u{241b}[31m  on n");
        assert!(!report.key.contains(char::is_control));
    }
}
