//! Handles certificates from files. Their authority is added to the trust of callers, as for self-signed certificates.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::manager::{GRACE, Problem};
use super::serving;
use super::trust::{Place, Trust, authorities};
use crate::api::Api;
use crate::lease::{Lead, leads};

/// The interval of checks. It is shorter until the authority is trusted for the first time.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const FIRST_EVERY: Duration = Duration::from_millis(500);

/// The task for a certificate from files; see the module documentation.
pub struct ProvidedCertificate {
    trust: Trust,
    cert: PathBuf,
    ca: PathBuf,
    /// True once the authority has been trusted, or if there is no authority to add.
    is_trusted: Arc<AtomicBool>,
}

impl ProvidedCertificate {
    /// Creates the task for `cert` and its authority `ca` (PEM).
    pub fn of(api: &Api, namespace: &str, place: Place, cert: PathBuf, ca: PathBuf) -> ProvidedCertificate {
        ProvidedCertificate {
            trust: Trust::of(api, namespace, place, GRACE),
            cert,
            ca,
            is_trusted: Arc::default(),
        }
    }

    /// Returns the task with `is_trusted` as the flag that it sets once the authority is trusted.
    #[must_use]
    pub fn telling(self, is_trusted: &Arc<AtomicBool>) -> ProvidedCertificate {
        ProvidedCertificate {
            is_trusted: Arc::clone(is_trusted),
            ..self
        }
    }

    /// Maintains the authority forever. `lead` shows whether this replica is the leader, which also removes authorities
    /// that are not in use.
    pub async fn run(mut self, lead: Lead) {
        let mut problem = Problem::of("the authorities that callers trust");
        loop {
            problem.log(self.look(leads(&lead)).await);
            let is_first = !self.is_trusted.load(Ordering::Relaxed);
            sleep(if is_first { FIRST_EVERY } else { LOOK_EVERY }).await;
        }
    }

    async fn look(&mut self, is_leader: bool) -> anyhow::Result<()> {
        if !self.ca.exists() {
            // A missing CA file is not an error, because callers already trust a certificate from a public authority.
            if self.cert.exists() {
                self.is_trusted.store(true, Ordering::Relaxed);
            }
            return Ok(());
        }
        let ours = authorities(&serving::authorities(&self.ca)?);
        if self.trust.add(&ours, &BTreeSet::new(), is_leader).await? {
            self.is_trusted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
