//! Checks the trainers' software: Python with the hook, PyTorch, NCCL and its plugin.

use std::ffi::{CString, OsStr};
use std::fs::{self, DirBuilder};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Check, Light, STARTED, Subject};
use crate::run::{hook, plugin, ring_places};

/// Python script that prints the interpreter, its version, and PyTorch's version.
const TORCH: &str = "
import sys
print(sys.executable, '.'.join(map(str, sys.version_info[:3])), flush=True)
import torch
print(torch.__version__, 'CUDA ' + torch.version.cuda if torch.version.cuda else 'CPU only')
";
/// Python script that loads NCCL from PyTorch's wheel or, failing that, from the system, and prints its path and
/// version.
const NCCL: &str = "
import ctypes, glob, os, sys
places = [p for d in sys.path for p in glob.glob(os.path.join(d, 'nvidia', 'nccl', 'lib', 'libnccl.so.2'))]
for place in places + ['libnccl.so.2']:
    try:
        library = ctypes.CDLL(place)
    except OSError as error:
        why = error
        continue
    version = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(version))
    v = version.value
    print(place, '%d.%d.%d' % (v // 10000, v // 100 % 100, v % 100))
    break
else:
    sys.exit(str(why))
";
/// Python script that shows whether Python loaded our sitecustomize and can import the API. Our sitecustomize runs the
/// next one on the path, such as Debian's or Ubuntu's, which then replaces it in sys.modules. Therefore the script
/// looks for our import hook.
const HOOK: &str = "
import sys
import paceline, sitecustomize
watches = [f.find_spec.__code__.co_filename for f in sys.meta_path if getattr(f, '__qualname__', '') == '_Watch']
print(watches[0] if watches else sitecustomize.__file__)
";
/// Maximum number of characters of a program's message.
const MAX_SAID: usize = 300;

/// Returns the path of the trainers' Python.
fn interpreter(subject: &Subject) -> PathBuf {
    let of_path = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let mut files = ["python3", "python"]
            .into_iter()
            .flat_map(|name| places.iter().map(move |dir| dir.join(name)));
        files.find(|file| file.is_file())
    };
    let chosen = subject.python.clone().or_else(of_path);
    chosen.unwrap_or_else(|| PathBuf::from("python3"))
}

/// Runs a script with a timeout. Returns its output, or why it failed.
fn run(program: &Path, script: &str, env: &[(&str, &OsStr)]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.arg("-c").arg(script).envs(env.iter().copied());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|problem| format!("{}: {problem}", program.display()))?;
    let until = Instant::now() + STARTED;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no answer within {} s", STARTED.as_secs()));
            }
        }
    };
    // Read only what the pipes hold now. The program has exited, but its child processes may keep the pipes open.
    let mut text = vec![0; 64 << 10];
    let mut read = |pipe: Option<&mut dyn Read>| {
        let count = pipe.and_then(|pipe| pipe.read(&mut text).ok()).unwrap_or(0);
        String::from_utf8_lossy(&text[..count]).trim().to_owned()
    };
    let said = read(child.stdout.as_mut().map(|pipe| pipe as &mut dyn Read));
    if status.success() {
        return Ok(said);
    }
    let problem = read(child.stderr.as_mut().map(|pipe| pipe as &mut dyn Read));
    let last = problem.lines().last().unwrap_or("it printed nothing");
    Err(last.chars().take(MAX_SAID).collect())
}

