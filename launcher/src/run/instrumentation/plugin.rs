//! Finds our profiler plugin for NCCL next to the binary, and passes it to the command unless another plugin occupies
//! NCCL's only slot.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use super::environment::Variable;
use crate::output;
use crate::run::Plan;

/// NCCL's variable for the plugin, and cargo's name of our library.
const VARIABLE: &str = "NCCL_PROFILER_PLUGIN";
pub(crate) const LIBRARY: &str = "libpaceline_nccl.so";
/// This path exists where NVIDIA's driver is loaded.
const DRIVER: &str = "/proc/driver/nvidia";
/// Maximum size of a configuration file in bytes, far more than real ones have.
const MAX_CONF: u64 = 1 << 20;

/// The state of NCCL's plugin slot.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Slot {
    /// NCCL is to load our plugin from this path.
    Ours(PathBuf),
    /// Another plugin is configured. `told_in` says where.
    Taken { by: OsString, told_in: String },
    /// Our plugin is not installed.
    Missing,
}

/// Returns the variable that passes our plugin to the command. If this is not possible, prints a warning with the
/// reason.
pub(crate) fn offer(plan: &Plan) -> Option<Variable> {
    // Print only in one of several instances started together.
    let speaks = !plan.settings.quiet && !plan.follows;
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent);
    match slot(&variable, beside) {
        Slot::Ours(library) => return Some((VARIABLE, library.into())),
        // Print no warning here: "none" deliberately excludes our plugin too, and an outer `paceline run` may have set
        // ours.
        Slot::Taken { by, .. } if by.eq_ignore_ascii_case("none") || is_ours(&by) => {}
        Slot::Taken { by, told_in } if speaks => output::warning(
            plan.style,
            format_args!(
                "NCCL's profiler is already {} ({told_in}), and is not changed: Paceline does not time collectives{}",
                by.display(),
                match plan.settings.inspector {
                    Some(_) => "; NCCL Inspector's files are read instead",
                    None => " (if it is NCCL Inspector, --inspector reads its files)",
                }
            ),
        ),
        Slot::Missing if speaks && Path::new(DRIVER).exists() => output::warning(
            plan.style,
            format_args!(
                "{LIBRARY} is neither next to paceline nor in ../lib/paceline: collectives are not timed in NCCL"
            ),
        ),
        Slot::Taken { .. } | Slot::Missing => {}
    }
    None
}

fn slot(variable: &dyn Fn(&str) -> Option<OsString>, beside: Option<&Path>) -> Slot {
    if let Some(by) = variable(VARIABLE) {
        let told_in = format!("by {VARIABLE}");
        return Slot::Taken { by, told_in };
    }
    for file in conf_files(variable) {
        if let Some(by) = named_in(&file) {
            let told_in = file.display().to_string();
            return Slot::Taken {
                by: by.into(),
                told_in,
            };
        }
    }
    // Make the path absolute, because trainers may have another working directory.
    beside.and_then(self::beside).map_or(Slot::Missing, |path| {
        Slot::Ours(path.canonicalize().unwrap_or(path))
    })
}

/// Returns the plugin that belongs to a program in this folder.
pub(crate) fn beside(folder: &Path) -> Option<PathBuf> {
    let places = [folder.to_owned(), folder.join("../lib/paceline")];
    let mut files = places.iter().map(|dir| dir.join(LIBRARY));
    files.find(|path| path.is_file())
}

fn is_ours(library: &OsStr) -> bool {
    Path::new(library).file_name() == Some(OsStr::new(LIBRARY))
}

/// Returns NCCL's configuration files, the user's before the site's
/// (<https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html>).
fn conf_files(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let of_user = variable("NCCL_CONF_FILE")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&variable("HOME")?).join(".nccl.conf")));
    of_user
        .into_iter()
        .chain([PathBuf::from("/etc/nccl.conf")])
        .collect()
}

fn named_in(file: &Path) -> Option<String> {
    let is_short = fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_CONF);
    let text = is_short.then(|| fs::read_to_string(file).ok())??;
    let value = |line: &str| {
        let (name, value) = line.split('#').next()?.split_once('=')?;
        (name.trim() == VARIABLE && !value.trim().is_empty()).then(|| value.trim().to_owned())
    };
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_where_nobody_has_named_one() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        let lib = folder.path().join("lib/paceline");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&lib).unwrap();
        let conf = folder.path().join("nccl.conf");
        let with = |plugin: Option<&str>| {
            let plugin = plugin.map(OsString::from);
            let conf = conf.clone().into_os_string();
            move |name: &str| match name {
                VARIABLE => plugin.clone(),
                "NCCL_CONF_FILE" => Some(conf.clone()),
                _ => None,
            }
        };
        assert_eq!(slot(&with(None), Some(&bin)), Slot::Missing);
        fs::write(lib.join(LIBRARY), "").unwrap();
        let installed = Slot::Ours(lib.join(LIBRARY).canonicalize().unwrap());
        assert_eq!(slot(&with(None), Some(&bin)), installed);
        fs::write(bin.join(LIBRARY), "").unwrap();
        let beside = Slot::Ours(bin.join(LIBRARY).canonicalize().unwrap());
        assert_eq!(slot(&with(None), Some(&bin)), beside);
        assert_eq!(slot(&with(None), None), Slot::Missing);

        let Slot::Taken { by, .. } = slot(&with(Some("inspector")), Some(&bin)) else {
            panic!("not taken by the variable")
        };
        assert_eq!(by, "inspector");
        assert!(!is_ours(&by) && is_ours(OsStr::new("/opt/lib/libpaceline_nccl.so")));
        fs::write(
            &conf,
            "NCCL_DEBUG=WARN\n # NCCL_PROFILER_PLUGIN=none\n NCCL_PROFILER_PLUGIN = x # y\n",
        )
        .unwrap();
        let Slot::Taken { by, told_in } = slot(&with(None), Some(&bin)) else {
            panic!("not taken by the file")
        };
        assert_eq!(by, "x");
        assert!(told_in.ends_with("nccl.conf"));
        fs::write(&conf, "NCCL_PROFILER_PLUGIN=\n").unwrap();
        assert_eq!(slot(&with(None), Some(&bin)), beside, "named nothing");
    }
}
