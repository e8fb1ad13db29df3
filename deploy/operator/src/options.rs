//! The command line, which the chart fills in.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use paceline_inject::{Mode, Settings};

/// Puts Paceline into pods as they are made: the webhook of a Kubernetes cluster.
#[derive(Clone, Debug, Parser)]
#[command(name = "paceline-operator", version)]
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
    /// Certificates (PEM), the webhook's own first. Read again when they change; they may come later than we do.
    #[arg(long, env = "PACELINE_OPERATOR_CERT", value_name = "FILE")]
    pub cert: PathBuf,
    /// Their private key (PEM).
    #[arg(long, env = "PACELINE_OPERATOR_KEY", value_name = "FILE")]
    pub key: PathBuf,
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
    #[arg(long, default_value = "200m", value_name = "QUANTITY")]
    pub cpu: String,
    /// Memory of a container of ours, request and limit.
    #[arg(long, default_value = "256Mi", value_name = "QUANTITY")]
    pub memory: String,
    /// Namespaces whose pods are never touched, besides Kubernetes' own. May be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub exclude: Vec<String>,
    /// At the end, questions are answered for so long after /readyz has said no: others still send them.
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=300))]
    pub drain: u64,
}

fn mode(word: &str) -> Result<Mode, String> {
    Mode::parse(word).ok_or_else(|| "sidecar or wrap".to_owned())
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
        }
    }
}
