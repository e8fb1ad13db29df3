//! The command line, which the chart fills in.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use paceline_inject::{Mode, Settings, quantity, told};

use crate::{release, remediate};

/// Paceline's two programs of a Kubernetes cluster, and their end.
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
    /// Puts Paceline into pods as they are made: a webhook, and what it takes around it.
    Inject(Box<Options>),
    /// Takes verdicts about nodes, and does with the nodes what its policy says.
    Remediate(Box<remediate::Options>),
    /// Takes off what the operator has put onto nodes and into namespaces, before it is uninstalled.
    Release(release::Options),
}

/// Puts Paceline into pods as they are made: a webhook, and what it takes around it.
#[derive(Clone, Debug, Parser)]
#[command(group = ArgGroup::new("certificates").required(true).args(["cert", "self_signed"]))]
#[command(group = ArgGroup::new("authorities").args(["ca", "self_signed"]))]
pub struct Options {
    /// Where the webhook is served, by HTTPS at /inject.
    #[arg(
        long,
        env = "PACELINE_OPERATOR_LISTEN",
        default_value = "[::]:9443",
        value_name = "ADDR:PORT"
    )]
    pub listen: SocketAddr,
    /// Where /healthz, /readyz and /metrics are served, by HTTP.
    #[arg(
        long,
        env = "PACELINE_OPERATOR_HEALTH",
        default_value = "[::]:9444",
        value_name = "ADDR:PORT"
    )]
    pub health: SocketAddr,
    /// Our certificate.
    #[command(flatten)]
    pub certificates: CertificateOptions,
    /// With --self-signed or --ca: the MutatingWebhookConfiguration whose caBundle has our CA.
    #[arg(
        long,
        value_name = "NAME",
        requires = "authorities",
        required_unless_present = "cert"
    )]
    pub webhook: Option<String>,
    /// With --cert: certificates (PEM) of the CA that it is of, for --webhook. Read again when they change.
    #[arg(long, value_name = "FILE", requires = "cert", requires = "webhook")]
    pub ca: Option<PathBuf>,
    /// Make a Secret with a random key for each job, and report pods that asked for Paceline and do not have it.
    #[arg(long)]
    pub secrets: bool,
    /// Where the cluster's remediator takes verdicts: pods tell it of nodes, besides whom their authors named.
    #[arg(long, value_name = "https://HOST/PATH", value_parser = checked(told::is_address, "https://HOST[:PORT]/PATH"))]
    pub remediator: Option<String>,
    /// Certificates (PEM) of the authorities that the remediator's certificate may be of: pods find them in a ConfigMap that we make in
    /// their namespaces, and that follows this file.
    #[arg(long, value_name = "FILE", requires = "remediator")]
    pub remediator_ca: Option<PathBuf>,
    /// The namespace that we run in: of our Lease and of --self-signed.
    #[arg(long, env = "POD_NAMESPACE", default_value = "paceline", value_name = "NAME")]
    pub namespace: String,
    /// A leader that is not heard for so long is followed by another.
    #[arg(long, default_value_t = 15, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=300))]
    pub lease: u64,
    /// The image that pods get [default: that of this version].
    #[arg(long, env = "PACELINE_IMAGE", value_name = "IMAGE")]
    pub image: Option<String>,
    /// When pods pull it.
    #[arg(long, default_value = "IfNotPresent", value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub image_pull_policy: String,
    /// How Paceline gets into pods that do not say it: sidecar or wrap.
    #[arg(long, default_value = "sidecar", value_name = "MODE", value_parser = mode)]
    pub mode: Mode,
    /// CPU of a container of ours, request and limit.
    #[arg(long, default_value = "200m", value_name = "QUANTITY", value_parser = checked(quantity::is_cpu, "cores such as 500m"))]
    pub cpu: String,
    /// Memory of a container of ours, request and limit.
    #[arg(long, default_value = "256Mi", value_name = "QUANTITY", value_parser = checked(quantity::is_memory, "an amount of memory such as 512Mi"))]
    pub memory: String,
    /// Namespaces whose pods are never touched, besides Kubernetes' own. May be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub exclude: Vec<String>,
    /// At the end, questions are answered for so long after /readyz has said no: others still send them.
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=300))]
    pub drain: u64,
}

/// Where a program's certificate comes from.
#[derive(Clone, Debug, Args)]
pub struct CertificateOptions {
    /// Certificates (PEM), our own first. Read again when they change; they may come later than we do.
    #[arg(long, env = "PACELINE_OPERATOR_CERT", value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Their private key (PEM).
    #[arg(long, env = "PACELINE_OPERATOR_KEY", value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Instead of files: a Secret in which we keep certificates of our own making, renewed before they end.
    #[arg(long, value_name = "SECRET", requires = "service", conflicts_with = "key")]
    pub self_signed: Option<String>,
    /// With --self-signed: the Service by whose name we are called.
    #[arg(long, value_name = "NAME", requires = "self_signed")]
    pub service: Option<String>,
    /// With --self-signed: how long a certificate holds. It is renewed when a third of that is left.
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
    /// What pods get that do not say otherwise.
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
