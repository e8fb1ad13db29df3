//! The stage on which transcripts play: a detector, a world or frames made by hand, and a clock that scripts move.
//!
//! Commands: `world` (a [`WorldSpec`]; faults on the lines below), `run`, `verdicts`, `truth`, `report`, `cost`, `asked` (of which
//! communicators each collective is asked for), and by hand
//! `attach`, `layout`, `steps`, `baseline`, `beat`, `reading`, `host`, `port`,
//! `group`, `ras`, `preflight`, `bench`, `found`, `agent`, `start`, `trouble`, `exit`, `bye`, `advance`. Every command prints what is new to be
//! told.

mod before;
mod comms;
mod counters;
pub mod cut;
mod ends;
mod gpus;
mod hand;
mod ports;
mod ras;
mod tell;

use datadriven::TestCase;
use paceline_health::event::Want;
use paceline_health::sim::{World, WorldSpec};
use paceline_health::verdict::Verdict;
use paceline_health::{Frame, Time};

use cut::Watched;
use hand::Hand;

/// Detector, world and hand of one script.
#[derive(Default)]
pub struct Stage {
    detector: Watched,
    world: Option<World>,
    hand: Hand,
}

impl Stage {
    /// One whose detector has a second beside it, which is cut off and goes on from what was written down.
    pub fn with_cuts() -> Stage {
        Stage {
            detector: Watched::new(true),
            ..Stage::default()
        }
    }

    /// Plays one command; what went wrong in the script is printed as its answer.
    pub fn run(&mut self, case: &mut TestCase) -> String {
        let told = match case.directive.as_str() {
            "world" => self.world(case),
            "run" => Ok(self.play(case)),
            "verdicts" => Ok(self
                .detector
                .report()
                .verdicts
                .iter()
                .map(tell::verdict)
                .collect()),
            "truth" => Ok(self.truth()),
            "report" => Ok(tell::report(&self.detector.report())),
            "cost" => Ok(tell::cost(&self.detector.report().cost)),
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

    /// A new world, and a detector that has seen nothing of it.
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

    /// Lets the world run to its end, or until the detector has taken every frame before a time. `deaf=yes`: nobody in it
    /// answers what is asked.
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
        truth.map(|truth| tell::truth(truth, &report.verdicts)).collect()
    }

    /// Lets time pass with nothing coming in.
    fn advance(&mut self, case: &mut TestCase) -> Result<String, String> {
        let seconds: f64 = case.take_arg("s").map_err(|error| error.to_string())?;
        self.hand.at = self.hand.at + std::time::Duration::from_secs_f64(seconds);
        self.detector.advance(self.hand.at);
        Ok(news(&mut self.detector))
    }

    /// What the sidecars are asked for by now.
    fn asked(&self) -> String {
        let line = |want: &Want| format!("each of comm {} until step {}\n", want.comm, want.until);
        self.detector.wants().iter().map(line).collect()
    }

    fn by_hand(&mut self, case: &mut TestCase) -> Result<String, String> {
        let mut told = String::new();
        self.hand.asked = self.detector.wants().to_vec();
        for (at, frame) in self.hand.frames(case)? {
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

/// What is new to be told.
fn news(detector: &mut Watched) -> String {
    std::iter::from_fn(|| detector.poll())
        .map(|verdict: Verdict| tell::verdict(&verdict))
        .collect()
}
