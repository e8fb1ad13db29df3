//! Scripted frames. They contain exactly what the transcript says, without randomness.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use datadriven::TestCase;
use paceline_health::event::{
    Agent, Attach, Axis, Baseline, BaselineOf, Beat, Bye, Detach, Event, Exit, Group, Layout, Phase, Phases,
    PolicyChange, Pulse, Signal, Step, StepKind, Want,
};
use paceline_health::frame::{AGGREGATOR, Provenance, SCHEMA_VERSION};
use paceline_health::id::{NodeId, Rank};
use paceline_health::{Frame, Time};

use super::comms::{Did, Groups, Work};
use super::counters;
use super::endings;
use super::gpus;
use super::preflight;
use super::ras;
use super::stacks;

/// The clock and the sidecars of a script.
#[derive(Default)]
pub struct Script {
    /// The current time.
    pub at: Time,
    /// The id and the sequence number of each node's sidecar.
    agents: BTreeMap<String, (u64, u64)>,
    /// The node of each rank, and its restart count.
    ranks: BTreeMap<u32, (String, u32)>,
    groups: Groups,
    /// Communicators for which single collectives are requested, up to a step.
    pub asked: Vec<Want>,
    /// GPU counters that rise.
    pub counters: gpus::Kept,
}

impl Script {
    /// Returns the frames of one command, which are sent `after=SECONDS` from now.
    pub fn frames(&mut self, case: &mut TestCase) -> Result<Vec<(Time, Frame)>, String> {
        let node = take(case, "node")?.unwrap_or_else(|| "node0".to_owned());
        let after: f64 = take(case, "after")?.unwrap_or(0.0);
        self.at = self.at + Duration::from_secs_f64(after);
        let event = match case.directive.as_str() {
            "attach" => return self.attach(case, &node),
            "steps" => return self.steps(case),
            "layout" => return self.layout(case),
            "baseline" => baseline(case)?,
            "beat" => self.beat(case)?,
            "ras" => ras::ras(case)?,
            "stacks" => stacks::stacks(case)?,
            "entered" => stacks::entered(case)?,
            "preflight" => preflight::preflight(case)?,
            "bench" => preflight::bench(case)?,
            "found" => preflight::found(case)?,
            "agent" => {
                let versions = list(case, "versions")?;
                let version = |text: &String| {
                    let (name, version) = text.split_once('_').ok_or("versions=(name_version)")?;
                    Ok((name.into(), version.into()))
                };
                let mut versions = versions
                    .iter()
                    .map(version)
                    .collect::<Result<BTreeMap<Arc<str>, Arc<str>>, String>>()?;
                if let Some(driver) = take::<String>(case, "driver")? {
                    versions.insert("driver".into(), driver.as_str().into());
                }
                let agent = self.agents.entry(node.clone()).or_default();
                *agent = (agent.0 + 1, 0);
                Event::Agent(Agent {
                    paceline: "test".into(),
                    sources: vec!["probe".into()],
                    unix_ms: 0,
                    rack: "".into(),
                    versions,
                })
            }
            "detach" => {
                let rank = take(case, "rank")?.ok_or("rank= is missing")?;
                let restart = self.ranks.get(&rank).map_or(0, |(_, restart)| *restart);
                Event::Detach(Detach {
                    rank: Rank(rank),
                    restart,
                    step: take(case, "step")?.unwrap_or(0),
                })
            }
            "reading" => counters::gpu_reading(case)?,
            "host" => counters::host_reading(case)?,
            "group" => return self.group(case),
            "kmsg" => return self.kmsg(case, &node),
            "signals" => return self.signals(case, &node),
            "port" => return self.port(case),
            "nvml" => gpus::nvml(case)?,
            "access" => gpus::access(case)?,
            "kernel" => gpus::kernel(case)?,
            "policy" => {
                let key: String = take(case, "key")?.ok_or("key= is missing")?;
                let event = Event::Policy(PolicyChange {
                    key: key.as_str().into(),
                    value: take(case, "value")?.ok_or("value= is missing")?,
                    by: "set".into(),
                });
                let own = Frame {
                    v: SCHEMA_VERSION,
                    node: NodeId::from(node.as_str()),
                    agent: AGGREGATOR,
                    seq: 1,
                    provenance: Provenance::Live,
                    event,
                };
                return Ok(vec![(self.at, own)]);
            }
            "trouble" => endings::trouble(case)?,
            "start" => endings::start(case)?,
            "exit" => Event::Exit(Exit {
                code: take(case, "code")?.unwrap_or(0),
            }),
            "bye" => Event::Bye(Bye {
                reason: "test".into(),
            }),
            other => return Err(format!("unknown command {other}")),
        };
        Ok(vec![(self.at, self.frame(&node, event))])
    }

