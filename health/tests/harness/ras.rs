//! Scripted answers of NCCL's RAS service.

use datadriven::TestCase;
use paceline_health::event::{Event, RasAccess, RasRank, RasReport, RasState};
use paceline_health::id::Rank;

use super::script::take;

/// Handles the command `ras size=4 [comms=3] [uneven=1] [absent=yes] [regular=yes]`, with a conspicuous rank on each
/// line below, for example `behind rank=2 [pid=102] [comm=7] collective=AllReduce launched=149 others=150`.
pub fn ras(case: &mut TestCase) -> Result<Event, String> {
    let absent = take::<String>(case, "absent")?.is_some();
    let ranks = case.input.lines().map(rank).collect::<Result<Vec<_>, _>>()?;
    Ok(Event::Ras(RasReport {
        state: if absent {
            RasAccess::Absent
        } else {
            RasAccess::Answered
        },
        still: take::<String>(case, "regular")?.is_none(),
        nccl: "2.28.9".into(),
        comms: take(case, "comms")?.unwrap_or(1),
        uneven: take(case, "uneven")?.unwrap_or(ranks.len().min(1) as u32),
        size: take(case, "size")?.unwrap_or(0),
        ranks,
        more: 0,
        errors: 0,
        text: "".into(),
    }))
}

fn rank(line: &str) -> Result<RasRank, String> {
    let mut words = line.split_whitespace();
    let state: RasState = serde_json::from_str(&format!("\"{}\"", words.next().unwrap_or_default()))
        .map_err(|error| format!("{line}: {error}"))?;
    let mut rank = RasRank {
        state,
        rank: None,
        comm: 7,
        host: "10.0.0.1".into(),
        pid: 0,
        collective: "".into(),
        launched: 0,
        others: 0,
    };
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.parse::<u64>().map_err(|error| format!("{word}: {error}"));
        match key {
            "rank" => rank.rank = Some(Rank(number()? as u32)),
            "comm" => rank.comm = number()?,
            "pid" => rank.pid = number()? as u32,
            "launched" => rank.launched = number()?,
            "others" => rank.others = number()?,
            "collective" => rank.collective = value.into(),
            _ => return Err(format!("unknown word {word}")),
        }
    }
    Ok(rank)
}
