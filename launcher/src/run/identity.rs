//! Which job, which node, which directory, when nobody said it.

use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The job's name: what its launcher or scheduler calls it, else a made-up one. It must be the same on every node, so
/// a made-up name is for one node only.
pub(crate) fn job(command: &[OsString], variable: Variable<'_>) -> String {
    variable("TORCHELASTIC_RUN_ID")
        .or_else(|| slurm(variable))
        .or_else(|| rendezvous_id(command))
        .unwrap_or_else(made_up)
}

/// The job's name as its launcher or scheduler has put it into the environment.
pub(crate) fn known_job(variable: Variable<'_>) -> Option<String> {
    variable("TORCHELASTIC_RUN_ID").or_else(|| slurm(variable))
}

/// Job and step name one `srun`; a requeued job keeps its id and counts its restarts.
fn slurm(variable: Variable<'_>) -> Option<String> {
    let mut name = variable("SLURM_JOB_ID")?;
    // The batch script's own pseudo-steps lie at the upper end of the numbers (slurm/slurm.h: SLURM_MAX_NORMAL_STEP_ID).
    let step = variable("SLURM_STEP_ID").and_then(|step| step.parse::<u32>().ok());
    if let Some(step) = step.filter(|step| *step < 0xffff_fff0) {
        name += &format!(".{step}");
    }
    if let Some(restarts) = variable("SLURM_RESTART_COUNT").filter(|count| count != "0") {
        name += &format!("-r{restarts}");
    }
    Some(name)
}

/// torchrun's `--rdzv-id X`, `--rdzv_id=X`.
fn rendezvous_id(command: &[OsString]) -> Option<String> {
    let mut words = command.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        let (flag, value) = word
            .split_once('=')
            .map_or((word, None), |(flag, value)| (flag, Some(value)));
        if matches!(flag, "--rdzv-id" | "--rdzv_id") {
            let id = value.or_else(|| words.next())?;
            return (!id.is_empty()).then(|| id.to_owned());
        }
    }
    None
}

/// `20261121-035012-7f3a`, in UTC: sorts by time, and two in one second differ.
fn made_up() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |span| span.as_secs());
    format!("{}-{:04x}", stamp(seconds), chance() & 0xffff)
}

/// Seconds since 1970 as UTC (civil_from_days of <https://howardhinnant.github.io/date_algorithms.html>).
fn stamp(seconds: u64) -> String {
    let (days, clock) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let mp = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}{month:02}{day:02}-{:02}{:02}{:02}",
        clock / 3600,
        clock / 60 % 60,
        clock % 60
    )
}

/// A number nobody can foresee; the standard library seeds its hash tables with one.
pub(crate) fn chance() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// The node as its scheduler calls it: on a virtual cluster several nodes share a host name.
pub(crate) fn node(variable: Variable<'_>) -> String {
    variable("SLURMD_NODENAME")
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// `./paceline-JOB`, with what a file name should not hold replaced.
pub(crate) fn run_dir(job: &str) -> PathBuf {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = job
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .take(128)
        .collect();
    PathBuf::from(format!("./paceline-{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(command: &str, variables: &[(&str, &str)]) -> String {
        let command: Vec<OsString> = command.split(' ').map(OsString::from).collect();
        job(&command, &|name| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_job_is_called_what_its_launcher_calls_it() {
        let torchrun = "torchrun --rdzv-id=r7 t.py";
        for (command, variables, expected) in [
            (
                torchrun,
                vec![("TORCHELASTIC_RUN_ID", "e"), ("SLURM_JOB_ID", "9")],
                "e",
            ),
            (
                torchrun,
                vec![("SLURM_JOB_ID", "9"), ("SLURM_STEP_ID", "4294967291")],
                "9",
            ),
            (
                torchrun,
                vec![
                    ("SLURM_JOB_ID", "9"),
                    ("SLURM_STEP_ID", "0"),
                    ("SLURM_RESTART_COUNT", "0"),
                ],
                "9.0",
            ),
            (
                torchrun,
                vec![("SLURM_JOB_ID", "9"), ("SLURM_RESTART_COUNT", "2")],
                "9-r2",
            ),
            (torchrun, vec![], "r7"),
            ("torchrun --rdzv_id r8 t.py", vec![], "r8"),
        ] {
            assert_eq!(named(command, &variables), expected, "{command} {variables:?}");
        }
        assert_ne!(named("true", &[]), named("true", &[]));
    }

    #[test]
    fn stamps() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_782_400), "20000229-000000");
        assert_eq!(stamp(1_795_233_012), "20261121-035012");
    }

    #[test]
    fn a_run_directory_is_one_folder_here() {
        assert_eq!(run_dir("a/../b c"), PathBuf::from("./paceline-a_.._b_c"));
    }
}
