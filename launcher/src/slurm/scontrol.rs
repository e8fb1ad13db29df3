//! Sends requests to Slurm's controller.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::bounded;

/// Time limit of a request. A busy controller answers late, and without an answer nothing is done.
const LIMIT: Duration = Duration::from_secs(5);
/// Time limit of each of the two requests at the end of a job.
const QUICK: Duration = Duration::from_secs(1);
/// The search path to use if there is none, because slurmd runs its programs without PATH.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin";
/// Prefix of the reason of nodes that we drain, by which the health check recognizes them.
pub(super) const MARK: &str = "paceline";

/// Runs one of Slurm's commands and returns its output.
pub(super) fn ask(program: &str, words: &[&str]) -> anyhow::Result<String> {
    ask_within(LIMIT, program, words)
}

/// Runs scontrol with a short time limit, because a job waits for our end.
pub(super) fn quickly(words: &[&str]) -> anyhow::Result<String> {
    ask_within(QUICK, "scontrol", words)
}

fn ask_within(limit: Duration, program: &str, words: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    // Use the standard time format, because times are compared as text.
    command.args(words).env("SLURM_TIME_FORMAT", "standard");
    if std::env::var_os("PATH").is_none() {
        command.env("PATH", PATH);
    }
    let ran = bounded::run(&mut command, limit)?;
    if ran.code != Some(0) {
        bail!("{program} {}: {}", words.join(" "), ran.stderr.trim());
    }
    Ok(ran.stdout)
}

/// Returns the value of `NAME=` in scontrol's output. A reason extends to the end of its line.
pub(super) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let rest = line.trim_start();
        if name == "Reason" {
            return rest.strip_prefix("Reason=");
        }
        let mut words = rest.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    })
}

/// Converts a text to one line of plain characters, which is valid in a reason or a comment.
pub(super) fn plain(text: &str, most: usize) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown = words.chars().map(|c| match c {
        '"' | '\'' | '\\' | '`' => ' ',
        c if c.is_ascii_graphic() || c == ' ' => c,
        _ => '?',
    });
    shown.take(most).collect()
}

/// Drains a node, so that no new job starts there.
pub(super) fn drain(node: &str, reason: &str) -> anyhow::Result<()> {
    let (node, reason) = (
        format!("nodename={node}"),
        format!("reason={}", plain(reason, 400)),
    );
    ask("scontrol", &["update", &node, "state=drain", &reason]).map(drop)
}

/// Resumes a node.
pub(super) fn resume(node: &str) -> anyhow::Result<()> {
    ask(
        "scontrol",
        &["update", &format!("nodename={node}"), "state=resume"],
    )
    .map(drop)
}

/// Returns a node's state, and its reason if there is one.
pub(super) fn node_state(node: &str) -> anyhow::Result<(String, String)> {
    let shown = ask("scontrol", &["show", "node", node])?;
    let state = field(&shown, "State").with_context(|| format!("{node}: no state"))?;
    let reason = field(&shown, "Reason").unwrap_or_default();
    Ok((state.to_owned(), reason.to_owned()))
}

/// A node that we have drained. Such nodes are sorted by the time of the drain (by the controller's clock), then by
/// name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Drained {
    since: String,
    pub(super) node: String,
}

/// Returns the nodes that we have drained, sorted.
pub(super) fn drained_by_us() -> anyhow::Result<Vec<Drained>> {
    let shown = ask("sinfo", &["-h", "-N", "-o", "%N|%H|%E"])?;
    Ok(drained(&shown))
}

fn drained(shown: &str) -> Vec<Drained> {
    let ours = shown.lines().filter_map(|line| {
        let mut parts = line.splitn(3, '|');
        let (node, since, reason) = (parts.next()?, parts.next()?, parts.next()?);
        reason.starts_with(MARK).then(|| Drained {
            since: since.to_owned(),
            node: node.to_owned(),
        })
    });
    let mut nodes: Vec<Drained> = ours.collect();
    // Remove duplicates, because sinfo lists a node once for each of its partitions.
    nodes.sort();
    nodes.dedup();
    nodes
}

/// Returns the numbers of the current jobs on a node.
pub(super) fn jobs_on(node: &str) -> anyhow::Result<Vec<String>> {
    let shown = ask("squeue", &["-h", "-t", "R,CF,S", "-w", node, "-o", "%A"])?;
    Ok(shown.lines().map(|line| line.trim().to_owned()).collect())
}

/// Returns true if the text names a single node, and not several or all. This must be checked before it is used in
/// `nodename=`.
pub(super) fn is_node_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 253 && name.chars().all(is_plain) && !name.eq_ignore_ascii_case("ALL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_reasons() {
        let shown = "NodeName=n1 Arch=x86_64\n   State=IDLE+DRAIN ThreadsPerCore=1\n   Reason=paceline[read]: GPU 0: rows [root@2026]\n";
        assert_eq!(field(shown, "State"), Some("IDLE+DRAIN"));
        assert_eq!(
            field(shown, "Reason"),
            Some("paceline[read]: GPU 0: rows [root@2026]")
        );
        assert_eq!(field(shown, "Stat"), None);
    }

    #[test]
    fn drained_first_or_later() {
        let shown = "n2|2026-11-22T10:00:01|paceline[read]: x\nn1|2026-11-22T10:00:02|paceline[read]: x\n\
            n1|2026-11-22T10:00:02|paceline[read]: x\nn3|2026-11-22T10:00:01|bad | disk\nn4|Unknown|none\n\
            n10|2026-11-22T10:00:01|paceline[read]: a|b\n";
        let nodes: Vec<String> = drained(shown).into_iter().map(|drained| drained.node).collect();
        assert_eq!(nodes, ["n10", "n2", "n1"]);
    }

    #[test]
    fn one_node_by_its_name() {
        for (name, wanted) in [
            ("n1", true),
            ("gpu-07.cluster_a", true),
            ("n[1-9]", false),
            ("n1,n2", false),
            ("ALL", false),
            ("all", false),
            ("n1 state=down", false),
            ("", false),
        ] {
            assert_eq!(is_node_name(name), wanted, "{name}");
        }
    }

    #[test]
    fn what_a_user_wrote_cannot_add_words() {
        assert_eq!(
            plain("a\nstate=down \"x\" `y` \u{1b}é", 100),
            "a state=down  x   y  ??"
        );
        assert_eq!(plain("abcdef", 3), "abc");
    }
}
