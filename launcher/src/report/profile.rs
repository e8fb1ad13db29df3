//! Determines if a profiler would show more than Paceline does, on which rank to run it, and with which command.

use paceline_health::id::Rank;
use paceline_health::report::{Part, Report};
use paceline_health::verdict::{Cause, Finding, State, Subject, Verdict};

use super::advice::Advice;
use super::by_weight;

/// The profiler to run, if any.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Profiling {
    /// Whether to profile, on which ranks, and why.
    pub(crate) says: String,
    /// The tools with their commands, the most useful first.
    pub(crate) commands: Vec<(&'static str, String)>,
}

/// What a profile should show.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    /// The operators and kernels of a rank, compared with a peer's.
    Operators,
    /// The process and its system: cores, system calls, and gaps between kernels.
    System,
    /// The choices and problems of NCCL.
    Nccl,
}

/// Chooses a profiler based on the most important active finding or, if there is none, on what limits the job.
pub(crate) fn of(report: &Report, advice: Option<&Advice>) -> Profiling {
    let holds = |verdict: &&Verdict| verdict.state == State::Raised && looks(verdict).is_some();
    let found = by_weight(report).into_iter().find(holds);
    if let Some((verdict, looks)) = found.and_then(|verdict| Some((verdict, looks(verdict)?))) {
        return of_verdict(report, verdict, looks);
    }
    let peer = usual(report, None);
    let (looks, why): (&[Look], _) = match advice.map(|advice| advice.bound) {
        Some("communication bound") => (&[Look::Nccl, Look::System], "NCCL's log explains the transfers"),
        Some("data-loading bound") => (&[Look::System], "the waits of its loader explain the data phase"),
        Some("memory bound" | "bound by small kernels" | "bound by compute without tensor cores") => {
            (&[Look::Operators, Look::System], "its kernels limit it")
        }
        Some("not known") => (&[Look::Operators], "the limit of the GPUs was not measured"),
        _ => (&[], ""),
    };
    match peer {
        Some(rank) if !looks.is_empty() => Profiling {
            says: format!(
                "Rank {} is as fast as most: profile it for a few steps, {why}.",
                rank.0
            ),
            commands: commands(report, looks, &[rank]),
        },
        _ => Profiling {
            says: "No profiler is needed for anything that was found.".to_owned(),
            commands: Vec::new(),
        },
    }
}

fn of_verdict(report: &Report, verdict: &Verdict, looks: &[Look]) -> Profiling {
    let own = match &verdict.subject {
        Subject::Rank { rank, .. } => Some(*rank),
        _ => None,
    };
    let peer = usual(report, own);
    let ranks: Vec<Rank> = own.into_iter().chain(peer).collect();
    if looks.is_empty() {
        return Profiling {
            says: format!(
                "Not for the {} of {}: a counter explains it; a profiler would only show that it is slow.",
                verdict.finding,
                verdict.subject_text()
            ),
            commands: Vec::new(),
        };
    }
    let beside = match (own, peer) {
        (Some(own), Some(peer)) => format!(
            "rank {} and, for comparison, rank {}, which is as fast as most",
            own.0, peer.0
        ),
        (Some(rank), None) | (None, Some(rank)) => format!("rank {}", rank.0),
        (None, None) => "one rank".to_owned(),
    };
    Profiling {
        says: format!(
            "For the {} of {}: {beside}, for a few steps while it lasts.",
            verdict.finding,
            verdict.subject_text()
        ),
        commands: commands(report, looks, &ranks),
    }
}

/// Returns the profiles that would explain a finding. Returns `None` if a profiler of the trainer cannot explain it,
/// and an empty list if it is explained already.
fn looks(verdict: &Verdict) -> Option<&'static [Look]> {
    use Finding as F;
    let is_hang = matches!(verdict.finding, F::RankSilent | F::JobHang);
    if is_hang && verdict.cause != Cause::Unknown {
        // No profile is needed, because the rank's activity is known and it makes no steps.
        return Some(&[]);
    }
    match verdict.cause {
        Cause::Thermal | Cause::Power | Cause::ClockStuck | Cause::Ecc | Cause::Pcie | Cause::Nvlink => {
            return Some(&[]);
        }
        Cause::Network => return Some(&[Look::Nccl]),
        Cause::DataLoading | Cause::CpuContention => return Some(&[Look::System, Look::Operators]),
        Cause::GcPause | Cause::Imbalance => return Some(&[Look::Operators]),
        // No profile is needed, because the rank's activity is known.
        Cause::Checkpoint | Cause::Evaluation => return Some(&[]),
        _ => {}
    }
    match verdict.finding {
        F::Straggler | F::AllRanksSlow | F::StepRegression | F::SlowFromBirth | F::StragglerNode => {
            Some(&[Look::Operators, Look::System])
        }
        F::SlowLink | F::CommunicationBound | F::JobHang | F::RankSilent => Some(&[Look::Nccl]),
        F::StageImbalance | F::SequenceImbalance | F::ExpertImbalance | F::GcPause => {
            Some(&[Look::Operators])
        }
        F::DataLoading
        | F::CpuContention
        | F::SlowCheckpoint
        | F::SlowWarmUp
        | F::SingleRankPause
        | F::GpuIdle => Some(&[Look::System, Look::Operators]),
        _ => None,
    }
}

