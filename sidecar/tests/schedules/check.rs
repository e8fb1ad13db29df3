//! The guarantees of docs/transport.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use paceline_health::Entry;
use paceline_health::event::Event;
use paceline_health::verdict::Subject;
use paceline_sidecar::uplink::wire::{BATCH_BYTES, encode_event};

use super::hub::{Hub, whole};
use super::node::{Life, Link, Node, RANKS};
use super::trouble::Kind;
use super::world::World;

/// Memory, at every moment: frames that are not safe are bounded, and so are frames in flight.
pub fn bounds(world: &World) {
    for node in &world.nodes {
        assert!(
            node.uplink.spooled_bytes() <= node.spool_bytes,
            "the spool of {}",
            node.name
        );
        let Link::On(at) = node.link else { continue };
        let (flying, most) = (world.wires[at].up.bytes(), 2 * node.spool_bytes + BATCH_BYTES);
        assert!(flying <= most, "{flying} bytes of {} are on their way", node.name);
    }
}

/// At the end, when everything has arrived.
pub fn world(world: &World) {
    let journals = world.hub.journals();
    journals.iter().for_each(|journal| in_order(world, journal));
    let aggregator = world.hub.aggregator().expect("it is up");
    let report = aggregator.report();
    let excused = world.hub.excused + report.coverage.journal_lost - world.hub.lost_before;
    let gone = journals.iter().map(|journal| Hub::thinned(journal));
    let (telemetry, others) = gone.fold((0, 0), |(telemetry, others), gone| {
        (telemetry + gone.telemetry, others + gone.others)
    });
    acked_is_kept(world, &journals, excused + telemetry + others);
    steps_arrive(world, &journals, excused + telemetry + others);
    findings_arrive(world, &journals, excused + others);
    losses_are_counted(world, journals.last().unwrap());
    assert_eq!(aggregator.present(), [], "everybody said goodbye");
    let ranks = world.nodes.len() as u32 * RANKS;
    assert_eq!(report.coverage.ranks_seen, ranks, "every rank is known");
}

/// Each frame at most once, in the order of its incarnation, as it was sent; numbers and times never decrease.
fn in_order(world: &World, journal: &[Entry]) {
    let mut last: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for pair in journal.windows(2) {
        assert!(
            pair[0].n < pair[1].n && pair[0].at_ns <= pair[1].at_ns,
            "entry {}",
            pair[1].n
        );
    }
    for entry in journal {
        let frame = &entry.frame;
        if matches!(&frame.event, Event::Thinned(thinned) if thinned.here) {
            continue;
        }
        let before = last.insert((frame.node.as_str(), frame.agent), frame.seq);
        assert!(
            before.is_none_or(|before| before < frame.seq),
            "twice or out of order: {frame:?}"
        );
        let lives = world
            .nodes
            .iter()
            .filter(|node| node.name == frame.node.as_str())
            .flat_map(|node| &node.lives);
        if let Some(life) = lives.into_iter().find(|life| life.agent == frame.agent) {
            let (sent, _) = &life.pushed[frame.seq as usize - 1];
            assert!(
                *sent == encode_event(frame.provenance, &frame.event),
                "not what was sent: {frame:?}"
            );
        } else {
            assert_eq!(frame.agent, 0, "nobody's frame: {frame:?}");
        }
    }
}

fn kept<'a>(journals: &'a [Vec<Entry>], node: &Node, life: &Life) -> BTreeSet<&'a u64> {
    let of_life = |entry: &&Entry| entry.frame.node.as_str() == node.name && entry.frame.agent == life.agent;
    journals
        .iter()
        .flatten()
        .filter(of_life)
        .map(|entry| &entry.frame.seq)
        .collect()
}

/// Acknowledged frames are in a journal, except for those dropped by the spool or rejected by the disk.
fn acked_is_kept(world: &World, journals: &[Vec<Entry>], excused: u64) {
    let mut missing_in_all = 0;
    for node in &world.nodes {
        for life in &node.lives {
            let kept = kept(journals, node, life);
            let missing = (1..=life.acked).filter(|seq| !kept.contains(seq)).count() as u64;
            missing_in_all += missing.saturating_sub(life.dropped);
        }
    }
    assert!(
        missing_in_all <= excused,
        "{missing_in_all} acknowledged frames are gone, {excused} are excused"
    );
}

