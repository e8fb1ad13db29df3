//! Selects the job, and finds the address of its aggregator.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use paceline_health::text::sanitize::name;
use paceline_sidecar::aggregator::control::{self, SOCKET};
use paceline_sidecar::aggregator::journal::owner;
use paceline_sidecar::safe_file;
use paceline_sidecar::sink::files::{metrics_said, token_refusal};

use super::response::{Ending, News};
use crate::output::Usage;
use crate::report;
use crate::run;

/// File in the run directory that has the address of its aggregator.
const ADDRESS: &str = "metrics.addr";

/// The job to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A run directory. The aggregator that uses it may change.
    Dir(PathBuf),
    /// An address, `http://HOST:PORT`.
    At(String),
}

impl Target {
    /// Parses the user's argument, which is a run directory or an address. `scheme` is used if the address has none.
    pub(crate) fn of(typed: &str, scheme: &str) -> Result<Target, Usage> {
        let path = Path::new(typed);
        if path.is_dir() {
            return Ok(Target::Dir(path.to_owned()));
        }
        if typed.starts_with("http://") || typed.starts_with("https://") {
            return Ok(Target::At(typed.trim_end_matches('/').to_owned()));
        }
        let port = typed
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_some() && !typed.contains('/') {
            return Ok(Target::At(format!("{scheme}://{typed}")));
        }
        Err(Usage(format!(
            "{typed}: neither a run directory nor an address (HOST:PORT, https://HOST:PORT)"
        )))
    }

    /// Returns the current base URL. If `sends_token` is true, the run directory must be one that can be trusted.
    pub(crate) fn base(&self, scheme: &str, sends_token: bool) -> Result<String, String> {
        let dir = match self {
            Target::At(base) => return Ok(base.clone()),
            Target::Dir(dir) => dir,
        };
        let Some(mut address) = metrics_said(dir) else {
            let dir = dir.display();
            return Err(format!(
                "{dir}: its aggregator does not answer: not started yet, or ended"
            ));
        };
        if address.ip().is_unspecified() {
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        if let Some(why) = sends_token.then(|| token_refusal(dir, address)).flatten() {
            return Err(format!(
                "the token was not sent: {why}; if you trust the page, name its address (HOST:PORT)"
            ));
        }
        Ok(format!("{scheme}://{address}"))
    }

    /// Returns the end of the job, if its report has one.
    pub(super) fn end(&self) -> Option<Ending> {
        let Target::Dir(dir) = self else { return None };
        let end = report::read(&dir.join(report::FILE)).ok()?.end?;
        Some(Ending {
            reason: end.reason.name().into(),
            node: end.node.map(|node| node.as_str().into()),
            rank: end.rank.map(|rank| rank.0),
            code: end.code,
            says: (&*end.says).into(),
        })
    }

    /// Returns the name of the run directory, or the address.
    pub(super) fn name(&self) -> String {
        match self {
            Target::At(base) => base.clone(),
            Target::Dir(dir) => {
                let last = dir.file_name().unwrap_or(dir.as_os_str());
                name(&last.to_string_lossy())
            }
        }
    }

    /// Returns true if an aggregator on this host uses the run directory.
    pub(super) fn is_alive(&self) -> bool {
        matches!(self, Target::Dir(dir) if control::is_there(dir))
    }

    /// Returns a possible reason for a missing response.
    pub(crate) fn hint(&self) -> String {
        let Target::Dir(dir) = self else {
            return String::new();
        };
        if self.end().is_some() {
            return format!("; its job has ended: paceline report {}", dir.display());
        }
        match owner::holder(dir) {
            Some(mark) => format!(
                "; its aggregator is {}: connect there, or through ssh -L",
                mark.name()
            ),
            None => String::new(),
        }
    }
}

/// Returns the run directories of jobs that may be running here, the newest first. Those of this user's launchers on
/// this host come first, then those in the working directory.
pub(super) fn running() -> Vec<Target> {
    let user = rustix::process::geteuid().as_raw();
    let places = run::ring_places();
    let rings = places
        .iter()
        .filter_map(|place| fs::read_dir(place).ok())
        .flatten()
        .flatten();
    let mut found: Vec<(SystemTime, PathBuf)> = rings
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"paceline-"))
        .filter_map(|entry| {
            let link = entry.path().join(run::RUN_LINK);
            let meta = fs::symlink_metadata(&link).ok()?;
            let is_ours = meta.is_symlink() && meta.uid() == user;
            let dir = is_ours.then(|| fs::read_link(&link).ok())??;
            Some((meta.modified().ok()?, dir))
        })
        .collect();
    let here = fs::read_dir(".").into_iter().flatten().flatten();
    found.extend(here.filter_map(|entry| {
        let dir = entry.path();
        // Skip a directory that another user has placed here.
        let at = safe_file::open_own(&dir.join(ADDRESS))
            .ok()?
            .metadata()
            .ok()?
            .modified()
            .ok()?;
        dir.join(SOCKET)
            .exists()
            .then(|| Some((at, fs::canonicalize(dir).ok()?)))?
    }));
    found.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    let mut dirs: Vec<PathBuf> = Vec::new();
    for (_, dir) in found {
        if metrics_said(&dir).is_some() && !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    dirs.into_iter().map(Target::Dir).collect()
}

/// Returns true if the response is from this job. The port of a killed aggregator may belong to another job by now.
pub(super) fn is_of(target: &Target, news: &News) -> bool {
    let Target::Dir(dir) = target else { return true };
    let told = news.report.as_ref().map(|report| report.dir.as_str());
    told.is_none_or(|told| told == name(&dir.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_is_a_directory_or_an_address() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_str().unwrap();
        assert_eq!(
            Target::of(dir, "http").unwrap(),
            Target::Dir(folder.path().to_owned())
        );
        for (typed, base) in [
            ("127.0.0.1:9810", "https://127.0.0.1:9810"),
            ("[::1]:9810", "https://[::1]:9810"),
            ("node-7:80", "https://node-7:80"),
            ("http://node-7:80/", "http://node-7:80"),
        ] {
            assert_eq!(Target::of(typed, "https").unwrap(), Target::At(base.to_owned()));
        }
        for typed in ["no-such-directory", "node-7", "a/b:80", "node:port"] {
            assert!(Target::of(typed, "http").is_err(), "{typed}");
        }
    }

    #[test]
    fn a_run_directory_leads_to_its_aggregator() {
        let folder = tempfile::tempdir().unwrap();
        let target = Target::Dir(folder.path().to_owned());
        assert!(
            target
                .base("http", false)
                .unwrap_err()
                .contains("its aggregator does not answer")
        );
        for (text, base) in [
            ("127.0.0.1:9810\n", Some("http://127.0.0.1:9810")),
            ("0.0.0.0:9810\n", Some("http://127.0.0.1:9810")),
            ("nonsense", None),
            (&"1".repeat(1000), None),
        ] {
            fs::write(folder.path().join(ADDRESS), text).unwrap();
            assert_eq!(target.base("http", false).ok().as_deref(), base);
        }
    }
}
