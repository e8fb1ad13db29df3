//! Tests the program from the user's perspective, with real processes, signals, terminals and files. They need only a
//! shell.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod bad_input;
mod checked_before;
mod crowded;
mod demo;
mod dry_run;
mod evaluate;
mod exits;
mod gpus;
mod hostile;
mod inject;
mod kube;
mod kube_end;
mod launched;
mod left_behind;
mod live_findings;
mod live_policy;
mod nodes;
mod notify;
mod page;
mod passports;
mod preflight;
mod remedies;
mod report;
mod scarce;
mod sidecar;
mod signals;
mod site_file;
mod step_log;
mod strangers;
mod tasks;
mod terminal;
mod token;
mod top;