/// Returns a typical rank, which is the one with the median self-time (or step time, if self-times are not known).
fn usual(report: &Report, not: Option<Rank>) -> Option<Rank> {
    let of = |part: Part| {
        let ranks = report.times.ranks.iter().filter(|rank| Some(rank.rank) != not);
        let mut ranks: Vec<(f64, Rank)> = ranks
            .filter_map(|rank| Some((rank.parts.get(&part)?.p50_s, rank.rank)))
            .collect();
        ranks.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        ranks
            .get(ranks.len().saturating_sub(1) / 2)
            .map(|(_, rank)| *rank)
    };
    of(Part::Own).or_else(|| of(Part::Step))
}

fn commands(report: &Report, looks: &[Look], ranks: &[Rank]) -> Vec<(&'static str, String)> {
    let numbers: Vec<String> = ranks.iter().map(|rank| rank.0.to_string()).collect();
    // Use the same number of workers on each node if possible. Otherwise torchrun counts the GPUs.
    let workers = match report.exits.len() as u32 {
        nodes @ 1.. if report.world_size.is_multiple_of(nodes) => (report.world_size / nodes).to_string(),
        _ => "gpu".to_owned(),
    };
    let command = |look: &Look| match look {
        Look::Operators => (
            "PyTorch's profiler, in the script before the loop",
            format!(
                "if int(os.environ[\"RANK\"]) in ({},):\n    \
                 prof = torch.profiler.profile(\n        \
                 schedule=torch.profiler.schedule(wait=1, warmup=2, active=5, repeat=1),\n        \
                 on_trace_ready=torch.profiler.tensorboard_trace_handler(\"trace\"), with_stack=True)\n    \
                 prof.start()    # and prof.step() behind each optimizer.step()",
                numbers.join(", ")
            ),
        ),
        Look::System => (
            "Nsight Systems, around the ranks in question",
            format!(
                "paceline run -- torchrun --nproc-per-node={workers} --no-python sh -c 'case $RANK in {}) exec nsys profile \
                 -t cuda,nvtx,osrt -y 60 -d 20 -o rank$RANK python train.py;; *) exec python train.py;; esac'",
                numbers.join("|")
            ),
        ),
        Look::Nccl => (
            "NCCL's debug log, one file per process",
            format!(
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH NCCL_DEBUG_FILE=nccl.%h.%p.log paceline run -- torchrun \
                 --nproc-per-node={workers} train.py"
            ),
        ),
    };
    looks
        .iter()
        .filter(|look| **look == Look::Nccl || !ranks.is_empty())
        .map(command)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples::{rank, report, verdict};

    fn profiling(verdicts: Vec<Verdict>) -> Profiling {
        let mut report = report(verdicts);
        report.times.ranks = (0..5)
            .map(|number| crate::report::samples::times(number, 0.1 + f64::from(number) / 100.0))
            .collect();
        of(&report, None)
    }

    #[test]
    fn a_slow_rank_without_a_cause_is_profiled_beside_a_usual_one() {
        let found = profiling(vec![verdict(1, Finding::Straggler, rank(4), Cause::Unknown)]);
        assert!(
            found.says.contains("rank 4 and, for comparison, rank 1"),
            "{}",
            found.says
        );
        assert!(
            found.commands[0].1.contains("in (4, 1,)"),
            "{}",
            found.commands[0].1
        );
        assert!(
            found.commands[1].1.contains("case $RANK in 4|1)"),
            "{}",
            found.commands[1].1
        );
    }

    #[test]
    fn what_a_counter_explains_needs_no_profiler() {
        let found = profiling(vec![verdict(1, Finding::Straggler, rank(4), Cause::Thermal)]);
        assert!(found.says.starts_with("Not for the straggler"), "{}", found.says);
        assert_eq!(found.commands, []);
    }

    #[test]
    fn slow_links_ask_nccl_and_faults_of_gpus_nobody() {
        let link = Subject::Link {
            node: "n1".into(),
            peer: None,
        };
        let fault = verdict(
            1,
            Finding::GpuFault,
            Subject::Node { node: "n1".into() },
            Cause::Unknown,
        );
        let found = profiling(vec![
            fault.clone(),
            verdict(2, Finding::SlowLink, link, Cause::Unknown),
        ]);
        assert!(
            found.commands.len() == 1 && found.commands[0].1.starts_with("NCCL_DEBUG=INFO"),
            "{found:?}"
        );
        assert_eq!(profiling(vec![fault]).commands, []);
    }

    #[test]
    fn without_a_finding_it_is_what_binds_that_is_looked_at() {
        let advice = |bound| Advice {
            bound,
            action: "",
            questions: Vec::new(),
        };
        let mut report = report(Vec::new());
        report.times.ranks = vec![crate::report::samples::times(7, 0.1)];
        let found = of(&report, Some(&advice("bound by small kernels")));
        assert!(
            found.says.starts_with("Rank 7 is as fast as most"),
            "{}",
            found.says
        );
        assert_eq!(of(&report, Some(&advice("compute bound"))).commands, []);
    }
}