    pub(super) fn frame(&mut self, node: &str, event: Event) -> Frame {
        let (agent, seq) = self.agents.entry(node.to_owned()).or_insert((1, 0));
        *seq += 1;
        Frame {
            v: SCHEMA_VERSION,
            node: NodeId::from(node),
            agent: *agent,
            seq: *seq,
            provenance: Provenance::Live,
            event,
        }
    }

    /// Handles the command `attach ranks=4 [first=0] [restart=0] [pid=100] [role=..] [gpu=no]`.
    fn attach(&mut self, case: &mut TestCase, node: &str) -> Result<Vec<(Time, Frame)>, String> {
        let first: u32 = take(case, "first")?.unwrap_or(0);
        let ranks: u32 = take(case, "ranks")?.ok_or("ranks= is missing")?;
        let world_size = take(case, "world")?.unwrap_or(first + ranks);
        let restart = take(case, "restart")?.unwrap_or(0);
        let role: String = take(case, "role")?.unwrap_or_default();
        let pid = take(case, "pid")?.unwrap_or(100 + 1000 * restart);
        let frames = (first..first + ranks).map(|rank| {
            self.ranks.insert(rank, (node.to_owned(), restart));
            let event = Event::Attach(Attach {
                rank: Rank(rank),
                local_rank: rank - first,
                world_size,
                restart,
                pid: pid + rank,
                gpu: Some(gpu(rank)),
                role: role.as_str().into(),
                framework: "test".into(),
            });
            (self.at, self.frame(node, event))
        });
        Ok(frames.collect())
    }

    /// Handles the command `group comm=7 ranks=(0,1) [name=dp]`.
    fn group(&mut self, case: &mut TestCase) -> Result<Vec<(Time, Frame)>, String> {
        let mut frames = Vec::new();
        for group in self.groups.make(case)? {
            let (node, restart) = self.place(group.rank)?;
            let event = Event::Group(Group { restart, ..group });
            frames.push((self.at, self.frame(&node, event)));
        }
        Ok(frames)
    }

    fn place(&self, rank: Rank) -> Result<(String, u32), String> {
        let place = self.ranks.get(&rank.0).cloned();
        place.ok_or_else(|| "a rank that has not attached".to_owned())
    }

    /// Handles the command `layout dp=2 pp=2 [ep=2] [micro=8]`. Ranks of a data-parallel group are consecutive.
    fn layout(&mut self, case: &mut TestCase) -> Result<Vec<(Time, Frame)>, String> {
        let dp: u32 = take(case, "dp")?.unwrap_or(1);
        let pp: u32 = take(case, "pp")?.unwrap_or(1);
        let ep: u32 = take(case, "ep")?.unwrap_or(1);
        let micro_batches = take(case, "micro")?.unwrap_or(0);
        let mut frames = Vec::new();
        for (rank, (node, restart)) in self.ranks.clone() {
            let axis = |index, size| Axis { index, size };
            let event = Event::Layout(Layout {
                rank: Rank(rank),
                restart,
                dp: axis(rank % dp, dp),
                tp: Axis::default(),
                pp: axis(rank / dp % pp, pp),
                ep: axis(rank % ep, ep),
                cp: Axis::default(),
                micro_batches,
            });
            frames.push((self.at, self.frame(&node, event)));
        }
        Ok(frames)
    }

