//! What a policy value may be. Beyond its bound a rule would wait for more than it keeps and never say anything.

/// Bounds of every value: what lies beyond is a slip of the hand, and would be no time that can be counted with.
pub const SMALLEST: f64 = 1e-12;
pub const LARGEST: f64 = 1e9;

/// Steps of the whole job, and of each rank, that the detector keeps.
pub const JOB_STEPS: usize = 128;
/// Latest transfers of each communicator.
pub const TRANSFERS: usize = 32;
/// Steps that stood out.
pub const OCCASIONS: usize = 8;
/// Steps over which shares of the time are taken; seven windows are kept of them.
const SHARE_STEPS: f64 = 4096.0;
/// Checkpoints that are kept of each rank.
const CHECKPOINTS: f64 = 64.0;

/// The most that a value may be.
pub const AT_MOST: [(&str, f64); 10] = [
    // Steps that are slow on purpose are kept beside the others: of those at least half.
    ("shift.held_steps", (JOB_STEPS / 2) as f64),
    ("shift.reference_steps", (JOB_STEPS / 2) as f64),
    ("shift.transfer_held_steps", JOB_STEPS as f64),
    ("straggler.noise_window_steps", JOB_STEPS as f64),
    ("link.min_steps", TRANSFERS as f64),
    ("link.window_steps", TRANSFERS as f64),
    ("kinds.recurrences", (OCCASIONS - 1) as f64),
    ("shares.window_steps", SHARE_STEPS),
    ("occasions.checkpoints", CHECKPOINTS),
    // A share of the step: nothing loses more than all of it.
    ("impact.critical_ratio", 1.0),
];

/// The first of each pair must not pass the second.
pub const ORDERED: [(&str, &str); 8] = [
    ("arrivals.warning_s", "arrivals.critical_s"),
    ("impact.warning_ratio", "impact.critical_ratio"),
    ("silence.suspect_p99", "silence.confirmed_p99"),
    ("silence.suspect_min_s", "silence.confirmed_min_s"),
    ("occasions.warm_up_s", "occasions.warm_up_long_s"),
    ("shares.data_warning_ratio", "shares.data_critical_ratio"),
    ("shares.transfer_warning_ratio", "shares.transfer_critical_ratio"),
    ("link.min_steps", "link.window_steps"),
];