/// Checks that a trainer would load the hook.
pub(super) fn hook(subject: &Subject) -> Check {
    let name = "Python";
    let program = interpreter(subject);
    let Some(place) = Folder::make() else {
        return Check::of(
            name,
            Light::Red,
            "no writable directory for the hook",
            "see memory, above",
        );
    };
    if let Err(problem) = hook::write(&place.0) {
        return Check::of(
            name,
            Light::Red,
            format!("the hook cannot be written: {problem}"),
            "see memory, above",
        );
    }
    let before = std::env::var_os("PYTHONPATH");
    let path = hook::python_path(&place.0, before.as_deref());
    let env = [("PYTHONPATH", &*path), ("PACELINE_RING_DIR", place.0.as_os_str())];
    let act = "trainers can then only be watched with --step-log; start them without -E, -I and -S, and keep \
        PYTHONPATH";
    match run(&program, HOOK, &env) {
        Ok(said) if Path::new(&said).starts_with(&place.0) => {
            Check::green(name, format!("{} loads the hook", program.display()))
        }
        Ok(said) => {
            let says = format!("{} loads another sitecustomize first: {said}", program.display());
            Check::of(name, Light::Yellow, says, act)
        }
        Err(why) => Check::of(
            name,
            Light::Yellow,
            format!("{}: the hook is not loaded: {why}", program.display()),
            format!("name the trainers' Python with --python; {act}"),
        ),
    }
}

/// Checks PyTorch and its version.
pub(super) fn torch(subject: &Subject) -> Check {
    let name = "PyTorch";
    let program = interpreter(subject);
    match run(&program, TORCH, &[]) {
        Ok(said) => Check::green(name, said.split_whitespace().collect::<Vec<_>>().join(" ")),
        Err(why) => Check::of(
            name,
            Light::Yellow,
            format!("{}: {why}", program.display()),
            "activate the trainers' environment, or name its Python with --python; other frameworks need \
             paceline.step() or --step-log",
        ),
    }
}

/// Checks NCCL and our plugin.
pub(super) fn nccl(subject: &Subject) -> Check {
    let name = "NCCL";
    let beside = std::env::current_exe().ok();
    let library = beside.as_deref().and_then(Path::parent).and_then(plugin::beside);
    let plugin = match &library {
        None => Err(format!(
            "{} is neither next to paceline nor in ../lib/paceline",
            plugin::LIBRARY
        )),
        Some(path) => load(path).map(|()| format!("{} can be loaded", path.display())),
    };
    let nccl = run(&interpreter(subject), NCCL, &[]);
    match (nccl, plugin) {
        (Ok(nccl), Ok(plugin)) => Check::green(name, format!("{nccl}; {plugin}")),
        (Ok(nccl), Err(why)) => Check::of(
            name,
            Light::Yellow,
            format!("{nccl}; {why}: collectives are not timed in NCCL"),
            "install the complete package (docs/install.md), or build it: cargo build --release -p paceline-nccl",
        ),
        (Err(why), plugin) => Check::of(
            name,
            Light::Yellow,
            format!(
                "no library is loaded: {why}; {}",
                plugin.unwrap_or_else(|why| why)
            ),
            "only jobs on GPUs need it: install PyTorch with CUDA, or put libnccl.so.2 on LD_LIBRARY_PATH",
        ),
    }
}

/// Checks that the dynamic loader accepts the library.
fn load(path: &Path) -> Result<(), String> {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
        return Err(format!("{}: no file name", path.display()));
    };
    // SAFETY: the name ends with a zero byte. The library is our plugin, which runs nothing when it is loaded and stays
    // loaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(());
    }
    // SAFETY: after a failure, dlerror returns a string that is valid until this thread's next call to the loader.
    let why = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    Err(why.unwrap_or_else(|| format!("{} cannot be loaded", path.display())))
}

/// A temporary directory in the place where rings would be. Dropping this value removes it.
struct Folder(PathBuf);

impl Folder {
    fn make() -> Option<Folder> {
        let name = format!(
            "paceline-doctor-{}-{:08x}",
            std::process::id(),
            crate::run::chance() as u32
        );
        let places = ring_places();
        places.iter().find_map(|place| {
            let path = place.join(&name);
            // Fail if the directory already exists, because it may belong to another user.
            let made = DirBuilder::new().mode(0o700).create(&path);
            made.is_ok().then_some(Folder(path))
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
