//! The response to `VERBOSE STATUS` as text (NCCL 2.24 and later). Below the counts of a communicator, it lists the
//! ranks that differ from most.
//!
//! See <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html>.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

use paceline_health::event::{RasReport, RasState};

use super::json::number;
use super::tally::{Group, Tally, Who};

/// Maximum length of a line.
const MAX_LINE: u64 = 4 << 10;
/// Maximum number of groups of communicators, and of counts in one of them.
const MAX_GROUPS: usize = 4096;

/// Why a text is not a valid response.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// Reading failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The text does not begin like a response of NCCL.
    #[error("it does not begin with NCCL's version: {0:?}")]
    Stranger(String),
    /// The text ends before its last part.
    #[error("it ends in the middle, after {0} lines")]
    Cut(u64),
}

/// Reads a response to its end.
///
/// # Errors
/// [`TextError`].
pub fn read(mut input: impl BufRead) -> Result<RasReport, TextError> {
    let mut page = Page::default();
    let mut line = Vec::new();
    while next(&mut input, &mut line)? {
        page.lines += 1;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        // Accept RCCL too, the counterpart of NCCL for AMD GPUs, because it uses the same format.
        if page.lines == 1 && !text.starts_with("NCCL version ") && !text.starts_with("RCCL version ") {
            return Err(TextError::Stranger(text.chars().take(80).collect()));
        }
        page.line(text);
    }
    if !page.is_whole {
        return Err(TextError::Cut(page.lines));
    }
    page.close();
    Ok(page.tally.finish())
}

/// Reads the next line. Skips the excess of an overlong line.
fn next(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let count = input.by_ref().take(MAX_LINE).read_until(b'\n', line)?;
    if count as u64 == MAX_LINE && line.last() != Some(&b'\n') {
        input.skip_until(b'\n')?;
    }
    Ok(count > 0)
}

/// The section to which the current lines belong.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Section {
    /// The summary and its tables.
    #[default]
    Summary,
    /// Processes that are gone.
    Processes(RasState),
    /// Ranks of a communicator that are gone or have an error.
    Ranks(RasState),
    /// The counts of a communicator.
    Counts,
    /// A section that is ignored.
    Other,
}

#[derive(Debug, Default)]
struct Page {
    tally: Tally,
    lines: u64,
    is_whole: bool,
    section: Section,
    /// Number of ranks of one communicator, by the number of its group in the table.
    sizes: BTreeMap<u32, u32>,
    hash: u64,
    size: u32,
    collective: String,
    counts: Vec<Group>,
}

impl Page {
    fn line(&mut self, line: &str) {
        if let Some(version) = line.split(" version ").nth(1).filter(|_| self.lines == 1) {
            self.tally.nccl = version.split(' ').next().unwrap_or_default().to_owned();
        }
        match line {
            "Warnings" => self.is_whole = true,
            "DEAD" => self.enter(Section::Processes(RasState::Dead)),
            "INCOMPLETE" => self.enter(Section::Processes(RasState::Unresponsive)),
            "TIMEOUT" => self.enter(Section::Other),
            _ if line.starts_with('#') => self.communicator(line),
            _ => self.inside(line.trim_start()),
        }
    }

    fn enter(&mut self, section: Section) {
        self.close();
        self.section = section;
    }

    /// Compares the counts collected so far, and clears them.
    fn close(&mut self) {
        let groups = std::mem::take(&mut self.counts);
        if !groups.is_empty() {
            self.tally
                .compare(self.hash, &self.collective, groups.into_iter());
        }
    }

    /// Parses a line such as `#0-1 (cf264af53edbe986) MISMATCH`.
    fn communicator(&mut self, line: &str) {
        let mut words = line.trim_start_matches('#').split_whitespace();
        let (place, hash) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        self.enter(match words.next() {
            Some("MISMATCH") => Section::Counts,
            Some("INCOMPLETE") => Section::Ranks(RasState::Unresponsive),
            Some("ERROR") => Section::Ranks(RasState::Failed),
            _ => Section::Other,
        });
        self.hash = number(hash.trim_matches(['(', ')'])).unwrap_or(0);
        let group = place.split_once('-').and_then(|(group, _)| group.parse().ok());
        self.size = group
            .and_then(|group: u32| self.sizes.get(&group))
            .copied()
            .unwrap_or(0);
        self.collective.clear();
    }

