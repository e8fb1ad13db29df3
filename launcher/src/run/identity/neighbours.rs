//! Finds other monitored jobs on this node, because a command whose job is not known may belong to one of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::torchrun;

/// Maximum number of jobs listed.
const MOST: usize = 3;

/// Returns a hint to the user if other jobs of this user are monitored on `node` and the command may be a part of one.
pub(crate) fn note(command: &[OsString], node: &str) -> Option<String> {
    if !may_be_a_part(command) {
        return None;
    }
    let jobs = watched(Path::new("/proc"), node);
    if jobs.is_empty() {
        return None;
    }
    let names: Vec<&str> = jobs.keys().take(MOST).map(String::as_str).collect();
    let more = match jobs.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "watched on this node too: job {}{more}; if this command is part of that job, start all parts with the \
         same --job NAME, and parts on one node with different --node NAMEs",
        names.join(", ")
    ))
}

/// Returns true for launchers whose ranks may belong to a larger job.
fn may_be_a_part(command: &[OsString]) -> bool {
    let is_named = |word: &OsString| {
        let name = Path::new(word).file_name().and_then(|name| name.to_str());
        matches!(name, Some("accelerate" | "deepspeed"))
    };
    torchrun::is_in(command) || command.iter().any(is_named)
}

/// Finds this user's jobs by their sidecars in `proc`. Returns each job with its run directory.
fn watched(proc: &Path, node: &str) -> BTreeMap<String, String> {
    let user = rustix::process::geteuid().as_raw();
    let of = |entry: fs::DirEntry| {
        if entry.metadata().ok()?.uid() != user {
            return None;
        }
        let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let words: Vec<&str> = line.split('\0').collect();
        let value = |flag: &str| words.iter().find_map(|word| word.strip_prefix(flag));
        let is_sidecar = words.get(1) == Some(&"sidecar") && value("--node=") == Some(node);
        is_sidecar.then(|| Some((value("--job=")?.to_owned(), value("--run-dir=")?.to_owned())))?
    };
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecars_of_this_node() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, line) in [
            (
                "1",
                "paceline\0sidecar\0--inherit-ring-dir\0--job=a b\0--node=n1\0--run-dir=/x\0",
            ),
            ("2", "paceline\0sidecar\0--job=c\0--node=n2\0--run-dir=/x\0"),
            ("3", "paceline\0run\0--job=d\0--node=n1\0"),
            ("4", "python\0train.py\0"),
        ] {
            fs::create_dir(proc.path().join(pid)).unwrap();
            fs::write(proc.path().join(pid).join("cmdline"), line).unwrap();
        }
        let found = watched(proc.path(), "n1");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a b"]);
        let part = |command: &str| may_be_a_part(&command.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(
            part("torchrun t.py")
                && part("python -m torch.distributed.run t.py")
                && part("accelerate launch t.py")
        );
        assert!(!part("python t.py"));
    }
}
