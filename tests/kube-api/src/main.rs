//! `kube-api` runs the library's server as a program, for tests in other languages.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use paceline_kube_api::Server;

/// A Kubernetes API server for tests. Writes a kubeconfig of the administrator, then says `ready` on stdout.
#[derive(Parser)]
#[command(name = "kube-api")]
struct Options {
    /// Where it listens, by HTTPS.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Where the kubeconfig goes.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Where all that it holds is kept, and taken from when it starts again.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let server = match &options.keep {
            Some(file) => Server::start_keeping(options.listen, file).await?,
            None => Server::start(options.listen).await?,
        };
        std::fs::write(&options.kubeconfig, server.kubeconfig(&server.token).to_string())
            .with_context(|| options.kubeconfig.display().to_string())?;
        writeln!(std::io::stdout(), "ready https://{}", server.address)?;
        tokio::signal::ctrl_c().await?;
        Ok(())
    })
}