/// Every step of a trainer is in a journal, sent by whichever sidecar, except for counted losses.
fn steps_arrive(world: &World, journals: &[Vec<Entry>], excused: u64) {
    let steps = journals
        .iter()
        .flatten()
        .filter_map(|entry| match &entry.frame.event {
            Event::Step(step) => Some((step.rank, step.step)),
            _ => None,
        });
    let come: BTreeSet<_> = steps.collect();
    let made: u64 = world.nodes.iter().map(|node| node.steps_made).sum();
    let dropped: u64 = world
        .nodes
        .iter()
        .flat_map(|node| &node.lives)
        .map(|life| life.dropped)
        .sum();
    let missing = made - come.len() as u64;
    assert!(
        missing <= dropped + excused,
        "{missing} steps of {made}; {dropped} dropped, {excused} excused"
    );
}

/// Events that are not telemetry arrive, and lead to findings.
fn findings_arrive(world: &World, journals: &[Vec<Entry>], excused: u64) {
    let mut missing = Vec::new();
    for node in &world.nodes {
        let kept = kept(journals, node, node.life());
        for (seq, (_, more)) in (1u64..).zip(&node.life().pushed) {
            if *more && !kept.contains(&seq) {
                missing.push((&node.name, seq));
            }
        }
    }
    assert!(
        missing.len() as u64 <= excused,
        "not telemetry, and gone: {missing:?}; {excused} are excused"
    );
    if world.trouble.has(Kind::AggregatorMoves) || excused > 0 {
        return;
    }
    let report = world.hub.aggregator().unwrap().report();
    for entry in journals.iter().flatten() {
        let Event::GpuFault(fault) = &entry.frame.event else {
            continue;
        };
        let is_of = |subject: &Subject| matches!(subject, Subject::Gpu { gpu_uuid, .. } if Some(gpu_uuid) == fault.gpu.as_ref());
        let told = report.verdicts.iter().any(|verdict| is_of(&verdict.subject));
        assert!(told, "no verdict on {:?}: {:?}", fault.gpu, report.verdicts);
    }
}

/// Coverage contains every gap, and no others.
fn losses_are_counted(world: &World, journal: &[Entry]) {
    let coverage = world.hub.aggregator().unwrap().report().coverage;
    let holes = |((_, agent), seqs): ((String, u64), Vec<u64>)| match (agent, seqs.last()) {
        (0, _) | (_, None) => 0,
        (_, Some(last)) => last - seqs.len() as u64,
    };
    let holes: u64 = Hub::numbers(journal).into_iter().map(holes).sum();
    // Thinned frames are not lost.
    let holes = holes.checked_sub(Hub::thinned(journal).frames);
    let holes = holes.expect("no more is said to be thinned than is gone");
    if world.hub.was_hurt {
        let counted = coverage.frames_lost + coverage.journal_lost;
        assert!(
            counted >= holes,
            "{holes} frames are not there, {counted} counted"
        );
    } else {
        assert_eq!(
            coverage.frames_lost, holes,
            "holes in the journal, and in coverage"
        );
        assert_eq!(coverage.journal_lost, 0);
    }
}

/// Another aggregator that reads the journal has the same state as the first one.
pub fn opened_again(world: World) {
    let was_hurt = world.hub.was_hurt;
    let before = world.hub.journals().pop().unwrap();
    let (aggregator, root) = world.hub.into_aggregator();
    let aggregator = aggregator.unwrap();
    let (dir, told) = (aggregator.dir().to_owned(), aggregator.report());
    drop(aggregator);
    let mut fold = paceline_health::Detector::new(paceline_health::Policy::default());
    before
        .iter()
        .for_each(|entry| fold.observe(entry.at_ns, &entry.frame));
    let again = fold.report();
    let is_whole = Hub::thinned(&before).frames == 0;
    if !was_hurt && is_whole {
        let of = |report: &paceline_health::report::Report| {
            report
                .verdicts
                .iter()
                .map(|verdict| (verdict.id, verdict.finding, verdict.subject.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&told), of(&again), "verdicts follow from the journal");
    }
    let written = fs::read_to_string(dir.join("verdicts.ndjson")).unwrap();
    assert!(written.is_empty() || written.ends_with('\n'), "no half line");
    assert_eq!(whole(&dir).len(), before.len());
    drop(root);
}
