//! The leader's work besides the webhook. It renews certificates, creates Secrets for jobs, and reports pods that
//! requested Paceline and do not have it. No admission waits for this work.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::Api;
use crate::certificate::trust::Place;
use crate::certificate::{Certificate, CertificateManager, ProvidedCertificate};
use crate::lease::{Lead, Lease, leads};
use crate::options::Options;
use crate::timestamp;
use crate::webhook::review::Rules;

pub mod counts;
mod debts;
pub mod jobs;
mod pods;
mod trust;

use counts::Counts;

/// Name of the Lease.
pub(crate) const LEASE: &str = "paceline-injector";

/// The running tasks besides the webhook.
#[derive(Debug)]
pub struct Control {
    /// Tasks that run forever.
    pub(crate) tasks: Vec<JoinHandle<()>>,
    end: Option<(Arc<str>, Arc<str>)>,
}

impl Control {
    /// Starts the tasks that the options enable. The options may enable none.
    ///
    /// # Errors
    /// Returns an error if a task is enabled but there is neither a pod's ServiceAccount nor a kubeconfig.
    pub async fn start(
        options: &Options,
        rules: &Rules,
        certificate: &Arc<Certificate>,
        is_trusted: &Arc<AtomicBool>,
        counts: &Arc<Counts>,
    ) -> anyhow::Result<Control> {
        let mut control = Control {
            tasks: Vec::new(),
            end: None,
        };
        let trust = options.remediator_ca.clone().map(trust::Trust::of);
        if !options.secrets && options.webhook.is_none() && trust.is_none() {
            return Ok(control);
        }
        let (api, certificates) = (Api::open().await?, &options.certificates);
        let me = me();
        let until = Arc::new(watch::Sender::new(None));
        let lead = until.subscribe();
        let lasts = Duration::from_secs(options.lease);
        let lease = Lease::of(api.clone(), &options.namespace, LEASE, &me, lasts);
        control.tasks.push(tokio::spawn(lease.hold(until)));
        control
            .tasks
            .push(tokio::spawn(count(lead.clone(), Arc::clone(counts))));
        control.end = Some((options.namespace.as_str().into(), me.as_str().into()));
        let place = options.webhook.clone().map(Place::Webhook);
        let files = certificates.cert.clone().zip(options.ca.clone());
        if let Some((place, (cert, ca))) = place.clone().zip(files) {
            let given =
                ProvidedCertificate::of(&api, &options.namespace, place, cert, ca).telling(is_trusted);
            control.tasks.push(tokio::spawn(given.run(lead.clone())));
        }
        let manager = place.and_then(|place| {
            let (given, renewals) = (certificates, &counts.renewals);
            CertificateManager::of(&api, given, &options.namespace, place, certificate, renewals)
        });
        if let Some(manager) = manager {
            control.tasks.push(tokio::spawn(manager.run(lead.clone())));
        }
        if options.secrets || trust.is_some() {
            let watcher = pods::Watcher::new(api, rules.clone(), Arc::clone(counts), options.secrets, trust);
            control.tasks.push(tokio::spawn(watcher.run(lead)));
        }
        Ok(control)
    }

    /// Stops the tasks, some of which may have ended, and releases the Lease so that the other replica need not wait
    /// for its expiry.
    pub(crate) async fn stop(self, tasks: Vec<JoinHandle<()>>) {
        tasks.iter().for_each(JoinHandle::abort);
        for task in tasks.into_iter().filter(|task| !task.is_finished()) {
            // The task ends with an error because it was aborted just before.
            let _ = task.await;
        }
        if let Some((namespace, me)) = self.end
            && let Ok(api) = Api::open().await
        {
            // If the API server does not answer now, the Lease expires by itself.
            let _ = Lease::release(&api, &namespace, LEASE, &me).await;
        }
    }
}

/// Returns an identity that is unique for each process. A restarted process must not mistake the Lease of its
/// predecessor for its own.
fn me() -> String {
    let pod = std::env::var("POD_NAME").unwrap_or_else(|_| "injector".to_owned());
    format!("{pod}_{}_{}", std::process::id(), timestamp::now_ms())
}

async fn count(lead: Lead, counts: Arc<Counts>) {
    loop {
        counts.leads(leads(&lead));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
