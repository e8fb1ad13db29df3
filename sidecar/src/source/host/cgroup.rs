//! The control groups of processes: which CPU quota applies to them, and which files report their pressure.
//!
//! Supports version 2 (<https://docs.kernel.org/admin-guide/cgroup-v2.html>). Of version 1, which older clusters still
//! have, supports the CPU quota (<https://docs.kernel.org/scheduler/sched-bwc.html>).

use std::path::{Component, Path, PathBuf};

use paceline_health::event::Missing;

use super::files::Files;

/// Mount points of version 2: without version 1, and next to it.
const UNIFIED: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];
/// Mount point of the CPU quotas of version 1.
const CPU: &str = "sys/fs/cgroup/cpu";

/// The control groups of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Path of the group below the root of version 2.
    unified: Option<PathBuf>,
    /// Path of the group below the root of version 1's CPU controller.
    cpu: Option<PathBuf>,
}

/// The group whose CPU quota applies to a process: the file of its counter, the counter's name, and the counter's unit
/// in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quota {
    stat: PathBuf,
    word: &'static str,
    unit_ns: u32,
}

impl Groups {
    /// Reads the groups of process `pid`.
    pub fn of(files: &mut Files, pid: u32) -> Groups {
        files
            .text(format!("proc/{pid}/cgroup"))
            .map_or_else(|_| Groups::default(), parse)
    }

    /// Returns the nearest group with a quota. If no group has one, returns the nearest group that would count
    /// throttling. `None` if quotas are not visible here.
    pub fn quota(&self, files: &mut Files) -> Option<Quota> {
        let unified = self.unified.as_deref().and_then(|group| {
            nearest(files, &UNIFIED, group, |files, dir| {
                let limit = files.text(dir.join("cpu.max")).ok()?;
                Some(!limit.starts_with("max"))
            })
        });
        let quota = |word, unit_ns| {
            move |dir: PathBuf| Quota {
                stat: dir.join("cpu.stat"),
                word,
                unit_ns,
            }
        };
        if let Some(dir) = unified {
            return Some(quota("throttled_usec", 1000)(dir));
        }
        let dir = nearest(files, &[CPU], self.cpu.as_deref()?, |files, dir| {
            Some(files.number(dir.join("cpu.cfs_quota_us")).ok()? > 0.0)
        })?;
        Some(quota("throttled_time", 1)(dir))
    }

    /// Returns the path of `file` in the group's directory of version 2, for example the pressure of a resource. `None`
    /// without such a group; the caller then uses the file of the whole node.
    pub fn unified_with(&self, files: &Files, file: &str) -> Option<PathBuf> {
        let group = self
            .unified
            .as_deref()
            .filter(|group| !group.as_os_str().is_empty())?;
        let path = UNIFIED.map(|root| Path::new(root).join(group).join(file));
        path.into_iter().find(|path| files.at(path).exists())
    }

    /// Returns the deepest groups that two processes have in common.
    pub fn common(&self, other: &Groups) -> Groups {
        let both = |one: &Option<PathBuf>, two: &Option<PathBuf>| {
            let (one, two) = (one.as_ref()?.components(), two.as_ref()?.components());
            Some(
                one.zip(two)
                    .take_while(|(one, two)| one == two)
                    .map(|(one, _)| one)
                    .collect(),
            )
        };
        Groups {
            unified: both(&self.unified, &other.unified),
            cpu: both(&self.cpu, &other.cpu),
        }
    }
}

impl Quota {
    /// Returns the time during which the quota was exhausted, in nanoseconds, summed over the throttled CPUs.
    ///
    /// # Errors
    /// The reason for a missing value.
    pub fn throttled_ns(&self, files: &mut Files) -> Result<f64, Missing> {
        let count = files.field(&self.stat, self.word)?;
        Ok(count * f64::from(self.unit_ns))
    }
}

/// Goes from `group` upward. Returns the first directory for which `limits` is true, else the first for which it is
/// known.
fn nearest(
    files: &mut Files,
    roots: &[&str],
    group: &Path,
    limits: impl Fn(&mut Files, &Path) -> Option<bool>,
) -> Option<PathBuf> {
    let mut unlimited = None;
    for root in roots {
        for above in group.ancestors() {
            let dir = Path::new(root).join(above);
            match limits(files, &dir) {
                Some(true) => return Some(dir),
                Some(false) if unlimited.is_none() => unlimited = Some(dir),
                _ => {}
            }
        }
    }
    unlimited
}

/// Parses the lines of /proc/PID/cgroup: `0::/path` in version 2, `N:controllers:/path` in version 1.
fn parse(text: &str) -> Groups {
    let mut groups = Groups::default();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let below = below_root(path);
        if number == "0" && controllers.is_empty() {
            groups.unified = below;
        } else if controllers.split(',').any(|name| name == "cpu") {
            groups.cpu = below;
        }
    }
    groups
}

/// Returns the path below the root. `None` for a group outside our own namespace: its path begins with `/..`, and it is
/// not visible from here.
fn below_root(path: &str) -> Option<PathBuf> {
    let path = Path::new(path).strip_prefix("/").ok()?;
    path.components()
        .all(|part| matches!(part, Component::Normal(_)))
        .then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_process() {
        for (text, unified, cpu) in [
            (
                "0::/kubepods.slice/pod1/cri-7.scope\n",
                Some("kubepods.slice/pod1/cri-7.scope"),
                None,
            ),
            ("0::/", Some(""), None),
            ("0::/../other", None, None),
            (
                "4:memory:/slurm\n2:cpu,cpuacct:/slurm/job_1/step_0\n0::/\n",
                Some(""),
                Some("slurm/job_1/step_0"),
            ),
            ("x", None, None),
        ] {
            let groups = parse(text);
            assert_eq!(groups.unified.as_deref(), unified.map(Path::new), "{text}");
            assert_eq!(groups.cpu.as_deref(), cpu.map(Path::new), "{text}");
        }
        let common = parse("0::/job/step/task_0").common(&parse("0::/job/step/task_1"));
        assert_eq!(common, parse("0::/job/step"));
    }
}
