//! Reads everything that can be read from every GPU once, for `paceline gpus`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::{Duration, Instant};

use paceline_health::event::{Access, GpuProcess, GpuSignal};
use paceline_health::id::GpuId;
use serde::Serialize;

use super::desk::Desk;
use super::library::{Gpu, Library, Refusal};
use super::pace::Pace;
use super::readings::reader::{Reader, Readings};
use crate::host::monotonic_ns;

/// Time between the two rounds. A rate needs two samples that are some time apart.
const APART: Duration = Duration::from_millis(250);

/// The GPUs of this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// Version of the driver.
    pub driver: Arc<str>,
    /// The GPUs, in NVML's order. Each is followed by its instances.
    pub gpus: Vec<SurveyedGpu>,
}

/// One GPU, or an instance of one.
#[derive(Clone, Debug, Serialize)]
pub struct SurveyedGpu {
    /// Its index in the driver's list.
    pub index: u32,
    /// UUID; `None` if the GPU has no handle.
    pub gpu_uuid: Option<GpuId>,
    /// PCI bus ID.
    pub pci_bus_id: Arc<str>,
    /// Product name.
    pub model: Arc<str>,
    /// Whether it can be read.
    pub access: Access,
    /// If it cannot be read, the reason.
    pub text: String,
    /// Every signal with its value, `unsupported`, or an error.
    pub signals: Readings,
    /// Processes that use it.
    pub processes: Vec<GpuProcess>,
    /// Time spent in the driver in one slow round, by function, microseconds.
    pub calls_us: BTreeMap<&'static str, u64>,
    /// Latency of each field, as the driver reports it, microseconds.
    pub fields_us: BTreeMap<GpuSignal, u64>,
}

/// Reads everything once, each GPU in a separate thread, for at most `deadline`. Does not wait for a call that does not
/// return; its thread is abandoned.
///
/// # Errors
/// [`Refusal`] if there is nothing to read.
pub fn survey(path: Option<&Path>, deadline: Duration) -> Result<Survey, Refusal> {
    let until = Instant::now() + deadline;
    let (library, count) = open(path, deadline)?;
    let (sender, answers) = channel();
    let mut gpus = BTreeMap::new();
    let mut desks = Vec::new();
    for index in 0..count {
        let (desk, library, sender) = (Arc::<Desk>::default(), Arc::clone(&library), sender.clone());
        desks.push(Arc::clone(&desk));
        let run = move || {
            let _round = desk.begin("nvmlDeviceGetHandleByIndex_v2");
            let answer = match library.gpu(index, Arc::clone(&desk)) {
                Ok(gpu) => ask(index, &gpu),
                Err(code) => vec![unread(index, None, code.access(), code.to_string())],
            };
            // Ignore the result: the receiver may have given up.
            let _ = sender.send((index, answer));
        };
        if let Err(error) = Builder::new().spawn(run) {
            gpus.insert(
                index,
                vec![unread(index, None, Access::Failing, error.to_string())],
            );
        }
    }
    while gpus.len() < count as usize {
        let left = until.saturating_duration_since(Instant::now());
        let Ok((index, answer)) = answers.recv_timeout(left) else {
            break;
        };
        gpus.insert(index, answer);
    }
    for (index, desk) in (0..).zip(desks) {
        gpus.entry(index).or_insert_with(|| {
            let call = desk.busy(monotonic_ns()).map_or("a call", |(_, call)| call);
            vec![unread(
                index,
                None,
                Access::Silent,
                format!("{call} has not returned"),
            )]
        });
    }
    Ok(Survey {
        driver: Arc::clone(&library.driver),
        gpus: gpus.into_values().flatten().collect(),
    })
}

fn open(path: Option<&Path>, deadline: Duration) -> Result<(Arc<Library>, u32), Refusal> {
    let (sender, answer) = channel();
    let path = path.map(Path::to_owned);
    let run = move || {
        let opened = Library::open(path.as_deref()).and_then(|library| {
            let count = library.count().map_err(|code| Refusal {
                access: code.access(),
                text: format!("nvmlDeviceGetCount_v2: {code}"),
            })?;
            Ok((Arc::new(library), count))
        });
        // Ignore the result: the receiver may have given up.
        let _ = sender.send(opened);
    };
    let refusal = |access, text: String| Refusal { access, text };
    let spawned = Builder::new().spawn(run);
    spawned.map_err(|error| refusal(Access::Failing, format!("no thread: {error}")))?;
    let (library, count) = answer
        .recv_timeout(deadline)
        .map_err(|_| refusal(Access::Silent, "nvmlInit_v2 has not returned".into()))??;
    if count == 0 {
        let text = "the driver shows no GPU to this process";
        return Err(refusal(Access::NoDevice, text.into()));
    }
    Ok((library, count))
}

fn unread(index: u32, gpu: Option<&Gpu>, access: Access, text: String) -> SurveyedGpu {
    SurveyedGpu {
        index,
        gpu_uuid: gpu.map(|gpu| gpu.uuid.clone()),
        pci_bus_id: gpu.map(|gpu| Arc::clone(&gpu.pci)).unwrap_or_default(),
        model: gpu.map(|gpu| Arc::clone(&gpu.model)).unwrap_or_default(),
        access,
        text,
        signals: Readings::new(),
        processes: Vec::new(),
        calls_us: BTreeMap::new(),
        fields_us: BTreeMap::new(),
    }
}

fn ask(index: u32, gpu: &Gpu) -> Vec<SurveyedGpu> {
    let mut reader = Reader::new(gpu.clone());
    let second = reader.read(Pace::Slow).and_then(|_| {
        std::thread::sleep(APART);
        // Use only the second round, because the first one also reads unsupported signals.
        let _round = gpu.desk.begin("nvmlDeviceGetFieldValues");
        reader.tell_apart();
        reader.read(Pace::Slow)
    });
    let round = match second {
        Ok(answer) => answer,
        Err(code) => return vec![unread(index, Some(gpu), code.access(), code.to_string())],
    };
    let whole = SurveyedGpu {
        signals: round.readings,
        processes: round.holders.unwrap_or_default(),
        calls_us: reader
            .spent()
            .into_iter()
            .map(|(call, ns)| (call, ns / 1000))
            .collect(),
        fields_us: reader.latency_us(),
        ..unread(index, Some(gpu), Access::Readable, String::new())
    };
    let instances = round.instances.into_iter().map(|instance| SurveyedGpu {
        signals: instance.own,
        ..unread(index, Some(&instance.gpu), Access::Readable, String::new())
    });
    std::iter::once(whole).chain(instances).collect()
}
