//! Reads what the command printed to stderr, if stderr is a file. A terminal or a pipe cannot be read without
//! interfering with the command's output.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use paceline_sidecar::source::ends;

/// Maximum number of bytes that are read from the end of the file.
const MOST: u64 = 256 << 10;

/// The file, and its length before the command started.
#[derive(Debug)]
pub(crate) struct Printed(Option<(File, u64)>);

impl Printed {
    /// Opens our stderr, which the command inherits.
    pub(crate) fn begin() -> Printed {
        let file = File::open("/proc/self/fd/2").ok();
        let meta = file.as_ref().and_then(|file| file.metadata().ok());
        let size = meta.filter(std::fs::Metadata::is_file).map(|meta| meta.len());
        Printed(file.zip(size))
    }

    /// Called when the command has ended with this code. Leaves the printed reason for the sidecar.
    pub(crate) fn report(&self, code: i32, ring_dir: Option<&Path>) {
        let (Some((file, before)), Some(dir)) = (&self.0, ring_dir) else {
            return;
        };
        if code == 0 {
            return;
        }
        let size = file.metadata().map_or(0, |meta| meta.len());
        let from = (*before).max(size.saturating_sub(MOST));
        let mut bytes = vec![0; size.saturating_sub(from) as usize];
        // The file may have been truncated, so fewer bytes may be read.
        let read = file.read_at(&mut bytes, from).unwrap_or(0);
        bytes.truncate(read);
        ends::note_printed(dir, &String::from_utf8_lossy(&bytes), code);
    }
}
