//! The metrics page as a file for node_exporter's textfile collector
//! (<https://github.com/prometheus/node_exporter#textfile-collector>), for sites where jobs cannot be scraped. The file
//! is removed when its job ends, because otherwise the job would seem to be running, with its last findings active
//! forever. Ends of jobs are counted elsewhere ([`super::metrics::ends`]).

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Instant;

use crate::safe_file;
use crate::sink::carrier::Carry;
use crate::sink::metrics::{Format, JobFacts};
use crate::sink::write_whole_for_all;
use crate::warn;

/// The beginning of the page. No other file begins with it.
const BEGIN: &str = "# HELP paceline_build_info ";

/// Writes the page to a file (see the module documentation).
#[derive(Debug)]
pub struct Textfile {
    path: PathBuf,
}

impl Textfile {
    /// Creates it for this file, which is replaced as a whole. A foreign file is left alone.
    pub fn new(path: PathBuf) -> Textfile {
        Textfile { path }
    }

    fn write(&self, facts: &JobFacts) -> io::Result<()> {
        self.is_ours()?;
        // The collector runs as another user, so the file must be readable by all.
        write_whole_for_all(&self.path, Format::Text.page(facts).as_bytes())
    }

    /// Returns true if the file exists and is ours. A foreign file is an error.
    fn is_ours(&self) -> io::Result<bool> {
        let meta = match fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            meta => meta?,
        };
        if !meta.is_file() {
            return Err(io::Error::other("exists and is not a regular file"));
        }
        let mut head = String::new();
        let most = BEGIN.len() as u64;
        // A file that is not text is foreign.
        let read = safe_file::open(&self.path)?.take(most).read_to_string(&mut head);
        if meta.len() > 0 && (read.is_err() || head != BEGIN) {
            return Err(io::Error::other(
                "was not written by paceline, and would be replaced",
            ));
        }
        Ok(true)
    }

    fn told(&self, done: io::Result<()>) {
        if let Err(error) = done {
            let path = self.path.display();
            warn::once(
                "metrics textfile",
                format_args!("{path}: {error}; no metrics are written there"),
            );
        }
    }
}

impl Carry for Textfile {
    fn carry(&mut self, facts: &JobFacts) {
        self.told(self.write(facts));
    }

    fn last(&mut self, _facts: &JobFacts, _by: Instant) {
        let removed = self.is_ours().and_then(|there| {
            if there {
                fs::remove_file(&self.path)
            } else {
                Ok(())
            }
        });
        self.told(removed);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::sink::metrics::samples::facts;

    #[test]
    fn it_goes_with_its_job_and_takes_nothing_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.prom");
        let mut file = Textfile::new(path.clone());
        file.carry(&facts());
        file.carry(&facts());
        let page = fs::read_to_string(&path).unwrap();
        assert!(
            page.starts_with(BEGIN) && page.contains("paceline_steps_total"),
            "{page}"
        );
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        file.last(&facts(), Instant::now());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // The job ends without having written a file.
        file.last(&facts(), Instant::now());

        for theirs in ["# HELP paceline_jobs_ended_total x\n", "other 5\n", "\u{fffd}\n"] {
            fs::write(&path, theirs).unwrap();
            assert!(file.write(&facts()).is_err());
            file.last(&facts(), Instant::now());
            assert_eq!(fs::read_to_string(&path).unwrap(), theirs);
        }
        fs::write(&path, "").unwrap();
        file.write(&facts()).unwrap();
        let pipe = dir.path().join("pipe.prom");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        assert!(Textfile::new(pipe).write(&facts()).is_err());
    }
}
