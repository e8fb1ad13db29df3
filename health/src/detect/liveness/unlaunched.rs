//! Collectives that ranks have called but not launched, according to their stacks. In the call that first uses an
//! algorithm, NCCL connects the ranks, and it may create the communicator there too. A rank that waits for its peers in
//! that call has enqueued nothing yet. This was seen on an H100 with NCCL 2.28 (docs/measurements/hangs.md).

use crate::event::{Activity, LastCollective};

/// The PyTorch module that calls collectives.
const MODULE: &str = "/torch/distributed/distributed_c10d.py";
/// Prefixes of function names in that module, each with the call and the NCCL functions that it may launch.
const CALLS: [(&str, &str, &[&str]); 8] = [
    ("all_gather", "all_gather", &["all_gather", "broadcast"]),
    ("_all_gather", "all_gather", &["all_gather", "broadcast"]),
    ("reduce_scatter", "reduce_scatter", &["reduce_scatter", "reduce"]),
    ("_reduce_scatter", "reduce_scatter", &["reduce_scatter", "reduce"]),
    ("all_reduce", "all_reduce", &["all_reduce"]),
    ("broadcast", "broadcast", &["broadcast"]),
    ("reduce", "reduce", &["reduce"]),
    ("barrier", BARRIER, &["all_reduce"]),
];
/// The call that launches an all-reduce of one element.
const BARRIER: &str = "barrier";
const BARRIER_BYTES: u64 = 8;
/// Parts of the names of functions that launch several collectives.
const SEVERAL: [&str; 2] = ["_object", "_coalesced"];

/// Returns the collective whose call a thread is in, such as `all_reduce`.
pub fn call(activity: &Activity) -> Option<&'static str> {
    let mut frames = activity
        .frames
        .iter()
        .filter(|frame| frame.file.ends_with(MODULE));
    let function = &frames.next()?.function;
    let is_several = |function: &str| SEVERAL.iter().any(|part| function.contains(part));
    if is_several(function) || frames.any(|frame| is_several(&frame.function)) {
        return None;
    }
    let named = CALLS.iter().find(|(prefix, ..)| function.starts_with(prefix));
    named.map(|(_, call, _)| *call)
}

/// Returns true if the call launches a collective other than `launched`.
pub fn is_another(call: &str, launched: &LastCollective) -> bool {
    let Some(launched_name) = launched.known_name() else {
        return false;
    };
    let may_launch =
        |(_, name, functions): &(&str, &str, &[&str])| *name == call && functions.contains(&launched_name);
    !CALLS.iter().any(may_launch) || (call == BARRIER && launched.bytes > BARRIER_BYTES)
}

/// Returns true if a rank inside this call has launched nothing there. A barrier returns false, because a rank also
/// waits in that call after the launch.
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
            ("all_gather_object", None),
            ("all_to_all_single", None),
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
        assert!(!is_another("all_gather", &launched(4, 16)));
        assert!(is_another("barrier", &launched(1, 16640)));
        assert!(!is_another("barrier", &launched(1, 4)));
    }
}
