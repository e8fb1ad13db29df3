//! Warns at the start, where a user sees it, about requested features that cannot work at present. They are no reason
//! to run a job unmonitored, because they may be available when they are needed.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use paceline_sidecar::sink::notify::{Kind, Receiver};
use rustix::fs::{Access, access};

use super::Plan;
use crate::config::variables;
use crate::output;

/// Prints the warnings to stderr.
pub(super) fn tell(plan: &Plan) {
    // Print only in one of several instances started together.
    if !plan.follows {
        let unknown = variables::unknown(std::env::vars_os().map(|(name, _)| name));
        let mistaken = variables::mistaken(|name| std::env::var(name).ok());
        let all = unknown.into_iter().chain(mistaken);
        for problem in all.chain(plan.settings.page.warning()) {
            output::warning(plan.style, problem);
        }
    }
    for problem in plan.remedy.unreadable() {
        output::warning(plan.style, format_args!("--notify: {problem}; retrying"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    for words in &plan.remedy.notify {
        if let Ok(Receiver {
            kind: Kind::Exec(program),
            ..
        }) = Receiver::of(words)
            && let Err(problem) = found(&program, &path)
        {
            output::warning(
                plan.style,
                format_args!(
                    "--notify exec={program}: {problem}; it gets no notices until it can be started"
                ),
            );
        }
    }
    if let Some(file) = &plan.settings.metrics_textfile
        && let Err(problem) = takes_files(file)
    {
        output::warning(
            plan.style,
            format_args!(
                "--metrics-textfile {}: {problem}; no metrics are written there",
                file.display()
            ),
        );
    }
}

/// Checks that a program can be started, using the system's search path.
fn found(program: &str, path: &OsStr) -> io::Result<()> {
    let runs = |file: &Path| {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("is not a regular file"));
        }
        Ok(access(file, Access::EXEC_OK)?)
    };
    if program.contains('/') {
        return runs(Path::new(program));
    }
    let is_there = std::env::split_paths(path).any(|dir| runs(&dir.join(program)).is_ok());
    is_there
        .then_some(())
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Checks that a file can be created at this path.
fn takes_files(file: &Path) -> io::Result<()> {
    let dir = match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    };
    if !dir.metadata()?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(&dir, Access::WRITE_OK | Access::EXEC_OK)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn programs_as_the_system_finds_them() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text");
        fs::write(&text, "").unwrap();
        let path = OsStr::new("/usr/bin:/bin");
        let is_found = |program: &str| found(program, path).is_ok();
        assert!(is_found("sh") && is_found("/bin/sh"));
        assert!(!is_found("no-such-program") && !is_found("/bin/no-such-program"));
        assert!(!is_found("/bin"), "a directory");
        assert!(!is_found(text.to_str().unwrap()), "not to be executed");
    }

    #[test]
    fn a_file_wants_a_directory() {
        let folder = tempfile::tempdir().unwrap();
        assert!(takes_files(&folder.path().join("a.prom")).is_ok());
        assert!(takes_files(Path::new("a.prom")).is_ok());
        let none = takes_files(&folder.path().join("none/a.prom")).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(takes_files(&folder.path().join("file/a.prom")).is_err());
    }
}
