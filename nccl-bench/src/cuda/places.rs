//! Search paths of libraries. They come from environment variables, from Python packages (PyTorch includes its own
//! libraries), and from the dynamic linker.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A library and its possible file names.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The library's name in errors.
    pub name: &'static str,
    /// The flag that sets the library's path.
    pub flag: &'static str,
    /// The environment variable that sets the library's path.
    variable: &'static str,
    /// File names in order of preference.
    files: &'static [&'static str],
    /// Environment variables with an installation folder, each with the subfolder to append.
    homes: &'static [(&'static str, &'static str)],
    /// Folders in a Python site directory.
    packages: &'static [&'static str],
}

/// The driver's library.
pub const CUDA: Wanted = Wanted {
    name: "libcuda.so.1",
    flag: "PACELINE_CUDA_LIB",
    variable: "PACELINE_CUDA_LIB",
    files: &["libcuda.so.1"],
    homes: &[],
    packages: &[],
};

/// cuBLAS. The Python package for CUDA 13 has a separate folder.
pub const CUBLAS: Wanted = Wanted {
    name: "libcublas.so",
    flag: "PACELINE_CUBLAS_LIB",
    variable: "PACELINE_CUBLAS_LIB",
    files: &["libcublas.so.13", "libcublas.so.12", "libcublas.so.11"],
    homes: &[("CUDA_HOME", "lib64"), ("CUDA_PATH", "lib64")],
    packages: &["nvidia/cu13/lib", "nvidia/cublas/lib"],
};

/// NCCL.
pub(crate) const NCCL: Wanted = Wanted {
    name: "libnccl.so.2",
    flag: "--nccl-lib or PACELINE_NCCL_LIB",
    variable: "PACELINE_NCCL_LIB",
    files: &["libnccl.so.2"],
    homes: &[("NCCL_HOME", "lib")],
    packages: &["nvidia/nccl/lib"],
};

impl Wanted {
    /// Returns the library's possible files in a folder.
    pub(crate) fn in_folder(&self, folder: &Path) -> Vec<PathBuf> {
        self.files.iter().map(|file| folder.join(file)).collect()
    }

    /// Returns all candidates, in order. Full paths are included only if the file exists. Names without a folder are
    /// resolved by the dynamic linker.
    pub(crate) fn places(&self, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
        let set = |name: &str| {
            variable(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        if let Some(path) = set(self.variable) {
            return if path.is_dir() {
                self.in_folder(&path)
            } else {
                vec![path]
            };
        }
        let homes = self
            .homes
            .iter()
            .filter_map(|(home, below)| Some(set(home)?.join(below)));
        let sites = if self.packages.is_empty() {
            Vec::new()
        } else {
            sites(&set)
        };
        let packages = sites
            .iter()
            .flat_map(|site| self.packages.iter().map(move |package| site.join(package)));
        let whole = homes.chain(packages).flat_map(|folder| self.in_folder(&folder));
        let whole = whole.filter(|path| path.exists());
        whole.chain(self.files.iter().map(PathBuf::from)).collect()
    }
}

/// Returns Python's site directories: those of the active environment, of `python3` on the path, of `PYTHONPATH`, and
/// of the system.
fn sites(set: &impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let listed = |name: &str| {
        set(name)
            .map(|list| std::env::split_paths(&list).collect::<Vec<_>>())
            .unwrap_or_default()
    };
    let beside_python = listed("PATH")
        .into_iter()
        .filter(|folder| folder.join("python3").exists());
    // `python3` may be a symlink to an interpreter elsewhere. The environment's packages are next to the symlink, so it
    // is not resolved.
    let beside_python = beside_python.filter_map(|folder| folder.parent().map(Path::to_owned));
    let prefixes = [set("VIRTUAL_ENV"), set("CONDA_PREFIX")].into_iter().flatten();
    let prefixes = prefixes
        .chain(beside_python)
        .chain([PathBuf::from("/usr/local"), PathBuf::from("/usr")]);
    let mut sites = listed("PYTHONPATH");
    for prefix in prefixes {
        let lib = prefix.join("lib");
        let mut versions: Vec<PathBuf> = std::fs::read_dir(&lib)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("python3"))
            })
            .collect();
        versions.sort();
        for version in versions {
            for site in [version.join("site-packages"), version.join("dist-packages")] {
                if !sites.contains(&site) {
                    sites.push(site);
                }
            }
        }
    }
    sites
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_places() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        let home = put("nccl/lib/libnccl.so.2");
        let active = put("venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
        put("bin/python3");
        let beside = put("lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2");
        let at = |name: &str| Some(root.path().join(name).into_os_string());
        let places = NCCL.places(|name| match name {
            "NCCL_HOME" => at("nccl"),
            "VIRTUAL_ENV" => at("venv"),
            "PATH" => at("bin"),
            _ => None,
        });
        let ours: Vec<&PathBuf> = places
            .iter()
            .filter(|path| path.starts_with(root.path()))
            .collect();
        assert_eq!(ours, [&home, &active, &beside]);
        assert_eq!(
            places.last().unwrap(),
            Path::new("libnccl.so.2"),
            "the linker is asked last"
        );

        let named = NCCL.places(|name| (name == "PACELINE_NCCL_LIB").then(|| "/x/libnccl.so".into()));
        assert_eq!(
            named,
            [PathBuf::from("/x/libnccl.so")],
            "who names one wants that one"
        );
        let folder = NCCL.places(|name| {
            if name == "PACELINE_NCCL_LIB" {
                at("nccl/lib")
            } else {
                None
            }
        });
        assert_eq!(folder, [home]);
        let nothing = CUDA.places(|_| None);
        assert_eq!(nothing, [PathBuf::from("libcuda.so.1")]);
    }
}
