//! Collectives that ranks have called and not launched, by their stacks. NCCL connects ranks in the call that uses an
//! algorithm first, and creates communicators there: a rank that waits for its peers in that has enqueued nothing yet.
//! Seen on an H100 with NCCL 2.28 (docs/measurements/hangs.md).

use crate::event::{Activity, LastCollective};

/// The module of PyTorch that calls them.
const MODULE: &str = "/torch/distributed/distributed_c10d.py";
/// What the names of its functions begin with, by NCCL's function; longer ones first.
const FUNCTIONS: [(&str, &str); 9] = [
    ("all_gather", "all_gather"),
    ("_all_gather", "all_gather"),
    ("reduce_scatter", "reduce_scatter"),
    ("_reduce_scatter", "reduce_scatter"),
    ("all_reduce", "all_reduce"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("all_to_all", "all_to_all"),
    ("barrier", BARRIER),
];
/// An all-reduce of one element.
const BARRIER: &str = "barrier";
const BARRIER_BYTES: u64 = 8;

/// The collective in whose call a thread is: `all_reduce`.
pub fn call(activity: &Activity) -> Option<&'static str> {
    let frame = activity
        .frames
        .iter()
        .find(|frame| frame.file.ends_with(MODULE))?;
    let function = FUNCTIONS
        .iter()
        .find(|(prefix, _)| frame.function.starts_with(prefix));
    function.map(|(_, name)| *name)
}

/// Whether a call launches another collective than this one.
pub fn is_another(call: &str, launched: &LastCollective) -> bool {
    if call == BARRIER {
        launched.name() != "all_reduce" || launched.bytes > BARRIER_BYTES
    } else {
        launched.name() != call
    }
}

/// Whether a rank inside this call has launched nothing there: a barrier's rank waits in the call after that, too.
pub fn is_before_launch(call: &str) -> bool {
    call != BARRIER
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::StackFrame;

    #[test]
    fn calls_and_what_they_launch() {
        let frame = |function: &str, file: &str| StackFrame {
            function: function.into(),
            file: file.into(),
            line: 1,
        };
        let inside = |function: &str| Activity {
            frames: vec![
                frame(function, "/v/site-packages/torch/distributed/distributed_c10d.py"),
                frame("step", "/home/u/train.py"),
            ],
            ..Activity::default()
        };
        for (function, expected) in [
            ("all_reduce", Some("all_reduce")),
            ("all_gather_into_tensor", Some("all_gather")),
            ("_reduce_scatter_base", Some("reduce_scatter")),
            ("barrier", Some("barrier")),
            ("new_group", None),
        ] {
            assert_eq!(call(&inside(function)), expected, "{function}");
        }
        let own = Activity {
            frames: vec![frame("all_reduce", "/home/u/train.py")],
            ..Activity::default()
        };
        assert_eq!(call(&own), None);
        let launched = |function: u8, bytes: u64| LastCollective::from((function, 150, bytes));
        assert!(is_another("all_reduce", &launched(3, 16)));
        assert!(!is_another("all_reduce", &launched(1, 16640)));
        assert!(is_another("barrier", &launched(1, 16640)));
        assert!(!is_another("barrier", &launched(1, 4)));
    }
}
