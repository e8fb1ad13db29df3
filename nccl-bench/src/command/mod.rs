//! The command. It reads the options, joins or starts the ranks, measures, and prints the results.

mod local;
mod options;
mod progress;
mod size;
mod table;
mod who;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};

use paceline_seal::Key;
use paceline_sidecar::safe_file;

pub use options::{BenchOptions, Carrier};

use crate::fabric::Fabric;
use crate::measure::{Report, Rounds, Seen, Sweep};
use crate::net::{Handshake, Seat, sealed};
use crate::transport::nccl::{self, NcclTransport};
use crate::transport::sim::SimTransport;
use crate::transport::tcp::{Tcp, TcpOptions};
use crate::transport::{Deadline, Transport, TransportError};
use progress::Progress;
use who::{Identity, Who};

/// Exit code if results were wrong.
const WRONG: u8 = 2;
/// Exit code if a rank, a library or a device was missing or lost.
const NOT_MEASURED: u8 = 3;
/// Exit code for an invalid command line (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;

/// Hint for hosts that do not meet the requirements of NCCL.
const NO_NCCL: &str = "hint: --transport tcp measures the hosts' network without GPUs; --transport sim shows what a result looks like";

/// An error in the command line or the environment.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// Runs the command.
pub fn main(options: &BenchOptions) -> ExitCode {
    ended(command(options))
}

/// Ends the process with `code`. Exit handlers of a process may wait for a thread that is stuck in NCCL or in the
/// driver. If there is such a thread, the process ends without running them, after all output is written.
fn ended(code: ExitCode) -> ExitCode {
    if !nccl::is_any_left_behind() {
        return code;
    }
    let number = (0..=u8::MAX).find(|number| ExitCode::from(*number) == code);
    // The exit code matters more than a failed write of the last line.
    let _ = io::stdout().flush();
    // SAFETY: ends the process; nothing runs afterwards.
    unsafe { libc::_exit(number.unwrap_or(NOT_MEASURED).into()) }
}

fn command(options: &BenchOptions) -> ExitCode {
    if options.preflight_rank {
        return crate::preflight::rank_main();
    }
    local::settle(options);
    let outcome = run(options);
    outcome.unwrap_or_else(|problem| {
        // A failure is reported once. The rank that detected it reports it, or rank 0 does so for all ranks.
        let heard = matches!(problem.downcast_ref(), Some(TransportError::Aborted { .. }));
        if !heard || options.rank.is_none_or(|rank| rank == 0) {
            let _ = writeln!(io::stderr(), "paceline nccl-bench: error: {problem:#}");
            let is_missing = matches!(problem.downcast_ref(), Some(TransportError::Missing { .. }));
            if is_missing && options.rank.is_none_or(|rank| rank == 0) {
                let _ = writeln!(io::stderr(), "{NO_NCCL}");
            }
        }
        ExitCode::from(if problem.is::<Usage>() {
            USAGE
        } else {
            NOT_MEASURED
        })
    })
}

fn run(options: &BenchOptions) -> Result<ExitCode> {
    if options.sim.is_some() && options.transport != Carrier::Sim {
        return Err(Usage("--sim goes with --transport sim".to_owned()).into());
    }
    if options.transport == Carrier::Sim {
        return simulated(options);
    }
    match who::who(options, |name| std::env::var(name).ok())? {
        Who::All(ranks) => {
            sweep(options, ranks)?; // Invalid sizes are reported here once, instead of by each rank.
            local::start(ranks, options.share_gpus)
        }
        Who::One(identity) => one(options, identity),
    }
}

fn one(options: &BenchOptions, identity: Identity) -> Result<ExitCode> {
    let sweep = sweep(options, identity.ranks)?;
    let deadline = Deadline::new("start", options.join_limit());
    let local_rank = identity.local_rank;
    let handshake = handshake(options, &identity)?;
    let seat = identity.sit(options, handshake, &deadline)?;
    let mut transport = transport(options, seat, local_rank, &deadline)?;
    measure(options, &sweep, transport.as_mut())
}

/// Runs all ranks at once, on a simulated fabric.
fn simulated(options: &BenchOptions) -> Result<ExitCode> {
    let script = options.sim.as_deref().unwrap_or_default();
    let fabric = Fabric::parse(script).map_err(|problem| Usage(format!("--sim: {problem}")))?;
    if options.rank.is_some() || options.master.is_some() {
        return Err(
            Usage("a simulation is one process: it takes no --rank and no --master".to_owned()).into(),
        );
    }
    let deadline = Deadline::new("start", options.join_limit());
    let ranks = options.ranks.map(|ranks| ranks as usize);
    let mut transport = SimTransport::open(fabric, script, ranks, &deadline)?;
    measure(options, &sweep(options, transport.ranks())?, &mut transport)
}

