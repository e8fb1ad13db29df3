//! The trainers of this node, from all rings in the ring directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use paceline_health::Provenance;
use paceline_health::event::{Event, Pulse, Want};
use paceline_health::id::Rank;
use paceline_ring::{OpenError, Reader};

use super::stacks::When;
use super::trainers::Trainers;
use super::{Cost, Losses, Send, Source};
use crate::warn;

mod beside;
mod collectives;
mod entered;
mod events;
mod exact;
mod functions;
mod life;
mod messages;
mod pace;
mod ring;
mod steps;
mod sum;
use entered::Entered;
use life::Life;
use ring::Ring;

/// Interval of checking whether processes are alive, in nanoseconds.
const CHECK_EVERY_NS: u64 = 250_000_000;
/// Maximum time between two listings of the directory. It is also listed when its timestamp changes, but that timestamp
/// is coarse.
const LIST_EVERY: Duration = Duration::from_secs(1);

/// The source; see the module.
#[derive(Debug)]
pub struct Probe {
    dir: PathBuf,
    rings: BTreeMap<OsString, Ring>,
    /// Files that are not our rings, by name, so that each is checked only once.
    refused: BTreeMap<OsString, u64>,
    /// Ranks whose process died without a goodbye and whose ring was removed, with the time of their last progress.
    fallen: Vec<(Pulse, u64)>,
    listed: Option<(SystemTime, u64)>,
    checked_ns: u64,
    /// Set if a process died without a goodbye and no heartbeat has reported that yet.
    has_died: bool,
    past: Losses,
    past_cost: Cost,
    /// The aggregator's requests for single collectives.
    wants: Vec<Want>,
    /// The live trainers, for sources that read their processes.
    trainers: Trainers,
    /// Set if rings of other containers of this pod are read as well.
    is_pod: bool,
    when: When,
    /// Ranks without progress, whose last collectives are to be sent.
    still: Vec<(Rank, u32)>,
}

impl Probe {
    /// Reads the rings that are in `dir` now or later.
    pub fn new(dir: PathBuf) -> Probe {
        Probe {
            dir,
            rings: BTreeMap::new(),
            refused: BTreeMap::new(),
            fallen: Vec::new(),
            listed: None,
            checked_ns: 0,
            has_died: false,
            past: Losses::default(),
            past_cost: Cost::default(),
            wants: Vec::new(),
            trainers: Trainers::default(),
            is_pod: false,
            when: When::default(),
            still: Vec::new(),
        }
    }

    /// Sets whether the directory is shared by the containers of a pod. If so, rings of other users are read too, and a
    /// lock instead of a process ID shows whether a writer is alive.
    pub fn of_pod(mut self, is_pod: bool) -> Probe {
        self.is_pod = is_pod;
        self
    }

    /// Publishes the trainers' processes in `trainers`.
    pub fn telling(mut self, trainers: Trainers) -> Probe {
        self.trainers = trainers;
        self
    }

    fn list(&mut self, now_ns: u64) {
        let Ok(modified) = fs::metadata(&self.dir).and_then(|meta| meta.modified()) else {
            return;
        };
        let fresh = self.listed.is_some_and(|(seen, at)| {
            seen == modified && now_ns.saturating_sub(at) < LIST_EVERY.as_nanos() as u64
        });
        if fresh {
            return;
        }
        self.listed = Some((modified, now_ns));
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let hidden = name.as_encoded_bytes().starts_with(b".");
            if hidden || !name.as_encoded_bytes().ends_with(b".ring") || self.rings.contains_key(&name) {
                continue;
            }
            self.open(name, &entry.path());
        }
    }

    fn open(&mut self, name: OsString, path: &Path) {
        match open_ours(path, self.is_pod) {
            Ok((reader, life)) => {
                self.rings.insert(name, Ring::new(reader, path.to_owned(), life));
            }
            Err((inode, error)) => {
                if self.refused.insert(name, inode) != Some(inode) {
                    warn::once("ring refused", format_args!("{}: {error}", path.display()));
                }
            }
        }
    }

    /// Checks whether processes have exited. Does not do so in every poll, because each check reads a file of /proc.
    fn check_processes(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.checked_ns) < CHECK_EVERY_NS && self.checked_ns != 0 {
            return;
        }
        self.checked_ns = now_ns;
        self.rings.values_mut().for_each(Ring::check_process);
    }

    /// Removes the rings of processes that have exited, once the frames of all their records are acknowledged.
    fn remove_finished(&mut self, now_ns: u64) {
        let finished: Vec<OsString> = self
            .rings
            .iter()
            .filter(|(_, ring)| ring.is_finished())
            .map(|(name, _)| name.clone())
            .collect();
        for name in finished {
            let Some(ring) = self.rings.remove(&name) else {
                continue;
            };
            // Ignore the result, because the file may already be gone.
            let _ = fs::remove_file(ring.path());
            let losses = ring.losses();
            self.past.dropped += losses.dropped;
            self.past.torn += losses.torn;
            let cost = ring.cost();
            self.past_cost.plugin_ns += cost.plugin_ns;
            self.past_cost.plugin_calls += cost.plugin_calls;
            if let Some((rank, restart)) = ring.ended() {
                self.fallen
                    .retain(|(fallen, _)| fallen.rank != rank || fallen.restart > restart);
            }
            if let Some(pulse) = ring.pulse(now_ns) {
                self.fallen.retain(|(fallen, _)| fallen.rank != pulse.rank);
                self.fallen.push((pulse, now_ns.saturating_sub(pulse.idle_ns)));
            }
        }
    }
}

