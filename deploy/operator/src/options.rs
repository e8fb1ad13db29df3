//! The command-line options. The Helm chart fills them in.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use paceline_inject::{Mode, Settings, quantity, remediator};

use crate::{release, remediate};

/// Paceline's programs for a Kubernetes cluster.
#[derive(Clone, Debug, Parser)]
#[command(name = "paceline-operator", version)]
pub struct Line {
    /// Which of them.
    #[command(subcommand)]
    pub command: Command,
}

/// One program each, with rights of its own.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Inject Paceline into new pods: a webhook, with certificates, keys and pod reports.
    Inject(Box<Options>),
    /// Receive verdicts about nodes, and cordon, drain and check nodes as the policy allows.
    Remediate(Box<remediate::Options>),
    /// Remove the operator's marks from nodes and its objects from namespaces, before it is uninstalled.
    Release(release::Options),
}

/// Inject Paceline into new pods: a webhook, with certificates, keys and pod reports.
#[derive(Clone, Debug, Parser)]
#[command(group = ArgGroup::new("certificates").required(true).args(["cert", "self_signed"]))]
#[command(group = ArgGroup::new("authorities").args(["ca", "self_signed"]))]
pub struct Options {
    /// Listen address of the webhook, HTTPS at /inject.
    #[arg(
        long,
        env = "PACELINE_OPERATOR_LISTEN",
        default_value = "[::]:9443",
        value_name = "ADDR:PORT"
    )]
    pub listen: SocketAddr,
    /// Listen address of /healthz, /readyz and /metrics, HTTP.
    #[arg(
        long,
        env = "PACELINE_OPERATOR_HEALTH",
        default_value = "[::]:9444",
        value_name = "ADDR:PORT"
    )]
    pub health: SocketAddr,
    /// The TLS certificate.
    #[command(flatten)]
    pub certificates: CertificateOptions,
    /// With --self-signed or --ca: the MutatingWebhookConfiguration whose caBundle is kept up to date.
    #[arg(
        long,
        value_name = "NAME",
        requires = "authorities",
        required_unless_present = "cert"
    )]
    pub webhook: Option<String>,
    /// With --cert: CA certificates (PEM) for --webhook. Reloaded when they change.
    #[arg(long, value_name = "FILE", requires = "cert", requires = "webhook")]
    pub ca: Option<PathBuf>,
    /// Create a Secret with a random key for each job, and report pods that requested Paceline but run without it.
    #[arg(long)]
    pub secrets: bool,
    /// URL of the cluster's remediator; pods report findings about nodes to it, in addition to their own receivers.
    #[arg(long, value_name = "https://HOST/PATH", value_parser = checked(remediator::is_address, "https://HOST[:PORT]/PATH"))]
    pub remediator: Option<String>,
    /// CA certificates (PEM) of the remediator; copied into a ConfigMap in the pods' namespaces and updated when this
    /// file changes.
    #[arg(long, value_name = "FILE", requires = "remediator")]
    pub remediator_ca: Option<PathBuf>,
    /// The operator's namespace: of its Lease and of --self-signed.
    #[arg(long, env = "POD_NAMESPACE", default_value = "paceline", value_name = "NAME")]
    pub namespace: String,
    /// Duration of the leader's Lease; after it, another replica takes over.
    #[arg(long, default_value_t = 15, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=300))]
    pub lease: u64,
    /// Image for pods [default: that of this version].
    #[arg(long, env = "PACELINE_IMAGE", value_name = "IMAGE")]
    pub image: Option<String>,
    /// Pull policy of that image.
    #[arg(long, default_value = "IfNotPresent", value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub image_pull_policy: String,
    /// Injection mode of pods whose annotations do not set it: sidecar or wrap.
    #[arg(long, default_value = "sidecar", value_name = "MODE", value_parser = mode)]
    pub mode: Mode,
    /// CPU of an injected container, request and limit.
    #[arg(long, default_value = "200m", value_name = "QUANTITY", value_parser = checked(quantity::is_cpu, "cores such as 500m"))]
    pub cpu: String,
    /// Memory of an injected container, request and limit.
    #[arg(long, default_value = "256Mi", value_name = "QUANTITY", value_parser = checked(quantity::is_memory, "an amount of memory such as 512Mi"))]
    pub memory: String,
    /// Namespaces whose pods are never changed, in addition to Kubernetes' own. May be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub exclude: Vec<String>,
    /// Time to keep answering requests after /readyz fails at shutdown.
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=300))]
    pub drain: u64,
}

/// Where a program's certificate comes from.
#[derive(Clone, Debug, Args)]
pub struct CertificateOptions {
    /// TLS certificate chain (PEM). Reloaded when it changes; it may appear after the start.
    #[arg(long, env = "PACELINE_OPERATOR_CERT", value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Private key of the certificate (PEM).
    #[arg(long, env = "PACELINE_OPERATOR_KEY", value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Instead of files: a Secret with self-signed certificates, which the program creates and renews.
    #[arg(long, value_name = "SECRET", requires = "service", conflicts_with = "key")]
    pub self_signed: Option<String>,
    /// With --self-signed: the Service whose name clients use.
    #[arg(long, value_name = "NAME", requires = "self_signed")]
    pub service: Option<String>,
    /// With --self-signed: validity of a certificate. It is renewed when a third of it is left.
    #[arg(long, default_value_t = 90 * 24 * 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(10..=10 * 365 * 24 * 3600))]
    pub certificate_life: u64,
}

fn mode(word: &str) -> Result<Mode, String> {
    Mode::parse(word).ok_or_else(|| "sidecar or wrap".to_owned())
}

fn checked(
    is_good: fn(&str) -> bool,
    wanted: &'static str,
) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync {
    move |text| match is_good(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("must be {wanted}")),
    }
}

impl Options {
    /// Returns the injection defaults from these options.
    pub fn settings(&self) -> Settings {
        let default = Settings::default();
        Settings {
            image: self.image.clone().unwrap_or(default.image),
            pull_policy: self.image_pull_policy.clone(),
            mode: self.mode,
            cpu: self.cpu.clone(),
            memory: self.memory.clone(),
            remediator: self.remediator.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_that_no_container_can_do_with_are_usage_errors() {
        let read = |more: &[&str]| {
            let line = ["paceline-operator", "inject", "--cert=c", "--key=k"];
            Line::try_parse_from(line.iter().chain(more))
        };
        assert!(read(&["--cpu=0.5", "--memory=1Gi"]).is_ok());
        for wrong in ["--memory=256m", "--memory=256", "--cpu=500Mi", "--cpu=0"] {
            let error = read(&[wrong]).unwrap_err().to_string();
            assert!(error.contains("must be"), "{error}");
        }
    }
}
