//! Formats the end of a job as text.

use paceline_health::report::{Ending, Reason, headline};
use paceline_health::verdict::Subject;

/// Returns one sentence, with the error message if there is one.
pub(super) fn words(ending: &Ending) -> String {
    let what = match ending.reason {
        Reason::Success => return in_order(ending),
        Reason::Error => "by an error",
        Reason::OutOfMemory => "out of memory",
        Reason::CollectiveTimeout => "a collective timed out",
        Reason::Stopped => "asked to end",
        Reason::Killed => "killed",
        Reason::Crashed => "crashed",
        Reason::NodeLost => "a node was lost",
        Reason::TimeLimit => "at its time limit",
        Reason::Cancelled => "cancelled",
        Reason::Preempted => "preempted",
        Reason::Requeued => "requeued",
    };
    let place = match (&ending.node, ending.rank) {
        (Some(node), Some(rank)) => format!(", rank {rank} on {node}"),
        (Some(node), None) => format!(", {node}"),
        (None, _) => String::new(),
    };
    let code = ending
        .code
        .map_or(String::new(), |code| format!(" (code {code})"));
    let missing = match &ending.missing {
        Some(Subject::Rank { rank, node, .. }) if ending.reason == Reason::CollectiveTimeout => {
            format!(" waiting for rank {} on {node}", rank.0)
        }
        Some(Subject::Rank { rank, node, .. }) => {
            format!(" while all ranks waited for rank {} on {node}", rank.0)
        }
        _ => String::new(),
    };
    let says = headline(&ending.says);
    let says = if says.is_empty() {
        String::new()
    } else {
        format!(": {says}")
    };
    format!("{what}{missing}{place}{code}{says}")
}

fn in_order(ending: &Ending) -> String {
    let Some(heard) = ending.hidden() else {
        return "in order".to_owned();
    };
    let who = heard.rank.map_or_else(
        || heard.node.to_string(),
        |rank| format!("rank {rank} on {}", heard.node),
    );
    format!("with code 0, although {who} failed: {}", heard.says)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_health::event::TroubleKind;
    use paceline_health::id::Rank;
    use paceline_health::report::Heard;

    /// Exit code 0 of the launcher does not hide a rank's failure.
    #[test]
    fn a_failure_behind_exit_code_0() {
        let mut ending = Ending::success();
        assert_eq!(words(&ending), "in order");
        ending.heard = vec![Heard {
            node: "n1".into(),
            rank: Some(Rank(2)),
            kind: TroubleKind::Error,
            says: "ValueError: labels".into(),
        }];
        assert_eq!(
            words(&ending),
            "with code 0, although rank 2 on n1 failed: ValueError: labels"
        );
        (ending.heard[0].rank, ending.heard[0].kind) = (None, TroubleKind::OomKill);
        ending.heard[0].says = "Killed process 12 (python)".into();
        assert_eq!(
            words(&ending),
            "with code 0, although n1 failed: Killed process 12 (python)"
        );
    }

    #[test]
    fn an_exception_and_where_it_was() {
        let ending = Ending {
            reason: Reason::OutOfMemory,
            node: Some("n3".into()),
            rank: Some(Rank(5)),
            code: Some(1),
            kind: None,
            says: "  File \"t.py\", line 3\nCUDA out of memory".into(),
            ..Ending::success()
        };
        assert_eq!(
            words(&ending),
            "out of memory, rank 5 on n3 (code 1): CUDA out of memory"
        );
    }

    #[test]
    fn what_an_exception_says_first_is_what_it_is() {
        let says = "  File \"t.py\", line 3, in <module>\n    x.cpu()\n    ^^^^^^^\ntorch.AcceleratorError: CUDA error: an illegal \
                    memory access was encountered\nCompile with TORCH_USE_CUDA_DSA to enable device-side assertions.";
        assert_eq!(
            headline(says),
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
        );
        assert_eq!(
            headline("Killed process 12 (python)"),
            "Killed process 12 (python)"
        );
        assert_eq!(headline(""), "");
    }
}
