//! Distributes the CA that injected pods need to report to the remediator. Each namespace with pods that report gets a
//! ConfigMap, which is updated when the source file of the CA changes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use paceline_inject::remediator;
use serde_json::json;

use crate::api::{Api, Failed};
use crate::{certificate, say};

/// The interval of checks of the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The CA and its copies; see the module documentation.
pub(super) struct Trust {
    file: PathBuf,
    ca: String,
    /// The last logged problem with the file.
    problem: String,
    looked: Option<Instant>,
    /// The CA last written to each namespace.
    given: HashMap<String, String>,
}

impl Trust {
    pub(super) fn of(file: PathBuf) -> Trust {
        Trust {
            file,
            ca: String::new(),
            problem: String::new(),
            looked: None,
            given: HashMap::new(),
        }
    }

    /// Forgets which namespaces have the CA, so that all copies are written again. Other replicas may have written in
    /// the meantime.
    pub(super) fn forget(&mut self) {
        self.given.values_mut().for_each(String::clear);
    }

    /// Records that this namespace has pods that need the CA.
    pub(super) fn wants(&mut self, namespace: &str) {
        if !self.given.contains_key(namespace) {
            self.given.insert(namespace.to_owned(), String::new());
        }
    }

    /// Returns the CA as the file has it now, and the namespaces that do not have this CA yet.
    pub(super) fn look(&mut self) -> (String, Vec<String>) {
        self.read();
        let without = self.given.iter().filter(|(_, given)| **given != self.ca);
        (
            self.ca.clone(),
            without.map(|(namespace, _)| namespace.clone()).collect(),
        )
    }

    /// Records that this namespace has this CA, or rejects it.
    pub(super) fn given(&mut self, namespace: &str, ca: String) {
        self.given.insert(namespace.to_owned(), ca);
    }

    /// Reads the file. If the file is missing or has no certificate, the last CA stays in use.
    fn read(&mut self) {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        match certificate::authorities(&self.file) {
            Ok(ca) => {
                self.ca = ca;
                self.problem.clear();
            }
            Err(error) => {
                let problem = format!("{error:#}");
                if problem != self.problem {
                    say(format_args!("the CA of the remediator is unknown: {problem}"));
                    self.problem = problem;
                }
            }
        }
    }
}

pub(super) async fn give(api: &Api, namespace: &str, ca: &str) -> Result<(), Failed> {
    let all = format!("/api/v1/namespaces/{namespace}/configmaps");
    let patch = json!({ "data": { "ca.crt": ca } });
    let whole = remediator::authority(namespace, ca);
    api.merge_or_make(&all, remediator::AUTHORITY, &patch, &whole)
        .await
}
