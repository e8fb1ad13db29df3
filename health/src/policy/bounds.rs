//! Bounds of policy values. If a value were beyond its bound, its rule would need more data than is kept and would
//! never fire.

/// Bounds of all values. Values outside are assumed to be typos. They could also make computed times overflow.
pub const SMALLEST: f64 = 1e-12;
pub const LARGEST: f64 = 1e9;

/// Number of steps that the detector keeps for the whole job and for each rank.
pub const JOB_STEPS: usize = 128;
/// Number of transfers kept per communicator.
pub const TRANSFERS: usize = 32;
/// Number of conspicuous steps that are kept.
pub const OCCASIONS: usize = 8;
/// Number of steps over which time shares are computed. Seven such windows are kept.
const SHARE_STEPS: f64 = 4096.0;
/// Number of checkpoints kept per rank.
const CHECKPOINTS: f64 = 64.0;

/// The upper bound of each value.
pub const AT_MOST: [(&str, f64); 10] = [
    // Deliberately slow steps are kept along with the others, but at least half of the kept steps are ordinary.
    ("shift.held_steps", (JOB_STEPS / 2) as f64),
    ("shift.reference_steps", (JOB_STEPS / 2) as f64),
    ("shift.transfer_held_steps", JOB_STEPS as f64),
    ("straggler.noise_window_steps", JOB_STEPS as f64),
    ("link.min_steps", TRANSFERS as f64),
    ("link.window_steps", TRANSFERS as f64),
    ("kinds.recurrences", (OCCASIONS - 1) as f64),
    ("shares.window_steps", SHARE_STEPS),
    ("occasions.checkpoints", CHECKPOINTS),
    // This is a share of step time, so it is at most 1.
    ("impact.critical_ratio", 1.0),
];

/// The first value of each pair must not exceed the second.
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