    fn inside(&mut self, line: &str) {
        match self.section {
            Section::Summary => self.table(line),
            Section::Processes(state) => {
                if let Some(who) = process(line) {
                    self.tally.stands_out(&who, state, 0);
                }
            }
            Section::Ranks(state) => {
                if let Some(who) = self.rank(line) {
                    self.tally.stands_out(&who, state, self.hash);
                }
            }
            Section::Counts => self.count(line),
            Section::Other => {}
        }
    }

    /// Parses a table row such as `0  1  4  8  32  32  RUNNING  OK`: group, number of communicators in it, nodes, ranks
    /// per node (`4-8`), ranks of one communicator, and so on.
    fn table(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [group, comms, _, _, size, _, _status, _errors] = words.as_slice() else {
            return;
        };
        let (Ok(group), Ok(comms), Ok(size)) = (group.parse(), comms.parse::<u32>(), size.parse()) else {
            return;
        };
        self.tally.comms = self.tally.comms.saturating_add(comms);
        self.tally.has_size(size);
        if self.sizes.len() < MAX_GROUPS {
            self.sizes.insert(group, size);
        }
    }

    /// Parses a line with counts of a communicator.
    fn count(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("Communicator ranks have different ") {
            self.close();
            // The line ends in `.. AllReduce operation counts`, or in `.. status`, which has no counts.
            let counted = rest.strip_suffix(" operation counts");
            self.collective = counted.unwrap_or_default().to_owned();
            return;
        }
        if self.collective.is_empty() || self.counts.len() >= MAX_GROUPS {
            return;
        }
        let launched = match line.split_once(" launched up to operation ") {
            Some((_, rest)) => rest
                .split_whitespace()
                .next()
                .and_then(|number| number.parse().ok()),
            None => line.contains(" not launched any operations").then_some(0),
        };
        let who = self.rank(line);
        match (launched, who) {
            // A line such as `26 ranks have launched up to operation 6650`.
            (Some(launched), None) if !line.starts_with("Rank ") => {
                let count = line
                    .split(' ')
                    .next()
                    .and_then(|count| count.parse().ok())
                    .unwrap_or(1);
                let known = Vec::new();
                self.counts.push(Group {
                    launched,
                    count,
                    known,
                });
            }
            // A line such as `Rank 3 has launched up to operation 6649 -- GPU 3 managed by process 7 on node 10.0.0.1`.
            (Some(launched), who) => {
                let (count, known) = (1, who.into_iter().collect());
                self.counts.push(Group {
                    launched,
                    count,
                    known,
                });
            }
            // A line such as `Rank 3 -- GPU 3 managed by process 7 on node 10.0.0.1`, which identifies a rank of the
            // preceding group.
            (None, Some(who)) => {
                if let Some(group) = self
                    .counts
                    .last_mut()
                    .filter(|group| group.known.len() < MAX_GROUPS)
                {
                    group.known.push(who);
                }
            }
            (None, None) => {}
        }
    }

    /// Parses a line such as `Rank 3 .. -- GPU 3 managed by process 7 on node 10.0.0.1`.
    fn rank(&mut self, line: &str) -> Option<Who> {
        let number = line.strip_prefix("Rank ")?.split(' ').next()?.parse().ok()?;
        let (_, gpu) = line.split_once(" -- GPU ")?;
        let (device, rest) = gpu.split_once(" managed by process ")?;
        let device = device.split(' ').next()?.parse().ok()?;
        let who = Who {
            device,
            ..place(rest)?
        };
        self.tally.number(&who, number, self.size);
        Some(who)
    }
}

/// Parses a line such as `Process 7 on node 10.0.0.1 managing GPU 3`. If it says `GPUs 0,1`, uses the first.
fn process(line: &str) -> Option<Who> {
    let who = place(line.strip_prefix("Process ")?)?;
    let (_, gpus) = line.split_once(" managing GPU")?;
    let gpus = gpus.trim_start_matches('s').trim_start();
    let digits = gpus.find(|c: char| !c.is_ascii_digit()).unwrap_or(gpus.len());
    let device = gpus.get(..digits)?.parse().ok()?;
    Some(Who { device, ..who })
}

/// Parses a text such as `7 on node 10.0.0.1`.
fn place(text: &str) -> Option<Who> {
    let (pid, rest) = text.split_once(" on node ")?;
    Some(Who {
        host: rest.split(' ').next()?.into(),
        pid: pid.parse().ok()?,
        device: 0,
    })
}
