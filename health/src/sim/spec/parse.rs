//! Parses the text form of a spec, for example `nodes=2 gpus=8 tp=2 pp=4 micro=8 steps=500 seed=1 sigma=0.11`.

use std::sync::Arc;

use super::{Framework, WorldSpec};
use crate::sim::text::{ScriptError, Word, words};

const KNOWN: &str = "job, nodes, gpus, racks, dp, tp, pp, ep, cp, micro, chunks, layout, framework, stages, steps, seed, \
                     restart, restart-takes, self, transfer, exchange, hop, data, sigma, tail, autocorrelation, \
                     offset, packed, experts, work, warm-up, checkpoint-every, checkpoint, undeclared, \
                     evaluate-every, evaluation, evaluation-declared, gc-every, gc, hang, role, readings, host, \
                     idle, oversubscribed, comms, beside, phases, baseline";

impl WorldSpec {
    /// Parses a spec such as `nodes=2 gpus=8 steps=500 seed=1 sigma=0.11`. Every key is optional.
    ///
    /// # Errors
    /// [`ScriptError`], which gives the column and the known words.
    pub fn parse(text: &str) -> Result<WorldSpec, ScriptError> {
        let mut spec = WorldSpec::default();
        for word in words(text)? {
            let known = spec.read_size(&word)? || spec.read_step(&word)? || spec.read_signals(&word)?;
            if !known {
                return Err(word.unknown(KNOWN));
            }
        }
        Ok(spec)
    }

    /// Reads a key of size, layout or length. Returns false if the word is another key.
    fn read_size(&mut self, word: &Word) -> Result<bool, ScriptError> {
        match word.key.as_str() {
            "job" => self.job = name(word)?,
            "role" => self.role = name(word)?,
            "nodes" => self.nodes = word.number()?,
            "gpus" => self.gpus_per_node = word.number()?,
            "racks" => self.racks = word.number()?,
            "dp" => self.layout.dp = word.number()?,
            "tp" => self.layout.tp = word.number()?,
            "pp" => self.layout.pp = word.number()?,
            "ep" => self.layout.ep = word.number()?,
            "cp" => self.layout.cp = word.number()?,
            "micro" => self.layout.micro = word.number()?,
            "chunks" => self.layout.chunks = word.number()?,
            "layout" => {
                self.layout.declared = choice(word, "declared or undeclared", ["declared", "undeclared"])?;
            }
            "framework" => {
                let ddp = choice(word, "ddp or fsdp", ["ddp", "fsdp"])?;
                self.framework = if ddp { Framework::Ddp } else { Framework::Fsdp };
            }
            "stages" => {
                self.stages = word.read("a number for each stage, such as 1,1,1,1.3", |text| {
                    text.split(',').map(|weight| weight.parse().ok()).collect()
                })?;
            }
            "steps" => self.steps = word.number()?,
            "seed" => self.seed = word.number()?,
            "restart" => self.restarts.push(word.number()?),
            "restart-takes" => self.restart_s = word.seconds()?,
            "hang" => self.hang_s = word.seconds()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a key of step durations. Returns false if the word is another key.
    fn read_step(&mut self, word: &Word) -> Result<bool, ScriptError> {
        let positive = || word.decimal("a number above 0", f64::MIN_POSITIVE..=1e6);
        let share = || word.decimal("a number, 0 to 1", 0.0..=1.0);
        let step = &mut self.step;
        match word.key.as_str() {
            "self" => step.self_s = word.seconds()?,
            "transfer" => step.transfer_s = word.seconds()?,
            "exchange" => step.exchange_s = word.seconds()?,
            "hop" => step.hop_s = word.seconds()?,
            "data" => step.data_share = share()?,
            "sigma" => step.sigma = share()?,
            "tail" => step.tail_share = share()?,
            "autocorrelation" => step.autocorrelation = share()?,
            "offset" => step.offset = share()?,
            "packed" => self.work.packed = share()?,
            "experts" => self.work.experts = positive()?,
            "warm-up" => step.warm_up_steps = word.number()?,
            "checkpoint-every" => step.checkpoint.every = word.number()?,
            "checkpoint" => step.checkpoint.factor = positive()?,
            // `undeclared=first` means that only rank 0 writes a checkpoint, and that it does not declare it. With
            // `all`, every rank does so.
            "undeclared" => {
                step.checkpoint.declared = false;
                step.checkpoint.first_rank_only = !choice(word, "all or first", ["all", "first"])?;
            }
            "evaluate-every" => step.evaluation.every = word.number()?,
            "evaluation" => step.evaluation.factor = positive()?,
            "evaluation-declared" => step.evaluation.declared = choice(word, "yes or no", ["yes", "no"])?,
            "gc-every" => step.gc.every = word.number()?,
            "gc" => step.gc.pause_s = word.seconds()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a key that selects the reported signals. Returns false if the word is another key.
    fn read_signals(&mut self, word: &Word) -> Result<bool, ScriptError> {
        let switch = || choice(word, "on or off", ["on", "off"]);
        match word.key.as_str() {
            "work" => {
                self.work.declared = choice(word, "declared or undeclared", ["declared", "undeclared"])?;
            }
            "readings" => self.readings = switch()?,
            "host" => self.host = Some(switch()?),
            "idle" => self.idle = word.decimal("a number, 0 to 1", 0.0..=1.0)?,
            "oversubscribed" => self.oversubscribed = word.decimal("a number, 0 to 10", 0.0..=10.0)?,
            "comms" => {
                let known = ["on", "off", "gpu"];
                let which = word.read("on, off or gpu", |text| {
                    known.iter().position(|known| *known == text)
                })?;
                (self.comms, self.comms_by_gpu) = (which != 1, which == 2);
            }
            "beside" => self.beside = word.number()?,
            "phases" => self.phases = switch()?,
            "baseline" => self.baseline = switch()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn name(word: &Word) -> Result<Arc<str>, ScriptError> {
    word.read("a name", |text| Some(Arc::from(text)))
}

/// Returns true if the value is the first of two choices, and false if it is the second.
fn choice(word: &Word, expected: &'static str, [yes, no]: [&str; 2]) -> Result<bool, ScriptError> {
    word.read(expected, |text| {
        (text == yes).then_some(true).or((text == no).then_some(false))
    })
}
