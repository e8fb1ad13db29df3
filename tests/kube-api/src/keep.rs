//! The persistent state: a file of JSON lines, which corresponds to etcd and the cluster's keys of a real API server.
//! Each line is written before the response is sent, so a killed process loses nothing that it has confirmed. A machine
//! that crashes may lose some lines, because the file is not synced.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use serde_json::Value;

/// The open file; see the module documentation.
#[derive(Debug)]
pub struct Keep(File);

impl Keep {
    /// Opens the file and returns its content. An incomplete last line was never confirmed, so it is removed.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written, or if a line is not JSON.
    pub fn open(path: &Path) -> io::Result<(Keep, Vec<Value>)> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let lines = text[..whole].lines().map(serde_json::from_str);
        let lines = lines.collect::<Result<Vec<Value>, _>>()?;
        file.set_len(whole as u64)?;
        file.seek(SeekFrom::End(0))?;
        Ok((Keep(file), lines))
    }

    /// Appends a line. If that fails, the process exits.
    pub fn write(&self, line: &Value) {
        if let Err(error) = (&self.0).write_all(format!("{line}\n").as_bytes()) {
            let _ = writeln!(io::stderr(), "kube-api: what is to be kept is not: {error}");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn half_a_line_is_none() {
        let path = std::env::temp_dir().join(format!("paceline-keep-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let (keep, lines) = Keep::open(&path).unwrap();
        assert!(lines.is_empty());
        keep.write(&json!({ "a": 1 }));
        keep.write(&json!({ "b": "x\ny" }));
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], b"{\"c\":"].concat()).unwrap();
        let (keep, lines) = Keep::open(&path).unwrap();
        assert_eq!(lines, [json!({ "a": 1 }), json!({ "b": "x\ny" })]);
        keep.write(&json!({ "d": 2 }));
        assert_eq!(Keep::open(&path).unwrap().1.len(), 3);
        std::fs::remove_file(&path).unwrap();
    }
}
