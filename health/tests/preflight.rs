//! Transcripts of the preflight's judgment. Each consists of measurements, `----`, and findings. `REWRITE=1 cargo test
//! -p paceline-health --test preflight` rewrites the results.

#![allow(clippy::disallowed_methods)] // A test may read its scripts; the crate may not.

use std::fmt::Write as _;
use std::sync::Arc;

use paceline_health::id::{GpuId, NodeId};
use paceline_health::preflight::{
    Fact, Judge, Metric, Noted, Past, Place, PreflightTable, Sample, Wanted, next_pairs,
};

#[derive(Default)]
struct Stage {
    nodes: Vec<NodeId>,
    samples: Vec<Sample>,
    facts: Vec<Fact>,
    past: Vec<Past>,
    wanted: Wanted,
}

fn metric(name: &str) -> Metric {
    *Metric::ALL
        .iter()
        .find(|metric| metric.name() == name)
        .unwrap_or_else(|| panic!("no metric {name}"))
}

/// Parses a place: `n1`, `n1/g0`, `n1-n2` or `job`.
fn place(text: &str) -> Place {
    if let Some((node, gpu)) = text.split_once('/') {
        let (node, gpu) = (node.into(), gpu.into());
        return Place::Gpu { node, gpu };
    }
    match text.split_once('-') {
        Some((a, b)) => Place::pair(&a.into(), &b.into()),
        None if text == "job" => Place::Job,
        None => Place::Node { node: text.into() },
    }
}

impl Stage {
    fn run(&mut self, case: &datadriven::TestCase) -> String {
        let mut lines = String::new();
        let word = |key: &str| case.args.get(key).and_then(|values| values.first()).cloned();
        let number = |key: &str| word(key).map(|text| text.parse::<f64>().expect("a number"));
        match case.directive.as_str() {
            "nodes" => {
                let count = number("count").expect("count=") as u32;
                self.nodes = (1..=count).map(|n| NodeId::from(&*format!("n{n}"))).collect();
                self.wanted.nodes = count;
            }
            "measured" => {
                for line in case.input.lines() {
                    self.measured(
                        line,
                        word("round").map_or(0, |round| round.parse().expect("a round")),
                    );
                }
            }
            "past" => {
                for line in case.input.lines() {
                    let mut words = line.split_whitespace();
                    let (what, of) = (words.next().expect("metric"), words.next().expect("place"));
                    self.past.push(Past {
                        place: place(of),
                        metric: metric(what),
                        conditions: "".into(),
                        values: words.map(|value| value.parse().expect("a value")).collect(),
                    });
                }
            }
            "facts" => case.input.lines().for_each(|line| self.fact(line)),
            "wish" => self.wanted.min_busbw = number("min-busbw"),
            "machines" => {
                let model: Arc<str> = case.input.trim().into();
                let of = |node: &NodeId| (node.clone(), (Arc::clone(&model), 8));
                self.wanted.machines = self.nodes.iter().map(of).collect();
            }
            "pairs" => {
                let table = PreflightTable::default();
                let round = number("round").expect("round=") as u32;
                for (a, b) in next_pairs(&table, &self.nodes, &self.samples, round) {
                    writeln!(lines, "{a} {b}").expect("text");
                }
            }
            "suspects" => {
                let table = PreflightTable::default();
                for place in Judge::new(&table, &self.past, &self.wanted).suspects(&self.samples) {
                    writeln!(lines, "{place}").expect("text");
                }
            }
            "judge" => lines = self.judge(),
            other => panic!("{other}?"),
        }
        if lines.is_empty() {
            "nothing\n".to_owned()
        } else {
            lines
        }
    }

    /// Reads a measurement such as `gemm n1/g0 100 spread=0.1 bytes=1`.
    fn measured(&mut self, line: &str, round: u32) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let option = |key: &str| {
            let found = words
                .iter()
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            found.map(|value| value.parse::<f64>().expect("a number"))
        };
        self.samples.push(Sample {
            place: place(words[1]),
            metric: metric(words[0]),
            conditions: "".into(),
            rail: option("rail").map(|rail| rail as u32),
            round,
            value: words[2].parse().expect("a value"),
            spread: option("spread").unwrap_or(0.0),
            passes: 5,
            bytes: option("bytes").unwrap_or(0.0) as u64,
        });
    }

    /// Reads a fact such as `nic_rate n1:eth0 400` or `pcie_reduced n1/g0 8 of 16`.
    fn fact(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let (name, of) = (words.next().expect("name"), words.next().expect("place"));
        let (node, port) = of
            .split_once(':')
            .map_or((of, None), |(node, port)| (node, Some(port)));
        let (node, gpu) = node
            .split_once('/')
            .map_or((node, None), |(node, gpu)| (node, Some(gpu)));
        self.facts.push(Fact {
            node: node.into(),
            gpu: gpu.map(GpuId::from),
            port: port.map(Arc::from),
            name: name.into(),
            value: words.next().map(Arc::from),
        });
    }

    fn judge(&self) -> String {
        let table = PreflightTable::default();
        let judged = Judge::new(&table, &self.past, &self.wanted).judge(&self.samples, &self.facts);
        let mut text = String::new();
        for noted in &judged.findings {
            text += &told(noted);
        }
        for (place, metric) in &judged.unsteady {
            writeln!(text, "unsteady: {metric} of {place}").expect("text");
        }
        if judged.comparisons == 0 {
            text += "nothing to compare with\n";
        }
        text
    }
}

fn told(noted: &Noted) -> String {
    let mut text = format!("{} {}: {}", noted.severity.name(), noted.place, noted.what);
    for other in &noted.or {
        write!(text, ", or {other}").expect("text");
    }
    if !noted.sure {
        text += " (not sure)";
    }
    text += "\n";
    if let Some(value) = noted.value {
        writeln!(text, "    {value:.4} {}", noted.unit).expect("text");
    }
    for comparison in &noted.comparisons {
        writeln!(
            text,
            "    {:.4} expected by {}{}{}",
            comparison.expected,
            comparison.against.words(),
            if comparison.source.is_empty() { "" } else { ": " },
            comparison.source
        )
        .expect("text");
    }
    writeln!(text, "    {}", noted.says).expect("text");
    if !noted.cause.is_empty() {
        writeln!(text, "    because: {}", noted.cause).expect("text");
    }
    text
}

#[test]
fn transcripts() {
    datadriven::walk(
        &format!("{}/tests/preflight", env!("CARGO_MANIFEST_DIR")),
        |file| {
            let script = std::fs::read_to_string(&file.filename).expect("the script");
            assert!(script.starts_with("# "), "{} opens with why", file.filename);
            let mut stage = Stage::default();
            file.run(|case| stage.run(case));
        },
    );
}
