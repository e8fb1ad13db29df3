//! Lists the Python files of the hook, to embed them in the binary.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../sidecar/probe/python");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = vec![root.join("sitecustomize.py")];
    gather(&root.join("paceline"), &mut files)?;
    files.sort();
    let mut list = String::from("&[\n");
    for file in &files {
        println!("cargo:rerun-if-changed={}", file.display());
        let name = file
            .strip_prefix(&root)?
            .to_str()
            .ok_or("a file name that is not UTF-8")?;
        writeln!(list, "    ({name:?}, include_str!({:?})),", file.canonicalize()?)?;
    }
    list.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("hook_files.rs"), list)?;
    Ok(())
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            gather(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "py") {
            files.push(path);
        }
    }
    Ok(())
}
