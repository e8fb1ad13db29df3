//! Bounds of policy values. Beyond its bound a rule would need more data than is kept and never fire.

/// Bounds of all values: values outside are typos, and would overflow times.
pub const SMALLEST: f64 = 1e-12;
pub const LARGEST: f64 = 1e9;

/// Steps that the detector keeps, of the whole job and of each rank.
pub const JOB_STEPS: usize = 128;
/// Transfers kept per communicator.
pub const TRANSFERS: usize = 32;
/// Conspicuous steps that are kept.
pub const OCCASIONS: usize = 8;
/// Steps over which time shares are computed; seven windows of them are kept.
const SHARE_STEPS: f64 = 4096.0;
/// Checkpoints kept per rank.
const CHECKPOINTS: f64 = 64.0;

/// The upper bound of each value.
pub const AT_MOST: [(&str, f64); 10] = [
    // Deliberately slow steps are kept along with the others: at least half are ordinary.
    ("shift.held_steps", (JOB_STEPS / 2) as f64),
    ("shift.reference_steps", (JOB_STEPS / 2) as f64),
    ("shift.transfer_held_steps", JOB_STEPS as f64),
    ("straggler.noise_window_steps", JOB_STEPS as f64),
    ("link.min_steps", TRANSFERS as f64),
    ("link.window_steps", TRANSFERS as f64),
    ("kinds.recurrences", (OCCASIONS - 1) as f64),
    ("shares.window_steps", SHARE_STEPS),
    ("occasions.checkpoints", CHECKPOINTS),
    // A share of step time: at most all of it is lost.
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