fn measure(options: &BenchOptions, sweep: &Sweep, transport: &mut dyn Transport) -> Result<ExitCode> {
    let mut progress = Progress::new(sweep.timings(), transport.rank() == 0);
    let mut written = Ok(());
    let report = sweep.run(transport, |seen| {
        // Print each row immediately, so that the completed measurements remain visible after a failure.
        let text = match seen {
            Seen::Timed(row) => return progress.seen(row),
            Seen::Began(report) => table::head(report),
            Seen::Done(row) => table::row(row),
        };
        if !options.json && written.is_ok() {
            progress.clear();
            written = put(&text);
        }
    })?;
    drop(progress);
    let Some(report) = report else {
        return Ok(ExitCode::SUCCESS);
    };
    written?;
    finish(options, &report)?;
    let timings = report
        .results
        .iter()
        .flat_map(|row| [&row.out_of_place, &row.in_place])
        .flatten();
    let wrong: u64 = timings.filter_map(|timing| timing.nwrong).sum();
    Ok(if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(WRONG)
    })
}

/// The purpose for which streams between ranks are sealed.
const PURPOSE: &str = "paceline nccl-bench 1";

/// Returns the handshake of this rank. A rank that is reachable from other hosts accepts only peers with the key.
fn handshake(options: &BenchOptions, identity: &Identity) -> Result<Option<Handshake>> {
    if identity.is_local() && options.key_file.is_none() {
        return Ok(None);
    }
    let key = Key::find(options.key_file.as_deref(), |name| std::env::var(name).ok());
    let key = key.map_err(|problem| Usage(format!("the job's key: {problem}")))?;
    Ok(Some(sealed(key.of_job(&options.job), PURPOSE)))
}

fn sweep(options: &BenchOptions, ranks: usize) -> Result<Sweep, Usage> {
    let range = (options.begin, options.end);
    let plans = size::plans(options.collective, options.dtype, ranks, range, options.step());
    let mut plans = plans.map_err(Usage)?;
    if options.root >= ranks {
        return Err(Usage(format!(
            "--root {}: there are {ranks} ranks, from 0",
            options.root
        )));
    }
    plans.iter_mut().for_each(|plan| plan.root = options.root);
    let needed = plans
        .iter()
        .map(|plan| plan.bytes().saturating_mul(3))
        .max()
        .unwrap_or(0);
    let memory = rustix::system::sysinfo();
    let memory = (memory.totalram as u64).saturating_mul(u64::from(memory.mem_unit.max(1)));
    if options.transport == Carrier::Tcp && needed > memory {
        let most = options.end;
        return Err(Usage(format!(
            "{most} bytes take {needed} bytes of memory; this host has {memory}"
        )));
    }
    let rounds = Rounds {
        iterations: options.iterations,
        warm_ups: options.warm_ups,
        checks: options.checks,
        together: options.together,
        limit: std::time::Duration::from_secs(options.timeout),
    };
    let (collective, dtype) = (options.collective, options.dtype);
    Ok(Sweep {
        collective,
        dtype,
        plans,
        in_place: !options.out_of_place,
        rounds,
    })
}

fn transport(
    options: &BenchOptions,
    seat: Seat,
    local_rank: u32,
    deadline: &Deadline,
) -> Result<Box<dyn Transport>, TransportError> {
    let tcp = TcpOptions {
        algorithm: options.algorithm,
    };
    let tcp = Box::new(Tcp::join(seat, tcp, deadline)?);
    match options.transport {
        Carrier::Tcp => Ok(tcp),
        Carrier::Sim => Err(TransportError::Unsupported {
            transport: "sim",
            what: "several processes".to_owned(),
        }),
        Carrier::Nccl => {
            let nccl_lib = options.nccl_lib.clone();
            let options = nccl::Options {
                nccl_lib,
                cuda_lib: None,
                local_rank,
                share: options.share_gpus,
                id: None,
            };
            Ok(Box::new(NcclTransport::open(tcp, &options, deadline)?))
        }
    }
}

/// Returns the table of nccl-tests, with the slowest rank and the percentiles in additional columns.
pub fn render(report: &Report) -> String {
    let rows: String = report.results.iter().map(table::row).collect();
    table::head(report) + &rows + &table::foot(report)
}

/// Prints the lines below the rows, or everything as JSON.
fn finish(options: &BenchOptions, report: &Report) -> Result<()> {
    let json = || serde_json::to_string(report).context("writing the result as JSON");
    if let Some(path) = &options.json_file {
        safe_file::write_named(path, (json()? + "\n").as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if options.json {
        put(&(json()? + "\n"))
    } else {
        put(&table::foot(report))
    }
}

fn put(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A closed pipe (`| head`) is not an error.
        Err(problem) if problem.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("writing the result"),
    }
}
