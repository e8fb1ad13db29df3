//! Measures all devices at once, each in its own thread, for a limited time. If a thread hangs in the driver, it is
//! abandoned, and its metrics are reported as missing for that reason.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use paceline_health::event::Missing;

use super::{Device, Metric, Options, Outcome, Place, Work, WorkError, cpu, device};
use crate::cuda::Driver;

/// A message from a device's thread.
pub(super) enum Told {
    /// The device that the thread measures.
    Device(Device),
    /// The metric that the thread starts to measure.
    Begins(Metric),
    /// A metric's result.
    Measured(Metric, Outcome),
    /// The last message.
    Done,
}

/// A device thread's sender for messages.
pub(super) struct Teller {
    index: u32,
    sender: Sender<(u32, Told)>,
}

impl Teller {
    /// Sends a message. It is not an error here if the receiver no longer exists.
    pub(super) fn tell(&self, told: Told) {
        let _ = self.sender.send((self.index, told));
    }

    /// Measures one metric and reports its result.
    pub(super) fn measure(&self, metric: Metric, run: impl FnOnce() -> Outcome) {
        self.tell(Told::Begins(metric));
        self.tell(Told::Measured(metric, run()));
    }
}

/// A lock for copies to and from the host. GPUs may share the connection to the host, so only one GPU copies at a time.
pub(super) type Turn = Arc<Mutex<()>>;

/// Measures all devices, for at most `limit`.
///
/// # Errors
/// Returns an error if nothing can be measured. Failures of a single device or metric are part of the result.
pub fn work(options: &Options, limit: Duration) -> Result<Vec<Work>, WorkError> {
    let until = Instant::now() + limit;
    let (sender, told) = channel();
    let count = match options.place {
        Place::Cpu => {
            let (teller, options) = (Teller { index: 0, sender }, options.clone());
            spawn(move || cpu::run(&options, until, &teller))?;
            1
        }
        Place::Gpus => {
            let driver = open(options.cuda_lib.as_deref(), limit)?;
            let turn = Turn::default();
            for index in 0..driver.gpus {
                let (teller, options) = (
                    Teller {
                        index,
                        sender: sender.clone(),
                    },
                    options.clone(),
                );
                let (driver, turn) = (Arc::clone(&driver), Arc::clone(&turn));
                spawn(move || device::run(&driver, index, &options, until, &turn, &teller))?;
            }
            drop(sender);
            driver.gpus
        }
    };
    Ok(collect(options.place, count, &told, until, limit))
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<(), WorkError> {
    let thread = Builder::new().name("work".into()).spawn(run);
    thread
        .map(drop)
        .map_err(|error| WorkError::Thread(error.to_string()))
}

/// Opens the driver in a thread, because a faulty driver may block for minutes.
fn open(path: Option<&Path>, limit: Duration) -> Result<Arc<Driver>, WorkError> {
    let (sender, opened) = channel();
    let path = path.map(Path::to_owned);
    spawn(move || {
        // The receiver may no longer exist.
        let _ = sender.send(Driver::open(path.as_deref()));
    })?;
    let opened = opened.recv_timeout(limit);
    Ok(opened.map_err(|_| WorkError::Silent {
        seconds: limit.as_secs_f64(),
    })??)
}

fn collect(
    place: Place,
    count: u32,
    told: &Receiver<(u32, Told)>,
    until: Instant,
    limit: Duration,
) -> Vec<Work> {
    let unknown = |index| Device {
        place,
        index,
        uuid: None,
        pci: String::new(),
        model: String::new(),
    };
    let mut works: Vec<Work> = (0..count)
        .map(|index| Work {
            device: unknown(index),
            metrics: BTreeMap::new(),
        })
        .collect();
    let mut doing = vec![None; count as usize];
    let mut left = count;
    while left > 0 {
        let Ok((index, told)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) else {
            break;
        };
        let work = &mut works[index as usize];
        match told {
            Told::Device(device) => work.device = device,
            Told::Begins(metric) => doing[index as usize] = Some(metric),
            Told::Measured(metric, outcome) => {
                work.metrics.insert(metric, outcome);
            }
            Told::Done => left -= 1,
        }
    }
    let metrics: &[Metric] = if place == Place::Cpu {
        &Metric::OF_CPU
    } else {
        &Metric::OF_GPU
    };
    for (work, doing) in works.iter_mut().zip(doing) {
        for metric in metrics {
            work.metrics
                .entry(*metric)
                .or_insert_with(|| late(*metric, doing, limit));
        }
    }
    works
}

/// Returns the outcome of a metric that was not measured in time, with the reason.
fn late(metric: Metric, doing: Option<Metric>, limit: Duration) -> Outcome {
    let seconds = limit.as_secs_f64();
    let text = match doing {
        Some(doing) if doing != metric => {
            format!("not begun within {seconds:.1} s: {} took the time", doing.name())
        }
        Some(_) => format!("not done within {seconds:.1} s"),
        None => format!("the GPU did not answer within {seconds:.1} s"),
    };
    Outcome::Missing(Missing::Error(text.into()))
}