    /// Handles the command `steps from=1 to=40 self=(100,100,125) [transfer=5] [kind=checkpoint] [wall=only]`, with
    /// milliseconds by rank. A minus omits the rank. `data= gc= write=` are parts of a step by rank (of self-time,
    /// except for `write`). `tokens= squares= routed=` are declared work. A single value applies to every rank. `by=1`
    /// shifts each list by one rank with every step. `turns=(0,1,0)` gives the collective of the step before which each
    /// rank's excess work happens. The lines below give each communicator's time: `comm=7 transfer=5 [bytes=1000]
    /// [gpu=4] [alone=no] [beside=fsdp]`.
    fn steps(&mut self, case: &mut TestCase) -> Result<Vec<(Time, Frame)>, String> {
        let from: u64 = take(case, "from")?.ok_or("from= is missing")?;
        let to: u64 = take(case, "to")?.unwrap_or(from);
        let selfs = list(case, "self")?;
        let by: u64 = take(case, "by")?.unwrap_or(0);
        let mut parts = BTreeMap::new();
        for key in ["data", "gc", "write", "tokens", "squares", "routed"] {
            parts.insert(key, list(case, key)?);
        }
        let turns: Vec<usize> = list(case, "turns")?
            .iter()
            .filter_map(|turn| turn.parse().ok())
            .collect();
        let transfer: f64 = take(case, "transfer")?.unwrap_or(5.0);
        let wall_only = take::<String>(case, "wall")?.is_some();
        let kind = match take::<String>(case, "kind")?.as_deref() {
            None => StepKind::Train,
            Some("checkpoint") => StepKind::Checkpoint,
            Some("evaluation") => StepKind::Evaluation,
            Some(other) => return Err(format!("unknown kind {other}")),
        };
        let ranks = selfs.len() as u64;
        let mut frames = Vec::new();
        for step in from..=to {
            // Returns the rank's index into a list in this step.
            let place = |rank: usize| ((rank as u64 + by * step) % ranks) as usize;
            let part = |key: &str, rank: usize| -> f64 {
                let values = &parts[key];
                let value = values.get(if values.len() == 1 { 0 } else { place(rank) });
                value.and_then(|text| text.parse().ok()).unwrap_or(0.0)
            };
            // Adds noise of half a percent in a repeating pattern, so that nothing here is random.
            let noisy = |rank: usize| {
                let phase = (step.wrapping_mul(37) + 11 * rank as u64) % 101;
                let own = selfs[place(rank)].parse::<f64>().ok();
                own.map(|own| own * (1.0 + 0.01 * (phase as f64 / 100.0 - 0.5)))
            };
            let selfs: Vec<Option<f64>> = (0..selfs.len()).map(noisy).collect();
            let busy = (0..).zip(&selfs);
            let busy = busy.filter_map(|(rank, own)| Some((*own)? + part("write", rank)));
            let work = Work {
                own: &selfs,
                turns: &turns,
            };
            let together = if turns.is_empty() { 0.0 } else { work.together() };
            let dur = busy.fold(together, f64::max) + transfer;
            self.at = self.at + Duration::from_secs_f64(dur / 1e3);
            let asked = self.asked.iter().filter(|want| step <= want.until);
            let asked: Vec<u64> = asked.map(|want| want.comm).collect();
            for did in self.groups.meet(case, step, &work, &asked)? {
                let (rank, mut event) = match did {
                    Did::Sum(did) => (did.rank, Event::Comm(did)),
                    Did::Each(did) => (did.rank, Event::Collectives(did)),
                };
                let (node, restart) = self.place(rank)?;
                match &mut event {
                    Event::Comm(did) => did.restart = restart,
                    Event::Collectives(did) => did.restart = restart,
                    _ => {}
                }
                frames.push((self.at, self.frame(&node, event)));
            }
            for (rank, own) in selfs.into_iter().enumerate() {
                let Some(own) = own else { continue };
                let (node, restart) = self.place(Rank(rank as u32))?;
                let ns = |ms: f64| (ms * 1e6).round() as u64;
                let (data, write) = (part("data", rank), part("write", rank));
                let phases = Phases {
                    data_ns: ns(data),
                    compute_ns: ns(own - data),
                    wait_ns: ns(dur - own - write),
                    checkpoint_ns: ns(write),
                    gc_ns: ns(part("gc", rank)),
                    ..Phases::default()
                };
                let event = Event::Step(Step {
                    rank: Rank(rank as u32),
                    restart,
                    step,
                    kind,
                    dur_ns: ns(dur),
                    phases: (!wall_only).then_some(phases),
                    micro_batches: 1,
                    tokens: part("tokens", rank) as u64,
                    signal: if wall_only { Signal::S0 } else { Signal::S2 },
                    sum_sq: part("squares", rank) as u64,
                    expert_tokens: part("routed", rank) as u64,
                });
                frames.push((self.at, self.frame(&node, event)));
            }
        }
        Ok(frames)
    }

