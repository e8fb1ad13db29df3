//! The state behind the C functions, which is the current scenario and what was initialized and delivered.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t};

use crate::drivers::Driver;
use crate::profile;
use crate::scenario::{Gpu, Item, Scenario};

pub const SUCCESS: u32 = 0;
pub const UNINITIALIZED: u32 = 1;
pub const INVALID_ARGUMENT: u32 = 2;
pub const NOT_SUPPORTED: u32 = 3;
pub const FUNCTION_NOT_FOUND: u32 = 13;
pub const UNKNOWN: u32 = 999;

static WORLD: Mutex<World> = Mutex::new(World::new());

struct World {
    loaded: Option<Loaded>,
    initialized: u32,
    /// The scenario's `restarts` when the library was initialized.
    restarts: u32,
    began: Option<Instant>,
    /// Delivered events, by index in the scenario.
    delivered: BTreeMap<usize, u32>,
}

struct Loaded {
    stamp: (Option<SystemTime>, u64),
    looked: Instant,
    view: Result<Arc<View>, String>,
}

/// A scenario with its driver and the items of its profile.
pub struct View {
    pub scenario: Scenario,
    pub driver: Driver,
    pub items: BTreeMap<&'static str, Item>,
}

/// A device in one call, given by the index of the GPU and, for an instance, its index.
pub struct Device {
    pub view: Arc<View>,
    pub index: u32,
    pub instance: Option<u32>,
    seconds: f64,
}

impl World {
    const fn new() -> World {
        World {
            loaded: None,
            initialized: 0,
            restarts: 0,
            began: None,
            delivered: BTreeMap::new(),
        }
    }

    /// Returns the current scenario. The file is checked at most every few milliseconds.
    fn view(&mut self) -> Result<Arc<View>, u32> {
        let fresh = |loaded: &Loaded| loaded.looked.elapsed() < Duration::from_millis(5);
        if !self.loaded.as_ref().is_some_and(fresh) {
            let path = path();
            let meta = fs::metadata(&path).ok();
            let stamp = (
                meta.as_ref().and_then(|meta| meta.modified().ok()),
                meta.map_or(0, |meta| meta.len()),
            );
            match &mut self.loaded {
                // If the file is deleted, the last scenario is kept.
                Some(loaded) if loaded.stamp == stamp || !path.exists() => loaded.looked = Instant::now(),
                _ => {
                    let view = load(&path);
                    if let Err(error) = &view {
                        say(&format!("{}: {error}", path.display()));
                    }
                    self.loaded = Some(Loaded {
                        stamp,
                        looked: Instant::now(),
                        view,
                    });
                }
            }
        }
        let view = self.loaded.as_ref().and_then(|loaded| loaded.view.clone().ok());
        view.ok_or(UNKNOWN)
    }
}

fn say(text: &str) {
    use std::io::Write;
    // A closed stderr is ignored.
    let _ = writeln!(std::io::stderr(), "fake-nvml: {text}");
}

fn load(path: &PathBuf) -> Result<Arc<View>, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let scenario = Scenario::parse(&text)?;
    let items = profile::items(&scenario.profile).unwrap_or_default();
    let driver = Driver::of(&scenario.driver);
    Ok(Arc::new(View {
        scenario,
        driver,
        items,
    }))
}

