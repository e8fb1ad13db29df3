//! Tests of a journal with a size limit.

use proptest::prelude::*;

use super::*;

/// Runs two thousand steps, with room for a third of them.
fn long(limits: Limits) -> World {
    let mut world = World::new(limits);
    for step in 1..=2_000u64 {
        let mut also = Vec::new();
        if step.is_multiple_of(100) {
            also.push(mark(step));
        }
        if step == 500 || step == 1_500 {
            also.push(fault(step as u32));
        }
        world.row(also);
        if step.is_multiple_of(50) {
            let used = room::used(&world.journal()).unwrap();
            assert!(used <= limits.bound_bytes, "{used} bytes at step {step}");
        }
    }
    world
}

#[test]
fn old_telemetry_goes_and_nothing_else() {
    let mut world = long(LIMITS);
    world.accounts();
    let kept = |kind: fn(&Event) -> bool| {
        let all = world.entries();
        all.iter().filter(|entry| kind(&entry.frame.event)).count() as u64
    };
    assert_eq!(kept(|event| matches!(event, Event::Mark(_))), 20);
    assert_eq!(kept(|event| matches!(event, Event::GpuFault(_))), 2);
    assert_eq!(kept(|event| matches!(event, Event::Attach(_))), u64::from(RANKS));
    assert!(kept(|event| matches!(event, Event::Step(_))) < 4_000);
    let before = world.report();
    assert_eq!(before.coverage.frames_lost, 0);
    assert_eq!(before.coverage.steps_ratio, Some(1.0), "all of it was judged");
    assert!(
        note(&before).contains("it was judged before it was deleted"),
        "{}",
        note(&before)
    );
    // After a restart, the aggregator's snapshot covers the removed entries.
    world.open();
    let after = world.report();
    assert_eq!(named(&after), named(&before));
    assert_eq!(note(&after), note(&before));
    assert_eq!(
        (after.coverage.frames_lost, after.coverage.steps_ratio),
        (0, Some(1.0))
    );
    assert_eq!(after.times, before.times);
    assert!(
        named(&after).iter().any(|verdict| verdict.contains("rank 2")),
        "{:?}",
        named(&after)
    );
}

/// Without a snapshot, an aggregator has less data. It reports this, and raises no finding because of missing data.
#[test]
fn without_snapshots_history_is_missing_and_nobody_is_accused() {
    for damage in ["gone", "damaged", "of another version"] {
        let mut world = long(LIMITS);
        let before = world.report();
        world.aggregator = None;
        let told = fs::read_to_string(world.dir.path().join("verdicts.ndjson")).unwrap();
        for (number, path) in snapshot::list(&world.journal()).unwrap() {
            match damage {
                "gone" => fs::remove_file(&path).unwrap(),
                "damaged" => fs::write(&path, "PLSTATE\nnonsense").unwrap(),
                _ => {
                    let header = Header::new("j".into(), 1, 0);
                    let bytes = snapshot::encode(&header, &"another", 0).unwrap();
                    snapshot::write(&world.journal(), number, &bytes).unwrap();
                }
            }
        }
        world.now_ns += 3_000 * MS;
        world.open();
        let journal = world.aggregator.as_ref().unwrap().clock.journal();
        let after = world.report();
        assert_eq!(after.coverage.frames_lost, 0, "{damage}");
        assert!(
            note(&after).contains("was not judged here"),
            "{damage}: {}",
            note(&after)
        );
        let known = named(&before);
        // A verdict that now has a later time may not be cleared yet. However, no new subject may appear.
        let subjects: Vec<String> = before.verdicts.iter().map(|v| v.subject.to_string()).collect();
        for verdict in &after.verdicts {
            assert!(
                subjects.contains(&verdict.subject.to_string()),
                "{damage}: {verdict:?} {known:?}"
            );
        }
        let aside = fs::read_to_string(world.dir.path().join("verdicts.1.ndjson")).unwrap();
        assert_eq!(aside, told, "what was told stays");
        // All sidecars are asked to introduce themselves again. After that, everything continues.
        assert_ne!(journal, 0);
        world.introduce();
        (0..200).for_each(|_| world.row(Vec::new()));
        assert_eq!(named(&world.report()), named(&after), "{damage}");
        world.accounts();
    }
}

/// A replay of the remaining lines finds all events other than telemetry, and raises no finding that the original run
/// did not have.
#[test]
fn what_is_left_can_be_judged() {
    let world = long(LIMITS);
    let folded = world.folded().report();
    assert_eq!(folded.coverage.frames_lost, 0);
    assert_eq!(folded.steps, world.report().steps);
    let live = named(&world.report());
    for verdict in &folded.verdicts {
        let subject = verdict.subject.to_string();
        assert!(
            live.iter().any(|known| known.contains(&subject)),
            "{verdict:?}: {live:?}"
        );
    }
    assert!(
        named(&folded).iter().any(|verdict| verdict.contains("GPU-3")),
        "{:?}",
        named(&folded)
    );
    // Evidence after the thinned part still names the right entries.
    let last = world.entries().last().unwrap().n;
    assert!(world.aggregator.as_ref().unwrap().last_n == last);
}

