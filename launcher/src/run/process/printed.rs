//! What the command printed to its standard error, where that is a file: on a terminal and in a pipe nobody can look without
//! standing in the way, and what the command prints is its own.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use paceline_sidecar::source::ends;

/// The end of it that is read, bytes.
const MOST: u64 = 256 << 10;

/// The file, and how long it was before the command began.
#[derive(Debug)]
pub(crate) struct Printed(Option<(File, u64)>);

impl Printed {
    /// Our standard error, which the command inherits.
    pub(crate) fn begin() -> Printed {
        let file = File::open("/proc/self/fd/2").ok();
        let meta = file.as_ref().and_then(|file| file.metadata().ok());
        let size = meta.filter(std::fs::Metadata::is_file).map(|meta| meta.len());
        Printed(file.zip(size))
    }

    /// The command has ended with this code: leaves word for the sidecar of why, as far as it was printed.
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
        // Somebody may have cut it short meanwhile: then there is less.
        let read = file.read_at(&mut bytes, from).unwrap_or(0);
        bytes.truncate(read);
        ends::note_printed(dir, &String::from_utf8_lossy(&bytes), code);
    }
}