    /// Handles the command `beat`, with a line for each rank: `rank=0 step=5 phase=wait idle=3 [gone]`. `idle` is in
    /// seconds.
    fn beat(&mut self, case: &TestCase) -> Result<Event, String> {
        let mut beat = Beat::default();
        for line in case.input.lines() {
            let mut pulse = Pulse {
                rank: Rank(0),
                restart: 0,
                step: 0,
                phase: Phase::Other,
                idle_ns: 0,
                alive: true,
            };
            for word in line.split_whitespace() {
                let (key, value) = word.split_once('=').unwrap_or((word, ""));
                let number = || {
                    value
                        .parse::<f64>()
                        .map_err(|_| format!("{word}: a number is needed"))
                };
                match key {
                    "rank" => pulse.rank = Rank(number()? as u32),
                    "step" => pulse.step = number()? as u64,
                    "idle" => pulse.idle_ns = (number()? * 1e9) as u64,
                    "phase" => {
                        let json = format!("\"{value}\"");
                        pulse.phase = serde_json::from_str(&json).map_err(|error| error.to_string())?;
                    }
                    "gone" => pulse.alive = false,
                    _ => return Err(format!("unknown word {word}")),
                }
            }
            pulse.restart = self.ranks.get(&pulse.rank.0).map_or(0, |(_, restart)| *restart);
            beat.ranks.push(pulse);
        }
        Ok(Event::Beat(beat))
    }
}

/// Handles the command `baseline of=step seconds=0.1 source=preflight`. With `of=NODE`, it is the self-time on a node.
fn baseline(case: &mut TestCase) -> Result<Event, String> {
    let of: String = take(case, "of")?.ok_or("of= is missing")?;
    let source: String = take(case, "source")?.unwrap_or_else(|| "preflight".to_owned());
    Ok(Event::Baseline(Baseline {
        of: match of.as_str() {
            "step" => BaselineOf::Step,
            node => BaselineOf::SelfTime { node: node.into() },
        },
        seconds: take(case, "seconds")?.ok_or("seconds= is missing")?,
        source: source.as_str().into(),
    }))
}

/// Returns the PCI address of a rank's GPU.
pub fn pci(rank: u32) -> std::sync::Arc<str> {
    format!("0000:{:02x}:00.0", 0x10 + rank % 8).into()
}

pub fn gpu(rank: u32) -> paceline_health::id::GpuId {
    format!("GPU-{rank}").as_str().into()
}

pub fn take<T>(case: &mut TestCase, key: &str) -> Result<Option<T>, String>
where
    T: FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    case.try_take_arg(key).map_err(|error| error.to_string())
}

/// Returns the items of a list in parentheses, or no items if the list is missing.
fn list(case: &mut TestCase, key: &str) -> Result<Vec<String>, String> {
    if !case.args.contains_key(key) {
        return Ok(Vec::new());
    }
    case.take_args(key).map_err(|error| error.to_string())
}
