use super::*;

fn table() -> Box<Table> {
    Box::new(Table::new())
}

/// Returns a time long after any collective was enqueued.
fn late() -> u64 {
    1 << 60
}

#[test]
fn handles_are_never_null_and_come_back() {
    for handle in [
        Handle::Coll(1),
        Handle::Coll(1 << 55),
        Handle::Kernel(1, 0),
        Handle::Kernel(7, 63),
    ] {
        assert!(!handle.pack().is_null());
        assert_eq!(Handle::unpack(handle.pack()), Some(handle));
    }
    for foreign in [0usize, 3, 4, 0x7fff_dead_bee8] {
        assert_eq!(Handle::unpack(foreign as *mut c_void), None);
    }
}

#[test]
fn the_last_channel_tells_the_whole_collective() {
    let table = table();
    assert_eq!(table.claim(5, 0xc, 3, 0), Claim::Taken);
    // Channels start and end in any order. The collective lasts from the first start to the last end.
    for (channel, at) in [(0, 100), (9, 90), (63, 120)] {
        assert!(table.start(5, channel, at));
    }
    for (channel, at) in [(9, 400), (0, 380)] {
        table.ends(5, channel, at);
        assert_eq!(table.stop(5, channel, late), None);
    }
    table.ends(5, 63, 410);
    let timed = table.stop(5, 63, late).unwrap();
    assert_eq!((timed.start_ns, timed.duration_ns, timed.channels), (90, 320, 3));
    assert_eq!((timed.ticket, timed.comm), (5, 0xc));
    assert_eq!(table.stop(5, 63, late), None, "its slot is free");
}

#[test]
fn what_is_stale_or_comes_twice_does_nothing() {
    let table = table();
    assert!(!table.start(5, 0, 1), "of nothing");
    table.claim(5, 0xc, 2, 0);
    assert_eq!(table.stop(5, 0, late), None, "never started");
    assert!(table.start(5, 0, 100));
    assert!(!table.start(5, 0, 50), "twice");
    assert!(!table.start(5, 64, 50), "no such channel");
    table.ends(5, 0, 200);
    assert_eq!(table.stop(5, 0, late), None);
    assert_eq!(table.stop(5, 0, late), None, "a double stop is no second channel");
    table.ends(5, 0, 9_999);
    assert!(table.start(5, 1, 110));
    table.ends(5, 1, 210);
    let timed = table.stop(5, 1, late).unwrap();
    assert_eq!(
        (timed.start_ns, timed.duration_ns),
        (100, 110),
        "nor is a state after stop"
    );
}

#[test]
fn an_old_one_makes_room_and_is_told_as_given_up() {
    let table = table();
    let next = 5 + SLOTS as u64;
    table.claim(5, 0xc, 2, 0);
    table.start(5, 0, 100);
    let Claim::Evicted(old) = table.claim(next, 0xd, 1, 0) else {
        panic!("not evicted")
    };
    assert_eq!((old.ticket, old.comm, old.duration_ns), (5, 0xc, 0));
    table.ends(5, 0, 1);
    assert_eq!(table.stop(5, 0, late), None, "the old ticket is stale");
    assert!(table.start(next, 0, 300));
    table.ends(next, 0, 340);
    assert_eq!(table.stop(next, 0, late).map(|timed| timed.duration_ns), Some(40));
    assert_eq!(
        table.claim(next + SLOTS as u64, 0xd, 1, 0),
        Claim::Taken,
        "one that is done is no loss"
    );
}

#[test]
fn a_communicator_that_ends_gives_up_its_own() {
    let table = table();
    for (ticket, comm) in [(1, 0xa), (2, 0xb), (3, 0xa)] {
        table.claim(ticket, comm, 1, 0);
    }
    table.start(3, 0, 1);
    assert!(table.stop(3, 0, late).is_some());
    let mut told = Vec::new();
    let mut pin = None;
    table.forget(0xa, |timed| {
        told.push(timed.ticket);
        pin = table.pin(1);
    });
    assert_eq!(told, [1]);
    assert!(
        pin.is_none(),
        "nobody works in it meanwhile, or it would be told twice"
    );
    assert_eq!(table.claim(1 + SLOTS as u64, 0xb, 1, 0), Claim::Taken);
    assert!(table.start(2, 0, 5), "the other one goes on");
}

/// Two threads end the channels of a collective, a third wraps around and takes free slots, and a fourth ends the
/// communicator repeatedly. Every report must be complete, every collective must be reported or abandoned exactly once,
/// and no slot may stay taken.
#[test]
fn threads_tell_each_collective_once() {
    const ALL: u64 = 200_000;
    let table = table();
    let told = AtomicU64::new(0);
    let given_up = AtomicU64::new(0);
    let claimed = AtomicU64::new(0);
    let refused = AtomicU64::new(0);
    let give_up = || table.forget(1, |_| _ = given_up.fetch_add(1, Relaxed));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for ticket in 1..=ALL {
                match table.claim(ticket, 1, 2, 0) {
                    Claim::Taken => {}
                    Claim::Evicted(_) => _ = given_up.fetch_add(1, Relaxed),
                    Claim::Refused => _ = refused.fetch_add(1, Relaxed),
                }
                claimed.store(ticket, Release);
            }
        });
        scope.spawn(|| {
            while claimed.load(Relaxed) < ALL {
                give_up();
            }
        });
        for channel in 0..2 {
            let (table, told, claimed) = (&table, &told, &claimed);
            scope.spawn(move || {
                for ticket in 1..=ALL {
                    while claimed.load(Acquire) < ticket {
                        std::hint::spin_loop();
                    }
                    if table.start(ticket, channel, 1_000 * ticket + u64::from(channel)) {
                        table.ends(ticket, channel, 1_000 * ticket + 500 + u64::from(channel));
                        if let Some(timed) = table.stop(ticket, channel, late) {
                            assert_eq!(timed.ticket as u64, ticket);
                            assert!(
                                (500..=501).contains(&timed.duration_ns),
                                "{timed:?} mixes two collectives"
                            );
                            told.fetch_add(1, Relaxed);
                        }
                    }
                }
            });
        }
    });
    give_up();
    for ticket in ALL + 1..=ALL + SLOTS as u64 {
        assert_eq!(table.claim(ticket, 2, 1, 0), Claim::Taken);
    }
    let [told, given_up, refused] = [told, given_up, refused].map(AtomicU64::into_inner);
    assert_eq!(told + given_up + refused, ALL);
    // How many collectives are reported under contention depends on the scheduler. Without contention each one is
    // reported.
    let calm = ALL + 1;
    for channel in 0..2 {
        assert!(table.start(calm, channel, 1_000));
        table.ends(calm, channel, 1_500);
    }
    let told = (0..2)
        .filter_map(|channel| table.stop(calm, channel, late))
        .count();
    assert_eq!(told, 1);
}

/// Graph replays are counted on the device and not on the host, so a later collective gets the times of another
/// collective's kernel.
#[test]
fn what_took_longer_than_it_can_have_has_no_time() {
    let table = table();
    let of = |ticket, duration_ns: u64| {
        table.claim(ticket, 0xc, 1, 5_000_000);
        table.start(ticket, 0, 100);
        table.ends(ticket, 0, 100 + duration_ns);
        table
            .stop(ticket, 0, || 25_000_000)
            .map(|timed| timed.duration_ns)
    };
    assert_eq!(of(1, 20_000_000), Some(20_000_000));
    assert_eq!(of(2, 21_100_000), Some(21_100_000), "two clocks");
    assert_eq!(of(3, 21_300_000), Some(0));
    assert_eq!(of(4, u64::MAX / 2), Some(0));
}
