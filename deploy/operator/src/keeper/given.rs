//! Certificates that come in files: whoever calls us is told to trust the authority that they are of, as with those of our own making.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::trust::{Place, Trust, authorities};
use crate::api::Api;
use crate::lease::{Lead, leads};
use crate::{certificate, say};

/// It is looked so often, and more often until it is trusted once.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const FIRST_EVERY: Duration = Duration::from_millis(500);
/// Longer than any rollout takes.
const GRACE: Duration = Duration::from_secs(24 * 3600);

/// See the module.
pub struct Given {
    trust: Trust,
    cert: PathBuf,
    ca: PathBuf,
    /// It was trusted once, or there is nobody to be told of.
    is_trusted: Arc<AtomicBool>,
}

impl Given {
    /// `ca` (PEM) is of `cert`.
    pub fn of(api: &Api, namespace: &str, place: Place, cert: PathBuf, ca: PathBuf) -> Given {
        Given {
            trust: Trust::of(api, namespace, place, GRACE),
            cert,
            ca,
            is_trusted: Arc::default(),
        }
    }

    /// Says so there when it is trusted.
    #[must_use]
    pub fn telling(self, is_trusted: &Arc<AtomicBool>) -> Given {
        Given {
            is_trusted: Arc::clone(is_trusted),
            ..self
        }
    }

    /// For ever. `lead`: as long as we are in charge, what is nobody's is taken out.
    pub async fn run(mut self, lead: Lead) {
        let mut problem = String::new();
        loop {
            match self.look(leads(&lead)).await {
                Ok(()) => problem.clear(),
                Err(error) => {
                    let now = format!("{error:#}");
                    if now != problem {
                        say(format_args!("whom callers are to trust: {now}"));
                        problem = now;
                    }
                }
            }
            let is_first = !self.is_trusted.load(Ordering::Relaxed);
            sleep(if is_first { FIRST_EVERY } else { LOOK_EVERY }).await;
        }
    }

    async fn look(&mut self, is_leader: bool) -> anyhow::Result<()> {
        if !self.ca.exists() {
            // Whoever makes the certificate may have an authority that is trusted everywhere, and tells of none.
            if self.cert.exists() {
                self.is_trusted.store(true, Ordering::Relaxed);
            }
            return Ok(());
        }
        let ours = authorities(&certificate::authorities(&self.ca)?);
        if self.trust.add(&ours, &BTreeSet::new(), is_leader).await? {
            self.is_trusted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
