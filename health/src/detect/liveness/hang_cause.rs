//! Why a rank does not move, from its observed activity. If more than one cause is possible, none is given.

use crate::event::{Activity, Phase, ThreadState, WaitFor, WorkerActivity};
use crate::verdict::Cause;

/// Path parts of code that waits for something not visible here, a collective or a GPU: libraries, and code generated
/// by torch.compile.
const LIBRARIES: [&str; 3] = ["/site-packages/", "/dist-packages/", "torchinductor_"];
/// Path parts of PyTorch's code.
const LOADER: &str = "/torch/utils/data/";
const CHECKPOINTS: [&str; 2] = ["/torch/serialization.py", "/torch/distributed/checkpoint/"];

/// Why a rank does not move, from the activity of its main thread and loader workers, and its phase. `has_gpu`: it may
/// be running because it waits for its GPU.
pub fn cause(main: &Activity, workers: &[WorkerActivity], phase: Phase, has_gpu: bool) -> Cause {
    let workers = || workers.iter().map(|worker| &worker.activity);
    if main.state == ThreadState::Stopped {
        return Cause::Stopped;
    }
    if main.state == ThreadState::Traced {
        return Cause::Unknown;
    }
    if waits_for_storage(main) {
        return Cause::Storage;
    }
    if main.waits_for == WaitFor::GpuDriver && main.state == ThreadState::Disk {
        return Cause::GpuFault;
    }
    if phase == Phase::Data || is_in(main, &[LOADER]) {
        let is_storage = workers().any(waits_for_storage);
        return if is_storage {
            Cause::Storage
        } else {
            Cause::DataLoading
        };
    }
    if phase == Phase::Checkpoint || is_in(main, &CHECKPOINTS) {
        return Cause::Checkpoint;
    }
    let is_library = |file: &str| LIBRARIES.iter().any(|part| file.contains(part));
    if phase == Phase::Wait || main.frames.first().is_none_or(|inner| is_library(&inner.file)) {
        return Cause::Unknown;
    }
    match (main.state, main.waits_for) {
        (ThreadState::Running, _) if !has_gpu => Cause::OwnCode,
        (_, WaitFor::Time) => Cause::OwnCode,
        (_, WaitFor::Lock) => Cause::LockWait,
        (_, WaitFor::Socket) => Cause::RemoteService,
        (_, WaitFor::Child | WaitFor::Pipe) => Cause::OtherProcess,
        _ => Cause::Unknown,
    }
}

/// A network file system may block a process in any sleep state, a local one only in an uninterruptible one.
fn waits_for_storage(activity: &Activity) -> bool {
    let is_local = activity.waits_for == WaitFor::LocalFile && activity.state == ThreadState::Disk;
    is_local || activity.waits_for == WaitFor::NetworkFile
}

fn is_in(activity: &Activity, files: &[&str]) -> bool {
    let is_there = |file: &str| files.iter().any(|part| file.contains(part));
    activity.frames.iter().any(|frame| is_there(&frame.file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::StackFrame;

    fn at(file: &str, state: ThreadState, waits_for: WaitFor) -> Activity {
        let frame = StackFrame {
            function: "f".into(),
            file: file.into(),
            line: 1,
        };
        Activity {
            state,
            frames: vec![frame],
            waits_for,
            ..Activity::default()
        }
    }

    #[test]
    fn by_what_it_waits_for() {
        let (own, torch) = ("/home/u/train.py", "/v/site-packages/torch/nn/modules/linear.py");
        let sleeps = ThreadState::Sleeping;
        for (file, state, waits_for, expected) in [
            (own, ThreadState::Stopped, WaitFor::Unknown, Cause::Stopped),
            (own, ThreadState::Traced, WaitFor::Unknown, Cause::Unknown),
            (own, sleeps, WaitFor::NetworkFile, Cause::Storage),
            (own, ThreadState::Disk, WaitFor::LocalFile, Cause::Storage),
            (own, sleeps, WaitFor::LocalFile, Cause::Unknown),
            (own, ThreadState::Disk, WaitFor::GpuDriver, Cause::GpuFault),
            (own, sleeps, WaitFor::Lock, Cause::LockWait),
            (torch, sleeps, WaitFor::Lock, Cause::Unknown),
            (own, sleeps, WaitFor::Socket, Cause::RemoteService),
            (own, sleeps, WaitFor::Child, Cause::OtherProcess),
            (own, sleeps, WaitFor::Pipe, Cause::OtherProcess),
            (own, sleeps, WaitFor::Time, Cause::OwnCode),
            (own, ThreadState::Running, WaitFor::Unknown, Cause::OwnCode),
            (torch, ThreadState::Running, WaitFor::Unknown, Cause::Unknown),
        ] {
            let main = at(file, state, waits_for);
            assert_eq!(cause(&main, &[], Phase::Compute, false), expected, "{main:?}");
        }
        // `loss.item()` keeps running until the GPU is done.
        let runs = at(own, ThreadState::Running, WaitFor::Unknown);
        assert_eq!(cause(&runs, &[], Phase::Compute, true), Cause::Unknown);
        // In a collective, every rank waits for a lock or a socket.
        let waits = at(own, sleeps, WaitFor::Lock);
        assert_eq!(cause(&waits, &[], Phase::Wait, false), Cause::Unknown);
    }

    #[test]
    fn a_loader_and_its_workers() {
        let loader = "/v/site-packages/torch/utils/data/dataloader.py";
        let main = at(loader, ThreadState::Sleeping, WaitFor::Any);
        assert_eq!(cause(&main, &[], Phase::Compute, false), Cause::DataLoading);
        let worker = WorkerActivity {
            count: 1,
            activity: at("/home/u/data.py", ThreadState::Disk, WaitFor::NetworkFile),
        };
        assert_eq!(cause(&main, &[worker], Phase::Data, false), Cause::Storage);
        let saves = at(
            "/v/site-packages/torch/serialization.py",
            ThreadState::Sleeping,
            WaitFor::Pipe,
        );
        assert_eq!(cause(&saves, &[], Phase::Compute, false), Cause::Checkpoint);
    }
}
