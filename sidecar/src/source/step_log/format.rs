//! Formats of step lines in a log: a table for known frameworks, or the user's own pattern. Matching takes time linear
//! in the line's length, because it uses the `regex` crate.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::OnceLock;

use regex::bytes::{Captures, Regex, RegexBuilder};

/// Maximum length of a pattern, and maximum memory of a compiled one.
const MAX_PATTERN: usize = 2000;
const MAX_COMPILED: usize = 1 << 20;
/// Step numbers above this are ignored.
const MAX_STEP: u64 = 1 << 53;
/// Upper bound of a step's duration, seconds.
const MAX_SECONDS: f64 = 1e6;
/// After this many lines of one format, other formats are no longer tried.
const SURE: u32 = 3;

/// Formats of frameworks: name, pattern, and the code that prints such lines. The groups are `step`, and `ms` or
/// `seconds` per step.
const TABLE: [(&str, &str, &str); 7] = [
    (
        "Megatron-LM",
        r"iteration\s+(?P<step>\d+)/\s*\d+ \|.*elapsed time per iteration \(ms\):\s*(?P<ms>[0-9.]+)",
        "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/training.py",
    ),
    (
        "DeepSpeed",
        r"epoch=\d+/micro_step=\d+/global_step=(?P<step>\d+), RunningAvgSamplesPerSec=",
        "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/utils/timer.py",
    ),
    (
        "torchtitan",
        r"step:\s*(?P<step>\d+)\s+loss:",
        "https://github.com/pytorch/torchtitan/blob/main/torchtitan/components/metrics.py",
    ),
    (
        "MaxText",
        r"completed step: (?P<step>\d+), seconds: (?P<seconds>[0-9.]+)",
        "https://github.com/AI-Hypercomputer/maxtext/blob/main/src/MaxText/metric_logger.py",
    ),
    (
        "nanoGPT",
        r"^iter (?P<step>\d+): loss [^,]+, time (?P<ms>[0-9.]+)ms",
        "https://github.com/karpathy/nanoGPT/blob/master/train.py",
    ),
    // Hugging Face's Trainer and Lightning. The rate in the bar is not used because it is smoothed. Bars that do not
    // count steps have another name in front.
    (
        "tqdm",
        r"^\s*(?:(?:Epoch \d+|Training)[^:%|]{0,40}:)?\s*(?:\d+%\|[^|]*\|)?\s*(?P<step>\d+)/(?P<total>\d+) \[[0-9:]+<[0-9:?]+,",
        "https://github.com/tqdm/tqdm/blob/master/tqdm/std.py",
    ),
    // Logs of an older version of Paceline or of a custom script: `step 12 123.4 ms`.
    (
        "plain",
        r"^\s*\[?step[ =:#]*(?P<step>\d+)\]?[ ,:]+(?:took |time[ =:]+)?(?P<ms>[0-9.]+) ?ms\b",
        "docs/step-log.md",
    ),
];

/// Returns the table, compiled once.
fn table() -> &'static [(&'static str, Regex)] {
    static COMPILED: OnceLock<Vec<(&'static str, Regex)>> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let compiled = TABLE
            .iter()
            .map(|(name, pattern, _)| Some((*name, Regex::new(&format!("(?-u){pattern}")).ok()?)));
        compiled.flatten().collect()
    })
}

/// A user's pattern, compiled.
#[derive(Clone, Debug)]
pub struct StepPattern(Regex);

/// Why a pattern is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PatternError {
    /// The pattern is too long.
    #[error("at most {MAX_PATTERN} bytes")]
    TooLong,
    /// The pattern is not a regular expression, or is too large when compiled.
    #[error("{0}")]
    Regex(#[from] regex::Error),
    /// The pattern has no group for the step number.
    #[error("the group (?P<step>\\d+) is missing: it marks the number of the step")]
    NoStep,
    /// The pattern has an unknown group.
    #[error("group {0}: must be step, ms or seconds")]
    Unknown(String),
}

impl StepPattern {
    /// Compiles a pattern with the groups `step` and, if lines contain the duration of a step, `ms` or `seconds`.
    ///
    /// # Errors
    /// [`PatternError`].
    pub fn parse(text: &str) -> Result<StepPattern, PatternError> {
        if text.len() > MAX_PATTERN {
            return Err(PatternError::TooLong);
        }
        let regex = RegexBuilder::new(text).size_limit(MAX_COMPILED).build()?;
        let mut names = regex.capture_names().flatten();
        if let Some(unknown) = names.find(|name| !matches!(*name, "step" | "ms" | "seconds")) {
            return Err(PatternError::Unknown(unknown.to_owned()));
        }
        if !regex.capture_names().flatten().any(|name| name == "step") {
            return Err(PatternError::NoStep);
        }
        Ok(StepPattern(regex))
    }
}

