//! The harness of the transcripts. It consists of a detector, a simulated world or scripted frames, and a clock that
//! the script advances.
//!
//! Commands: `world` (a [`WorldSpec`]; faults on the lines below), `run`, `verdicts`, `truth`, `report`, `cost`,
//! `asked` (the communicators with requests for single collectives), and for scripted frames `attach`, `layout`,
//! `steps`, `baseline`, `beat`, `reading`, `host`, `port`, `group`, `ras`, `stacks`, `entered`, `preflight`, `bench`,
//! `found`, `agent`, `start`, `trouble`, `exit`, `bye`, `advance`. Every command prints the new verdicts.

mod comms;
mod counters;
mod endings;
mod format;
mod gpus;
mod ports;
mod preflight;
mod ras;
pub mod reload;
mod script;
mod stacks;

use datadriven::TestCase;
use paceline_health::event::Want;
use paceline_health::sim::{World, WorldSpec};
use paceline_health::verdict::Verdict;
use paceline_health::{Frame, Time};

use reload::Watched;
use script::Script;

/// Detector, simulated world and scripted frames of one transcript.
#[derive(Default)]
pub struct Harness {
    detector: Watched,
    world: Option<World>,
    script: Script,
}

impl Harness {
    /// Creates a harness with a second detector that is repeatedly saved and restored.
    pub fn with_cuts() -> Harness {
        Harness {
            detector: Watched::new(true),
            ..Harness::default()
        }
    }

    /// Executes one command. If the script has an error, the error is the output.
    pub fn run(&mut self, case: &mut TestCase) -> String {
        let told = match case.directive.as_str() {
            "world" => self.world(case),
            "run" => Ok(self.play(case)),
            "verdicts" => Ok(self
                .detector
                .report()
                .verdicts
                .iter()
                .map(format::verdict)
                .collect()),
            "truth" => Ok(self.truth()),
            "report" => Ok(format::report(&self.detector.report())),
            "cost" => Ok(format::cost(&self.detector.report().cost)),
            "asked" => Ok(self.asked()),
            "advance" => self.advance(case),
            _ => self.by_hand(case),
        };
        self.detector.compare();
        match told {
            Ok(text) if text.is_empty() => "nothing\n".to_owned(),
            Ok(text) => text,
            Err(error) => format!("error: {error}\n"),
        }
    }

    /// Creates a world and a new detector.
    fn world(&mut self, case: &TestCase) -> Result<String, String> {
        let mut words: Vec<String> = case
            .args
            .iter()
            .map(|(key, values)| format!("{key}={}", values.join(",")))
            .collect();
        words.sort();
        let mut spec = WorldSpec::parse(&words.join(" ")).map_err(|error| error.to_string())?;
        for line in case.input.lines() {
            spec.faults
                .push(line.parse().map_err(|error| format!("{line}: {error}"))?);
        }
        let ranks = spec.ranks();
        self.world = Some(World::new(spec).map_err(|error| error.to_string())?);
        self.detector = self.detector.anew();
        Ok(format!("{ranks} ranks\n"))
    }

    /// Runs the world to its end, or until the detector has received every frame before a time. With `deaf=yes`, no
    /// sidecar answers requests.
    fn play(&mut self, case: &mut TestCase) -> String {
        let until = case.try_take_arg::<f64>("until").expect("until=SECONDS");
        let until = until.map_or(Time(u64::MAX), Time::from_secs_f64);
        let is_deaf = case.try_take_arg::<String>("deaf").expect("deaf=yes").is_some();
        let mut told = String::new();
        let Some(world) = self.world.as_mut() else {
            return "error: there is no world\n".to_owned();
        };
        let mut asked = self.detector.asked();
        while let Some((at, frame)) = world.next() {
            told += &observe(&mut self.detector, at, &frame);
            if self.detector.asked() != asked && !is_deaf {
                asked = self.detector.asked();
                world.want(self.detector.wants());
            }
            if at >= until {
                break;
            }
        }
        told
    }

    fn truth(&self) -> String {
        let report = self.detector.report();
        let truth = self.world.iter().flat_map(|world| world.truth());
        truth
            .map(|truth| format::truth(truth, &report.verdicts))
            .collect()
    }

    /// Advances time without any input.
    fn advance(&mut self, case: &mut TestCase) -> Result<String, String> {
        let seconds: f64 = case.take_arg("s").map_err(|error| error.to_string())?;
        self.script.at = self.script.at + std::time::Duration::from_secs_f64(seconds);
        self.detector.advance(self.script.at);
        Ok(news(&mut self.detector))
    }

    /// Returns the current requests to the sidecars.
    fn asked(&self) -> String {
        let line = |want: &Want| format!("each of comm {} until step {}\n", want.comm, want.until);
        self.detector.wants().iter().map(line).collect()
    }

    fn by_hand(&mut self, case: &mut TestCase) -> Result<String, String> {
        let mut told = String::new();
        self.script.asked = self.detector.wants().to_vec();
        for (at, frame) in self.script.frames(case)? {
            told += &observe(&mut self.detector, at, &frame);
        }
        case.expect_empty().map_err(|error| error.to_string())?;
        Ok(told)
    }
}

fn observe(detector: &mut Watched, at: Time, frame: &Frame) -> String {
    detector.observe(at, frame);
    news(detector)
}

/// Returns the new verdicts.
fn news(detector: &mut Watched) -> String {
    std::iter::from_fn(|| detector.poll())
        .map(|verdict: Verdict| format::verdict(&verdict))
        .collect()
}
