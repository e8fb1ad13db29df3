//! Leads a preflight. The first node takes part like all others, and also sends the tasks.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use paceline_health::preflight::Report;

use super::phases::{Brief, Recall, conduct};
use super::remote_fleet::gather;
use crate::preflight::Expected;
use crate::preflight::Tools;
use crate::preflight::participant::{Me, attend};
use crate::preflight::{Mode, PreflightError};

/// Options of the leader.
pub struct Lead<'a> {
    /// The listener for the other nodes.
    pub listener: TcpListener,
    /// The expected nodes.
    pub expected: Expected,
    /// How thorough the preflight is.
    pub mode: Mode,
    /// Time limit for the other nodes to connect.
    pub wait: Duration,
    /// Bus bandwidth that must be reached, in GB/s.
    pub min_busbw: Option<f64>,
    /// Looks up earlier results for the measurements.
    pub past: &'a Recall,
}

/// Leads a preflight and takes part in it.
pub fn lead(
    lead: Lead<'_>,
    me: &Me,
    tools: &dyn Tools,
    phase: &mut dyn FnMut(&str, u32, u32),
) -> Result<Report, PreflightError> {
    let began = Instant::now();
    let own = lead.listener.local_addr().map_err(PreflightError::Listen)?;
    // The leader connects to itself over loopback. The other nodes get the address through which they found the leader.
    let first = match own {
        any if any.ip().is_unspecified() && any.is_ipv6() => format!("[::1]:{}", any.port()),
        any if any.ip().is_unspecified() => format!("127.0.0.1:{}", any.port()),
        one => one.to_string(),
    };
    let wait = lead.wait;
    thread::scope(|scope| {
        let member = scope.spawn(move || attend(&first, me, tools, wait, &mut |_| ()));
        phase("rendezvous", 0, 1);
        let gathered = gather(
            lead.listener,
            &me.key,
            &me.job,
            &lead.expected,
            lead.mode,
            began + wait,
        );
        let (mut fleet, problems) = gathered.map_err(PreflightError::Listen)?;
        let brief = Brief {
            mode: lead.mode,
            job: me.job.clone(),
            paceline: me.paceline.clone(),
            min_busbw: lead.min_busbw,
            simulated: false,
            began,
            problems,
        };
        let report = conduct(&mut fleet, brief, lead.past, phase);
        drop(fleet);
        // The leader's own result is in the report too, so the result of its thread is not needed.
        let _ = member.join();
        Ok(report)
    })
}