/// The data about a step in a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Number of the step.
    pub step: u64,
    /// Duration of a step, seconds; `None` if the line does not contain it.
    pub seconds: Option<f64>,
    /// Total number of steps; zero if the line does not contain it.
    pub total: u64,
}

/// Parses the lines of one log. Chooses the first format that matches a few lines.
#[derive(Debug)]
pub struct Lines {
    formats: Vec<(&'static str, Regex, u32)>,
    chosen: Option<usize>,
    /// Total in the first progress bar. Bars with another total count something else.
    total: u64,
}

impl Lines {
    /// Parses lines by `pattern` if it is given, otherwise by the table.
    pub fn new(pattern: Option<StepPattern>) -> Lines {
        let formats = match pattern {
            Some(StepPattern(regex)) => vec![("--step-regex", regex, 0)],
            None => table()
                .iter()
                .map(|(name, regex)| (*name, regex.clone(), 0))
                .collect(),
        };
        Lines {
            formats,
            chosen: None,
            total: 0,
        }
    }

    /// Returns the name of the log's format, as soon as it is known.
    pub fn format(&self) -> Option<&'static str> {
        let place = self
            .chosen
            .or_else(|| self.formats.iter().position(|(.., seen)| *seen > 0));
        place
            .and_then(|place| self.formats.get(place))
            .map(|(name, ..)| *name)
    }

    /// Parses a line. Returns `None` if it is not about a step.
    pub fn read(&mut self, line: &[u8]) -> Option<Line> {
        let text = plain(line);
        let range = match self.chosen {
            Some(place) => place..place + 1,
            None => 0..self.formats.len(),
        };
        for place in range {
            let Some((_, regex, seen)) = self.formats.get_mut(place) else {
                continue;
            };
            let Some(line) = regex.captures(&text).and_then(|found| line_of(&found)) else {
                continue;
            };
            if line.total > 0 && self.total > 0 && line.total != self.total {
                return None;
            }
            if line.total > 0 {
                self.total = line.total;
            }
            *seen += 1;
            if *seen >= SURE {
                self.chosen = Some(place);
            }
            return Some(line);
        }
        None
    }
}

fn line_of(found: &Captures<'_>) -> Option<Line> {
    fn number<T: FromStr>(found: &Captures<'_>, name: &str) -> Option<T> {
        std::str::from_utf8(found.name(name)?.as_bytes())
            .ok()?
            .parse()
            .ok()
    }
    let step: u64 = number(found, "step").filter(|step| *step < MAX_STEP)?;
    let ms: Option<f64> = number(found, "ms");
    let seconds = ms.map(|ms| ms / 1e3).or_else(|| number(found, "seconds"));
    Some(Line {
        step,
        seconds: seconds.filter(|seconds| *seconds > 0.0 && *seconds < MAX_SECONDS),
        total: number(found, "total").unwrap_or(0),
    })
}