impl Source for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>) {
        self.list(now_ns);
        self.check_processes(now_ns);
        let hooked: Vec<u32> = self.rings.values().filter_map(Ring::hooked).collect();
        for ring in self.rings.values_mut() {
            ring.has_hook = hooked.contains(&ring.pid());
            ring.want(&self.wants);
            ring.read(now_ns, send);
            self.has_died |= ring.has_died();
        }
        let still = std::mem::take(&mut self.still);
        if !still.is_empty() {
            for entered in self
                .rings
                .values()
                .filter_map(|ring| Entered::of(ring, &still, now_ns))
            {
                send(Provenance::Live, Event::Entered(entered));
            }
        }
        // Publish the trainers at once, because an action on a finding in a rank's first steps may have to signal that
        // rank.
        self.trainers
            .are(self.rings.values().filter_map(Ring::trainer).collect());
        self.remove_finished(now_ns);
    }

    fn notice(&mut self, pulses: &[Pulse], now_ns: u64) {
        let still = self.when.notice(pulses, now_ns);
        if !still.is_empty() {
            self.still = still;
        }
    }

    fn settled(&mut self, seq: u64) {
        self.rings.values_mut().for_each(|ring| ring.settled(seq));
    }

    fn pulses(&mut self, now_ns: u64, out: &mut Vec<Pulse>) {
        let fallen = self.fallen.iter().map(|(pulse, moved_ns)| {
            // The idle time of a dead process keeps growing, as that of a hung one does.
            let idle_ns = now_ns.saturating_sub(*moved_ns);
            (pulse.rank, Pulse { idle_ns, ..*pulse })
        });
        let mut by_rank: BTreeMap<_, Pulse> = fallen.collect();
        for pulse in self.rings.values().filter_map(|ring| ring.pulse(now_ns)) {
            // A rank may have several rings: two for a while after a restart, and the plugin's. The newest restart
            // counts, and within it the live process.
            let newest = by_rank.get(&pulse.rank).is_none_or(|other| {
                (pulse.restart, pulse.alive, pulse.step) >= (other.restart, other.alive, other.step)
            });
            if newest {
                by_rank.insert(pulse.rank, pulse);
            }
        }
        // A rank that ended cleanly no longer has a pulse, and neither has an earlier process of the same rank.
        for (rank, restart) in self.rings.values().filter_map(Ring::ended) {
            by_rank.retain(|_, pulse| pulse.rank != rank || pulse.restart > restart);
        }
        out.extend(by_rank.into_values());
    }

    fn is_urgent(&mut self) -> bool {
        std::mem::take(&mut self.has_died)
    }

    fn wanted(&mut self, wants: &[Want]) {
        self.wants = wants.to_vec();
    }

    fn introduce(&mut self, send: &mut Send<'_>) {
        self.rings.values().for_each(|ring| ring.introduce(send));
    }

    fn losses(&self) -> Losses {
        self.rings
            .values()
            .map(Ring::losses)
            .fold(self.past, |sum, losses| Losses {
                dropped: sum.dropped + losses.dropped,
                torn: sum.torn + losses.torn,
            })
    }

    fn cost(&self) -> Cost {
        let costs = self.rings.values().map(Ring::cost);
        costs.fold(self.past_cost, |sum, cost| Cost {
            plugin_ns: sum.plugin_ns + cost.plugin_ns,
            plugin_calls: sum.plugin_calls + cost.plugin_calls,
        })
    }

    fn is_idle(&mut self) -> bool {
        // Called only at the end. Check the processes now, because the next regular check would come too late.
        self.rings.values_mut().for_each(Ring::check_process);
        self.rings.values().all(Ring::is_over)
    }
}

/// Opens a ring that only this user can access: a regular file of this user with mode 0600, and not a link. In a pod,
/// also opens a ring with mode 0666, which all users of the pod can access.
fn open_ours(path: &Path, is_pod: bool) -> Result<(Reader, Life), (u64, OpenError)> {
    let no_follow = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = fs::File::options()
        .read(true)
        .write(true)
        .custom_flags(no_follow.bits().cast_signed())
        .open(path)
        .map_err(|error| (0, error.into()))?;
    let meta = file.metadata().map_err(|error| (0, error.into()))?;
    let inode = meta.ino();
    let mode = meta.mode() & 0o777;
    let own = meta.uid() == rustix::process::geteuid().as_raw() && mode == 0o600;
    let of_pod = is_pod && mode == 0o666;
    if !meta.is_file() || !(own || of_pod) {
        let error = io::Error::new(
            io::ErrorKind::PermissionDenied,
            "must be a file of this user with mode 0600",
        );
        return Err((inode, error.into()));
    }
    let reader = Reader::from_file(&file).map_err(|error| (inode, error))?;
    let life = match of_pod {
        true => Life::Lock(file),
        false => Life::of(reader.pid()),
    };
    Ok((reader, life))
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "plugin_tests.rs"]
mod plugin_tests;
