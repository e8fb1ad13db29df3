//! One process in /proc: its `stat` file and its children. See <https://docs.kernel.org/filesystems/proc.html>.

use super::files::Files;

/// Maximum number of processes read for one rank, including its own process.
const MOST: usize = 32;

/// Counters of a process. They only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Page faults that required a disk read, summed over all threads.
    pub major_faults: u64,
    /// Time that the main thread waited for a disk, in clock ticks. Zero if the kernel does not count it.
    pub disk_ticks: u64,
}

impl Stat {
    /// Reads the counters of process `pid`. `None` if it has ended.
    pub fn of(files: &mut Files, pid: u32) -> Option<Stat> {
        parse(files.text(format!("proc/{pid}/stat")).ok()?)
    }
}

/// Parses the fields after the process name, which may contain any characters. Of all fields, majflt is the 12th and
/// delayacct_blkio_ticks the 42nd.
fn parse(stat: &str) -> Option<Stat> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse().ok();
    Some(Stat {
        major_faults: number(12)?,
        disk_ticks: number(42)?,
    })
}

/// Returns `pid` and its descendants, such as data loader workers. Finds only processes started by main threads.
pub fn family(files: &mut Files, pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        next += 1;
        let children = files.text(format!("proc/{parent}/task/{parent}/children"));
        let children = children.unwrap_or_default().split_ascii_whitespace();
        let room = MOST - family.len();
        family.extend(children.filter_map(|child| child.parse::<u32>().ok()).take(room));
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let line = "24774 (a) b) R 24759 24759 21910 0 -1 4194304 101 0 17 0 0 0 0 0 20 0 1 0 2441151 3133440 416 \
                    18446744073709551615 1 2 3 4 5 0 0 0 0 0 0 0 17 1 0 0 99 0 0 1 2 3 4 5 6 7 0";
        let stat = Stat {
            major_faults: 17,
            disk_ticks: 99,
        };
        assert_eq!(parse(line), Some(stat));
        assert_eq!(parse("7 (x) S 1"), None);
        assert_eq!(parse(""), None);
    }
}
