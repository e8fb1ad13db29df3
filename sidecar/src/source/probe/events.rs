//! Converts records to events. The functions keep no state.

use std::sync::Arc;

use paceline_health::event::{self, Phase, Phases, Signal, StepKind};
use paceline_health::id::{GpuId, Rank};
use paceline_ring::{Framework, PhaseWord, StepWord, Work};

/// Converts an attach record. `pid` is the process ID of its writer, and `role` is the role declared so far.
pub(super) fn attach(attach: &paceline_ring::Attach, pid: u32, role: Arc<str>) -> event::Attach {
    let [major, minor, patch] = attach.version;
    let mut framework = match attach.framework {
        Framework::Torch => format!("torch {major}.{minor}.{patch}"),
        Framework::Demo => "demo".to_owned(),
        Framework::Nccl => "nccl".to_owned(),
        Framework::Other => "other".to_owned(),
    };
    for (name, version) in [("cuda", &attach.cuda[..]), ("nccl", &attach.nccl[..])] {
        if version.iter().any(|part| *part != 0) {
            let parts: Vec<String> = version.iter().map(u8::to_string).collect();
            framework = format!("{framework} {name} {}", parts.join("."));
        }
    }
    event::Attach {
        rank: Rank(attach.rank),
        local_rank: attach.local_rank,
        world_size: attach.world_size,
        restart: attach.restart,
        pid,
        gpu: (attach.gpu_uuid != [0; 16]).then(|| GpuId::from_uuid_bytes(attach.gpu_uuid)),
        role,
        framework: Arc::from(framework),
    }
}

/// Converts a layout. Returns `None` if an index is outside its axis, because a contradictory layout must not be sent.
pub(super) fn layout(rank: Rank, restart: u32, layout: &paceline_ring::Layout) -> Option<event::Layout> {
    let axis = |axis: paceline_ring::Axis| {
        (axis.index < axis.size).then(|| event::Axis {
            index: axis.index.into(),
            size: axis.size.into(),
        })
    };
    Some(event::Layout {
        rank,
        restart,
        dp: axis(layout.dp)?,
        tp: axis(layout.tp)?,
        pp: axis(layout.pp)?,
        ep: axis(layout.ep)?,
        cp: axis(layout.cp)?,
        micro_batches: layout.micro_batches,
    })
}

pub(super) fn group(rank: Rank, restart: u32, group: &paceline_ring::Group) -> event::Group {
    event::Group {
        rank,
        restart,
        comm: group.comm,
        size: group.size,
        name: Arc::from(group.name.as_str()),
    }
}

pub(super) fn comm(rank: Rank, restart: u32, comm: &paceline_ring::Comm) -> event::Comm {
    event::Comm {
        rank,
        restart,
        step: comm.step,
        comm: comm.comm,
        collectives: comm.collectives,
        bytes: comm.bytes,
        dur_ns: comm.duration_ns,
        exposed_ns: None,
        unfit: 0,
        gpu: false,
        functions: Vec::new(),
    }
}

/// Converts a step. `work` is the separate record about this step's work, if there is one.
pub(super) fn step(rank: Rank, restart: u32, step: &paceline_ring::Step, work: Option<&Work>) -> event::Step {
    let work = work.copied().unwrap_or_default();
    let ns = |us: u32| u64::from(us) * 1_000;
    let phases = step.phases_known.then(|| Phases {
        data_ns: ns(step.data_us),
        compute_ns: ns(step.compute_us),
        wait_ns: ns(step.wait_us),
        optimizer_ns: ns(step.optimizer_us),
        checkpoint_ns: ns(step.checkpoint_us),
        gc_ns: ns(work.gc_us),
    });
    event::Step {
        rank,
        restart,
        step: step.step,
        kind: match step.kind {
            StepWord::Train => StepKind::Train,
            StepWord::Checkpoint => StepKind::Checkpoint,
            StepWord::Evaluation => StepKind::Evaluation,
            StepWord::WarmUp => StepKind::WarmUp,
        },
        dur_ns: step.duration_ns,
        phases,
        micro_batches: step.micro_batches,
        tokens: step.tokens,
        signal: if phases.is_some() { Signal::S2 } else { Signal::S0 },
        sum_sq: work.sum_sq,
        expert_tokens: work.expert_tokens,
    }
}

pub(super) fn phase(word: PhaseWord) -> Phase {
    match word {
        PhaseWord::Other => Phase::Other,
        PhaseWord::Data => Phase::Data,
        PhaseWord::Compute => Phase::Compute,
        PhaseWord::Wait => Phase::Wait,
        PhaseWord::Optimizer => Phase::Optimizer,
        PhaseWord::Checkpoint => Phase::Checkpoint,
        PhaseWord::Evaluation => Phase::Evaluation,
    }
}
