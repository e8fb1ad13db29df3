//! Scripted activity of stalled ranks.

use datadriven::TestCase;
use paceline_health::event::{Activity, CommEntered, Entered, Event, StackFrame, Stacks, ThreadState};
use paceline_health::id::Rank;
use serde::de::DeserializeOwned;

/// Handles the command `stacks`, with this on the line below: `ranks=0,1,3 file=/home/u/train.py line=41 function=step
/// [inside=all_reduce] [missing=stopped] [state=stopped] [waits_for=lock]`.
pub fn stacks(case: &mut TestCase) -> Result<Event, String> {
    let mut main = Activity {
        state: ThreadState::Sleeping,
        ..Activity::default()
    };
    let mut own = StackFrame {
        function: "".into(),
        file: "".into(),
        line: 0,
    };
    let mut ranks = Vec::new();
    for word in case.input.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let number = |text: &str| text.parse::<u32>().map_err(|error| format!("{word}: {error}"));
        match key {
            "ranks" => ranks = value.split(',').map(number).collect::<Result<_, _>>()?,
            "file" => own.file = value.into(),
            "line" => own.line = number(value)?,
            "function" => own.function = value.into(),
            "inside" => main.frames.push(StackFrame {
                function: value.into(),
                file: "/v/site-packages/torch/distributed/distributed_c10d.py".into(),
                line: 2806,
            }),
            "missing" => main.missing = value.into(),
            "waits_for" => main.waits_for = named(word, value)?,
            "state" => main.state = named(word, value)?,
            _ => return Err(format!("unknown word {word}")),
        }
    }
    if !own.file.is_empty() {
        main.own = Some(main.frames.len() as u8);
        main.frames.push(own);
    }
    Ok(Event::Stacks(Stacks {
        ranks: ranks.into_iter().map(Rank).collect(),
        restart: 0,
        main,
        workers: Vec::new(),
    }))
}

/// Returns the value with this name in JSON.
fn named<T: DeserializeOwned>(word: &str, name: &str) -> Result<T, String> {
    serde_json::from_value(name.into()).map_err(|error| format!("{word}: {error}"))
}

/// Handles the command `entered`, with this on the line below: `rank=2 comm=7 all_reduce=99 all_gather=50 bytes=4096`.
/// The latest function comes first.
pub fn entered(case: &mut TestCase) -> Result<Event, String> {
    let (mut rank, mut comm, mut bytes, mut last) = (0, 0, 0, Vec::new());
    for word in case.input.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let value: u64 = value.parse().map_err(|error| format!("{word}: {error}"))?;
        match key {
            "rank" => rank = value as u32,
            "comm" => comm = value,
            "bytes" => bytes = value,
            "all_reduce" => last.push((1, value)),
            "reduce_scatter" => last.push((2, value)),
            "all_gather" => last.push((3, value)),
            _ => return Err(format!("unknown word {word}")),
        }
    }
    let each = last
        .into_iter()
        .map(|(function, sequence)| (function, sequence, bytes).into());
    Ok(Event::Entered(Entered {
        rank: Rank(rank),
        restart: 0,
        comms: vec![CommEntered {
            comm,
            each: each.collect(),
            ago_ns: 5_000_000_000,
        }],
        whole: true,
    }))
}
