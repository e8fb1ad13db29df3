//! Whom injected pods are to trust when they tell the remediator something: its authority, in a ConfigMap of each namespace that has
//! such pods. It follows the file that it is read from.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use paceline_inject::told;
use serde_json::json;

use super::counts::Counts;
use crate::api::{Api, Failed};
use crate::{certificate, say};

/// The file is looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Trust {
    file: PathBuf,
    ca: String,
    /// What is wrong with the file, once it was said.
    problem: String,
    looked: Option<Instant>,
    /// What each namespace was last given.
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

    /// Others may have written meanwhile: all of it is given again.
    pub(super) fn forget(&mut self) {
        self.given.values_mut().for_each(String::clear);
    }

    /// This namespace has pods that ask for it.
    pub(super) fn wants(&mut self, namespace: &str) {
        if !self.given.contains_key(namespace) {
            self.given.insert(namespace.to_owned(), String::new());
        }
    }

    /// Writes what is not yet as the file is. Stops at an API server that does not answer; a refusal is told, and holds up nobody.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub(super) async fn follow(&mut self, api: &Api, counts: &Counts) -> Result<(), Failed> {
        self.look();
        if self.ca.is_empty() {
            return Ok(());
        }
        for (namespace, given) in &mut self.given {
            if *given == self.ca {
                continue;
            }
            match give(api, namespace, &self.ca).await {
                Ok(()) => counts.authority("written"),
                Err(failed) if failed.code == 0 || failed.code >= 500 || failed.code == 429 => {
                    return Err(failed);
                }
                Err(failed) => {
                    counts.authority("failed");
                    say(format_args!(
                        "the ConfigMap {namespace}/{} is not written, so pods there cannot tell the remediator anything: {failed}",
                        told::AUTHORITY
                    ));
                }
            }
            given.clone_from(&self.ca);
        }
        Ok(())
    }

    /// What was read last stays where the file is gone, or holds no certificate.
    fn look(&mut self) {
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
                    say(format_args!(
                        "whom pods are to trust as the remediator is not known: {problem}"
                    ));
                    self.problem = problem;
                }
            }
        }
    }
}

async fn give(api: &Api, namespace: &str, ca: &str) -> Result<(), Failed> {
    let all = format!("/api/v1/namespaces/{namespace}/configmaps");
    let patch = json!({ "data": { "ca.crt": ca } });
    let whole = told::authority(namespace, ca);
    api.merge_or_make(&all, told::AUTHORITY, &patch, &whole).await
}
