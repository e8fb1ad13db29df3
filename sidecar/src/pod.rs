//! A sidecar in the same pod as a trainer. It never exits by itself and never with an error, because controllers would
//! count its restarts as the trainer's and its exit code as the job's.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use signal_hook::consts::SIGTERM;
use signal_hook::flag;

use crate::{SidecarOptions, Starter, run, warn};

/// Delay before a retry after a failure. A missing Secret or volume may be available by then.
const AGAIN: Duration = Duration::from_secs(10);
/// How often SIGTERM is checked during that delay.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn main(options: &SidecarOptions, starter: &Starter) -> ExitCode {
    let is_over = Arc::new(AtomicBool::new(false));
    if let Err(error) = flag::register(SIGTERM, Arc::clone(&is_over)) {
        warn::once("signals", format_args!("SIGTERM cannot be handled: {error}"));
    }
    while !is_over.load(Ordering::Relaxed) {
        if let Err(error) = run(options.clone(), starter.clone()) {
            warn::once("fatal", format_args!("{error:#}; retrying"));
        }
        let mut left = AGAIN;
        while !left.is_zero() && !is_over.load(Ordering::Relaxed) {
            sleep(LOOK);
            left = left.saturating_sub(LOOK);
        }
    }
    ExitCode::SUCCESS
}
