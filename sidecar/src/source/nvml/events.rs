//! Waits in a separate thread for XID, ECC and other events.
//!
//! The kernel log contains more, because NVML has no events for some XIDs and merges several XIDs into the last one.
//! The sidecar reads both, and the detector combines them.

use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};
use paceline_health::event::GpuFaultKind as Kind;

use super::board::Board;
use super::code::Code;
use super::halt::Halt;
use super::library::{Gpu, Library, ask};

/// Event type of an XID, whose number comes with the event.
const XID: u64 = 0x8;
/// Event types (nvml.h, nvmlEventType), and our fault kind for each.
const KINDS: [(u64, Kind); 10] = [
    (0x1, Kind::EccCorrected),
    (0x2, Kind::EccUncorrected),
    (XID, Kind::Xid),
    (0x200, Kind::EccStorm),
    (0x400, Kind::MemoryRetired),
    (0x800, Kind::MemoryRetirementFailed),
    (0x1000, Kind::Poison),
    (0x2000, Kind::PoisonFatal),
    (0x4000, Kind::Unavailable),
    (0x8000, Kind::RecoveryAction),
];
/// Maximum wait. After it, the thread checks whether to stop.
const WAIT_MS: u32 = 500;
/// Pause after an error.
const PAUSE: Duration = Duration::from_secs(2);
/// NVML's value for an event without an instance.
const NO_INSTANCE: u32 = u32::MAX;

/// Waits for events of the GPUs received through `found` until `halt`.
pub fn run(library: &Library, found: &Receiver<Gpu>, board: &Board, halt: &Halt) {
    let mut gpus: Vec<Gpu> = Vec::new();
    loop {
        // After an error, a GPU may be lost, so register the remaining GPUs again in a new set.
        if let Err(code) = listen(library, &mut gpus, found, board, halt) {
            for gpu in &gpus {
                board.no_events(&gpu.uuid, Some(format!("nvmlEventSetWait_v2: {code}")));
            }
        }
        if halt.sleep(PAUSE) {
            return;
        }
    }
}

fn listen(
    library: &Library,
    gpus: &mut Vec<Gpu>,
    found: &Receiver<Gpu>,
    board: &Board,
    halt: &Halt,
) -> Result<(), Code> {
    let set = Set::new(library)?;
    let mut registered = Vec::new();
    let mut new = gpus.clone();
    loop {
        // Use a separate desk here, because the GPU's own desk belongs to its worker.
        new.extend(found.try_iter().map(|mut gpu| {
            gpu.desk = Arc::default();
            gpu
        }));
        let mut fresh = false;
        for gpu in new.drain(..) {
            match set.register(&gpu) {
                Ok(()) => {
                    registered.push(gpu.uuid.clone());
                    fresh = true;
                }
                Err(code) => board.no_events(&gpu.uuid, Some(format!("XID events: {code}"))),
            }
            gpus.retain(|known| known.uuid != gpu.uuid);
            gpus.push(gpu);
        }
        // NVML cannot wait for an empty set.
        if registered.is_empty() {
            if halt.sleep(PAUSE / 20) {
                return Ok(());
            }
            continue;
        }
        let waited = set.wait();
        if matches!(waited, Ok(_) | Err(Code::TIMEOUT)) && fresh {
            // Only a completed wait shows that events work, so report it only now.
            registered.iter().for_each(|gpu| board.no_events(gpu, None));
        }
        match waited {
            Ok(data) => put_up(&data, gpus, board),
            Err(Code::TIMEOUT) => {}
            Err(code) => return Err(code),
        }
        if halt.sleep(Duration::ZERO) {
            return Ok(());
        }
    }
}

/// A set of events. It is freed when this value is dropped.
struct Set<'a> {
    library: &'a Library,
    set: nvmlEventSet_t,
}

impl<'a> Set<'a> {
    fn new(library: &'a Library) -> Result<Set<'a>, Code> {
        let mut set = null_mut();
        let raw = library.raw().ok_or(Code::UNINITIALIZED)?;
        let function = raw.nvmlEventSetCreate.as_ref();
        let function = function.map_err(|_| Code::FUNCTION_NOT_FOUND)?;
        // SAFETY: the signature is the header's; the pointer is valid for the call.
        Code::check(unsafe { function(&mut set) })?;
        Ok(Set { library, set })
    }

    fn register(&self, gpu: &Gpu) -> Result<(), Code> {
        let wanted: u64 = KINDS.iter().map(|(bit, _)| bit).sum();
        let mut supported = 0;
        ask!(gpu, nvmlDeviceGetSupportedEventTypes, &mut supported)?;
        if supported & XID == 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        ask!(gpu, nvmlDeviceRegisterEvents, supported & wanted, self.set)
    }

    fn wait(&self) -> Result<nvmlEventData_t, Code> {
        let mut data = nvmlEventData_t {
            device: null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        };
        let raw = self.library.raw().ok_or(Code::UNINITIALIZED)?;
        let function = raw.nvmlEventSetWait_v2.as_ref();
        let function = function.map_err(|_| Code::FUNCTION_NOT_FOUND)?;
        // SAFETY: as above; the set is ours and not freed yet.
        Code::check(unsafe { function(self.set, &mut data, WAIT_MS) })?;
        Ok(data)
    }
}

impl Drop for Set<'_> {
    fn drop(&mut self) {
        if let Some(Ok(function)) = self.library.raw().map(|raw| raw.nvmlEventSetFree.as_ref()) {
            // SAFETY: NVML created it, and it has no other user.
            unsafe { function(self.set) };
        }
    }
}

/// Adds the event to the board. Identifies the GPU by its handle, because a lost GPU no longer returns its UUID.
fn put_up(data: &nvmlEventData_t, gpus: &[Gpu], board: &Board) {
    let gpu = gpus.iter().find(|gpu| gpu.handle() == data.device);
    let text = match (data.gpuInstanceId, data.computeInstanceId) {
        (NO_INSTANCE, _) => String::new(),
        (gpu, NO_INSTANCE) => format!("GPU instance {gpu}"),
        (gpu, compute) => format!("GPU instance {gpu}, compute instance {compute}"),
    };
    for (bit, kind) in KINDS {
        if data.eventType & bit != 0 {
            let xid = if bit == XID { data.eventData as u32 } else { 0 };
            board.fault(gpu.map(|gpu| &gpu.uuid), kind, xid, &text);
        }
    }
}