/// Returns `PACELINE_FAKE_NVML`, or this library's path plus `.toml`.
fn path() -> PathBuf {
    if let Some(path) = std::env::var_os("PACELINE_FAKE_NVML") {
        return path.into();
    }
    // SAFETY: an all-zero Dl_info is valid, and dladdr either fills it in or does not change it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is one of this library; the pointer is valid for the call.
    let found = unsafe { libc::dladdr(&raw const WORLD as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return PathBuf::from("fake-nvml.toml");
    }
    // SAFETY: dladdr returns a zero-terminated name that is valid as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    PathBuf::from(format!("{}.toml", name.to_string_lossy()))
}

fn world() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the result of nvmlInit_v2.
pub fn init() -> u32 {
    let mut world = world();
    let view = match world.view() {
        Ok(view) => view,
        Err(code) => return code,
    };
    if let Some(failure) = view.scenario.init {
        return failure.0;
    }
    world.initialized += 1;
    world.restarts = view.scenario.restarts;
    world.began.get_or_insert_with(Instant::now);
    SUCCESS
}

/// Returns the result of nvmlShutdown.
pub fn shutdown() -> u32 {
    let mut world = world();
    if world.initialized == 0 {
        return UNINITIALIZED;
    }
    world.initialized -= 1;
    SUCCESS
}

/// Returns the scenario for an initialized client, and an error otherwise.
pub fn view() -> Result<Arc<View>, u32> {
    let mut world = world();
    let view = world.view()?;
    if world.initialized == 0 || world.restarts != view.scenario.restarts {
        return Err(UNINITIALIZED);
    }
    match view.scenario.init {
        Some(failure) => Err(failure.0),
        None => Ok(view),
    }
}

/// Returns the handle of a GPU or an instance, which is an opaque number.
pub fn handle(index: u32, instance: Option<u32>) -> usize {
    0x1000 + index as usize * 0x100 + instance.map_or(0, |instance| 1 + instance as usize)
}

/// Looks up a device at the start of a call. The scenario determines how long the call takes and whether it fails.
pub fn device(handle: usize, call: &str) -> Result<Device, u32> {
    let index = handle.checked_sub(0x1000).ok_or(INVALID_ARGUMENT)? / 0x100;
    let instance = (handle % 0x100).checked_sub(1).map(|instance| instance as u32);
    let mut slept = false;
    loop {
        let view = view()?;
        // A file changed by `Driver::library` lacks the function. In the unchanged library the call can only fail.
        if !view.driver.declares(call) {
            return Err(FUNCTION_NOT_FOUND);
        }
        if index >= view.scenario.gpus as usize {
            return Err(INVALID_ARGUMENT);
        }
        let gpu = view.gpu(index as u32);
        if gpu.is_some_and(|gpu| gpu.hang) {
            sleep(Duration::from_millis(10));
            continue;
        }
        let delay = gpu.map_or(0, |gpu| gpu.delay_ms);
        if delay > 0 && !slept {
            sleep(Duration::from_millis(delay));
            slept = true;
            continue;
        }
        let failure = gpu.and_then(|gpu| gpu.fail.or_else(|| gpu.calls.get(call).copied()));
        if let Some(failure) = failure {
            return Err(failure.0);
        }
        let began = world().began;
        return Ok(Device {
            view,
            index: index as u32,
            instance,
            seconds: began.map_or(0.0, |began| began.elapsed().as_secs_f64()),
        });
    }
}

/// Returns the next event of these GPUs that was not delivered yet.
pub fn event(registered: &[(u32, u64)]) -> Result<Option<nvmlEventData_t>, u32> {
    let view = view()?;
    let mut world = world();
    for (at, event) in view.scenario.event.iter().enumerate() {
        let (kind, data) = event.xid.map_or((event.kind, 0), |xid| (8, xid));
        let wanted = |(gpu, mask): &(u32, u64)| *gpu == event.gpu && mask & kind != 0;
        let delivered = world.delivered.entry(at).or_default();
        if *delivered < event.count && registered.iter().any(wanted) {
            *delivered += 1;
            return Ok(Some(nvmlEventData_t {
                device: handle(event.gpu, None) as nvmlDevice_t,
                eventType: kind,
                eventData: data,
                gpuInstanceId: event.gpu_instance.unwrap_or(u32::MAX),
                computeInstanceId: u32::MAX,
            }));
        }
    }
    Ok(None)
}

impl View {
    pub fn gpu(&self, index: u32) -> Option<&Gpu> {
        self.scenario.gpu.get(&index.to_string())
    }
}

impl Device {
    /// Returns the current value of an item.
    pub fn item(&self, name: &str) -> Result<f64, u32> {
        let own = self.view.gpu(self.index).and_then(|gpu| gpu.items.get(name));
        match own.or_else(|| self.view.items.get(name)) {
            Some(Item::Number(value)) => Ok(*value),
            Some(Item::Counter { at, per_s }) => Ok((at + per_s * self.seconds).floor()),
            Some(Item::Failure(failure)) => Err(failure.0),
            None => Err(UNKNOWN),
        }
    }

    /// Returns the number of MIG instances.
    pub fn instances(&self) -> u32 {
        self.view.gpu(self.index).map_or(0, |gpu| gpu.mig)
    }
}