/// Events other than telemetry exceed the limit by themselves. The oldest of them are then removed too, and recorded.
#[test]
fn the_bound_holds_at_any_price() {
    let mut world = World::new(LIMITS);
    for step in 1..=1_500u64 {
        world.row((0..5).map(|_| mark(step)).collect());
        if step.is_multiple_of(50) {
            let used = room::used(&world.journal()).unwrap();
            assert!(used <= LIMITS.bound_bytes, "{used} bytes at step {step}");
        }
    }
    world.accounts();
    let rest = |world: &World| {
        world
            .report()
            .coverage
            .notes
            .iter()
            .any(|note| note.contains("the rest was deleted too"))
    };
    assert!(rest(&world));
    assert!(
        segments::list(&world.journal()).unwrap()[0].0 > 1,
        "dropped ones become one"
    );
    let before = world.report();
    world.open();
    assert_eq!(named(&world.report()), named(&before));
    // The same must hold without a snapshot.
    world.aggregator = None;
    snapshot::forget(&world.journal());
    world.open();
    world.introduce();
    (0..100).for_each(|_| world.row(Vec::new()));
    assert_eq!(world.report().coverage.frames_lost, 0);
    assert_eq!(world.report().coverage.ranks_seen, RANKS);
    // All ranks wait for two fifths of each step, which was already reported before.
    let known = named(&before);
    let again = named(&world.report());
    assert!(
        again.iter().all(|verdict| known.contains(verdict)),
        "{again:?}, known: {known:?}"
    );
    assert!(rest(&world));
    world.accounts();
}

#[derive(Clone, Debug)]
enum Op {
    Rows(u16),
    Fault,
    Marks(u8),
    /// The aggregator is killed, and started again.
    Kill,
    /// The aggregator is killed and started again, and its newest snapshots are damaged meanwhile.
    Damage(u8),
    /// The aggregator is killed and started again while a segment was being rewritten.
    HalfThinned,
    /// The aggregator is killed and started again, and the dropped segment before the first remaining one has
    /// reappeared.
    NotRemoved,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..400u16).prop_map(Op::Rows),
        1 => Just(Op::Fault),
        3 => (1..100u8).prop_map(Op::Marks),
        1 => Just(Op::Kill),
        1 => (1..3u8).prop_map(Op::Damage),
        1 => Just(Op::HalfThinned),
        1 => Just(Op::NotRemoved),
    ]
}

impl World {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Rows(count) => (0..*count).for_each(|_| self.row(Vec::new())),
            Op::Fault => self.row(vec![fault(1)]),
            Op::Marks(count) => self.row((0..*count).map(|_| mark(1)).collect()),
            Op::Kill => self.open(),
            Op::Damage(count) => {
                self.aggregator = None;
                let all = snapshot::list(&self.journal()).unwrap();
                for (_, path) in all.iter().rev().take(usize::from(*count)) {
                    let mut bytes = fs::read(path).unwrap();
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 1;
                    fs::write(path, bytes).unwrap();
                }
                self.open();
            }
            Op::HalfThinned => {
                self.aggregator = None;
                if let Some((_, path)) = segments::list(&self.journal()).unwrap().first() {
                    let bytes = fs::read(path).unwrap();
                    fs::write(path.with_added_extension("5.thin"), &bytes[..bytes.len() / 2]).unwrap();
                }
                self.open();
            }
            Op::NotRemoved => {
                self.aggregator = None;
                let all = segments::list(&self.journal()).unwrap();
                if let Some((number, path)) = all.first()
                    && *number > 1
                {
                    // Any segment that is recorded as dropped will do, because the last line of each sidecar is in
                    // both.
                    fs::copy(path, segments::closed(&self.journal(), number - 1)).unwrap();
                }
                self.open();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_all_is_there_or_told(ops in prop::collection::vec(op(), 1..20)) {
        let limits = Limits { segment_bytes: 20_000, bound_bytes: 600_000 };
        let mut world = World::new(limits);
        for op in &ops {
            world.apply(op);
            let used = room::used(&world.journal()).unwrap();
            prop_assert!(used <= limits.bound_bytes + limits.segment_bytes, "{} bytes after {:?}", used, op);
            prop_assert_eq!(world.report().coverage.frames_lost, 0);
            world.accounts();
        }
        prop_assert_eq!(world.folded().report().coverage.frames_lost, 0);
        let names = fs::read_dir(world.dir.path()).unwrap().map(|file| file.unwrap().file_name());
        let drafts = names.filter(|name| name.to_string_lossy().ends_with(".thin"));
        prop_assert_eq!(drafts.count(), 0);
    }
}