/// Removes the escape sequences that color a line (ECMA-48, 5.4: CSI, parameters, a final byte).
fn plain(line: &[u8]) -> Cow<'_, [u8]> {
    if !line.contains(&0x1b) {
        return line.into();
    }
    let mut plain = Vec::with_capacity(line.len());
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte != 0x1b {
            plain.push(byte);
        } else if bytes.next_if_eq(&b'[').is_some() {
            bytes.by_ref().find(|byte| (0x40..=0x7e).contains(byte));
        }
    }
    plain.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<(&'static str, u64, Option<f64>)> {
        let mut lines = Lines::new(None);
        let said = lines.read(line.as_bytes())?;
        Some((lines.format()?, said.step, said.seconds))
    }

    #[test]
    fn a_line_without_a_total_keeps_that_of_the_first_bar() {
        let mut lines = Lines::new(None);
        let mut step = |line: &str| lines.read(line.as_bytes()).map(|read| read.step);
        assert_eq!(step(" 12%|x   | 120/1000 [01:02<07:30,  1.95it/s]"), Some(120));
        assert_eq!(step("iter 121: loss 4.2, time 135.2ms, mfu 1.2%"), Some(121));
        assert_eq!(step(" 50%|x   | 5/10 [00:02<00:02,  1.95it/s]"), None);
    }

    #[test]
    fn every_pattern_compiles_and_reads_what_is_printed() {
        assert_eq!(Lines::new(None).formats.len(), TABLE.len());
        let check = |line: &str, wanted: Option<(&'static str, u64, Option<f64>)>| {
            assert_eq!(read(line), wanted, "{line}");
        };
        check(
            " [2026-11-21 10:00:00] iteration      199/  317892 | consumed samples:  203776 | elapsed time per iteration (ms): 14287.5 | throughput per GPU (TFLOP/s/GPU): 400.1 |",
            Some(("Megatron-LM", 199, Some(14.2875))),
        );
        check(
            "iteration 20/ 100 | elapsed time per iteration (ms): 250.0/260.0 | loss",
            Some(("Megatron-LM", 20, Some(0.25))),
        );
        check(
            "[2026-11-21 10:00:00,123] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec=25.70, MemAllocated=1GB",
            Some(("DeepSpeed", 10, None)),
        );
        check(
            "[titan] - \x1b[31mstep: 10  \x1b[32mloss:  7.99  \x1b[0mgrad_norm:  1.2  memory: 21.35GiB(22.5%)  tps: 1,234",
            Some(("torchtitan", 10, None)),
        );
        check(
            "completed step: 5, seconds: 5.668, TFLOP/s/device: 134.909, Tokens/s/device: 8671.794",
            Some(("MaxText", 5, Some(5.668))),
        );
        check(
            "iter 10: loss 4.2, time 135.2ms, mfu 1.2%",
            Some(("nanoGPT", 10, Some(0.1352))),
        );
        check(
            " 12%|█▏        | 120/1000 [01:02<07:30,  1.95it/s]",
            Some(("tqdm", 120, None)),
        );
        check("120/1000 [01:02<07:30,  1.95it/s]", Some(("tqdm", 120, None)));
        check(
            "Epoch 0:  12%|#1 | 120/1000 [01:02<07:30,  1.95it/s, v_num=3]",
            Some(("tqdm", 120, None)),
        );
        check("step 12 took 125 ms", Some(("plain", 12, Some(0.125))));
        for other in [
            "Loading checkpoint shards:  50%|##  | 1/2 [00:01<00:01,  1.0s/it]",
            "Map: 100%|####| 1000/1000 [00:01<00:00, 990 examples/s]",
            "loss 4.2 at 12:00",
            "",
            "\x1b[",
            "step: 99999999999999999999 loss: 1",
        ] {
            check(other, None);
        }
        check(
            "completed step: 5, seconds: 1e999,",
            Some(("MaxText", 5, Some(1.0))),
        );
    }

    #[test]
    fn one_log_has_one_format() {
        let mut lines = Lines::new(None);
        for step in 1..=3 {
            let line = format!("iter {step}: loss 4.2, time 135.2ms");
            assert!(lines.read(line.as_bytes()).is_some());
        }
        assert_eq!(lines.read(b" 12%|# | 120/1000 [01:02<07:30,  1.95it/s]"), None);
        // A bar that does not count training steps is ignored.
        let mut bars = Lines::new(None);
        assert!(bars.read(b"1/1000 [00:02<07:30,  1.95it/s]").is_some());
        assert!(bars.read(b"1/50 [00:02<07:30,  1.95it/s]").is_none());
    }

    #[test]
    fn a_pattern_of_ones_own() {
        let pattern = StepPattern::parse(r"S(?P<step>\d+) (?P<seconds>[\d.]+)s").unwrap();
        let line = Lines::new(Some(pattern)).read(b"S7 0.5s");
        let wanted = Line {
            step: 7,
            seconds: Some(0.5),
            total: 0,
        };
        assert_eq!(line, Some(wanted));
        let refused = |text: &str| StepPattern::parse(text).unwrap_err().to_string();
        assert!(refused(r"S(\d+)").contains("(?P<step>"));
        assert!(refused("(?P<step>").contains("unclosed group"));
        assert_eq!(
            refused(r"(?P<step>\d+) (?P<min>\d+)"),
            "group min: must be step, ms or seconds"
        );
        assert!(refused(&format!("(?P<step>\\d+)({}){{1000}}", "a".repeat(1500))).contains("size limit"));
        assert_eq!(refused(&"x".repeat(MAX_PATTERN + 1)), "at most 2000 bytes");
    }
}
