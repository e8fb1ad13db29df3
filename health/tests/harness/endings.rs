//! Scripted starts and ends of ranks and nodes.

use datadriven::TestCase;
use paceline_health::event::{Event, Start, Trouble};
use paceline_health::id::Rank;

use super::script::take;

/// Handles the command `trouble kind=error [rank=2] [code=7]`, with the message on the lines below.
pub fn trouble(case: &mut TestCase) -> Result<Event, String> {
    let kind: String = take(case, "kind")?.ok_or("kind= is missing")?;
    Ok(Event::Trouble(Trouble {
        rank: take(case, "rank")?.map(Rank),
        kind: serde_json::from_value(kind.into()).map_err(|error| error.to_string())?,
        says: case.input.trim_end().into(),
        code: take(case, "code")?,
    }))
}

/// Handles the command `start rank=1 world=4 stage=joining [call=barrier] [idle=3] [restart=0]`. `idle` is in seconds.
pub fn start(case: &mut TestCase) -> Result<Event, String> {
    let stage: String = take(case, "stage")?.ok_or("stage= is missing")?;
    let rank = take(case, "rank")?.ok_or("rank= is missing")?;
    let idle: f64 = take(case, "idle")?.unwrap_or(0.0);
    Ok(Event::Start(Start {
        rank: Rank(rank),
        restart: take(case, "restart")?.unwrap_or(0),
        local_rank: rank,
        world_size: take(case, "world")?.unwrap_or(4),
        stage: serde_json::from_value(stage.into()).map_err(|error| error.to_string())?,
        call: take::<String>(case, "call")?.unwrap_or_default().into(),
        idle_ns: (idle * 1e9) as u64,
    }))
}
