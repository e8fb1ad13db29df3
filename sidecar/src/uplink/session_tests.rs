use paceline_health::event::{Beat, Collectives, Exit};
use paceline_health::id::Rank;

use super::*;

const MS: u64 = 1_000_000;

/// Beats wait for other events, and steps wait briefly. An urgent event sends everything at once.
#[test]
fn ordinary_events_leave_together() {
    let me = Hello {
        v: SCHEMA_VERSION,
        job: "j".into(),
        node: "n".into(),
        agent: 1,
    };
    let welcome = Welcome {
        v: SCHEMA_VERSION,
        job: "j".into(),
        agent: 1,
        journal: 1,
        upto: 0,
    };
    let beat = Event::Beat(Beat::default());
    // These collectives are sent with their step.
    let step = Event::Collectives(Collectives {
        rank: Rank(0),
        restart: 0,
        step: 1,
        comm: 1,
        each: Vec::new(),
        left_out: 0,
    });
    let mut uplink = Uplink::new(me, 1 << 20);
    uplink.welcomed(&welcome, 0);
    assert_eq!(uplink.poll_send(0), None);
    // Each row has the time, the event, and the number of messages sent then.
    for (at_ms, says, leaves) in [
        (1000, &beat, 0),
        (1500, &step, 0),
        (1549, &step, 0),
        (1550, &step, 1),
        // Messages keep their minimum interval.
        (1600, &step, 0),
        (1699, &step, 0),
        (1700, &step, 1),
        // No step follows this beat.
        (2000, &beat, 0),
        (2899, &beat, 0),
        (2900, &beat, 1),
        (2901, &step, 0),
        // An urgent event is sent at once, with the earlier events.
        (2902, &Event::Exit(Exit { code: 0 }), 1),
        (2903, &beat, 0),
    ] {
        uplink.push(Provenance::Live, says, at_ms * MS);
        let left = std::iter::from_fn(|| uplink.poll_send(at_ms * MS)).count();
        assert_eq!(left, leaves, "at {at_ms} ms");
    }
}
