//! `paceline install`: copies files in a pod's init container. The image contains only this program, not even `cp`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use crate::run::{hook, plugin};

/// File name of the installed program.
const PROGRAM: &str = "paceline";

/// `paceline install`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct InstallArgs {
    /// Write the files of the Python hook there.
    #[arg(long, value_name = "DIR")]
    hook: Option<PathBuf>,
    /// Copy this program, and the NCCL plugin next to it, to this directory.
    #[arg(long, value_name = "DIR")]
    program: Option<PathBuf>,
}

/// Installs the files. Running it twice has the same result, because a container may be started twice.
pub(crate) fn command(args: &InstallArgs) -> anyhow::Result<ExitCode> {
    if let Some(dir) = &args.hook {
        hook::write(dir).with_context(|| dir.display().to_string())?;
        open_to_all(dir)?;
    }
    if let Some(dir) = &args.program {
        let own = std::env::current_exe().context("this program's own file")?;
        copy(&own, &dir.join(PROGRAM), 0o755)?;
        if let Some(library) = own.parent().and_then(plugin::beside) {
            copy(&library, &dir.join(plugin::LIBRARY), 0o644)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies a file atomically, by renaming, because a running program cannot be overwritten.
fn copy(from: &Path, to: &Path, mode: u32) -> anyhow::Result<()> {
    let draft = to.with_extension("new");
    let copied = fs::copy(from, &draft)
        .and_then(|_| fs::set_permissions(&draft, Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&draft, to));
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Makes the files readable for everyone, whatever our umask is, because the trainer runs as another user. The
/// directory itself may belong to the kubelet.
fn open_to_all(dir: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let (path, is_dir) = {
            let entry = entry?;
            (entry.path(), entry.file_type()?.is_dir())
        };
        let mode = if is_dir { 0o755 } else { 0o644 };
        fs::set_permissions(&path, Permissions::from_mode(mode))
            .with_context(|| path.display().to_string())?;
        if is_dir {
            open_to_all(&path)?;
        }
    }
    Ok(())
}
