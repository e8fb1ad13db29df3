//! Prints output of a run while its command runs: the address of the job's page, and a line for each change of a
//! finding.
//!
//! Only the launcher whose sidecar runs the aggregator receives these, so only one launcher of a job prints them. The
//! address is printed once the aggregator listens. Earlier it is not known, because port zero is resolved only then and
//! a requested port may be in use.

use std::net::SocketAddr;
use std::time::Instant;

use paceline_sidecar::host;

use super::Plan;
use super::sidecar::Status;
use super::supervise::Watcher;
use crate::notices::Notices;
use crate::output::{self, Paint, Style};
use crate::report;

/// Prints the page's address once, and changes of findings.
pub(super) struct Announcer {
    style: Style,
    scheme: &'static str,
    is_silent: bool,
    said: Option<String>,
    notices: Notices,
    /// The path of the report with all findings.
    report: String,
}

impl Announcer {
    /// Creates an announcer for the run of `plan`.
    pub(super) fn new(plan: &Plan) -> Announcer {
        Announcer {
            style: plan.style,
            scheme: plan.settings.page.scheme(),
            is_silent: plan.settings.quiet,
            said: None,
            notices: Notices::new(plan.style),
            report: plan.run_dir.join(report::FILE).display().to_string(),
        }
    }

    /// Returns the line to print for a sidecar's status.
    fn line(&mut self, status: &Status) -> Option<String> {
        let Status::Ready {
            http: Some(http),
            http_elsewhere,
            ..
        } = status
        else {
            return None;
        };
        if self.is_silent || self.said.as_deref() == Some(http) {
            return None;
        }
        self.said = Some(http.clone());
        let page = format!("{}://{}/", self.scheme, reachable(http, host::hostname));
        let why = http_elsewhere
            .as_ref()
            .map_or_else(String::new, |why| format!(" ({why})"));
        Some(format!(
            "{} live page {page}{}, for Prometheus {page}metrics",
            self.style.paint(Paint::Faint, "paceline:"),
            self.style.paint(Paint::Warn, why),
        ))
    }
}

impl Watcher for Announcer {
    fn status(&mut self, status: &Status) {
        let line = match status {
            Status::Verdict(verdict) if !self.is_silent => {
                self.notices.on_verdict(verdict, host::unix_ms(), Instant::now())
            }
            Status::Note(note) if !self.is_silent => {
                Some(format!("{} {note}", self.style.paint(Paint::Faint, "paceline:")))
            }
            status => self.line(status),
        };
        if let Some(line) = line {
            output::say(line);
        }
    }

    fn tick(&mut self, now: Instant) -> bool {
        if let Some(line) = self.notices.held_back(&self.report, now) {
            output::say(line);
        }
        false
    }

    fn wake_at(&self) -> Option<Instant> {
        self.notices.wake_at().filter(|_| !self.is_silent)
    }

    /// Stops printing, because the page ends with the job and the report has the findings.
    fn ended(&mut self) {
        self.is_silent = true;
    }
}

/// Returns the address under which other hosts reach `bound`. If `bound` is a wildcard address, uses the host's name.
fn reachable(bound: &str, hostname: impl Fn() -> String) -> String {
    match bound.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => format!("{}:{}", hostname(), address.port()),
        _ => bound.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcer(is_silent: bool) -> Announcer {
        let style = Style {
            color: false,
            unicode: true,
            width: 80,
        };
        Announcer {
            style,
            scheme: "http",
            is_silent,
            said: None,
            notices: Notices::new(style),
            report: "./paceline-j/report.json".to_owned(),
        }
    }

    fn ready(http: Option<&str>, elsewhere: Option<&str>) -> Status {
        Status::Ready {
            aggregator: "127.0.0.1:1".into(),
            http: http.map(str::to_owned),
            http_elsewhere: elsewhere.map(str::to_owned),
            run_dir: None,
            alone: None,
        }
    }

    #[test]
    fn each_address_is_told_once_and_why_it_is_another() {
        let mut announcer = announcer(false);
        assert_eq!(announcer.line(&ready(None, None)), None, "another node has it");
        let first = ready(Some("127.0.0.1:4000"), None);
        assert_eq!(
            announcer.line(&first).as_deref(),
            Some("paceline: live page http://127.0.0.1:4000/, for Prometheus http://127.0.0.1:4000/metrics")
        );
        assert_eq!(announcer.line(&first), None);
        // This is the status after a restart of the sidecar.
        let second = announcer.line(&ready(Some("127.0.0.1:5000"), Some("port 4000 is taken")));
        assert_eq!(
            second.as_deref(),
            Some(
                "paceline: live page http://127.0.0.1:5000/ (port 4000 is taken), for Prometheus \
                 http://127.0.0.1:5000/metrics"
            )
        );
        announcer.ended();
        assert_eq!(announcer.line(&first), None, "its page goes with the job");
    }

    #[test]
    fn quiet_is_quiet() {
        assert_eq!(announcer(true).line(&ready(Some("127.0.0.1:4000"), None)), None);
    }

    #[test]
    fn every_address_is_told_as_the_hosts_name() {
        let host = || "node-7".to_owned();
        for (bound, told) in [
            ("0.0.0.0:9810", "node-7:9810"),
            ("[::]:9810", "node-7:9810"),
            ("10.0.0.4:9810", "10.0.0.4:9810"),
            ("[::1]:9810", "[::1]:9810"),
        ] {
            assert_eq!(reachable(bound, host), told);
        }
    }
}
